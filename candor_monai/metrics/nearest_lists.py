"""The nearest candidates of each query, as far down as resampling needs them.

The inference code asks again and again for the k nearest members of some subset of the candidates.
A short sorted list of the nearest candidates answers nearly always; the few queries whose list runs
out get a longer one, up to all candidates, so the answer is never approximate.

Distances are 1 − similarity (:mod:`.similarity`), formed in float64 and kept in float32: features packed in a cone keep
their differences. A copy's distance is all last bits: what is below `SAME` is 0, so that copies on both sides of a
query are equally far.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from .draw import same_code_pairs
from .neighbours import Counts, Neighbours, Request
from .options import Options
from .similarity import FeatureRows
from .sweep import search

# Distances of rows that differ in the last bits of float32 are smaller, and so are the errors of a similarity.
SAME = 1e-12


class NearestLists:
    """Sorted lists of the nearest candidates of each query.

    Args:
        rows: the features.
        request: queries, candidates, and who is left out.
        found: the nearest of each query: what :func:`.sweep.search` answers to the request.
        units: code of each image's patient, shape (N,), int64.
        order: place of each image among equally near ones, shape (N,), int64.
        options: `precision` and `memory_bytes` are used where longer lists are looked for.

    Attributes:
        index: positions in the candidates, nearest first, shape (Q, m), int64; n where fewer are left.
        distance: 1 − cosine, shape (Q, m), float32; infinite where fewer are left.
    """

    def __init__(
        self,
        rows: FeatureRows,
        request: Request,
        found: Neighbours,
        units: np.ndarray,
        order: np.ndarray,
        options: Options,
    ) -> None:
        self._rows, self._request, self._units, self._order, self._options = rows, request, units, order, options
        self.index, self.distance = self._read(found)

    def __len__(self) -> int:
        return len(self._request.candidates)

    def units_of_nearest(self, k: int) -> np.ndarray:
        """Units of the k nearest candidates of all queries, flat, int64; those that are left out are missing."""
        index = self.index[:, :k]
        return self._units[self._request.candidates[index[index < len(self)]]]

    def longer(self, which: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """`index` and `distance` of some queries (their positions, ascending), with lists of the given length."""
        request, length = self._request.of_queries(which), min(length, len(self))
        return self._read(search(self._rows, [request], length, self._order, self._options, Counts())[0])

    def of(self, queries: np.ndarray) -> NearestLists:
        """The lists of some of the queries: their rows, distinct, int64, in the order that is wanted."""
        by = np.argsort(self._request.queries)
        which = by[np.searchsorted(self._request.queries, queries, sorter=by)]
        part = copy(self)
        part._request = self._request.of_queries(which)
        part.index, part.distance = self.index[which], self.distance[which]
        return part

    def _read(self, found: Neighbours) -> tuple[np.ndarray, np.ndarray]:
        by = np.argsort(self._request.candidates)
        at = np.searchsorted(self._request.candidates, found.rows, sorter=by)
        index = by[np.minimum(at, len(by) - 1)]
        distance = (1 - found.similarities).astype(np.float32)
        distance[distance < SAME] = 0.0
        missing = found.rows < 0
        index[missing], distance[missing] = len(self), np.inf
        return index, distance


def nearest_lists(
    rows: FeatureRows,
    pairs: Sequence[tuple[np.ndarray, np.ndarray]],
    units: np.ndarray,
    same_patient: bool,
    length: int,
    order: np.ndarray | None = None,
    options: Options | None = None,
) -> list[NearestLists]:
    """Lists of several sets of queries and candidates, whose images are scored once for all of them.

    Args:
        rows: the features.
        pairs: (queries, candidates) of each: rows, int64, both distinct.
        units: code of each image's patient, shape (N,), int64.
        same_patient: leave all images of the query's patient out; else only the query itself.
        length: candidates in the lists.
        order: place of each image among equally near ones, shape (N,), int64; None: its row.
        options: `precision` and `memory_bytes` are used; None: the defaults.
    """
    options = options or Options()
    order = np.arange(len(rows)) if order is None else order
    codes = units if same_patient else np.arange(len(rows))
    requests = [Request(asked, members, same_code_pairs(codes, asked, members)) for asked, members in pairs]
    lengths = [min(length, len(members)) for _, members in pairs]
    answers = search(rows, requests, lengths, order, options, Counts())
    return [
        NearestLists(rows, request, found, units, order, options)
        for request, found in zip(requests, answers, strict=True)
    ]
