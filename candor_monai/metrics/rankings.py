"""Do two measures rank encoders alike, and do D and D_all depend on the size of a finding?

Source: arXiv 2607.18451 (agreement with heads, trends); p clustered by finding is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from scipy import stats

_EXACT_UP_TO = 8
_DRAWS = 9_999


@dataclass(frozen=True)
class Agreement:
    """A rank correlation or a slope; undefined numbers are None.

    Args:
        value: Spearman's correlation, its mean over findings, or a slope.
        p: two-sided, of no association.
        count: units that p rests on (encoders, findings, or clusters).
        reason: why there is no value or no p, or None.
    """

    value: float | None
    p: float | None
    count: int
    reason: str | None = None


def spearman(first: Sequence[float], second: Sequence[float]) -> Agreement:
    """Spearman's correlation with p: exact by all permutations up to 8 values, by 9,999 random ones beyond.

    Raises:
        ValueError: the lengths differ, or a value is not finite.

    Examples:
        >>> spearman([1, 2, 3, 4], [10, 20, 30, 40])
        Agreement(value=1.0, p=0.08333333333333333, count=4, reason=None)
    """
    one, two = _pair(first, second)
    reason = _degenerate(one, two)
    if reason is not None:
        return Agreement(None, None, len(one), reason)
    x, y = _centred(one), _centred(two)
    norm = _norm(x, y)
    value = float(x @ y / norm)
    null = y[_orders(len(y))] @ x / norm
    return Agreement(value, _two_sided(value, null, len(y)), len(one))


def mean_spearman(first: np.ndarray, second: np.ndarray) -> Agreement:
    """Mean over findings of the Spearman correlation over encoders.

    p exchanges encoders, the same exchange in all findings: what is common to an encoder's findings is no
    evidence of agreement.

    Args:
        first, second: shape (encoders, findings); NaN where not estimable. A finding needs all encoders in both.

    Raises:
        ValueError: the shapes differ.
    """
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.shape != two.shape or one.ndim != 2:
        raise ValueError(f"first and second must have one shape (encoders, findings), not {one.shape} and {two.shape}")
    kept = [
        f
        for f in range(one.shape[1])
        if np.isfinite(one[:, f]).all() and np.isfinite(two[:, f]).all() and _degenerate(one[:, f], two[:, f]) is None
    ]
    if not kept:
        return Agreement(None, None, 0, "no finding has all encoders in both measures")
    x = np.stack([_centred(one[:, f]) for f in kept], axis=1)
    y = np.stack([_centred(two[:, f]) for f in kept], axis=1)
    norm = np.array([_norm(*pair) for pair in zip(x.T, y.T, strict=True)])
    value = float(((x * y).sum(axis=0) / norm).mean())
    null = np.einsum("ef,oef->o", x / norm, y[_orders(len(y))]) / len(kept)
    return Agreement(value, _two_sided(value, null, len(y)), len(kept))


def clustered_spearman(first: Sequence[float], second: Sequence[float], clusters: Sequence[str]) -> Agreement:
    """Spearman's correlation over encoder × finding, with p clustered by finding.

    The number of positives belongs to a finding, not to an encoder: p exchanges whole findings. Where `second`
    is constant within findings that exchange is exact; else the findings' profiles are exchanged as they are,
    which needs equally many rows in all findings.

    Args:
        first: D or D_all of each row.
        second: the number of positives, say, of each row.
        clusters: finding of each row.

    Raises:
        ValueError: the lengths differ, or a value is not finite.
    """
    one, two = _pair(first, second)
    names = np.asarray(clusters)
    if names.shape != one.shape:
        raise ValueError(f"clusters has shape {names.shape}, first {one.shape}")
    reason = _degenerate(one, two)
    if reason is not None:
        return Agreement(None, None, len(np.unique(names)), reason)
    found, code, counts = np.unique(names, return_inverse=True, return_counts=True)
    x, y = _centred(one), _centred(two)
    norm = _norm(x, y)
    value = float(x @ y / norm)
    if len(found) < 3:
        return Agreement(value, None, len(found), "fewer than 3 findings")
    constant = all(np.ptp(two[code == c]) == 0 for c in range(len(found)))
    if not constant and len(set(counts)) > 1:
        return Agreement(value, None, len(found), "findings have different numbers of rows")
    if constant:
        level = np.array([two[code == c][0] for c in range(len(found))])
        ranks = stats.rankdata(level[_orders(len(found))][:, code], axis=1)
        ranks -= ranks.mean(axis=1, keepdims=True)
        null = ranks @ x / np.sqrt(np.einsum("on,on->o", ranks, ranks) * (x @ x))
    else:
        rows = np.stack([np.flatnonzero(code == c) for c in range(len(found))])
        null = np.einsum("cr,ocr->o", x[rows], y[rows][_orders(len(found))]) / norm
    return Agreement(value, _two_sided(value, null, len(found)), len(found))


def clustered_slope(x: Sequence[float], y: Sequence[float], clusters: Sequence[str], within: bool = False) -> Agreement:
    """Least-squares slope of y on x with p from cluster-robust standard errors (CR1, t with clusters − 1).

    Args:
        x: release year of the encoder, or size of the finding, of each row.
        y: D of each row.
        clusters: finding (or encoder) of each row.
        within: compare within clusters only (an intercept for each).

    Raises:
        ValueError: the lengths differ, or a value is not finite.

    Examples:
        >>> clustered_slope([0, 1, 2, 0, 1, 2], [0, 1, 2, 1, 2, 3], list("aaabbb"), within=True).value
        1.0
    """
    across, value = _pair(x, y)
    names = np.asarray(clusters)
    if names.shape != across.shape:
        raise ValueError(f"clusters has shape {names.shape}, x {across.shape}")
    found, code = np.unique(names, return_inverse=True)
    if within:
        across, value = (one - (np.bincount(code, one) / np.bincount(code))[code] for one in (across, value))
    else:
        across, value = across - across.mean(), value - value.mean()
    squares = float(across @ across)
    if squares <= 1e-12 * max(1.0, float(np.abs(np.asarray(x, dtype=np.float64)).max()) ** 2):
        return Agreement(None, None, len(found), "x does not vary")
    slope = float(across @ value) / squares
    if len(found) < 3:
        return Agreement(slope, None, len(found), "fewer than 3 clusters")
    scores = np.bincount(code, across * (value - slope * across))
    rows = len(across)
    spent = len(found) + 1 if within else 2
    if rows <= spent:
        return Agreement(slope, None, len(found), "too few rows")
    correction = len(found) / (len(found) - 1) * (rows - 1) / (rows - spent)
    variance = correction * float(scores @ scores) / squares**2
    if variance <= 0:
        return Agreement(slope, 0.0 if slope else 1.0, len(found))
    return Agreement(slope, float(2 * stats.t.sf(abs(slope) / np.sqrt(variance), len(found) - 1)), len(found))


def _pair(first: Sequence[float], second: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.shape != two.shape or one.ndim != 1:
        raise ValueError(f"first and second must be one-dimensional and equally long, not {one.shape} and {two.shape}")
    bad = np.flatnonzero(~(np.isfinite(one) & np.isfinite(two)))
    if len(bad):
        raise ValueError(f"row {bad[0]} is not finite")
    return one, two


def _degenerate(one: np.ndarray, two: np.ndarray) -> str | None:
    if len(one) < 3:
        return "fewer than 3 values"
    if np.ptp(one) == 0 or np.ptp(two) == 0:
        return "all values are equal"
    return None


def _centred(values: np.ndarray) -> np.ndarray:
    """Ranks less their mean: multiples of a half, so that sums over them are exact."""
    ranks = stats.rankdata(values)
    return ranks - (len(ranks) + 1) / 2


def _norm(x: np.ndarray, y: np.ndarray) -> float:
    """What the dot product of two centred ranks is divided by; of equal or opposite orders it gives ±1 to the bit."""
    return float(np.sqrt((x @ x) * (y @ y)))


def _orders(count: int) -> np.ndarray:
    """All orders of few things, or many random ones, the same every time."""
    if count <= _EXACT_UP_TO:
        return np.array(list(permutations(range(count))))
    rng = np.random.Generator(np.random.Philox(key=count))
    return np.argsort(rng.random((_DRAWS, count)), axis=1)


def _two_sided(value: float, null: np.ndarray, count: int) -> float:
    extreme = int((np.abs(null) >= abs(value) - 1e-12).sum())
    if count <= _EXACT_UP_TO:
        return extreme / len(null)
    return (1 + extreme) / (1 + len(null))
