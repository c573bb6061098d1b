"""A small, seeded part of the coverage grid: the total interval holds where the conditional one does not."""

from __future__ import annotations

import pytest
from scipy import stats

from tests.benchmarks.coverage import Case, run, summary
from tests.benchmarks.coverage_grid import grid
from tests.metrics.simulation import Setting

COHORTS = 120


@pytest.mark.parametrize(
    "name, conditional",
    [
        ("45 of 567, none, near 0.35", None),
        ("45 of 567, cone, near 0.5", 0.85),
        ("20 of 250, hubs, near 0.35", 0.7),
        ("difference at correlation 0.5, 45 of 90, cone, near 0.5", None),
        ("margin AUROC, 45 of 90, cone, near 0.5", None),
    ],
)
def test_coverage(name: str, conditional: float | None) -> None:
    case = grid()[name]
    found = summary(name, case, run(name, case, COHORTS))
    covered = round(float(found["coverage"]) * COHORTS)
    # Fewer would be seen once in a thousand runs if the coverage were 92 %.
    assert covered >= stats.binom.ppf(0.001, COHORTS, 0.92)
    assert float(found["width_ratio"]) <= 1.5
    if conditional is not None:
        assert float(found["conditional_coverage"]) < conditional


def test_a_setting_is_reproducible() -> None:
    case = Case(Setting(20, 60))
    assert (run("x", case, 3) == run("x", case, 3))[:, :6].all()
