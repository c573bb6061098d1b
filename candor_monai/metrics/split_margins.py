"""DM of every test image of a cohort: the drawn sets alone, without the rest of the evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from .compared_draw import compare
from .discordance import discordance_margin
from .draw import draws
from .margin_sweep import nearest_means
from .neighbours import Counts
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
    options = replace(options, queries="test", redraws=1)
    rows = FeatureRows(features)
    dm = np.full(observations.labels.shape, np.nan)
    reasons: dict[tuple[str, str], str] = {}
    dropped: dict[tuple[str, str], int] = {}
    for _, members in groupby(draws(observations, options), key=lambda draw: draw.group):
        drawn = list(members)
        reasons |= {(draw.finding, draw.group): draw.reason for draw in drawn if draw.reason}
        drawn = [draw for draw in drawn if not draw.reason]
        sides = [request for draw in drawn for request in compare(observations, options, draw, 0, draw.n).requests()]
        means = nearest_means(rows, sides, options, Counts(), observations.order)
        for draw, c_pos, c_neg in zip(drawn, means[::2], means[1::2], strict=True):
            kept = np.isfinite(c_pos) & np.isfinite(c_neg)
            dropped[draw.finding, draw.group] = int((~kept).sum())
            column = observations.finding_index(draw.finding)
            dm[draw.queries[kept], column] = discordance_margin(c_pos[kept], c_neg[kept])
    return SplitMargins(dm, reasons, dropped)
