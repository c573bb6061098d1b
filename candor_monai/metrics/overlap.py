"""Do two encoders fail on the same queries? Overlap of their discordant sets against chance.

Given the M shared queries and the set sizes a and b, the overlap of two independent sets is hypergeometric.
Where groups differ in how often queries are discordant, sets look dependent although they are independent within
every group: the stratified test adds up one hypergeometric per group.

Source: arXiv 2607.18451 (pooled test, J, ΔJ); the stratified test is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Overlap:
    """Overlap of two discordant sets; undefined numbers are None.

    Args:
        queries: shared queries M.
        first, second: sizes a and b of the two sets.
        both: their overlap o.
        expected: ab/M, the overlap of independent sets.
        p: P[X ≥ o], one hypergeometric over all queries.
        p_stratified: P[X ≥ o], the sum of one hypergeometric per group.
        expected_stratified: the mean of that sum.
        jaccard: J = o/(a + b − o); None where both sets are empty.
        jaccard_excess: ΔJ = J − E[J]; None where both sets are empty.
        jaccard_excess_stratified: ΔJ with E[J] over the stratified distribution.
    """

    queries: int
    first: int
    second: int
    both: int
    expected: float | None
    p: float | None
    p_stratified: float | None
    expected_stratified: float | None
    jaccard: float | None
    jaccard_excess: float | None
    jaccard_excess_stratified: float | None


def discordant_overlap(first: np.ndarray, second: np.ndarray, groups: np.ndarray | None = None) -> Overlap:
    """Overlap of the discordant sets of two encoders over their shared queries.

    Args:
        first, second: whether each shared query is discordant, shape (M,), bool.
        groups: matched group of each query, shape (M,); None: one group.

    Raises:
        ValueError: the shapes differ, or a set is not boolean.

    Examples:
        >>> overlap = discordant_overlap(np.array([1, 1, 0, 0], bool), np.array([1, 1, 0, 0], bool))
        >>> overlap.both, round(overlap.p, 4), overlap.jaccard
        (2, 0.1667, 1.0)
    """
    one, two = _checked("first", first), _checked("second", second)
    if one.shape != two.shape:
        raise ValueError(f"first has shape {one.shape}, second {two.shape}")
    strata = np.zeros(len(one), np.int64) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    if strata.shape != one.shape:
        raise ValueError(f"groups has shape {strata.shape}, first {one.shape}")
    count, a, b, both = len(one), int(one.sum()), int(two.sum()), int((one & two).sum())
    if not count:
        return Overlap(0, 0, 0, 0, *(None,) * 7)
    pooled = hypergeometric_pmf(count, a, b)
    sizes = [(int((strata == s).sum()), int(one[strata == s].sum()), int(two[strata == s].sum())) for s in set(strata)]
    stratified = convolved([hypergeometric_pmf(*size) for size in sizes])
    jaccard = both / (a + b - both) if a + b else None
    return Overlap(
        queries=count,
        first=a,
        second=b,
        both=both,
        expected=a * b / count,
        p=upper_tail(pooled, both),
        p_stratified=upper_tail(stratified, both),
        expected_stratified=float(sum(x * y / m for m, x, y in sizes)),
        jaccard=jaccard,
        jaccard_excess=None if jaccard is None else jaccard - _expected_jaccard(pooled, a, b),
        jaccard_excess_stratified=None if jaccard is None else jaccard - _expected_jaccard(stratified, a, b),
    )


def hypergeometric_pmf(count: int, first: int, second: int) -> np.ndarray:
    """P[X = x] of the overlap of two random sets, x = 0 … min(first, second).

    Examples:
        >>> hypergeometric_pmf(4, 2, 2).round(4).tolist()
        [0.1667, 0.6667, 0.1667]
    """
    return np.asarray(stats.hypergeom.pmf(np.arange(min(first, second) + 1), count, first, second))


def convolved(distributions: Sequence[np.ndarray]) -> np.ndarray:
    """Distribution of a sum of independent counts.

    Examples:
        >>> convolved([np.array([0.5, 0.5]), np.array([0.5, 0.5])]).tolist()
        [0.25, 0.5, 0.25]
    """
    out = np.ones(1)
    for one in distributions:
        out = np.convolve(out, one)
    return out


def upper_tail(pmf: np.ndarray, value: int) -> float:
    """P[X ≥ value], the smallest terms added first so that small p keep their digits."""
    return min(float(np.sort(pmf[value:]).sum()), 1.0)


def _expected_jaccard(pmf: np.ndarray, first: int, second: int) -> float:
    x = np.arange(len(pmf))
    below = first + second - x
    return float(np.sum(pmf * np.where(below > 0, x / np.maximum(below, 1), 0.0)))


def _checked(name: str, values: np.ndarray) -> np.ndarray:
    out = np.asarray(values)
    if out.dtype != np.bool_ or out.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional and boolean, not {out.dtype} of shape {out.shape}")
    return out
