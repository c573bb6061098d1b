"""Paired comparisons of encoders."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from candor_monai.metrics.comparison import (
    conditional_difference,
    not_worse_than_best,
    p_best,
    total_difference,
)
from candor_monai.metrics.permutation import NullReplicates
from candor_monai.metrics.resampling import Replicates, patient_weights, resample_mean
from candor_monai.metrics.total_interval import (
    SplitReplicates,
    difference_variance,
    pool_splits,
    total_interval,
    total_replicates,
    total_variance,
    weighted_mean_splits,
)
from tests.metrics.simulation import Setting, simulate


def splits(table: list, estimate: float, queries: int = 40) -> SplitReplicates:
    values, units, ones = np.asarray(table, dtype=float), np.arange(queries), np.ones(queries)
    below = np.full((2, values.shape[2]), queries / 2)
    return SplitReplicates(
        estimate, queries, values * below[:, None], below, units, ones, ones, 0 * ones, units[:10], float(queries)
    )


def two_encoders(seed: int, correlation: float, **options: float) -> list[SplitReplicates]:
    setting = Setting(**({"positives": 60, "images": 180, "width": 32, "offset": 5.0} | options))  # type: ignore[arg-type]
    rng = np.random.default_rng(seed)
    cohorts = simulate(setting, rng, second=correlation)
    bits = rng.integers(0, 2**16, (int(cohorts[0].units.max()) + 1, 60), dtype=np.uint16)
    return [total_replicates(one.cells[0], one.features, one.units, bits) for one in cohorts]


def test_worked_by_hand() -> None:
    # The halves' differences are ±0.2 less ±0.1: the variance of the difference is 0.1²/4.
    one = splits([[[0.5, 0.3], [0.5, 0.3]], [[0.3, 0.5], [0.3, 0.5]]], 0.40)
    two = splits([[[0.5, 0.4], [0.5, 0.4]], [[0.4, 0.5], [0.4, 0.5]]], 0.45)
    found = total_difference(one, two)
    assert found.estimate == pytest.approx(-0.05)
    assert found.sd == pytest.approx(0.05)
    reach = stats.t.ppf(0.975, one.freedom) * 0.05
    assert (found.lo, found.hi) == (pytest.approx(-0.05 - reach), pytest.approx(-0.05 + reach))
    assert found.p == pytest.approx(2 * stats.t.sf(1, one.freedom))
    assert total_difference(two, one).estimate == -found.estimate


def test_the_queries_own_variance_is_taken_where_it_is_larger() -> None:
    # 40 patients of one query: three are discordant under the first encoder alone, one under the second alone.
    table = [[[0.5, 0.3], [0.5, 0.3]], [[0.3, 0.5], [0.3, 0.5]]]
    one, two = np.zeros(40), np.zeros(40)
    one[[0, 1, 2, 8]], two[[3, 8]] = 1, 1
    parts = [replace(splits(table, v.mean()), influence=v - v.mean()) for v in (one, two)]
    own = np.sum(((one - two) - (one - two).mean()) ** 2) / 40**2
    assert difference_variance(*parts) == pytest.approx(own)  # the halves see no difference
    far = replace(parts[1], numerators=parts[0].numerators * [[[0.5]], [[1.0]]])
    halves = total_variance(parts[0].table() - far.table(), share=0.2)
    assert halves > own
    assert difference_variance(parts[0], far) == pytest.approx(halves)


def test_influences_are_pooled_as_their_values_are() -> None:
    one, two = two_encoders(4, 0.9)
    assert abs(one.influence.sum()) < 1e-9
    own = float(one.influence @ one.influence) / one.weight**2
    assert own == pytest.approx(one.estimate * (1 - one.estimate) / 60)
    apart = [replace(part, units=part.units + shift) for shift in (0, 1000) for part in (one, two)]
    pooled = pool_splits(apart[::2])  # the same cell twice, as of other patients: half the variance
    assert float(pooled.influence @ pooled.influence) / pooled.weight**2 == pytest.approx(own / 2)
    mean = weighted_mean_splits([one, two], [3.0, 1.0])  # the same patients
    both = (3 * one.influence[one.influence != 0] + two.influence[two.influence != 0]) / 4 / 60
    assert float(mean.influence @ mean.influence) / mean.weight**2 == pytest.approx(float(both @ both))


def test_of_what_candidates_share_differences_count_more() -> None:
    # The two encoders differ by ±0.1 with the half of the candidates, whoever asks.
    one = splits([[[0.5, 0.3], [0.3, 0.5]], [[0.5, 0.3], [0.3, 0.5]]], 0.4)
    two = splits([[[0.4, 0.4], [0.4, 0.4]], [[0.4, 0.4], [0.4, 0.4]]], 0.4)
    assert difference_variance(one, two) == pytest.approx(0.2**2 / 4 + 0.2 * 0.2**2 / 2)
    strong = replace(one, crowding=0.3)
    assert difference_variance(strong, two) == pytest.approx(0.2**2 / 4 + 0.5 * 0.2**2 / 2)


def test_pairing_narrows_the_difference() -> None:
    one, two = two_encoders(0, 0.95)
    apart = np.hypot(total_interval(one).sd, total_interval(two).sd)
    assert total_difference(one, two).sd < 0.7 * apart


def test_an_encoder_against_itself() -> None:
    one, _ = two_encoders(0, 0.5)
    found = total_difference(one, one)
    assert (found.estimate, found.sd, found.lo, found.hi, found.p) == (0.0, 0.0, 0.0, 0.0, 1.0)
    best = not_worse_than_best([one, one])
    assert (best.members, best.p) == ((0, 1), (1.0, 1.0))


def test_conditional_difference_is_paired() -> None:
    weights = patient_weights([str(i) for i in range(200)], 42, 1000)
    rng = np.random.default_rng(0)
    first = rng.random(200) < 0.4
    second = first ^ (rng.random(200) < 0.1)
    one, two = (resample_mean(value, np.arange(200), weights) for value in (first, second))
    found = conditional_difference(one, two)
    changed = first.astype(float) - second
    assert found.estimate == pytest.approx(changed.mean())
    assert found.sd == pytest.approx(changed.std() / np.sqrt(200), rel=0.1)
    assert found.lo <= found.estimate <= found.hi
    assert conditional_difference(one, one).p == 1.0


def test_p_below_what_resamples_can_show_is_studentised() -> None:
    weights = patient_weights([str(i) for i in range(400)], 42, 200)
    one, two = (resample_mean(np.arange(400) < cut, np.arange(400), weights) for cut in (40, 300))
    found = conditional_difference(one, two)
    assert 0 < found.p < 1e-20


def test_best_set_keeps_equals_and_drops_the_worse() -> None:
    rng = np.random.default_rng(1)

    def encoder(value: float, noise: float) -> SplitReplicates:
        half = rng.normal(0, noise, 400)
        table = value + np.stack([[half, half], [-half, -half]])
        return splits(table, value, 200)

    parts = [encoder(0.30, 0.02), encoder(0.31, 0.02), encoder(0.50, 0.02), encoder(0.29, 0.02)]
    best = not_worse_than_best(parts)
    assert best.best == 3
    assert best.members == (0, 1, 3)
    assert best.p[2] < 1e-3
    assert not_worse_than_best(parts) == best
    without = not_worse_than_best([*parts, replace(parts[0], estimate=0.0, reason="tied")])
    assert without.members == best.members
    assert (without.p[4], without.reasons[4]) == (None, "tied")


def test_best_set_of_encoders_that_differ_in_the_whole_cell_alone() -> None:
    table = [[[0.5, 0.3], [0.5, 0.3]], [[0.3, 0.5], [0.3, 0.5]]]
    influence = np.where(np.arange(40) < 20, 0.5, -0.5)
    parts = [replace(splits(table, 0.5), influence=sign * influence) for sign in (1, -1)]
    best = not_worse_than_best([*parts, parts[0]])
    assert best.members == (0, 1, 2)
    assert all(p is not None and 0 < p <= 1 for p in best.p)


def test_best_set_holds_the_best_at_its_level() -> None:
    rng = np.random.default_rng(2)
    kept, runs = 0, 80
    for _ in range(runs):
        # Six equally good encoders whose errors share a part, as their splits do.
        errors = 0.02 * (0.6 * rng.normal() + 0.8 * rng.normal(size=6))
        halves = 0.02 * (0.6 * rng.normal(size=300) + 0.8 * rng.normal(size=(6, 300)))
        made = [
            splits(np.stack([[half, half], [-half, -half]]), error, 300)
            for half, error in zip(halves, errors, strict=True)
        ]
        kept += 0 in not_worse_than_best(made).members
    assert 0.87 * runs < kept < runs


def test_p_best_counts_the_smallest_of_all() -> None:
    def null(value: float, others: list[float]) -> NullReplicates:
        return NullReplicates(Replicates(value, 1.0, np.array(others), np.ones(len(others))), 40, 40)

    nulls = [null(0.30, [0.5, 0.4, 0.29]), null(0.35, [0.2, 0.6, 0.5, 0.1])]
    assert p_best(nulls) == (1 + 2) / 4
    assert p_best([*nulls, replace(nulls[0], reason="tied")]) is None
    with pytest.raises(ValueError, match="no encoder"):
        p_best([])


def test_reasons_travel() -> None:
    one, two = two_encoders(0, 0.5)
    few = replace(two, reason="fewer than 10 positive patients (9)")
    assert total_difference(one, few).reason == "fewer than 10 positive patients (9)"
    assert total_difference(one, few).lo is None
    nothing = Replicates(0.0, 0.0, np.zeros(5), np.zeros(5))
    assert conditional_difference(nothing, nothing).reason == "no query"
    assert not_worse_than_best([few]).best is None
    with pytest.raises(ValueError, match="same splits"):
        total_difference(one, splits([[[0.5] * 2] * 2] * 2, 0.5))
    with pytest.raises(ValueError, match="same resamples"):
        conditional_difference(nothing, Replicates(0.0, 0.0, np.zeros(4), np.zeros(4)))
