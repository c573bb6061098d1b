"""Answers the requests of one group together: the group is scored once for all findings, sets and set sizes.

Requests with few candidates (drawn sets, rare labels) are scored directly, or in tables of their union where that is
fewer pairs than they are together (:mod:`.score_tables`). Those with many (every positive, every
negative of a group) share one pass over the group: of each query, every candidate above a score limit is kept with
its label bits, and each request picks its own from those. Where they do not suffice by the error bound, the request
is scored directly for that query. So the pass, like all scores, decides the time and not a bit of a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from . import neighbours as nb
from .neighbours import Counts, Neighbours, Request, Shortlist
from .options import Options
from .pass_reader import PassReader
from .score_scan import places_above, score_room
from .score_tables import ScoreTables, batches, union
from .similarity import FeatureRows
from .sweep_space import Operand, SweepSpace, choose_precision
from .table_lists import table_lists

# Fewer candidates than this are never worth a shared pass.
MANY = 16384
# A request must hold at least this share of the group, or too few of the kept candidates are its own.
_SHARE = 0.1
# With more neighbours than this of so many candidates, what would be kept for all requests is too much.
_DEEP = 128
_PART = 4096
_QUERIES, _FEWEST_QUERIES = 4096, 256
# Bytes of a kept candidate, at their peak.
_KEPT_BYTES = 96
_SAMPLE = 8192
# A request of fewer pairs than this is scored sooner than it is read off the shared pass.
_WORTH = 2**18
# So many pairs of a candidate are settled sooner than the candidate is made ready to be scored.
_FEW_PAIRS = 4
# Requests that are fewer pairs than this more than their union are not worth tables.
_SAVED = 2**20


def search(
    rows: FeatureRows,
    requests: Sequence[Request],
    k: int | Sequence[int],
    order: np.ndarray,
    options: Options,
    counts: Counts,
) -> list[Neighbours]:
    """The k nearest of every request.

    Args:
        rows: the features.
        requests: what is compared.
        k: neighbours, of all requests or of each.
        order: place of each row among equal similarities, shape (N,), int64.
        options: ``precision`` and ``memory_bytes`` are used.
        counts: is added to.
    """
    if not requests:
        return []
    ks = [k] * len(requests) if isinstance(k, int) else list(k)
    members = union([request.candidates for request in requests], len(rows))
    if sum(len(request.queries) * len(request.candidates) for request in requests) <= _FEW_PAIRS * len(members):
        return nb.settle_together(rows, requests, [_every_pair(request) for request in requests], ks, order, counts)
    pool = _Pool(rows, requests, members, options)
    listed: list[Shortlist | None] = [None] * len(requests)
    shared = _worth_sharing(requests, ks, len(rows))
    if shared:
        read = _worth_reading(requests, ks, shared, len(rows))
        many, few = ([(requests[i], ks[i]) for i in some] for some in (shared, read))
        together = _shared_pass(pool, many, few, counts)
        for place, found in zip(shared + read, together, strict=True):
            listed[place] = found
    direct = [i for i, found in enumerate(listed) if found is None]
    for some in _worth_tables(pool, [requests[i] for i in direct], [ks[i] for i in direct]):
        places = [direct[i] for i in some]
        together = _from_tables(pool, [requests[i] for i in places], [ks[i] for i in places], counts)
        for place, found in zip(places, together, strict=True):
            listed[place] = found
    full = [
        pool.direct(request, number, counts) if found is None else found
        for request, number, found in zip(requests, ks, listed, strict=True)
    ]
    return nb.settle_together(rows, requests, full, ks, order, counts)


def _every_pair(request: Request) -> Shortlist:
    """All pairs of a request but the excluded ones, to be settled without a look at scores."""
    pairs = np.ones((len(request.queries), len(request.candidates)), bool)
    pairs[request.excluded] = False
    query, candidate = np.nonzero(pairs)
    return Shortlist(query, candidate, np.empty(0, np.int64))


class _Pool:
    """Operands of a group: every query once, and every candidate once where the memory allows."""

    def __init__(self, rows: FeatureRows, requests: Sequence[Request], members: np.ndarray, options: Options) -> None:
        self.rows, self.options, self.members = rows, options, members
        self.space = SweepSpace(rows, self.members, choose_precision(options.precision))
        self.row_bytes = (rows.dimension + 3) * self.space.dtype.itemsize
        size = len(self.members) * self.row_bytes
        self._keep = size <= options.memory_bytes // 2
        self._kept: Operand | None = None
        asked = union([request.queries for request in requests], len(rows))
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
        if not self._keep:
            return self.space.candidates(members)
        if self._kept is None:
            self._kept = self.space.candidates(self.members)
        return self._kept.take(np.searchsorted(self.members, members))

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        """Requests whose candidates' operand fits the memory together, beside that of the whole group if it is kept."""
        if self._keep and len(union([request.candidates for request in requests], len(self.rows))) == len(self.members):
            return [list(range(len(requests)))]
        most = self.options.memory_bytes // (8 if self._keep else 2)
        return list(batches(requests, len(self.rows), self.row_bytes, most))

    def direct(self, request: Request, k: int, counts: Counts, only: np.ndarray | None = None) -> Shortlist:
        """Shortlist of a request, or of some of its queries, from scores of its own."""
        if only is not None:
            request = request.of_queries(only)
        queries = self.queries(request.queries)
        return nb.shortlist(
            self.space, queries, request, k, counts, lambda start, stop: self.candidates(request.candidates[start:stop])
        )


def _worth_tables(pool: _Pool, requests: Sequence[Request], ks: Sequence[int]) -> list[list[int]]:
    """Requests that are cheaper in tables of the union of their candidates, those of the same tables together."""
    few = [
        i
        for i, (request, k) in enumerate(zip(requests, ks, strict=True))
        if k <= nb.FEW and len(request.queries) and len(request.candidates) >= 2 * k
    ]
    if len(few) < 2:
        return []
    count = len(pool.rows)
    out = []
    for batch in pool.batches([requests[i] for i in few]):
        some = [few[place] for place in batch]
        asked = len(union([requests[i].queries for i in some], count))
        whole = len(union([requests[i].candidates for i in some], count))
        alone = sum(len(requests[i].queries) * len(requests[i].candidates) for i in some)
        if alone - asked * whole >= _SAVED:
            out.append(some)
    return out


def _from_tables(pool: _Pool, requests: Sequence[Request], ks: Sequence[int], counts: Counts) -> list[Shortlist]:
    members = union([request.candidates for request in requests], len(pool.rows))
    tables = ScoreTables(
        pool.space,
        requests,
        ks,
        members,
        pool.candidates(members),
        pool.queries,
        pool.options.memory_bytes // 8,
        torch.get_num_threads(),
    )
    found = table_lists(tables, counts)
    return [
        _completed(pool, request, k, listed.query, listed.candidate, listed.unserved, counts)
        for request, k, listed in zip(requests, ks, found, strict=True)
    ]


def _completed(
    pool: _Pool,
    request: Request,
    k: int,
    query: np.ndarray,
    candidate: np.ndarray,
    unserved: np.ndarray,
    counts: Counts,
) -> Shortlist:
    """The shortlist of a request, given the pairs of the queries that are served; the others are scored directly."""
    long = np.empty(0, np.int64)
    if len(unserved):
        again = pool.direct(request, k, counts, unserved)
        query = np.concatenate([query, unserved[again.query]])
        candidate = np.concatenate([candidate, again.candidate])
        long = unserved[again.long]
    by = np.argsort(query, kind="stable")
    return Shortlist(query[by], candidate[by], long)


def _worth_sharing(requests: Sequence[Request], ks: Sequence[int], count: int) -> list[int]:
    """Requests that are cheaper in one pass over the union of their candidates."""
    many = [
        i
        for i, request in enumerate(requests)
        if len(request.candidates) >= MANY and len(request.queries) and ks[i] * MANY <= _DEEP * len(request.candidates)
    ]
    # Long lists of a few queries would lengthen what is kept of all.
    asked = len(union([requests[i].queries for i in many], count)) if many else 0
    many = [i for i in many if ks[i] <= nb.FEW or 2 * len(requests[i].queries) >= asked]
    if len(many) < 2:
        return []
    whole = len(union([requests[i].candidates for i in many], count))
    many = [i for i in many if len(requests[i].candidates) >= _SHARE * whole]
    asked = len(union([requests[i].queries for i in many], count))
    alone = sum(len(requests[i].queries) * len(requests[i].candidates) for i in many)
    return many if alone > asked * whole else []


def _worth_reading(requests: Sequence[Request], ks: Sequence[int], shared: Sequence[int], count: int) -> list[int]:
    """Requests of which the shared pass scores every pair, so that they are read off it."""
    asked, members = np.zeros(count, bool), np.zeros(count, bool)
    for i in shared:
        asked[requests[i].queries], members[requests[i].candidates] = True, True
    return [
        i
        for i in sorted(set(range(len(requests))) - set(shared))
        if ks[i] <= nb.FEW
        and len(requests[i].queries) * len(requests[i].candidates) >= _WORTH
        and asked[requests[i].queries].all()
        and members[requests[i].candidates].all()
    ]


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


def _shared_pass(
    pool: _Pool, many: Sequence[tuple[Request, int]], few: Sequence[tuple[Request, int]], counts: Counts
) -> list[Shortlist]:
    """Shortlists of requests, each with its k, of many candidates, and of those of few that are read off the pass."""
    members = union([request.candidates for request, _ in many], len(pool.rows))
    asked = union([request.queries for request, _ in many], len(pool.rows))
    place_of_row = np.full(len(pool.rows), -1)
    place_of_row[members] = np.arange(len(members))
    wants = [_wanted(k, len(request.candidates), len(members)) for request, k in many]
    # Short lists are picked from what is above a limit of their own, not from all that long ones need.
    most = max(wants)
    fewer = max((want for want in wants if 4 * want < most), default=most)
    at_once = pool.options.memory_bytes // 4 // (_KEPT_BYTES * most)
    at_once = min(max(at_once, _FEWEST_QUERIES), _QUERIES)
    pieces: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = [[] for _ in (*many, *few)]
    for start in range(0, len(asked), at_once):
        chunk = asked[start : start + at_once]
        readers = [PassReader(pool.space, request, k, place_of_row, chunk) for request, k in few]
        kept = _keep(pool, members, chunk, sorted({fewer, most}), readers, counts)
        for place, ((request, k), want) in enumerate(zip(many, wants, strict=True)):
            above = kept[0] if want <= fewer else kept[-1]
            pieces[place].append(_pick(pool.space, request, place_of_row, len(members), chunk, above, k))
        for place, reader in enumerate(readers, start=len(many)):
            pieces[place].append(reader.found())
    out = []
    for (request, k), found in zip((*many, *few), pieces, strict=True):
        query, candidate, unserved = (np.concatenate(column) for column in zip(*found, strict=True))
        out.append(_completed(pool, request, k, query, candidate, unserved, counts))
    return out


def _wanted(k: int, candidates: int, members: int) -> int:
    """Members of the pass to keep, so that k of so many candidates are among them.

    A few are found among three times as many, many among little more.
    """
    return int(np.ceil(min(3 * k, k + 9 * np.sqrt(k)) / candidates * members)) + 32


def _keep(
    pool: _Pool,
    members: np.ndarray,
    chunk: np.ndarray,
    wants: Sequence[int],
    readers: Sequence[PassReader],
    counts: Counts,
) -> list[_Kept]:
    """One pass over the candidates, in blocks: what is kept to find so many of each query, for each of ``wants``.

    The readers are shown every block.
    """
    space = pool.space
    queries = pool.queries(chunk)
    *higher, raw_limit = _limits(pool, members, queries, wants, counts)
    most = nb.greatest_score(raw_limit.dtype)
    number = np.zeros(len(chunk), np.int64)
    error = np.zeros(len(chunk))
    pieces = []
    scores = score_room(_PART, len(chunk), space.dtype)
    for start in range(0, len(members), _PART):
        part = pool.candidates(members[start : start + _PART])
        np.maximum(error, space.error(part, queries), out=error)
        table = _raw_scores(part, queries, scores)
        counts.scored += table.size
        for reader in readers:
            reader.read(table, start, error)
        member, query = places_above(table, raw_limit)
        pieces.append((query, start + member, table[member, query]))
        number += np.bincount(query, minlength=len(chunk))
        raw_limit[number > 16 * wants[-1]] = most
    query, member, value = (np.concatenate(column) for column in zip(*pieces, strict=True))
    keep = raw_limit[query] != most
    query, member, value = by_query_and_value(query[keep], member[keep], value[keep])
    limits = [nb.raw_values(limit) for limit in (*higher, raw_limit)]
    for limit in limits:
        limit[raw_limit == most] = np.inf
    kept = _Kept(query, member, nb.raw_values(value), limits.pop(), error)
    return [*(kept.above(limit) for limit in limits), kept]


def _limits(
    pool: _Pool, members: np.ndarray, queries: Operand, wants: Sequence[int], counts: Counts
) -> list[np.ndarray]:
    """Score limits that about so many candidates of each query reach, estimated from a sample of them."""
    step = max(1, len(members) // _SAMPLE)
    sample = members[::step]
    part = pool.candidates(sample)
    table = _raw_scores(part, queries, score_room(len(sample), len(queries), pool.space.dtype))
    counts.scored += table.size
    peaks = np.ascontiguousarray(_peaks(table).T)
    places = [max(0, len(peaks[0]) - max(4, round(want * len(sample) / len(members)))) for want in wants]
    peaks.partition(sorted(set(places)), axis=1)
    limits = [peaks[:, place] for place in places]
    # bfloat16 bits compare as whole numbers only above zero; a query with a lower limit is not served.
    most = nb.greatest_score(peaks.dtype)
    return [np.where(limit > 0, limit, most).astype(limit.dtype) for limit in limits]


def _raw_scores(part: Operand, queries: Operand, scores: torch.Tensor) -> np.ndarray:
    scores = scores[: len(part)]
    torch.mm(part.matrix, queries.matrix.T, out=scores)
    return (scores.view(torch.int16) if scores.dtype == torch.bfloat16 else scores).numpy()


def _peaks(table: np.ndarray) -> np.ndarray:
    """The largest of every 16 candidates, shape (groups, queries)."""
    whole = len(table) // nb.GROUP
    peaks = table[: whole * nb.GROUP].reshape(whole, nb.GROUP, table.shape[1]).max(axis=1)
    if whole * nb.GROUP < len(table):
        peaks = np.concatenate([peaks, table[whole * nb.GROUP :].max(axis=0, keepdims=True)])
    return peaks


def _pick(
    space: SweepSpace,
    request: Request,
    place_of_row: np.ndarray,
    members: int,
    chunk: np.ndarray,
    kept: _Kept,
    k: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(query, candidate) pairs of the request that may be among its k nearest, and its queries that are not served."""
    place_of_query = np.full(len(chunk), -1)
    inside = np.flatnonzero((request.queries >= chunk[0]) & (request.queries <= chunk[-1]))
    place_of_query[np.searchsorted(chunk, request.queries[inside])] = inside
    place_of_member = np.full(members, -1)
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
    stay = served[local] & (nb.upper_bound(space, value, kept.error[local]) >= floor[local])
    crowded = np.bincount(local[stay], minlength=len(chunk)) > nb.crowd(k)
    stay &= ~crowded[local]
    asked = place_of_query >= 0
    return query[stay], candidate[stay], place_of_query[asked & (~served | crowded)]


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
