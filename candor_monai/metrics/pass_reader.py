"""A request of few candidates that reads its scores off a pass over many, of which they are some.

Candidates come in parts. Of each query, those that may be among the k nearest so far are held; the limit rises as more
are seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import neighbours as nb
from .largest import kth_largest
from .neighbours import Request
from .score_scan import places_above, taken
from .sweep_space import SweepSpace

#: (query, candidate, score) of what is held: numbers in the reader's lists, and scores that compare as numbers do.
_Held = tuple[np.ndarray, np.ndarray, np.ndarray]


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
        self._number_of_column = np.zeros(len(chunk), np.int64)
        self._number_of_column[self._columns] = np.arange(len(self._columns))
        self._by = np.argsort(place_of_row[request.candidates], kind="stable")
        self._places = place_of_row[request.candidates][self._by]
        self._excluded = self._excluded_pairs(request)
        number = len(self.queries)
        self._floor = np.full(number, -np.inf)
        self._error = np.zeros(number)
        self._lost = np.zeros(number, bool)
        #: The limit of each query, or None where it must be found anew.
        self._reached: np.ndarray | None = None
        self._held: list[_Held] = []
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
        rows = self._places[low:high] - start
        error = error[self._columns]
        if self._reached is None or not np.array_equal(error, self._error):
            self._error = error  # of which the limit is made
            self._reached = self._limit(table.dtype)
        limit = self._reached
        # bfloat16 bits compare as whole numbers only above zero.
        quick = bool(self._held) and (table.dtype != np.int16 or bool((limit > 0).all()))
        look = self._found_above if quick else self._found_apart
        self._held.append(look(table, rows, int(low), limit))
        self._number += len(self._held[-1][0])
        self._seen += int(high - low)
        if self._seen >= self._next or self._number > 2 * self._most * len(self.queries):
            self._shorten()
            self._next = 2 * self._seen

    def _found_above(self, table: np.ndarray, rows: np.ndarray, low: int, limit: np.ndarray) -> _Held:
        """What reaches the limit of its query in the request's rows of a table; ``low`` is the number of the first."""
        of_columns = np.full(table.shape[1], nb.greatest_score(table.dtype), table.dtype)
        of_columns[self._columns] = limit
        row, column = places_above(table, of_columns, rows)
        query, member = self._number_of_column[column], low + np.searchsorted(rows, row)
        pair = member * len(self.queries) + query
        keep = self._excluded[np.searchsorted(self._excluded, pair)] != pair
        return query[keep], member[keep], table[row, column][keep]

    def _found_apart(self, table: np.ndarray, rows: np.ndarray, low: int, limit: np.ndarray) -> _Held:
        """The same from a copy of the request's scores, which also tells limits that are not known yet."""
        scores = taken(table, rows, self._columns)
        if scores.dtype == np.int16:
            nb.flip_negative(scores)
        least = nb.least_score(scores.dtype)
        first, last = np.searchsorted(self._excluded, np.array((low, low + len(rows))) * len(self.queries))
        member, query = np.divmod(self._excluded[first:last], len(self.queries))
        scores[member - low, query] = least
        if not self._held and len(rows) > self._k:
            place = len(rows) - self._k
            kth = np.partition(np.ascontiguousarray(scores.T), place, axis=1)[:, place]
            known = kth > least
            self._floor[known] = nb.lower_bound(self._space, _values(kth[known]), self._error[known])
            self._reached = limit = self._limit(scores.dtype)
        member, query = places_above(scores, limit)
        return query, low + member, scores[member, query]

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
        floor = kth_largest(query, nb.lower_bound(self._space, value, error), len(self.queries), self._k)
        stay = nb.upper_bound(self._space, value, error) >= floor[query]
        self._lost |= np.bincount(query[stay], minlength=len(self.queries)) > self._most
        stay &= ~self._lost[query]
        self._held = [(query[stay], member[stay], score[stay])]
        self._number = int(stay.sum())
        np.maximum(self._floor, floor, out=self._floor)
        self._reached = None

    def _limit(self, dtype: np.dtype) -> np.ndarray:
        """The least score that may reach the floor of its query, by the bound of the candidates so far."""
        known = np.isfinite(self._floor)
        limit = np.full(len(known), _above_least(dtype), dtype)
        limit[known] = nb.floor_to(nb.score_limit(self._space, self._floor[known], self._error[known]), dtype)
        limit[self._lost] = nb.greatest_score(dtype)
        return limit

    def _excluded_pairs(self, request: Request) -> np.ndarray:
        """(Number in ``_places``) · queries of the chunk + number of the query, ascending, then one beyond all."""
        number = np.full(len(request.queries), -1)
        number[self.queries] = np.arange(len(self.queries))
        rank = np.empty(len(self._by), np.int64)
        rank[self._by] = np.arange(len(self._by))
        query, member = number[request.excluded[0]], rank[request.excluded[1]]
        pairs = member[query >= 0] * len(self.queries) + query[query >= 0]
        return np.append(np.sort(pairs), np.iinfo(np.int64).max)


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


def _joined(parts: Sequence[_Held]) -> _Held:
    if not parts:
        nothing = np.empty(0, np.int64)
        return nothing, nothing, np.empty(0)
    query, member, score = (np.concatenate(column) for column in zip(*parts, strict=True))
    return query, member, score
