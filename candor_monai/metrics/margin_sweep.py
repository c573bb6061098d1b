"""The margin classifier's sweep: every labelled image against the drawn sets of every finding.

Sides are scored together in batches; blocks of images (:mod:`.margin_block`) are shared out over threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from .margin_block import Batch
from .neighbours import Counts, Request
from .options import Options
from .score_tables import batches, union
from .similarity import FeatureRows
from .space_choice import IN_TABLES, chosen_space
from .workers import in_workers

# Images that are left to the slow way and go it together.
_SLOW = 2048


def nearest_means(
    rows: FeatureRows, sides: Sequence[Request], options: Options, counts: Counts, order: np.ndarray
) -> list[np.ndarray]:
    """c of every image of every side: the mean of its k largest exact similarities, NaN where fewer are left.

    Args:
        rows: the features.
        sides: images (the queries) and sets; every set has at least k candidates.
        options: ``k``, ``precision`` and ``memory_bytes`` are used.
        counts: is added to.
        order: place of each row among equal similarities, shape (N,), int64.

    Returns:
        for each side, shape (M,), float64.
    """
    means = [np.full(len(side.queries), np.nan) for side in sides]
    if not sides:
        return means
    candidates = union([side.candidates for side in sides], len(rows))
    images = union([side.queries for side in sides], len(rows))
    undecided = IN_TABLES * sum(len(side.queries) for side in sides)
    space = chosen_space(rows, candidates, images, options.precision, undecided)
    for places in batches(sides, len(rows), space.row_bytes, options.memory_bytes // 2):
        batch = Batch(rows, space, [sides[place] for place in places], options, torch.get_num_threads())
        slow: list[list[np.ndarray]] = [[] for _ in places]
        for found, of_block in in_workers(batch.block, batch.starts()):
            counts.add(of_block)
            for place, of_side, rest in zip(places, found, slow, strict=True):
                means[place][of_side.images] = of_side.means
                rest.append(of_side.slow)
        for at, (place, rest) in enumerate(zip(places, slow, strict=True)):
            left = np.sort(np.concatenate(rest))
            for start in range(0, len(left), _SLOW):
                some = left[start : start + _SLOW]
                means[place][some] = batch.slow_means(at, some, order, counts)
    return means
