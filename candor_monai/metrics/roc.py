"""Area under the ROC curve, from counts of pairs."""

from __future__ import annotations

import numpy as np


def auroc(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """Share of (positive, negative) pairs in which the positive scores higher, ties counted ½.

    The pairs are counted in whole numbers, so the value is exact and does not depend on the order of the images.

    Args:
        scores: shape (N,), finite.
        positive: shape (N,), bool.

    Returns:
        the AUROC, or None where one of the classes is absent.

    Raises:
        ValueError: the shapes differ, or a score is not finite.

    >>> auroc(np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True]))
    0.875
    """
    scores = np.asarray(scores, np.float64)
    positive = np.asarray(positive, bool)
    if scores.shape != positive.shape or scores.ndim != 1:
        raise ValueError(f"scores has shape {scores.shape}, positive {positive.shape}: both must be (images,)")
    wrong = np.flatnonzero(~np.isfinite(scores))
    if len(wrong):
        raise ValueError(f"scores[{wrong[0]}] is not finite")
    above = np.sort(scores[positive])
    below = np.sort(scores[~positive])
    if not len(above) or not len(below):
        return None
    lower = np.searchsorted(below, above, side="left").sum(dtype=np.int64)
    not_higher = np.searchsorted(below, above, side="right").sum(dtype=np.int64)
    return int(lower + not_higher) / (2 * len(above) * len(below))
