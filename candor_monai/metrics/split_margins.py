"""DM of every test image of a cohort: the drawn sets alone, without the rest of the evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .discordance import discordance_margin, neighbour_mean
from .draw import draw_key, draws, excluded_candidates
from .neighbours import Request, nearest
from .observations import Observations
from .options import Options
from .similarity import FeatureRows


@dataclass(frozen=True)
class SplitMargins:
    """Discordance margins of test images.

    Args:
        dm: c⁻ − c⁺ for each finding, shape (N, F), float64; NaN for images that are not test queries of the finding.
        reasons: (finding, group) -> why nothing there can be estimated.
        dropped: (finding, group) -> queries left with fewer than k candidates a side.
    """

    dm: np.ndarray
    reasons: dict[tuple[str, str], str]
    dropped: dict[tuple[str, str], int]


def split_margins(features: np.ndarray, observations: Observations, options: Options) -> SplitMargins:
    """DM of every labelled test image, equal to the bit to that of the evaluation with ``queries="test"``.

    The evaluation also compares each query with its whole group; here only the drawn sets are searched, so that an
    uncapped test split of a large cohort stays cheap.

    Args:
        features: shape (N, d), float32.
        observations: the cohort, with ``test``.
        options: ``k``, ``seed``, ``sets``, ``max_candidates``, ``matched`` and the exclusions are used.

    Raises:
        ValueError: the observations have no test split, or a feature is zero or not finite.
    """
    options = replace(options, queries="test", redraws=1, ks=(), sizes=())
    rows = FeatureRows(features)
    dm = np.full(observations.labels.shape, np.nan)
    reasons: dict[tuple[str, str], str] = {}
    dropped: dict[tuple[str, str], int] = {}
    for draw in draws(observations, options):
        cell = (draw.finding, draw.group)
        if draw.reason:
            reasons[cell] = draw.reason
            continue
        positive, negative = draw.sets[0]
        key = draw_key(observations, options, *cell, 0)
        out = excluded_candidates(observations, options, key, draw.queries, draw.query_label, positive, negative)
        kept = (out.left_pos >= options.k) & (out.left_neg >= options.k)
        dropped[cell] = int((~kept).sum())
        c_pos, c_neg = (
            neighbour_mean(found.similarities[kept], options.k)
            for found in (
                nearest(rows, Request(draw.queries, side, pairs), options.k, order=observations.order)
                for side, pairs in ((positive, out.pos), (negative, out.neg))
            )
        )
        dm[draw.queries[kept], observations.finding_index(draw.finding)] = discordance_margin(c_pos, c_neg)
    return SplitMargins(dm, reasons, dropped)
