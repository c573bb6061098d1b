"""Comparison of encoders: paired differences, the encoders not worse than the best, the best of blind ones.

Encoders of one run share candidate sets, queries, resamples, splits of the patients and exchanges of labels,
so everything here is paired, replicate by replicate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from .multiplicity import studentised_p
from .permutation import NullReplicates
from .resampling import MAX_EMPTY_SHARE, Replicates
from .total_interval import SplitReplicates, difference_variance, interval_reason

_DRAWS = 9_999


@dataclass(frozen=True)
class Difference:
    """A paired difference, first minus second; undefined numbers are None.

    Args:
        estimate: the difference.
        sd: its standard deviation.
        lo, hi: limits of the 95 % interval.
        p: two-sided, of no difference.
        reason: why there is no interval, or None.
    """

    estimate: float | None = None
    sd: float | None = None
    lo: float | None = None
    hi: float | None = None
    p: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class BestSet:
    """Which encoders may be the best, at simultaneous confidence.

    Args:
        best: position of the encoder with the smallest value.
        members: positions of the encoders that are not shown to be worse than the best, ascending.
        p: of "this encoder is as good as every other", adjusted for looking at all others; None where not compared.
        reasons: why an encoder is not compared, or None.
    """

    best: int | None
    members: tuple[int, ...]
    p: tuple[float | None, ...]
    reasons: tuple[str | None, ...]


def total_difference(first: SplitReplicates, second: SplitReplicates, level: float = 0.95) -> Difference:
    """Difference of D (or of an AUROC) of two encoders, over new cohorts.

    Args:
        first, second: of the same cell or pooled level, with the same splits.
        level: of the interval.

    Raises:
        ValueError: the numbers of splits differ.
    """
    if first.numerators.shape != second.numerators.shape:
        raise ValueError("first and second must have the same splits")
    estimate, reason = _gap(first, second), interval_reason(first) or interval_reason(second)
    if estimate is None or reason is not None:
        return Difference(estimate, reason=reason)
    table = first.table() - second.table()
    if np.isfinite(table).all(axis=(0, 1)).sum() < 2:
        return Difference(estimate, reason="too few candidates to split")
    sd = float(np.sqrt(difference_variance(first, second)))
    freedom = min(first.freedom, second.freedom)
    reach = float(stats.t.ppf(0.5 + level / 2, freedom)) * sd
    return Difference(estimate, sd, estimate - reach, estimate + reach, studentised_p(estimate, sd, 0.0, freedom))


def conditional_difference(first: Replicates, second: Replicates) -> Difference:
    """Difference of two encoders with the candidate sets held fixed (the paper's).

    p is twice the smaller share of resamples on either side of zero; where no resample is on one side, B
    limits it and the studentised p is given.

    Raises:
        ValueError: the numbers of resamples differ.
    """
    if first.numerators.shape != second.numerators.shape:
        raise ValueError("first and second must have the same resamples")
    estimate = _gap(first, second)
    if estimate is None:
        return Difference(reason="no query")
    values = first.values() - second.values()
    known = values[np.isfinite(values)]
    empty = len(values) - len(known)
    if empty > MAX_EMPTY_SHARE * len(values) or len(known) < 2:
        return Difference(estimate, reason=f"{empty} of {len(values)} resamples hold no query")
    sd = float(known.std(ddof=1))
    lo, hi = np.quantile(known, [0.025, 0.975])
    share = min(float((known <= 0).mean()), float((known >= 0).mean()))
    p = min(1.0, 2 * share) if share > 0 else studentised_p(estimate, sd)
    return Difference(estimate, sd, float(lo), float(hi), p)


def not_worse_than_best(parts: Sequence[SplitReplicates], level: float = 0.95) -> BestSet:
    """The encoders that are not shown to be worse than the best (smaller is better).

    Multiple comparisons with the best (Hsu 1996): encoder i leaves the set when its largest studentised
    distance to another encoder exceeds the quantile of the largest of these distances under equality, with
    their correlations from the shared splits. The truly best encoder is in the set with probability `level`.

    Args:
        parts: the same cell or pooled level of each encoder.
        level: simultaneous confidence.

    Raises:
        ValueError: the numbers of splits differ.
    """
    if len({part.numerators.shape for part in parts}) > 1:
        raise ValueError("parts must have the same splits")
    reasons = tuple(interval_reason(part) for part in parts)
    compared = [i for i, reason in enumerate(reasons) if reason is None]
    p: list[float | None] = [None] * len(parts)
    if not compared:
        return BestSet(None, (), tuple(p), reasons)
    values = np.array([parts[i].estimate for i in compared], dtype=np.float64)
    freedom = min(parts[i].freedom for i in compared)
    for i in compared:
        others = [parts[other] for other in compared if other != i]
        p[i] = _p_worse(parts[i], others, freedom) if others else 1.0
    members = tuple(i for i in compared if float(p[i] or 0.0) > 1 - level)
    return BestSet(compared[int(np.argmin(values))], members, tuple(p), reasons)


def p_best(nulls: Sequence[NullReplicates]) -> float | None:
    """Is the smallest D smaller than the smallest of as many encoders that know nothing?

    Args:
        nulls: the same cell or pooled level of each encoder, under shared exchanges.

    Returns:
        (1 + exchanges whose smallest D is at most the observed one) / (1 + exchanges); None where an encoder
        has no test against chance.

    Raises:
        ValueError: no encoder is given.
    """
    if not nulls:
        raise ValueError("nulls: no encoder is given")
    estimates = [null.values.estimate for null in nulls]
    if any(null.reason is not None for null in nulls) or None in estimates:
        return None
    count = min(len(null.values.numerators) for null in nulls)
    values = np.stack([null.values.values()[:count] for null in nulls])
    values = values[:, np.isfinite(values).all(axis=0)]
    if not values.shape[1]:
        return None
    observed = min(float(value or 0.0) for value in estimates)
    return float((1 + (values.min(axis=0) <= observed + 1e-12).sum()) / (1 + values.shape[1]))


def _gap(first: SplitReplicates | Replicates, second: SplitReplicates | Replicates) -> float | None:
    if first.estimate is None or second.estimate is None:
        return None
    return first.estimate - second.estimate


def _p_worse(one: SplitReplicates, others: Sequence[SplitReplicates], freedom: float) -> float:
    """P of a largest studentised distance to the others as large as the observed one, all being equal."""
    gaps = one.table()[None] - np.stack([other.table() for other in others])
    gaps = gaps[..., np.isfinite(gaps).all(axis=(0, 1, 2))]
    sd = np.sqrt([difference_variance(one, other) for other in others])
    distance = np.array([_gap(one, other) for other in others], dtype=np.float64)
    same = sd == 0  # two encoders that agree on every query in every split
    if (distance[same] > 0).any():
        return 0.0
    if same.all():
        return 1.0
    halves = (gaps[:, 0, 0] - gaps[:, 1, 1])[~same]
    moments = halves @ halves.T
    scale = np.sqrt(np.diag(moments))
    scale[scale == 0] = 1.0  # they differ in the whole cell alone
    correlation = moments / np.outer(scale, scale)
    np.fill_diagonal(correlation, 1.0)
    rng = np.random.Generator(np.random.Philox(key=len(others)))
    roots, axes = np.linalg.eigh(correlation)
    draws = rng.standard_normal((_DRAWS, len(scale))) @ (axes * np.sqrt(np.maximum(roots, 0))).T
    draws /= np.sqrt(rng.chisquare(freedom, _DRAWS) / freedom)[:, None]
    observed = float(np.max(distance[~same] / sd[~same]))
    return float((1 + (draws.max(axis=1) >= observed).sum()) / (1 + _DRAWS))
