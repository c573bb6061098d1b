"""Mantel–Haenszel risk difference against tables worked by hand."""

import numpy as np
import pytest

from candor_monai.metrics.mantel_haenszel import mantel_haenszel_risk_difference, resampled_risk_difference


def test_two_strata_by_hand() -> None:
    # stratum 1: 8/10 against 2/10 (N 20): (8·10 − 2·10)/20 = 3, weight 10·10/20 = 5
    # stratum 2: 3/5 against 6/15 (N 20): (3·15 − 6·5)/20 = 0.75, weight 5·15/20 = 3.75
    found = mantel_haenszel_risk_difference([8, 3], [10, 5], [2, 6], [10, 15])
    assert found.value == pytest.approx(3.75 / 8.75, abs=1e-15)
    assert (found.n_strata, found.n_skipped) == (2, 0)


def test_one_stratum_is_the_plain_difference() -> None:
    assert mantel_haenszel_risk_difference([3], [4], [1], [8]).value == pytest.approx(3 / 4 - 1 / 8, abs=1e-15)


def test_strata_empty_on_a_side_are_skipped_and_counted() -> None:
    found = mantel_haenszel_risk_difference([3, 0, 2, 0], [4, 0, 2, 0], [1, 5, 0, 0], [8, 9, 0, 0])
    assert found.value == pytest.approx(3 / 4 - 1 / 8, abs=1e-15)
    assert (found.n_strata, found.n_skipped) == (1, 3)


def test_no_usable_stratum_has_no_value() -> None:
    found = mantel_haenszel_risk_difference([0], [0], [1], [2])
    assert found.value is None
    assert found.reason


def test_strata_confounded_with_the_risk_do_not_make_a_difference() -> None:
    # the same risk on both sides of each stratum, more exposed where the risk is high: pooled 18/30 against 12/30
    found = mantel_haenszel_risk_difference([16, 2], [20, 10], [8, 4], [10, 20])
    assert found.value == pytest.approx(0.0, abs=1e-15)


def test_resamples_equal_single_tables() -> None:
    rng = np.random.default_rng(0)
    n1, n0 = rng.integers(0, 6, (2, 4, 50))
    e1, e0 = rng.binomial(n1, 0.4), rng.binomial(n0, 0.3)
    many = resampled_risk_difference(e1, n1, e0, n0)
    for b in range(50):
        one = mantel_haenszel_risk_difference(e1[:, b], n1[:, b], e0[:, b], n0[:, b]).value
        assert np.isnan(many[b]) if one is None else one == many[b]


@pytest.mark.parametrize(
    "counts, words",
    [(([2], [1], [0], [1]), "stratum 0: 2 events among 1 exposed"), (([0], [1], [0, 1], [1, 1]), "one length")],
)
def test_impossible_counts_are_refused(counts: tuple, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        mantel_haenszel_risk_difference(*counts)
