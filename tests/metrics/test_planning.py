"""Planned sample sizes, against normal theory and brute-force simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from candor_monai.metrics.comparison import total_difference
from candor_monai.metrics.planning import (
    Clustering,
    clustering_of,
    plan_against_chance,
    plan_difference,
    power_against_chance,
    power_of_difference,
)
from candor_monai.metrics.total_interval import SplitReplicates, total_interval, total_p, total_replicates
from tests.metrics.simulation import Setting, simulate


def test_worked_by_hand() -> None:
    # Independent queries: (1.96·0.5 + 0.84·√0.24)²/0.1² ≈ 194 positives for D = 0.40 at 80 %.
    plan = plan_against_chance(0.40, clustering=Clustering(design_effect=1.0))
    assert plan.queries == pytest.approx(194, abs=10)
    assert plan.patients == plan.queries
    assert plan.power == pytest.approx(0.8, abs=0.02)


def test_clusters_multiply_queries() -> None:
    one = plan_against_chance(0.40, clustering=Clustering(1.0))
    four = plan_against_chance(0.40, clustering=Clustering(4.0, images_per_patient=5))
    assert four.queries == pytest.approx(4 * one.queries, rel=0.06)
    assert four.patients == int(np.ceil(four.queries / 5))


def test_difference_against_normal_theory() -> None:
    plan = plan_difference(0.40, 0.05, clustering=Clustering(1.3, correlation=0.5))
    variance = 1.3 * (0.24 + 0.2475 - 2 * 0.5 * np.sqrt(0.24 * 0.2475))
    expected = (stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) ** 2 * variance / 0.05**2
    assert plan.queries == pytest.approx(expected, rel=0.04)
    alike = plan_difference(0.40, 0.05, clustering=Clustering(1.3, correlation=0.9))
    assert alike.queries < 0.3 * plan.queries


def test_size_is_alpha() -> None:
    for queries in (20, 100, 2000):
        assert power_against_chance(0.5, queries, Clustering(1.0)) < 0.065
    assert power_of_difference(0.4, 1e-9, 500) == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize("offset", [0.0, 8.0])
def test_power_equals_brute_force(offset: float) -> None:
    # Plan from cohorts of 60 positives what cohorts of 120 will show.
    small, large = (Setting(n, 3 * n, width=64, offset=offset, shift=1.1) for n in (60, 120))
    rng = np.random.default_rng(0)

    def evaluated(setting: Setting) -> list[SplitReplicates]:
        cohorts = simulate(setting, rng, second=0.5)
        bits = rng.integers(0, 2**16, (int(cohorts[0].units.max()) + 1, 50), dtype=np.uint16)
        return [total_replicates(one.cells[0], one.features, one.units, bits) for one in cohorts]

    pilots = [evaluated(small) for _ in range(30)]
    known = [clustering_of(*pilot) for pilot in pilots]
    kind = Clustering(
        float(np.mean([one.design_effect for one in known])),
        known[0].images_per_patient,
        float(np.mean([one.correlation for one in known])),
    )
    later = [evaluated(large)[0] for _ in range(120)]
    theta = float(np.mean([one.estimate for one in later]))
    found = np.mean([total_p(one) <= 0.05 for one in later])
    assert power_against_chance(theta, 120, kind) == pytest.approx(found, abs=0.14)


def test_clustering_of_a_cohort() -> None:
    rng = np.random.default_rng(0)
    setting = Setting(200, 800, images_per_patient=5, sets="image", within=0.3, offset=4.0)
    cohorts = simulate(setting, rng, second=0.9)
    bits = rng.integers(0, 2**16, (int(cohorts[0].units.max()) + 1, 100), dtype=np.uint16)
    one, two = (total_replicates(c.cells[0], c.features, c.units, bits, same_patient=False) for c in cohorts)
    known = clustering_of(one, two)
    assert known.images_per_patient == 5.0
    interval = total_interval(one)
    assert known.design_effect == pytest.approx(interval.sd**2 * 200 / (interval.estimate * (1 - interval.estimate)))
    gap = total_difference(one, two).sd
    sds = interval.sd, total_interval(two).sd
    assert gap**2 == pytest.approx(sds[0] ** 2 + sds[1] ** 2 - 2 * known.correlation * sds[0] * sds[1])
    assert clustering_of(one).correlation == 0.5


def test_impossible_questions() -> None:
    with pytest.raises(ValueError, match="theta is chance"):
        plan_against_chance(0.5)
    with pytest.raises(ValueError, match="difference is 0"):
        plan_difference(0.4, 0.0)
    with pytest.raises(ValueError, match="needs more than"):
        plan_against_chance(0.49999)
    with pytest.raises(ValueError, match="power must lie"):
        plan_against_chance(0.4, power=1.0)
    with pytest.raises(ValueError, match="worse must lie"):
        plan_difference(0.6, 0.5)
    with pytest.raises(ValueError, match="fewer than 10 patients"):
        power_against_chance(0.4, 30, Clustering(images_per_patient=5))
    for bad in ({"design_effect": 0.0}, {"images_per_patient": 0.5}, {"correlation": 1.0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            Clustering(**bad)


def test_a_cohort_without_spread_says_nothing() -> None:
    none = np.zeros((2, 2, 4))
    ones = np.ones(40)
    flat = SplitReplicates(
        0.0, 40, none, np.full((2, 4), 20.0), np.arange(40), ones, ones, 0 * ones, np.arange(10), 40.0
    )
    with pytest.raises(ValueError, match="every query agrees"):
        clustering_of(flat)
    few = SplitReplicates(0.4, 40, none, np.zeros((2, 4)), np.arange(40), ones, ones, 0 * ones, np.arange(10), 40.0)
    with pytest.raises(ValueError, match="need a total interval"):
        clustering_of(few)
