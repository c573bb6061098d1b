"""The margin classifier's sweep: every labelled image against the drawn sets of every finding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .discordance import neighbour_mean
from .neighbours import Counts, Request, settle, shortlist
from .options import Options
from .similarity import FeatureRows
from .sweep_space import SweepSpace, choose_precision


def score_images(
    rows: FeatureRows,
    requests: Sequence[tuple[Request, Request, np.ndarray] | None],
    options: Options,
    counts: Counts,
) -> list[np.ndarray | None]:
    """c⁺ − c⁻ of the images of each cell.

    Args:
        rows: the features.
        requests: for each cell its images against R⁺, against R⁻, and which of them have k candidates on both sides.
        options: ``k`` and ``precision`` are used.
        counts: is added to.
    """
    order = np.arange(len(rows))
    out: list[np.ndarray | None] = []
    for pair in requests:
        if pair is None:
            out.append(None)
            continue
        scores = np.full(len(pair[2]), np.nan)
        means = []
        for request in pair[:2]:
            space = SweepSpace(rows, request.candidates, choose_precision(options.precision))
            operand = space.queries(request.queries)
            listed = shortlist(space, operand, request, options.k, counts)
            found = settle(rows, request, listed, options.k, order, counts)
            means.append(neighbour_mean(found.similarities[pair[2]], options.k))
        scores[pair[2]] = means[0] - means[1]
        out.append(scores)
    return out
