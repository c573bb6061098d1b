"""The discordance margin, its neighbourhood means, and what is counted from them."""

from __future__ import annotations

import numpy as np


def neighbour_mean(similarities: np.ndarray, k: int) -> np.ndarray:
    """Mean of the k largest similarities of each query, the terms summed in descending order.

    Args:
        similarities: shape (Q, K), float64, each row descending, K ≥ k.
        k: neighbours.

    Returns:
        c of each query, shape (Q,), float64.

    Raises:
        ValueError: k is below 1 or above K, a row is not descending, or a value is not finite.

    >>> neighbour_mean(np.array([[0.75, 0.25, 0.0]]), 2)
    array([0.5])

    Source: arXiv 2607.18451, Eq. 1.
    """
    if similarities.ndim != 2:
        raise ValueError(f"similarities has shape {similarities.shape}: (queries, neighbours) is needed")
    if not 1 <= k <= similarities.shape[1]:
        raise ValueError(f"k is {k}: it must lie between 1 and the {similarities.shape[1]} neighbours given")
    used = similarities[:, :k]
    _finite("similarities", used)
    rising = np.flatnonzero((used[:, 1:] > used[:, :-1]).any(axis=1))
    if len(rising):
        raise ValueError(f"similarities[{rising[0]}] is not in descending order")
    total = np.zeros(len(used))
    for place in range(k):
        total = total + used[:, place]
    return total / k


def discordance_margin(c_pos: np.ndarray, c_neg: np.ndarray) -> np.ndarray:
    """Discordance margin DM = c⁻ − c⁺ of each query.

    A query is discordant when DM > 0; a tie (DM = 0) is concordant.

    Args:
        c_pos: mean similarity to the k nearest positives, shape (Q,), float64.
        c_neg: mean similarity to the k nearest negatives, shape (Q,), float64.

    Returns:
        shape (Q,), float64, in [-2, 2].

    Raises:
        ValueError: the shapes differ, or a value is not finite.

    >>> discordance_margin(np.array([0.5, 0.5]), np.array([0.75, 0.5]))
    array([0.25, 0.  ])

    Source: arXiv 2607.18451, Eq. 1.
    """
    if np.shape(c_pos) != np.shape(c_neg):
        raise ValueError(f"c_pos has shape {np.shape(c_pos)}, c_neg {np.shape(c_neg)}")
    _finite("c_pos", c_pos)
    _finite("c_neg", c_neg)
    return np.asarray(c_neg, np.float64) - np.asarray(c_pos, np.float64)


def discordance_rate(dm: np.ndarray) -> float | None:
    """D: the share of queries with DM > 0.

    Args:
        dm: discordance margins, shape (Q,).

    Returns:
        D, or None where there is no query.

    >>> discordance_rate(np.array([0.1, 0.0, -0.1, 0.2]))
    0.5
    """
    _finite("dm", dm)
    return None if not np.size(dm) else int((np.asarray(dm) > 0).sum()) / int(np.size(dm))


def tie_rate(dm: np.ndarray) -> float | None:
    """t: the share of queries with DM = 0, or None where there is no query.

    >>> tie_rate(np.array([0.1, 0.0, -0.1, 0.2]))
    0.25
    """
    _finite("dm", dm)
    return None if not np.size(dm) else int((np.asarray(dm) == 0).sum()) / int(np.size(dm))


def chance_rate(ties: float) -> float:
    """D under H₀ with exchangeable images (patients): (1 − t)/2.

    >>> chance_rate(0.0)
    0.5
    """
    if not 0 <= ties <= 1:
        raise ValueError(f"ties is {ties}: a share in [0, 1] is needed")
    return (1 - ties) / 2


def chance_upper(ties: float, k: int, n: int, share_removed: float) -> float:
    """The most that D can be expected under H₀ when queries are removed from R⁺: (1 − t)/2 + (k/n)·share, at most 1.

    Args:
        ties: tie rate t.
        k: neighbours.
        n: candidates a side.
        share_removed: share of the queries that are members of R⁺.

    Raises:
        ValueError: a share is not in [0, 1], or k or n is below 1.

    >>> chance_upper(0.0, 5, 20, 1.0)
    0.75
    """
    if not 0 <= share_removed <= 1:
        raise ValueError(f"share_removed is {share_removed}: a share in [0, 1] is needed")
    if k < 1 or n < 1:
        raise ValueError(f"k is {k} and n is {n}: both must be at least 1")
    return min(1.0, chance_rate(ties) + k / n * share_removed)


def _finite(name: str, values: np.ndarray) -> None:
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        place = ", ".join(str(int(index)) for index in wrong[0])
        raise ValueError(f"{name}[{place}] is not finite")
