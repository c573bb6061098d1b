"""Simulated cohorts have the structure that their setting asks for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.metrics.inference_cases import mean_similarity
from tests.metrics.simulation import Setting, simulate


def test_smallest_cohort() -> None:
    cohort = simulate(Setting(positives=7, images=20, k=2), np.random.default_rng(0))[0]
    (cell,) = cohort.cells
    assert (cell.n, len(cell.queries), int(cohort.labels.sum())) == (7, 7, 7)
    assert len(np.unique(cohort.units)) == len(cohort.units) == 14
    for row, query in enumerate(cell.queries):
        # One negative fewer, the last drawn, because the query leaves its own side.
        if query in cell.cand_pos:
            c_neg = mean_similarity(cohort.features, np.array([query]), cell.cand_neg[:-1], cohort.units, 2, True)
            assert cell.c_neg[row] == pytest.approx(c_neg[0], abs=1e-6)
        c_pos = mean_similarity(cohort.features, np.array([query]), cell.cand_pos, cohort.units, 2, True)
        assert cell.c_pos[row] == pytest.approx(c_pos[0], abs=1e-6)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("images_per_patient", [0, 5, 20])
def test_patients_and_labels(images_per_patient: int, mixed: bool) -> None:
    setting = Setting(200, 900, images_per_patient=images_per_patient, mixed=mixed, sets="image")
    cohort = simulate(setting, np.random.default_rng(1))[0]
    labels, units = cohort.labels[:, 0], cohort.units
    assert labels.sum() == 200
    both = np.intersect1d(units[labels == 1], units[labels == 0])
    assert (len(both) > 3) if mixed else (len(both) <= 1)
    assert np.bincount(units[labels == 1]).max() <= 20


def test_effects_and_hubs_do_what_they_are_for() -> None:
    def spread(**options: float) -> tuple[float, float]:
        setting = Setting(positives=60, images=200, **options)  # type: ignore[arg-type]
        rng = np.random.default_rng(2)
        values = [float((simulate(setting, rng)[0].cells[0].dm > 0).mean()) for _ in range(60)]
        return float(np.mean(values)), float(np.std(values))

    plain, hubs, effect = spread(), spread(offset=8.0), spread(shift=2.0)
    assert abs(plain[0] - 0.5) < 0.05
    assert abs(hubs[0] - 0.5) < 0.08
    assert hubs[1] > 1.3 * plain[1]
    assert effect[0] < 0.3


def test_groups_findings_and_a_second_encoder() -> None:
    setting = Setting(positives=20, images=80, groups=2, findings=3)
    first, second = simulate(setting, np.random.default_rng(3), second=0.5)
    assert [(cell.finding, cell.group) for cell in first.cells[::4]] == [("finding0", "group0"), ("finding1", "group1")]
    assert len(first.cells) == 6
    for one, two in zip(first.cells, second.cells, strict=True):
        np.testing.assert_array_equal(one.cand_neg, two.cand_neg)
    correlation = np.corrcoef(first.features.ravel(), second.features.ravel())[0, 1]
    assert abs(correlation - 0.5) < 0.05
    same = simulate(replace(setting, groups=1), np.random.default_rng(3), second=1.0)
    np.testing.assert_allclose(same[0].features, same[1].features, atol=1e-6)
