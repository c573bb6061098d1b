"""One pass over the candidates of a group for many requests: of each query, what is above a score limit is kept.

Each request picks its own from what was kept. Limits are estimated from a sample of the candidates, so a query may keep
too few of a request: such queries go through a second pass, with limits that the first one tells, and what is left then
is scored for that request alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from . import neighbours as nb
from .kept_scores import KeptScores, Picked, pick
from .neighbours import Counts, Request, Shortlist
from .operand_pool import OperandPool
from .pass_reader import PassReader
from .score_scan import group_peaks, places_above
from .score_tables import union
from .sweep_space import Operand, SweepSpace, raw_numbers
from .workers import in_workers

# Bytes of a block of scores, at most (an eighth of the memory is for those of all threads), and its candidates, which
# may be made for it.
_BLOCK_BYTES, _BLOCK_ROWS = 2**25, 2**14
_QUERIES, _FEWEST_QUERIES = 4096, 256
# Bytes of a kept candidate, at their peak.
_KEPT_BYTES = 96
_SAMPLE = 8192
# Places in a sample of which the first is hardly above its true rank; from both, scores further up are estimated.
_FIRST, _SECOND = 4, 64
# Scores rise less and less with the rank: so much of the estimate is taken.
_OF_RISE = 0.6
# The bound of a sample's candidates is taken for that of all with so much to spare.
_WIDER = 1.05
# A query that keeps more than this many times what it should is not served.
_MANY_TIMES = 16


def shared_pass(
    pool: OperandPool, many: Sequence[tuple[Request, int]], few: Sequence[tuple[Request, int]], counts: Counts
) -> list[Shortlist]:
    """Shortlists of requests of many candidates, and of those of few that are read off the pass.

    Args:
        pool: of the group.
        many: requests, each with its k.
        few: requests whose queries and candidates are among those of ``many``, each with its k.
        counts: is added to.

    Returns:
        the shortlists of ``many``, then of ``few``.
    """
    work = _Pass(pool, many, few)
    if pool.keeps:
        pool.candidates(work.members[:1])  # all are made here, by all threads
        done = list(in_workers(work.of_chunk, work.chunks(torch.get_num_threads())))
    else:
        done = [work.of_chunk(chunk) for chunk in work.chunks(1)]
    pieces: list[list[Picked]] = [[] for _ in (*many, *few)]
    for picked, of_chunk in done:
        counts.add(of_chunk)
        for piece, of_request in zip(picked, pieces, strict=True):
            of_request.append(piece)
    out = []
    for (request, k), found in zip((*many, *few), pieces, strict=True):
        query, candidate, unserved = (np.concatenate(column) for column in zip(*found, strict=True))
        out.append(pool.completed(request, k, query, candidate, unserved, counts))
    return out


class _Pass:
    """What all chunks of queries share.

    Args:
        pool: of the group.
        many: requests that what is kept must serve, each with its k.
        few: requests that read every block of scores, each with its k.

    Attributes:
        members: rows of the candidates, ascending, int64.
    """

    def __init__(
        self, pool: OperandPool, many: Sequence[tuple[Request, int]], few: Sequence[tuple[Request, int]]
    ) -> None:
        count = len(pool.rows)
        self._pool, self._many, self._few = pool, many, few
        self._block = min(_BLOCK_BYTES, pool.options.memory_bytes // 8 // torch.get_num_threads())
        self.members = union([request.candidates for request, _ in many], count)
        self._asked = union([request.queries for request, _ in many], count)
        self._place_of_row = np.full(count, -1)
        self._place_of_row[self.members] = np.arange(len(self.members))
        wants = [_wanted(k, len(request.candidates), len(self.members)) for request, k in many]
        # Short lists are picked from what is above a limit of their own, not from all that long ones need.
        most = max(wants)
        fewer = max((want for want in wants if 4 * want < most), default=most)
        ranks = [k / len(request.candidates) * len(self.members) for request, k in many]
        self._level = [int(fewer < want) for want in wants]
        #: Members to keep, and the deepest rank of a k-th neighbour among them, of short lists and of long ones.
        self._levels = [
            (want, max(rank for rank, level in zip(ranks, self._level, strict=True) if level == number))
            for number, want in enumerate(sorted({fewer, most}))
        ]

    def chunks(self, threads: int) -> list[np.ndarray]:
        """Rows of the queries that are looked at together, so that those of all threads fit the memory."""
        at_once = self._pool.options.memory_bytes // 4 // (_KEPT_BYTES * self._levels[-1][0] * threads)
        at_once = min(max(at_once, _FEWEST_QUERIES), _QUERIES, -(-len(self._asked) // threads))
        return [self._asked[start : start + at_once] for start in range(0, len(self._asked), at_once)]

    def of_chunk(self, chunk: np.ndarray) -> tuple[list[Picked], Counts]:
        """What every request picks for some queries; it can be called from several threads."""
        pool, counts = self._pool, Counts()
        readers = [PassReader(pool.space, request, k, self._place_of_row, chunk) for request, k in self._few]
        queries = pool.queries(chunk)
        *higher, limit = self._limits(queries, counts)
        lowest = self._keep(queries, limit, readers, counts)
        kept = [*(lowest.above(nb.raw_values(one)) for one in higher), lowest]
        needed = np.full(len(chunk), np.inf)
        picked = [
            pick(pool.space, request, self._place_of_row, chunk, kept[level], k, needed)
            for (request, k), level in zip(self._many, self._level, strict=True)
        ]
        picked = self._again(chunk, needed, limit.dtype, picked, counts)
        return [*picked, *(reader.found() for reader in readers)], counts

    def _keep(self, queries: Operand, limit: np.ndarray, readers: Sequence[PassReader], counts: Counts) -> KeptScores:
        """One pass over the candidates, in blocks: what reaches the limit of its query.

        Args:
            queries: their operand.
            limit: of each query, as scores are stored.
            readers: are shown every block.
            counts: is added to.
        """
        pool, members = self._pool, self.members
        space, most = pool.space, _MANY_TIMES * self._levels[-1][0]
        limit = limit.copy()
        never = nb.greatest_score(limit.dtype)
        number = np.zeros(len(queries), np.int64)
        error = space.error(pool.candidates(members), queries) if pool.keeps else np.zeros(len(queries))
        pieces = []
        rows = max(1, min(self._block // (space.dtype.itemsize * max(1, len(queries))), _BLOCK_ROWS))
        scores = space.room(rows, len(queries))
        for start in range(0, len(members), rows):
            part = pool.candidates(members[start : start + rows])
            if not pool.keeps:
                np.maximum(error, space.error(part, queries), out=error)
            table = _raw_scores(space, part, queries, scores)
            counts.scored += table.size
            for reader in readers:
                reader.read(table, start, error)
            member, query = places_above(table, limit)
            pieces.append((query, start + member, table[member, query]))
            number += np.bincount(query, minlength=len(queries))
            limit[number > most] = never
        query, member, raw = (np.concatenate(column) for column in zip(*pieces, strict=True))
        keep = limit[query] != never
        reached = nb.raw_values(limit)
        reached[limit == never] = np.inf
        return KeptScores.of_raw(query[keep], member[keep], raw[keep], reached, error)

    def _again(
        self, chunk: np.ndarray, needed: np.ndarray, dtype: np.dtype, picked: list[Picked], counts: Counts
    ) -> list[Picked]:
        """A second pass for queries that kept k candidates of a request, but not all that may be as near as they."""
        limit = nb.floor_to(needed, dtype)
        left = np.flatnonzero((limit > 0) & np.isfinite(needed))
        if not len(left):
            return picked
        pool, chunk = self._pool, chunk[left]
        kept = self._keep(pool.queries(chunk), limit[left], [], counts)
        out = []
        for (request, k), (query, candidate, unserved) in zip(self._many, picked, strict=True):
            if len(unserved):
                now = pick(pool.space, request, self._place_of_row, chunk, kept, k)
                missing = np.zeros(len(request.queries), bool)
                missing[unserved] = True
                found = missing[now[0]]
                asked = np.isin(request.queries, chunk)
                asked[now[2]] = False
                query = np.concatenate([query, now[0][found]])
                candidate = np.concatenate([candidate, now[1][found]])
                unserved = np.flatnonzero(missing & ~asked)
            out.append((query, candidate, unserved))
        return out

    def _limits(self, queries: Operand, counts: Counts) -> list[np.ndarray]:
        """Score limits that about as many candidates of each query reach as short lists need, and long ones: the least.

        They are estimated from a sample of the candidates. What they keep must reach below the nearest ones of every
        request by twice the bound.
        """
        space = self._pool.space
        step = max(1, len(self.members) // _SAMPLE)
        part = self._pool.candidates(self.members[::step])
        table = _raw_scores(space, part, queries, space.room(len(part), len(queries)))
        counts.scored += table.size
        share = len(part) / len(self.members)
        peaks = np.ascontiguousarray(_peaks(table).T)

        def at(place: float) -> np.ndarray:
            """The score of a place counted from the largest, which is 1."""
            last = max(0, peaks.shape[1] - round(place))
            peaks.partition(last, axis=1)
            return peaks[:, last].copy()

        error = _WIDER * space.error(part, queries)
        first, second = nb.raw_values(at(_FIRST)), nb.raw_values(at(_SECOND))
        rise = _OF_RISE * (first - second) / np.log(_SECOND / _FIRST)
        limits = []
        for want, rank in self._levels:
            place = rank * share
            nearest = nb.raw_values(at(place)) if place >= _FIRST else first + rise * np.log(_FIRST / place)
            reach = nb.score_limit(space, nb.lower_bound(space, nearest, error), error)
            limits.append(np.minimum(at(max(_FIRST, want * share)), nb.floor_to(reach, peaks.dtype)))
        limits[-1] = np.min(limits, axis=0)
        # bfloat16 bits compare as whole numbers only above zero; a query with a lower limit is not served.
        most = nb.greatest_score(peaks.dtype)
        return [np.where(limit > 0, limit, most).astype(peaks.dtype) for limit in limits]


def _wanted(k: int, candidates: int, members: int) -> int:
    """Members of the pass to keep, so that k of so many candidates are among them.

    A few are found among three times as many, many among little more.
    """
    return int(np.ceil(min(3 * k, k + 9 * np.sqrt(k)) / candidates * members)) + 32


def _raw_scores(space: SweepSpace, part: Operand, queries: Operand, scores: torch.Tensor) -> np.ndarray:
    space.write_scores(part, queries, scores[: len(part)])
    return raw_numbers(scores[: len(part)])


def _peaks(table: np.ndarray) -> np.ndarray:
    """The largest of every 16 candidates, shape (groups, queries)."""
    padded = -(-len(table) // nb.GROUP) * nb.GROUP
    return group_peaks(table, np.minimum(np.arange(padded), len(table) - 1).reshape(-1, nb.GROUP))
