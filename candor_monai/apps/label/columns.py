"""Similarities of single images to all images of a matched group: scored at once, settled where it matters."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from ...metrics.neighbours import Counts, Neighbours, Request, settle_together, shortlist
from ...metrics.similarity import FeatureRows
from ...metrics.sweep_space import Operand, SweepSpace, choose_precision

# Columns kept: 16 bytes an image and column.
_KEPT = 128
_BLOCK = 1024
# Rounding of ⟨z_q, μ⟩ in float64, far above what it can be.
_SLACK = 1e-10


@dataclass
class _Column:
    upper: np.ndarray
    exact: np.ndarray


class GroupColumns:
    """The images of one group, compared with candidates one at a time or all at once.

    Args:
        rows: features of all images.
        members: rows of the group's images, shape (M,), int64.
        order: place of each row among equal similarities, shape (N,), int64.
    """

    def __init__(self, rows: FeatureRows, members: np.ndarray, order: np.ndarray) -> None:
        self.rows = rows
        self.members = members
        self.order = order
        self._space = SweepSpace(rows, members, choose_precision("float32"))
        self._queries: Operand = self._space.queries(members)
        centre = self._space.centre.astype(np.float64)
        self._along = np.empty(len(members))
        for start in range(0, len(members), _BLOCK):
            part = members[start : start + _BLOCK]
            self._along[start : start + _BLOCK] = rows.array[part] @ centre / rows.norms[part]
        self._columns: OrderedDict[int, _Column] = OrderedDict()

    def upper(self, candidate: int) -> np.ndarray:
        """The most that the similarity of each member to a candidate row can be, shape (M,), float64."""
        return self._column(candidate).upper

    def exact(self, candidate: int, places: np.ndarray) -> np.ndarray:
        """Exact similarities of the members at ``places`` to a candidate row, float64."""
        column = self._column(candidate)
        missing = places[np.isnan(column.exact[places])]
        if len(missing):
            column.exact[missing] = self.rows.similarities(self.members[missing], np.full(len(missing), candidate))
        return column.exact[places]

    def nearest(
        self, places: np.ndarray, candidates: np.ndarray, excluded: tuple[np.ndarray, np.ndarray], k: int
    ) -> Neighbours:
        """The k nearest candidates of the members at ``places``, exact to the bit.

        Args:
            places: into the members, shape (Q,), int64.
            candidates: rows, shape (C,), int64, distinct.
            excluded: (index of the place, index of the candidate) of pairs that are left out.
            k: neighbours.
        """
        if not len(candidates) or not len(places):
            return Neighbours(np.full((len(places), k), -np.inf), np.full((len(places), k), -1, np.int64))
        request = Request(self.members[places], candidates, excluded)
        counts = Counts()
        listed = shortlist(self._space, self._queries.take(places), request, k, counts)
        return settle_together(self.rows, [request], [listed], [k], self.order, counts)[0]

    def _column(self, candidate: int) -> _Column:
        column = self._columns.get(candidate)
        if column is None:
            one = self._space.candidates(np.array([candidate]))
            scores = self._space.scores(one, self._queries)[0].double().numpy()
            upper = scores + self._along + (self._space.error(one, self._queries) + _SLACK)
            column = self._columns[candidate] = _Column(upper, np.full(len(self.members), np.nan))
            if len(self._columns) > _KEPT:
                self._columns.popitem(last=False)
        self._columns.move_to_end(candidate)
        return column
