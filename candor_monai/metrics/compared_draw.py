"""A draw cut to n candidates a side: who is left out, what is asked of the sweep, and the margins of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .discordance import discordance_margin, neighbour_mean
from .draw import Draw, Exclusions, draw_key, excluded_candidates
from .neighbours import Request
from .observations import Observations
from .options import Options


@dataclass(frozen=True)
class ComparedDraw:
    """The queries of a cell against the first n candidates a side of one of its draws.

    Attributes:
        queries: rows, shape (Q,), int64.
        pos: R⁺ in the order of the draw, shape (n,), int64.
        neg: R⁻ likewise.
        exclusions: candidates that a query is not compared with.
    """

    queries: np.ndarray
    pos: np.ndarray
    neg: np.ndarray
    exclusions: Exclusions

    @property
    def n(self) -> int:
        """Candidates a side."""
        return len(self.pos)

    def requests(self) -> list[Request]:
        """What is asked of the sweep: the queries against R⁺, and against R⁻."""
        return [
            Request(self.queries, self.pos, self.exclusions.pos),
            Request(self.queries, self.neg, self.exclusions.neg),
        ]

    def kept(self, k: int) -> np.ndarray:
        """Queries that are left with k candidates on both sides, shape (Q,), bool."""
        return (self.exclusions.left_pos >= k) & (self.exclusions.left_neg >= k)

    def dm(self, similarities: Sequence[np.ndarray], k: int) -> np.ndarray:
        """DM of every query, shape (Q,), float64; NaN where fewer than k candidates are left.

        Args:
            similarities: to the nearest of R⁺ and of R⁻, each of shape (Q, K), descending.
            k: neighbours.
        """
        kept = self.kept(k)
        out = np.full(len(kept), np.nan)
        out[kept] = margins(similarities, kept, k)[2]
        return out


def compare(observations: Observations, options: Options, draw: Draw, redraw: int, n: int) -> ComparedDraw:
    """The first n candidates a side of draw number ``redraw``."""
    pos, neg = (side[:n] for side in draw.sets[redraw])
    key = draw_key(observations, options, draw.finding, draw.group, redraw)
    exclusions = excluded_candidates(observations, options, key, draw.queries, draw.query_label, pos, neg)
    return ComparedDraw(draw.queries, pos, neg, exclusions)


def margins(similarities: Sequence[np.ndarray], kept: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(c⁺, c⁻, DM) of some queries.

    Args:
        similarities: to the nearest positives and negatives, each of shape (Q, K), descending.
        kept: which queries, shape (Q,), bool.
        k: neighbours.
    """
    c_pos, c_neg = (neighbour_mean(side[kept], k) for side in similarities)
    return c_pos, c_neg, discordance_margin(c_pos, c_neg)
