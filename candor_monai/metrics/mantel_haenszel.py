"""Mantel–Haenszel risk difference over strata, from counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RiskDifference:
    """Risk difference pooled over strata.

    Args:
        value: the difference; None when every stratum is empty on one side.
        n_strata: strata that count.
        n_skipped: strata without exposed or without other units.
        reason: why there is no value, else None.
    """

    value: float | None
    n_strata: int
    n_skipped: int
    reason: str | None


def mantel_haenszel_risk_difference(
    exposed_events: np.ndarray, exposed: np.ndarray, other_events: np.ndarray, others: np.ndarray
) -> RiskDifference:
    """Mantel–Haenszel pooled risk difference of exposed against other units.

    RD = Σ (e₁ n₀ − e₀ n₁) / N ÷ Σ n₁ n₀ / N with N = n₁ + n₀, over strata with n₁ > 0 and n₀ > 0.

    Args:
        exposed_events: e₁, events among the exposed of each stratum, shape (S,).
        exposed: n₁, exposed units, shape (S,).
        other_events: e₀, events among the others, shape (S,).
        others: n₀, other units, shape (S,).

    Raises:
        ValueError: shapes differ, a count is negative, or there are more events than units.

    Source: Greenland and Robins, Biometrics 1985, 41:55.

    >>> mantel_haenszel_risk_difference([3, 2], [4, 4], [1, 1], [4, 4]).value
    0.375
    """
    counts = [np.asarray(part, dtype=np.int64) for part in (exposed_events, exposed, other_events, others)]
    if any(part.ndim != 1 or part.shape != counts[0].shape for part in counts):
        raise ValueError(f"counts must be four vectors of one length, have shapes {[part.shape for part in counts]}")
    for name, events, units in (("exposed", counts[0], counts[1]), ("other", counts[2], counts[3])):
        bad = np.flatnonzero((events < 0) | (events > units))
        if len(bad):
            raise ValueError(f"stratum {bad[0]}: {events[bad[0]]} events among {units[bad[0]]} {name} units")
    value = float(resampled_risk_difference(*(part[:, None] for part in counts))[0])
    used = int(((counts[1] > 0) & (counts[3] > 0)).sum())
    if used == 0:
        return RiskDifference(None, 0, len(counts[0]), "no stratum has units on both sides")
    return RiskDifference(value, used, len(counts[0]) - used, None)


def resampled_risk_difference(
    exposed_events: np.ndarray, exposed: np.ndarray, other_events: np.ndarray, others: np.ndarray
) -> np.ndarray:
    """The pooled risk difference of each of B resamples of the counts.

    Args:
        exposed_events, exposed, other_events, others: counts as above, shape (S, B).

    Returns:
        shape (B,), float64; NaN where no stratum counts.
    """
    e1, n1, e0, n0 = (np.asarray(part, dtype=np.float64) for part in (exposed_events, exposed, other_events, others))
    total = np.maximum(n1 + n0, 1.0)  # a stratum without units adds 0 to both sums
    used = (n1 > 0) & (n0 > 0)
    numerator = np.where(used, (e1 * n0 - e0 * n1) / total, 0.0).sum(axis=0)
    denominator = np.where(used, n1 * n0 / total, 0.0).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(denominator > 0, numerator / denominator, np.nan)
