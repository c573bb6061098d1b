"""The nearest candidates of one side for every image of a group, kept true while candidates come and go."""

from __future__ import annotations

import numpy as np

from ...metrics.draw import same_code_pairs
from .columns import GroupColumns

# Entries beyond the k + 1 that are needed: as many candidates can go before a list is searched anew.
SPARE = 3
# More changes than this at once are cheaper searched anew.
_MOST_CHANGES = 32


class SideLists:
    """Lists of the nearest members of a candidate set, without the query's own patient.

    A list is always a true beginning of the sorted candidates: a candidate that comes is put in where it belongs
    before the list's end, one that goes is taken out, and a list that became shorter than needed is searched anew.

    Args:
        columns: the group.
        codes: images of the same code are never compared, shape (N,), int64.
        needed: entries that a list must hold where there are so many candidates.

    Attributes:
        candidates: rows in the order of the draw, int64.
        similarities: shape (M, L), float64, descending; -inf where there is none.
        rows: shape (M, L), int32; -1 where there is none.
        own: candidates with the code of each member, shape (M,), int64.
    """

    def __init__(self, columns: GroupColumns, codes: np.ndarray, needed: int) -> None:
        self._columns = columns
        self._codes = codes
        self._needed = needed
        self._length = needed + SPARE
        self._member_codes = codes[columns.members]
        self.candidates: np.ndarray = np.empty(0, np.int64)
        self.own: np.ndarray = np.zeros(len(columns.members), np.int64)
        self._clear(self.candidates)

    @property
    def left(self) -> np.ndarray:
        """Candidates that each member is compared with, shape (M,), int64."""
        return len(self.candidates) - self.own

    def replace(self, candidates: np.ndarray) -> np.ndarray:
        """Take other candidates.

        Args:
            candidates: rows in the order of the draw, int64, distinct.

        Returns:
            members whose list or number of candidates changed, shape (M,), bool; some that did not may be among them.
        """
        gone = np.setdiff1d(self.candidates, candidates)
        come = np.setdiff1d(candidates, self.candidates)
        if len(gone) + len(come) > _MOST_CHANGES or not len(candidates):
            self._clear(candidates)
            self._search(np.arange(len(self.own)))
            return np.ones(len(self.own), np.bool_)
        before = self.own
        left = self.left
        changed = np.zeros(len(self.own), np.bool_)
        for row in gone.tolist():
            changed |= self._take_out(row)
            left = left - (self._member_codes != self._codes[row])
        for row in come.tolist():
            changed |= self._put_in(row, left)
            left = left + (self._member_codes != self._codes[row])
        self.candidates = candidates
        self.own = self._own(candidates)
        short = np.flatnonzero(self._counts() < np.minimum(self._needed, self.left))
        self._search(short)
        changed[short] = True
        return changed | (before != self.own)

    def _clear(self, candidates: np.ndarray) -> None:
        size = (len(self._member_codes), self._length)
        self.candidates = candidates
        self.similarities = np.full(size, -np.inf)
        self.rows = np.full(size, -1, np.int32)
        self.own = self._own(candidates)

    def _own(self, candidates: np.ndarray) -> np.ndarray:
        return np.bincount(self._codes[candidates], minlength=int(self._codes.max()) + 1)[self._member_codes]

    def _counts(self) -> np.ndarray:
        return (self.rows >= 0).sum(axis=1)

    def _search(self, places: np.ndarray) -> None:
        members = self._columns.members[places]
        excluded = same_code_pairs(self._codes, members, self.candidates)
        found = self._columns.nearest(places, self.candidates, excluded, self._length)
        self.similarities[places] = found.similarities
        self.rows[places] = found.rows

    def _take_out(self, row: int) -> np.ndarray:
        hit = self.rows == row
        places = np.flatnonzero(hit.any(axis=1))
        self.rows[places], self.similarities[places] = without(
            self.rows[places], self.similarities[places], hit[places]
        )
        return hit.any(axis=1)

    def _put_in(self, row: int, left: np.ndarray) -> np.ndarray:
        """Put a candidate into the lists where it belongs; ``left``: candidates of each member without it."""
        counts = self._counts()
        whole = counts == left  # such a list holds every candidate: what comes after its end belongs there too
        open_end = whole & (counts < self._length)
        last = self.similarities[np.arange(len(counts)), np.maximum(counts - 1, 0)]
        limit = np.where(open_end, -np.inf, np.where(counts > 0, last, np.inf))
        comparable = self._member_codes != self._codes[row]
        places = np.flatnonzero(comparable & (self._columns.upper(row) >= limit))
        value = self._columns.exact(row, places)[:, None]
        similarities, rows = self.similarities[places], self.rows[places]
        order = self._columns.order
        before = (similarities > value) | ((similarities == value) & (order[rows] < order[row]))
        place = before.sum(axis=1)
        belongs = (place < counts[places]) | (open_end[places] & (place == counts[places]))
        places, place, value = places[belongs], place[belongs], value[belongs]
        source = np.arange(self._length) - (np.arange(self._length) > place[:, None])
        similarities = np.take_along_axis(similarities[belongs], source, axis=1)
        rows = np.take_along_axis(rows[belongs], source, axis=1)
        index = np.arange(len(places))
        similarities[index, place], rows[index, place] = value[:, 0], row
        self.similarities[places], self.rows[places] = similarities, rows
        changed = np.zeros(len(counts), np.bool_)
        changed[places] = True
        return changed


def without(rows: np.ndarray, similarities: np.ndarray, hit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lists without the entries hit, closed up; the freed ends hold -1 and -inf.

    Args:
        rows: shape (Q, L).
        similarities: shape (Q, L).
        hit: shape (Q, L), bool.
    """
    by = np.argsort(hit, axis=1, kind="stable")
    freed = np.arange(rows.shape[1]) >= (~hit).sum(axis=1)[:, None]
    closed = np.take_along_axis(rows, by, axis=1), np.take_along_axis(similarities, by, axis=1)
    return np.where(freed, -1, closed[0]).astype(rows.dtype), np.where(freed, -np.inf, closed[1])
