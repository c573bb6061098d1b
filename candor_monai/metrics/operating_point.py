"""The operating point of a head, and the errors that it makes there."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

SENSITIVITY = 0.8


@dataclass(frozen=True)
class OperatingPoint:
    """The threshold of one head.

    Args:
        threshold: τ; an image is called positive when its score is at least τ. None when there is none.
        sensitivity: share of validation positives at or above τ.
        status: ``ok`` or ``insufficient``.
        reason: why there is no threshold, else None.
    """

    threshold: float | None
    sensitivity: float | None
    status: str
    reason: str | None


@dataclass(frozen=True)
class ErrorRates:
    """Counts and rates of a thresholded head on labelled images; a rate without images is None."""

    n_positive: int
    n_negative: int
    misses: int
    false_positives: int
    miss_rate: float | None
    false_positive_rate: float | None


def operating_point(scores: np.ndarray, labels: np.ndarray, sensitivity: float = SENSITIVITY) -> OperatingPoint:
    """The largest threshold whose sensitivity on validation images is at least ``sensitivity``.

    That threshold is the ⌈sensitivity · P⌉-th largest score of the P positives; the ceiling is taken of the exact
    decimal number, so that 0.8 of 10 positives is 8 and not 9.

    Args:
        scores: the head's logits, shape (N,), finite.
        labels: shape (N,): 1 positive, 0 negative, -1 unlabelled (left out).
        sensitivity: share of the positives that must be found, in (0, 1].

    Returns:
        the operating point; without a positive its status is ``insufficient``.

    Raises:
        ValueError: shapes differ, a score is not finite, ``sensitivity`` is out of range.

    >>> operating_point(np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.9]), np.array([1, 1, 1, 1, 1, 0])).threshold
    0.2
    """
    check_scores(scores, labels)
    if not 0 < sensitivity <= 1:
        raise ValueError(f"sensitivity must be in (0, 1], is {sensitivity}")
    positives = np.sort(np.asarray(scores, dtype=np.float64)[labels == 1])[::-1]
    if len(positives) == 0:
        return OperatingPoint(None, None, "insufficient", "no operating point: no positive among the validation images")
    wanted = Fraction(str(float(sensitivity))) * len(positives)
    threshold = float(positives[-(-wanted.numerator // wanted.denominator) - 1])
    return OperatingPoint(threshold, float(np.mean(positives >= threshold)), "ok", None)


def decide(scores: np.ndarray, threshold: float) -> np.ndarray:
    """ŷ: whether each score is at least the threshold; bool of the scores' shape."""
    return np.asarray(scores, dtype=np.float64) >= threshold


def error_rates(decisions: np.ndarray, labels: np.ndarray) -> ErrorRates:
    """Misses (positives called negative) and false positives (negatives called positive).

    Args:
        decisions: ŷ, shape (N,), bool.
        labels: shape (N,): 1, 0 or -1 (left out).

    Raises:
        ValueError: shapes differ.

    >>> error_rates(np.array([True, False, True, False]), np.array([1, 1, 0, 0])).miss_rate
    0.5
    """
    decisions, labels = np.asarray(decisions, dtype=np.bool_), np.asarray(labels)
    if decisions.shape != labels.shape:
        raise ValueError(f"decisions {decisions.shape} and labels {labels.shape} must have one shape")
    positive, negative = labels == 1, labels == 0
    n_positive, n_negative = int(positive.sum()), int(negative.sum())
    misses, false_positives = int((positive & ~decisions).sum()), int((negative & decisions).sum())
    return ErrorRates(
        n_positive,
        n_negative,
        misses,
        false_positives,
        misses / n_positive if n_positive else None,
        false_positives / n_negative if n_negative else None,
    )


def check_scores(scores: np.ndarray, labels: np.ndarray) -> None:
    """Refuse scores that are not one finite number per label.

    Raises:
        ValueError: naming the first offending row.
    """
    scores, labels = np.asarray(scores), np.asarray(labels)
    if scores.ndim != 1 or scores.shape != labels.shape:
        raise ValueError(f"scores {scores.shape} and labels {labels.shape} must be vectors of one length")
    bad = np.flatnonzero(~np.isfinite(scores))
    if len(bad):
        raise ValueError(f"scores[{bad[0]}] is {scores[bad[0]]}, must be finite")
    odd = np.flatnonzero(~np.isin(labels, (-1, 0, 1)))
    if len(odd):
        raise ValueError(f"labels[{odd[0]}] is {labels[odd[0]]}, must be 1, 0 or -1")
