"""AUROCs with patient-bootstrap intervals, and paired comparisons of several scores of the same images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from . import roc
from .multiplicity import studentised_p
from .operating_point import check_scores
from .resampling import MAX_EMPTY_SHARE, resample_auroc


@dataclass(frozen=True)
class Auroc:
    """An AUROC with its interval; undefined numbers are None and ``reason`` says why."""

    value: float | None
    sd: float | None
    lo: float | None
    hi: float | None
    n_positive: int
    n_negative: int
    reason: str | None


@dataclass(frozen=True)
class PairedAuroc:
    """The difference of two AUROCs on the same images, with its interval and studentised p-value."""

    difference: float | None
    sd: float | None
    lo: float | None
    hi: float | None
    p: float | None
    reason: str | None


def auroc(scores: np.ndarray, labels: np.ndarray) -> float | None:
    """Probability that a positive's score exceeds a negative's, ties ½.

    Args:
        scores: shape (N,), finite.
        labels: shape (N,): 1, 0 or -1 (left out).

    Returns:
        the AUROC, exact; None without positives or without negatives.

    Raises:
        ValueError: shapes differ or a value is not allowed.

    >>> auroc(np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 0, 1, 1]))
    0.875
    """
    check_scores(scores, labels)
    labels = np.asarray(labels)
    kept = labels >= 0
    return roc.auroc(np.asarray(scores)[kept], labels[kept] == 1)


def paired_aurocs(
    scores: np.ndarray, labels: np.ndarray, codes: np.ndarray, weights: np.ndarray
) -> tuple[list[Auroc], list[PairedAuroc]]:
    """AUROCs of several scores of the same images, each compared with the first.

    The same resamples serve all scores, so differences are paired. p is two-sided, of the difference over its
    bootstrap standard deviation against the normal distribution (1,000 resamples could not give p below 0.002).

    Args:
        scores: shape (S, N), finite: row 0 is the reference.
        labels: shape (N,): 1, 0 or -1 (left out).
        codes: row of ``weights`` of each image's patient, shape (N,), int64.
        weights: shape (P, B), uint8, used as case weights.

    Returns:
        S AUROCs and S comparisons; the first comparison is with itself and has no p.

    Raises:
        ValueError: shapes differ or a value is not allowed.
    """
    values = [auroc(row, labels) for row in scores]
    labels = np.asarray(labels)
    kept = labels >= 0
    positive = labels[kept] == 1
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    if not n_positive or not n_negative:
        reason = "no positive" if n_negative else "no negative" if n_positive else "no labelled image"
        count = len(values)
        return (
            [Auroc(None, None, None, None, n_positive, n_negative, reason)] * count,
            [PairedAuroc(None, None, None, None, None, reason)] * count,
        )
    resamples = _resampled([np.asarray(row)[kept] for row in scores], positive, np.asarray(codes)[kept], weights)
    aurocs, pairs = [], []
    for s, (value, resample) in enumerate(zip(values, resamples, strict=True)):
        sd, lo, hi, why = spread(resample)
        aurocs.append(Auroc(value, sd, lo, hi, n_positive, n_negative, why))
        pairs.append(_paired((value or 0.0) - (values[0] or 0.0), resample - resamples[0], reference=s == 0))
    return aurocs, pairs


def _resampled(
    scores: list[np.ndarray], positive: np.ndarray, codes: np.ndarray, weights: np.ndarray
) -> list[np.ndarray]:
    """Resampled AUROCs; scores that order the images alike (as the three confidences do) are computed once."""
    done: dict[bytes, np.ndarray] = {}
    result = []
    for score in scores:
        order = stats.rankdata(score).tobytes()
        if order not in done:
            done[order] = resample_auroc(score, positive, codes, weights)
        result.append(done[order])
    return result


def _paired(difference: float, resamples: np.ndarray, reference: bool) -> PairedAuroc:
    if reference:
        return PairedAuroc(difference, None, None, None, None, "the reference itself")
    if difference == 0 and not np.nan_to_num(resamples).any():
        return PairedAuroc(difference, 0.0, 0.0, 0.0, 1.0, "both order the images alike")
    sd, lo, hi, reason = spread(resamples)
    if sd is None:
        return PairedAuroc(difference, sd, lo, hi, None, reason)
    return PairedAuroc(difference, sd, lo, hi, studentised_p(difference, sd), None)


def spread(
    resamples: np.ndarray, limit: float = MAX_EMPTY_SHARE
) -> tuple[float | None, float | None, float | None, str | None]:
    """Standard deviation and 2.5 % and 97.5 % percentiles of resampled values.

    Args:
        resamples: shape (B,), NaN where a resample gave no value.
        limit: share of such resamples above which nothing is given.

    Returns:
        (sd, lo, hi, reason); the first three are None when ``reason`` is given.

    >>> spread(np.array([0.5, np.nan]))[3]
    'no interval: the value is undefined in 1 of 2 resamples'
    """
    kept = resamples[~np.isnan(resamples)]
    empty = len(resamples) - len(kept)
    if len(kept) < 2 or empty > limit * len(resamples):
        return None, None, None, f"no interval: the value is undefined in {empty} of {len(resamples)} resamples"
    if np.ptp(kept) < 1e-12:
        # A width of zero would read as certainty (an AUROC of 1 on ten images); it only says that B resamples of these
        # images cannot show how it varies.
        return None, None, None, "no interval: every resample gives the same value"
    lo, hi = np.percentile(kept, [2.5, 97.5])
    return float(np.std(kept, ddof=1)), float(lo), float(hi), None
