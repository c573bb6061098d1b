"""q-values, against hand-worked ones and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from candor_monai.metrics.multiplicity import benjamini_hochberg, studentised_p


def test_worked_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.5 of 4: 0.04, 0.04, 0.04, 0.5.
    assert benjamini_hochberg([0.5, 0.01, 0.03, 0.02]) == pytest.approx([0.5, 0.04, 0.04, 0.04])


@pytest.mark.parametrize("size", [1, 2, 50, 573])
def test_equals_scipy(size: int) -> None:
    p = np.random.default_rng(size).random(size) ** 3
    np.testing.assert_allclose(benjamini_hochberg(p.tolist()), stats.false_discovery_control(p), rtol=1e-14)


@pytest.mark.parametrize(
    "p, q",
    [
        ([], []),
        ([None], [None]),
        ([None, 0.04], [None, 0.04]),
        ([1.0, 1.0], [1.0, 1.0]),
        ([0.0, 1.0], [0.0, 1.0]),
        ([0.2, 0.2, 0.2], [0.2, 0.2, 0.2]),
    ],
)
def test_degenerate_families(p: list, q: list) -> None:
    assert benjamini_hochberg(p) == q


@pytest.mark.parametrize("bad", [float("nan"), -0.1, 1.5])
def test_bad_p_names_the_row(bad: float) -> None:
    with pytest.raises(ValueError, match="row 2 is"):
        benjamini_hochberg([0.1, None, bad])


def test_studentised_p() -> None:
    assert studentised_p(3.0, 1.5, 1.0, freedom=9) == pytest.approx(2 * stats.t.sf(2 / 1.5, 9))
    assert studentised_p(30.0, 1.0) < 1e-100
    assert (studentised_p(0.5, 0.0, 0.5), studentised_p(0.4, 0.0, 0.5)) == (1.0, 0.0)
    with pytest.raises(ValueError, match="sd must be"):
        studentised_p(1.0, float("nan"))
