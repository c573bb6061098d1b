"""A request of few candidates that reads its scores off a pass over many, of which they are some.

Candidates come in parts. Of each query, those that may be among the k nearest so far are held; the limit rises as more
are seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import neighbours as nb
from .neighbours import Request
from .score_scan import places_above, taken
from .score_tables import kth_floor
from .sweep_space import SweepSpace


class PassReader:
    """What a request holds of some of its queries.

    Args:
        space: of the scores.
        request: what is compared; its queries are distinct.
        k: neighbours.
        place_of_row: place of each row among the candidates of the pass, −1 for others, shape (N,), int64.
        chunk: rows of the queries of the pass, ascending, int64.
    """

    def __init__(
        self, space: SweepSpace, request: Request, k: int, place_of_row: np.ndarray, chunk: np.ndarray
    ) -> None:
        self._space, self._k = space, k
        at = np.searchsorted(chunk, request.queries)
        inside = chunk[np.minimum(at, len(chunk) - 1)] == request.queries
        #: Places of the chunk's queries in the request, and in the chunk.
        self.queries = np.flatnonzero(inside)
        self._columns = at[inside]
        self._by = np.argsort(place_of_row[request.candidates], kind="stable")
        self._places = place_of_row[request.candidates][self._by]
        self._excluded = self._excluded_pairs(request)
        number = len(self.queries)
        self._floor = np.full(number, -np.inf)
        self._error = np.zeros(number)
        self._lost = np.zeros(number, bool)
        self._held: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._number = self._seen = self._next = 0

    def read(self, table: np.ndarray, start: int, error: np.ndarray) -> None:
        """Take what a part of the pass holds.

        Args:
            table: scores as they are stored (bits of bfloat16 as int16), shape (candidates, queries of the chunk).
            start: place of the first candidate in the pass.
            error: bound of each query over the candidates so far, shape (queries of the chunk,).
        """
        low, high = np.searchsorted(self._places, (start, start + len(table)))
        if low == high or not len(self.queries):
            return
        self._error = error[self._columns]
        rows = self._places[low:high] - start
        scores = taken(table, rows, self._columns)
        if scores.dtype == np.int16:
            nb.flip_negative(scores)
        least = nb.least_score(scores.dtype)
        first, last = np.searchsorted(self._excluded[1], (low, high))
        scores[self._excluded[1][first:last] - low, self._excluded[0][first:last]] = least
        if not self._held and high - low > self._k:
            place = high - low - self._k
            kth = np.partition(np.ascontiguousarray(scores.T), place, axis=1)[:, place]
            known = kth > least
            self._floor[known] = nb.lower_bound(self._space, _values(kth[known]), self._error[known])
        member, query = places_above(scores, self._limit(scores.dtype))
        self._held.append((query, low + member, scores[member, query]))
        self._number += len(query)
        self._seen += int(high - low)
        if self._seen >= self._next or self._number > 2 * self._most * len(self.queries):
            self._shorten()
            self._next = 2 * self._seen

    def found(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(query, candidate) of what may be among the k nearest, as places in the request, and the queries lost.

        Lost are queries with so many near ties that they were not held.
        """
        if self._held:
            self._shorten()
        query, member, _ = _joined(self._held)
        return self.queries[query], self._by[member], self.queries[self._lost]

    @property
    def _most(self) -> int:
        """Candidates of a query that are held at a time."""
        return (64 if self._space.is_coarse else 8) * self._k + nb.GROUP

    def _shorten(self) -> None:
        """Keep what may be among the k nearest so far, and raise the limit to that."""
        query, member, score = _joined(self._held)
        value = _values(score)
        error = self._error[query]
        floor = kth_floor(query, nb.lower_bound(self._space, value, error), len(self.queries), self._k)
        stay = nb.upper_bound(self._space, value, error) >= floor[query]
        self._lost |= np.bincount(query[stay], minlength=len(self.queries)) > self._most
        stay &= ~self._lost[query]
        self._held = [(query[stay], member[stay], score[stay])]
        self._number = int(stay.sum())
        np.maximum(self._floor, floor, out=self._floor)

    def _limit(self, dtype: np.dtype) -> np.ndarray:
        """The least score that may reach the floor of its query, by the bound of the candidates so far."""
        known = np.isfinite(self._floor)
        limit = np.full(len(known), _above_least(dtype), dtype)
        limit[known] = nb.floor_to(nb.score_limit(self._space, self._floor[known], self._error[known]), dtype)
        limit[self._lost] = nb.greatest_score(dtype)
        return limit

    def _excluded_pairs(self, request: Request) -> tuple[np.ndarray, np.ndarray]:
        """Excluded pairs of the chunk as (number in ``queries``, number in ``_places``, ascending)."""
        number = np.full(len(request.queries), -1)
        number[self.queries] = np.arange(len(self.queries))
        rank = np.empty(len(self._by), np.int64)
        rank[self._by] = np.arange(len(self._by))
        query, member = number[request.excluded[0]], rank[request.excluded[1]]
        query, member = query[query >= 0], member[query >= 0]
        by = np.argsort(member, kind="stable")
        return query[by], member[by]


def _above_least(dtype: np.dtype) -> float | int:
    """At most every score, and above what stands for a pair that is left out."""
    return int(np.iinfo(dtype).min) + 1 if dtype.kind == "i" else float(np.finfo(dtype).min)


def _values(ordered: np.ndarray) -> np.ndarray:
    """Ordered scores as float64."""
    if ordered.dtype != np.int16:
        return ordered.astype(np.float64)
    bits = ordered.copy()
    nb.flip_negative(bits)
    return nb.raw_values(bits)


def _joined(parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if not parts:
        nothing = np.empty(0, np.int64)
        return nothing, nothing, np.empty(0)
    query, member, score = (np.concatenate(column) for column in zip(*parts, strict=True))
    return query, member, score
