"""One pass over the candidates of a group for many requests: of each query, what is above a score limit is kept.

Each request picks its own from what was kept. Limits are estimated from a sample of the candidates, so a query may keep
too few of a request: where scores are coarse such queries go through a second pass, with limits that the first one
tells, and what is left then is scored for that request alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from . import neighbours as nb
from .neighbours import Counts, Request, Shortlist
from .operand_pool import OperandPool
from .pass_reader import PassReader
from .score_scan import group_peaks, places_above
from .score_tables import union
from .sweep_space import Operand, SweepSpace, raw_numbers
from .workers import in_workers

_PART = 4096
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

#: (query, candidate) pairs of a request as places in it, and the places of its queries that are not served.
_Picked = tuple[np.ndarray, np.ndarray, np.ndarray]


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
    pieces: list[list[_Picked]] = [[] for _ in (*many, *few)]
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

    def of_chunk(self, chunk: np.ndarray) -> tuple[list[_Picked], Counts]:
        """What every request picks for some queries; it can be called from several threads."""
        pool, counts = self._pool, Counts()
        readers = [PassReader(pool.space, request, k, self._place_of_row, chunk) for request, k in self._few]
        queries = pool.queries(chunk)
        *higher, limit = self._limits(queries, counts)
        lowest = _keep(pool, self.members, queries, limit, _MANY_TIMES * self._levels[-1][0], readers, counts)
        kept = [*(lowest.above(nb.raw_values(one)) for one in higher), lowest]
        needed = np.full(len(chunk), np.inf)
        picked = [
            _pick(pool.space, request, self._place_of_row, self.members, chunk, kept[level], k, needed)
            for (request, k), level in zip(self._many, self._level, strict=True)
        ]
        if pool.space.is_coarse:
            picked = self._again(chunk, nb.floor_to(needed, limit.dtype), picked, counts)
        return [*picked, *(reader.found() for reader in readers)], counts

    def _again(self, chunk: np.ndarray, limit: np.ndarray, picked: list[_Picked], counts: Counts) -> list[_Picked]:
        """A second pass for queries that kept k candidates of a request, but not all that may be as near as they."""
        left = np.flatnonzero((limit > 0) & np.isfinite(limit))
        if not len(left):
            return picked
        pool, chunk = self._pool, chunk[left]
        most = _MANY_TIMES * self._levels[-1][0]
        kept = _keep(pool, self.members, pool.queries(chunk), limit[left], most, [], counts)
        out = []
        for (request, k), (query, candidate, unserved) in zip(self._many, picked, strict=True):
            if len(unserved):
                now = _pick(pool.space, request, self._place_of_row, self.members, chunk, kept, k)
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

        They are estimated from a sample of the candidates. Where scores are coarse, what they keep must reach below
        the nearest ones of every request by twice the bound.
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

        limits = [at(max(_FIRST, want * share)) for want, _ in self._levels]
        if space.is_coarse:
            first = at(_FIRST)
            rise = _OF_RISE * (first - at(_SECOND)) / np.log(_SECOND / _FIRST)
            for level, (_, rank) in enumerate(self._levels):
                place = rank * share
                nearest = at(place) if place >= _FIRST else first + rise * np.log(_FIRST / place)
                limits[level] = np.minimum(limits[level], nearest - _WIDER * 2 * space.error(part, queries))
            limits[-1] = np.min(limits, axis=0)
        # bfloat16 bits compare as whole numbers only above zero; a query with a lower limit is not served.
        most = nb.greatest_score(peaks.dtype)
        return [np.where(limit > 0, limit, most).astype(peaks.dtype) for limit in limits]


def _wanted(k: int, candidates: int, members: int) -> int:
    """Members of the pass to keep, so that k of so many candidates are among them.

    A few are found among three times as many, many among little more.
    """
    return int(np.ceil(min(3 * k, k + 9 * np.sqrt(k)) / candidates * members)) + 32


@dataclass(frozen=True)
class _Kept:
    """Candidates above the score limit of each query.

    Attributes:
        query: place among the queries of the pass, shape (S,), int64, ascending.
        member: place among the candidates of the pass, shape (S,), int64.
        value: stored score, shape (S,), float64, falling within a query.
        limit: score limit of each query, shape (V,), float64; +inf where the query is not served.
        error: bound of each query, shape (V,), float64.
    """

    query: np.ndarray
    member: np.ndarray
    value: np.ndarray
    limit: np.ndarray
    error: np.ndarray

    def above(self, limit: np.ndarray) -> _Kept:
        """Those that reach a higher limit of each query."""
        limit = np.maximum(limit, self.limit)
        stay = self.value >= limit[self.query]
        return _Kept(self.query[stay], self.member[stay], self.value[stay], limit, self.error)


def _keep(
    pool: OperandPool,
    members: np.ndarray,
    queries: Operand,
    limit: np.ndarray,
    most: int,
    readers: Sequence[PassReader],
    counts: Counts,
) -> _Kept:
    """One pass over the candidates, in blocks: what reaches the limit of its query.

    Args:
        pool: of the group.
        members: rows of the candidates, ascending, int64.
        queries: their operand.
        limit: of each query, as scores are stored.
        most: candidates that may be kept of a query; one with more is not served.
        readers: are shown every block.
        counts: is added to.
    """
    space = pool.space
    limit = limit.copy()
    never = nb.greatest_score(limit.dtype)
    number = np.zeros(len(queries), np.int64)
    error = np.zeros(len(queries))
    pieces = []
    scores = space.room(_PART, len(queries))
    for start in range(0, len(members), _PART):
        part = pool.candidates(members[start : start + _PART])
        np.maximum(error, space.error(part, queries), out=error)
        table = _raw_scores(space, part, queries, scores)
        counts.scored += table.size
        for reader in readers:
            reader.read(table, start, error)
        member, query = places_above(table, limit)
        pieces.append((query, start + member, table[member, query]))
        number += np.bincount(query, minlength=len(queries))
        limit[number > most] = never
    query, member, value = (np.concatenate(column) for column in zip(*pieces, strict=True))
    keep = limit[query] != never
    query, member, value = by_query_and_value(query[keep], member[keep], value[keep])
    reached = nb.raw_values(limit)
    reached[limit == never] = np.inf
    return _Kept(query, member, nb.raw_values(value), reached, error)


def _raw_scores(space: SweepSpace, part: Operand, queries: Operand, scores: torch.Tensor) -> np.ndarray:
    space.write_scores(part, queries, scores[: len(part)])
    return raw_numbers(scores[: len(part)])


def _peaks(table: np.ndarray) -> np.ndarray:
    """The largest of every 16 candidates, shape (groups, queries)."""
    padded = -(-len(table) // nb.GROUP) * nb.GROUP
    return group_peaks(table, np.minimum(np.arange(padded), len(table) - 1).reshape(-1, nb.GROUP))


def _pick(
    space: SweepSpace,
    request: Request,
    place_of_row: np.ndarray,
    members: np.ndarray,
    chunk: np.ndarray,
    kept: _Kept,
    k: int,
    needed: np.ndarray | None = None,
) -> _Picked:
    """(query, candidate) pairs of the request that may be among its k nearest, and its queries that are not served.

    ``needed`` of a query, its score limit in a second pass, is lowered to what this request would have needed.
    """
    place_of_query = np.full(len(chunk), -1)
    at = np.minimum(np.searchsorted(chunk, request.queries), len(chunk) - 1)
    inside = np.flatnonzero(chunk[at] == request.queries)
    place_of_query[at[inside]] = inside
    place_of_member = np.full(len(members), -1)
    place_of_member[place_of_row[request.candidates]] = np.arange(len(request.candidates))
    query, candidate = place_of_query[kept.query], place_of_member[kept.member]
    chosen = np.flatnonzero((query >= 0) & (candidate >= 0))
    query, candidate = query[chosen], candidate[chosen]
    if len(request.excluded[0]):
        pairs = np.sort(request.excluded[0] * len(request.candidates) + request.excluded[1])
        pair = query * len(request.candidates) + candidate
        at = np.minimum(np.searchsorted(pairs, pair), len(pairs) - 1)
        stay = pairs[at] != pair
        query, candidate, chosen = query[stay], candidate[stay], chosen[stay]
    # Lower and upper bounds of a query fall as its values do.
    local, value = kept.query[chosen], kept.value[chosen]
    floor = nb.kth_floor(local, nb.lower_bound(space, value, kept.error[local]), len(chunk), k)
    # Whatever was not kept has a score below the limit.
    served = np.isfinite(kept.limit)
    served[served] = floor[served] > nb.upper_bound(space, kept.limit[served], kept.error[served])
    if needed is not None:
        short = ~served & np.isfinite(floor) & (place_of_query >= 0)
        needed[short] = np.minimum(needed[short], nb.score_limit(space, floor[short], kept.error[short]))
    stay = served[local] & (nb.upper_bound(space, value, kept.error[local]) >= floor[local])
    crowded = np.bincount(local[stay], minlength=len(chunk)) > nb.crowd(k)
    stay &= ~crowded[local]
    if space.is_coarse:
        local, value, query, candidate = local[stay], value[stay], query[stay], candidate[stay]
        least = _settled_floor(space, chunk[local], request.candidates[candidate], local, len(chunk), k)
        stay = nb.upper_bound(space, value, kept.error[local]) >= least[local]
    asked = place_of_query >= 0
    return query[stay], candidate[stay], place_of_query[asked & (~served | crowded)]


def _settled_floor(
    space: SweepSpace, query_row: np.ndarray, member_row: np.ndarray, local: np.ndarray, count: int, k: int
) -> np.ndarray:
    """Similarity, less ⟨z_q, μ⟩, that the k first pairs of each query reach: of few pairs it is worth to know exactly.

    Args:
        space: of the scores.
        query_row, member_row: rows of pairs, shape (S,), int64.
        local: place of the query of each pair, shape (S,), int64, ascending; each query has none or at least k.
        count: of queries.
        k: neighbours.

    Returns:
        shape (count,), float64; −inf of queries without pairs.
    """
    number = np.bincount(local, minlength=count)
    start = (np.cumsum(number) - number)[number > 0]
    first = (start[:, None] + np.arange(k)).ravel()
    exact = space.rows.similarities(query_row[first], member_row[first]).reshape(-1, k)
    least = np.full(count, -np.inf)
    least[number > 0] = exact.min(axis=1) - space.shifts(query_row[start]) - 1e-10
    return least


def by_query_and_value(
    query: np.ndarray, member: np.ndarray, value: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorted by query, then by falling value.

    Args:
        query: shape (S,), int64.
        member: shape (S,), int64.
        value: stored scores above zero, shape (S,): bits of bfloat16 as int16, float32 or float64.
    """
    # One 64-bit key sorts much faster, where query, value and member fit into it.
    bits = value if value.itemsize != 4 else value.view(np.int32)
    room, shift = 8 * bits.itemsize - 1, 63 - int(query.max(initial=0)).bit_length()
    spare = shift - room
    if value.dtype == np.float64 or int(member.max(initial=0)).bit_length() > spare:
        by = np.lexsort((-value, query))
        return query[by], member[by], value[by]
    top = np.int64(2**room - 1)
    key = (query << np.int64(shift)) | ((top - bits.astype(np.int64)) << np.int64(spare)) | member
    key.sort()
    number = top - ((key >> np.int64(spare)) & top)
    return key >> np.int64(shift), key & np.int64(2**spare - 1), number.astype(bits.dtype).view(value.dtype)
