"""The operands of a group's rows, each made once where the memory allows, and the scores of one request from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import neighbours as nb
from .largest import by_target
from .neighbours import Counts, Request, Shortlist
from .options import Options
from .score_tables import batches, union
from .similarity import FeatureRows
from .space_choice import IN_PASS, IN_TABLES, chosen_space
from .sweep_space import Operand, SweepSpace

# Fewer candidates than this are never worth a shared pass.
MANY = 16384
# Neighbours for which the costs of :mod:`.space_choice` hold.
_USUAL = 5


class OperandPool:
    """Operands of a group: every query once, and every candidate once where the memory allows."""

    def __init__(
        self,
        rows: FeatureRows,
        requests: Sequence[Request],
        ks: Sequence[int],
        members: np.ndarray,
        options: Options,
    ) -> None:
        self.rows, self.options, self.members = rows, options, members
        asked = union([request.queries for request in requests], len(rows))
        each = IN_PASS if max(len(request.candidates) for request in requests) >= MANY else IN_TABLES
        # More of a query is left undecided the further down its neighbours are looked for.
        undecided = each * sum(
            len(request.queries) * max(1.0, k / _USUAL) for request, k in zip(requests, ks, strict=True)
        )
        self.space = chosen_space(rows, self.members, asked, options.precision, undecided)
        self.row_bytes = self.space.row_bytes
        size = len(self.members) * self.row_bytes
        #: Whether every candidate's operand is made once and kept.
        self.keeps = size <= options.memory_bytes // 2
        self._kept: Operand | None = None
        self.asked = asked
        small = len(asked) * self.row_bytes <= options.memory_bytes // 8
        self._queries = self.space.queries(asked) if small else None

    def queries(self, members: np.ndarray) -> Operand:
        """Operand of query rows."""
        if self._queries is None:
            return self.space.queries(members)
        return self._queries.take(np.searchsorted(self.asked, members))

    def candidates(self, members: np.ndarray) -> Operand:
        """Operand of candidate rows."""
        if not self.keeps:
            return self.space.candidates(members)
        if self._kept is None:
            self._kept = self.space.candidates(self.members)
        return self._kept.take(np.searchsorted(self.members, members))

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        """Requests whose candidates' operand fits the memory together, beside that of the whole group if it is kept."""
        if self.keeps and len(union([request.candidates for request in requests], len(self.rows))) == len(self.members):
            return [list(range(len(requests)))]
        most = self.options.memory_bytes // (8 if self.keeps else 2)
        return list(batches(requests, len(self.rows), self.row_bytes, most))

    def direct(self, request: Request, k: int, counts: Counts) -> Shortlist:
        """Shortlist of a request from scores of its own."""
        listed = self._scored(self.space, request, k, counts)
        if not len(listed.long) or not self.space.is_coarse:
            return listed
        return self.completed(request, k, listed.query, listed.candidate, listed.long, counts)

    def completed(
        self, request: Request, k: int, query: np.ndarray, candidate: np.ndarray, left: np.ndarray, counts: Counts
    ) -> Shortlist:
        """The shortlist of a request, given the pairs of some queries; those left are scored in the finer space."""
        long = np.empty(0, np.int64)
        if len(left):
            again = self._scored(self.space.finer(), request.of_queries(left), k, counts)
            query = np.concatenate([query, left[again.query]])
            candidate = np.concatenate([candidate, again.candidate])
            long = left[again.long]
        if (query[1:] < query[:-1]).any():
            by = by_target(query, len(request.queries))
            query, candidate = query[by], candidate[by]
        return Shortlist(query, candidate, long)

    def _scored(self, space: SweepSpace, request: Request, k: int, counts: Counts) -> Shortlist:
        if space is not self.space:
            return nb.shortlist(space, space.queries(request.queries), request, k, counts)
        queries, candidates = self.queries(request.queries), request.candidates
        return nb.shortlist(
            space, queries, request, k, counts, lambda start, stop: self.candidates(candidates[start:stop])
        )
