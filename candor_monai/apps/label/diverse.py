"""Images in an order in which each is far from all before it: a few of them cover the feature space.

Greedy k-centre (farthest-first traversal, González 1985: at most twice the best possible covering radius) on unit
features less their mean, from the images that are labelled already. The features are rounded to whole numbers small
enough that a float32 product adds them without any rounding, whatever the order: |partial sums| ≤ ‖a‖·‖b‖ < 2²⁴. So the
order is the same on every machine and with any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

_BLOCK = 1024
_LARGEST = 4095


def farthest_first(
    features: np.ndarray,
    order: np.ndarray,
    labelled: np.ndarray,
    most: int = 500,
    tell: Callable[[str], None] | None = None,
) -> np.ndarray:
    """Rows of the images that are not labelled, in the order of covering.

    Args:
        features: shape (N, d), float32, finite, no row zero.
        order: place of each row among equals, shape (N,), int64.
        labelled: which rows are centres from the beginning, shape (N,), bool. Where none is, the image nearest to the
            mean comes first.
        most: images chosen one by one; the others follow by their distance from what was chosen, farthest first.
        tell: is told how far it is.

    Returns:
        int64; every row that is not labelled, once.

    >>> line = np.float32([[1, 0], [1, 0.1], [1, 1], [0, 1]])
    >>> farthest_first(line, np.arange(4), np.array([True, False, False, False])).tolist()
    [3, 2, 1]
    """
    count = len(features)
    by_order = np.argsort(order, kind="stable")  # the first of equal maxima is then the one named first
    whole = _whole_numbers(features)[by_order]
    square = np.einsum("ij,ij->i", whole, whole, dtype=np.float64)
    centre = labelled[by_order]
    distance = np.full(count, np.inf)
    places = np.flatnonzero(centre)
    for start in range(0, len(places), _BLOCK):
        part = places[start : start + _BLOCK]
        for first in range(0, count, 4 * _BLOCK):
            there = slice(first, first + 4 * _BLOCK)
            product = (whole[there] @ whole[part].T).astype(np.float64)
            nearest = (square[part] - 2 * product).min(axis=1) + square[there]
            np.minimum(distance[there], nearest, out=distance[there])
    free = ~centre
    chosen: list[int] = []
    for step in range(min(most, int(free.sum()))):
        known = math.isfinite(distance[0])
        place = int(np.where(free, distance, -1.0).argmax()) if known else int(square.argmin())
        chosen.append(place)
        free[place] = False
        product = (whole @ whole[place]).astype(np.float64)
        np.minimum(distance, square + square[place] - 2 * product, out=distance)
        if tell is not None and step % 100 == 99:
            tell(f"{step + 1} images that cover the feature space")
    rest = np.flatnonzero(free)
    rest = rest[np.argsort(-distance[rest], kind="stable")]
    return by_order[np.concatenate([np.array(chosen, np.int64), rest])]


def _whole_numbers(features: np.ndarray) -> np.ndarray:
    """Unit rows less their mean, scaled and rounded to whole numbers, shape (N, d), float32."""
    count, dimension = features.shape
    unit = np.empty((count, dimension), np.float32)
    mean = np.zeros(dimension)
    for start in range(0, count, _BLOCK):
        block = features[start : start + _BLOCK].astype(np.float64)
        block /= np.sqrt(np.einsum("ij,ij->i", block, block))[:, None]
        mean += block.sum(axis=0)
        unit[start : start + _BLOCK] = block
    mean /= max(count, 1)
    longest = 0.0
    for start in range(0, count, _BLOCK):
        block = unit[start : start + _BLOCK] - mean
        longest = max(longest, float(np.einsum("ij,ij->i", block, block).max()))
    # rounding adds at most half of √d to a norm
    scale = (_LARGEST - math.ceil(math.sqrt(dimension) / 2) - 1) / max(math.sqrt(longest), 1e-300)
    for start in range(0, count, _BLOCK):
        block = unit[start : start + _BLOCK] - mean
        unit[start : start + _BLOCK] = np.rint(block * scale) if longest > 1e-24 else 0.0
    return unit
