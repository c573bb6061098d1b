"""Overlap of discordant sets, against hand-worked values, SciPy and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from candor_monai.metrics.overlap import convolved, discordant_overlap, hypergeometric_pmf, upper_tail


def test_worked_by_hand() -> None:
    # M = 4, a = 2, b = 2, o = 1: P[X = 0, 1, 2] = 1/6, 4/6, 1/6.
    found = discordant_overlap(np.array([1, 1, 0, 0], bool), np.array([0, 1, 1, 0], bool))
    assert (found.queries, found.first, found.second, found.both, found.expected) == (4, 2, 2, 1, 1.0)
    assert found.p == pytest.approx(5 / 6)
    assert found.jaccard == pytest.approx(1 / 3)
    # E[J] = 4/6·1/3 + 1/6·1
    assert found.jaccard_excess == pytest.approx(1 / 3 - (4 / 18 + 1 / 6))
    assert (found.p_stratified, found.expected_stratified) == (pytest.approx(found.p), 1.0)


def test_two_groups_by_hand() -> None:
    # Both encoders fail on all of group 0 and on nothing of group 1: nothing is left to explain.
    both = np.array([1, 1, 0, 0], bool)
    found = discordant_overlap(both, both, np.array([0, 0, 1, 1]))
    assert found.p == pytest.approx(1 / 6)
    assert found.p_stratified == pytest.approx(1.0)
    assert found.expected_stratified == 2.0
    assert found.jaccard_excess_stratified == pytest.approx(0.0)


@pytest.mark.parametrize("seed", range(5))
def test_equals_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, two = rng.random(500) < 0.3, rng.random(500) < 0.5
    found = discordant_overlap(one, two)
    assert found.p == pytest.approx(stats.hypergeom.sf(found.both - 1, 500, one.sum(), two.sum()), rel=1e-9)


def test_stratified_is_the_distribution_of_the_sum() -> None:
    rng = np.random.default_rng(0)
    sizes = [(20, 8, 5), (30, 3, 20)]
    pmf = convolved([hypergeometric_pmf(*size) for size in sizes])
    draws = sum(rng.hypergeometric(a, m - a, b, 20_000) for m, a, b in sizes)
    observed = np.bincount(draws, minlength=len(pmf)) / 20_000
    assert np.abs(observed - pmf).max() < 0.015
    assert upper_tail(pmf, 0) == pytest.approx(1.0)


def test_groups_that_differ_look_dependent_only_when_pooled() -> None:
    rng = np.random.default_rng(1)
    groups = np.repeat([0, 1], 400)
    rate = np.where(groups == 0, 0.1, 0.7)
    pooled, stratified = [], []
    for _ in range(200):
        found = discordant_overlap(rng.random(800) < rate, rng.random(800) < rate, groups)
        pooled.append(found.p)
        stratified.append(found.p_stratified)
    assert max(pooled) < 1e-6
    assert 0.01 < np.mean(np.array(stratified) <= 0.05) < 0.09


def test_small_p_keeps_its_digits() -> None:
    both = np.arange(1000) < 500
    found = discordant_overlap(both, both)
    assert 0 < found.p < 1e-290
    assert found.p == pytest.approx(stats.hypergeom.pmf(500, 1000, 500, 500), rel=1e-9)


@pytest.mark.parametrize(
    "first, second, jaccard, excess",
    [
        ([], [], None, None),
        ([False], [False], None, None),
        ([True], [True], 1.0, 0.0),
        ([True, False], [False, False], 0.0, 0.0),
        ([True] * 5, [True] * 5, 1.0, 0.0),
    ],
)
def test_degenerate_sets(first: list, second: list, jaccard: float | None, excess: float | None) -> None:
    found = discordant_overlap(np.array(first, bool), np.array(second, bool))
    assert found.jaccard == jaccard
    assert found.jaccard_excess == (None if excess is None else pytest.approx(excess))
    assert found.p == (None if not first else pytest.approx(1.0))


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="first must be"):
        discordant_overlap(np.array([0, 1]), np.array([True, False]))
    with pytest.raises(ValueError, match="second"):
        discordant_overlap(np.array([True]), np.array([True, False]))
    with pytest.raises(ValueError, match="groups has shape"):
        discordant_overlap(np.array([True]), np.array([True]), np.array([0, 1]))
