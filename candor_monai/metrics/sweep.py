"""Answers the requests of one group together: the group is scored once for all findings, sets and set sizes.

Requests with few candidates (drawn sets, rare labels) are scored directly. Those with many (every positive, every
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
from .similarity import FeatureRows
from .sweep_space import Operand, SweepSpace, choose_precision

# Fewer candidates than this are never worth a shared pass.
_MANY = 16384
# A request must hold at least this share of the group, or too few of the kept candidates are its own.
_SHARE = 0.1
# With more neighbours than this of so many candidates, what would be kept for all requests is too much.
_DEEP = 128
_PART = 4096
_QUERIES = 4096
_SAMPLE = 8192


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
    pool = _Pool(rows, requests, options)
    listed: list[Shortlist | None] = [None] * len(requests)
    shared = _worth_sharing(requests, ks, len(rows))
    if shared:
        together = _shared_pass(pool, [requests[i] for i in shared], [ks[i] for i in shared], counts)
        for place, found in zip(shared, together, strict=True):
            listed[place] = found
    full = [
        pool.direct(request, number, counts) if found is None else found
        for request, number, found in zip(requests, ks, listed, strict=True)
    ]
    return nb.settle_together(rows, requests, full, ks, order, counts)


class _Pool:
    """Operands of a group: every query once, and every candidate once where the memory allows."""

    def __init__(self, rows: FeatureRows, requests: Sequence[Request], options: Options) -> None:
        self.rows = rows
        self.members = union([request.candidates for request in requests], len(rows))
        self.space = SweepSpace(rows, self.members, choose_precision(options.precision))
        size = len(self.members) * (rows.dimension + 3) * self.space.dtype.itemsize
        self._keep = size <= options.memory_bytes // 2
        self._kept: Operand | None = None
        asked = union([request.queries for request in requests], len(rows))
        self.asked = asked
        small = len(asked) * (rows.dimension + 3) * self.space.dtype.itemsize <= options.memory_bytes // 8
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

    def direct(self, request: Request, k: int, counts: Counts, only: np.ndarray | None = None) -> Shortlist:
        """Shortlist of a request, or of some of its queries, from scores of its own."""
        if only is not None:
            request = request.of_queries(only)
        queries = self.queries(request.queries)
        return nb.shortlist(
            self.space, queries, request, k, counts, lambda start, stop: self.candidates(request.candidates[start:stop])
        )


def union(parts: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Distinct rows of several sets out of ``count`` rows, ascending."""
    there = np.zeros(count, bool)
    for part in parts:
        there[part] = True
    return np.flatnonzero(there)


def _worth_sharing(requests: Sequence[Request], ks: Sequence[int], count: int) -> list[int]:
    """Requests that are cheaper in one pass over the union of their candidates."""
    many = [
        i
        for i, request in enumerate(requests)
        if len(request.candidates) >= _MANY
        and len(request.queries)
        and ks[i] * _MANY <= _DEEP * len(request.candidates)
    ]
    if len(many) < 2:
        return []
    whole = len(union([requests[i].candidates for i in many], count))
    many = [i for i in many if len(requests[i].candidates) >= _SHARE * whole]
    asked = len(union([requests[i].queries for i in many], count))
    alone = sum(len(requests[i].queries) * len(requests[i].candidates) for i in many)
    return many if alone > asked * whole else []


@dataclass(frozen=True)
class _Kept:
    """Candidates above the score limit of each query.

    Attributes:
        query: place among the queries of the pass, shape (S,), int64, ascending.
        member: place among the candidates of the pass, shape (S,), int64.
        value: stored score, shape (S,), float64.
        limit: score limit of each query, shape (V,), float64; +inf where the query is not served.
        error: bound of each query, shape (V,), float64.
    """

    query: np.ndarray
    member: np.ndarray
    value: np.ndarray
    limit: np.ndarray
    error: np.ndarray


def _shared_pass(pool: _Pool, requests: Sequence[Request], ks: Sequence[int], counts: Counts) -> list[Shortlist]:
    members = union([request.candidates for request in requests], len(pool.rows))
    asked = union([request.queries for request in requests], len(pool.rows))
    # A few are found among three times as many, many among little more.
    needed = max(
        min(3 * k, k + 9 * np.sqrt(k)) / len(request.candidates) for request, k in zip(requests, ks, strict=True)
    )
    want = int(np.ceil(needed * len(members))) + 32
    pieces: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in requests]
    open_queries: list[list[np.ndarray]] = [[] for _ in requests]
    for start in range(0, len(asked), _QUERIES):
        chunk = asked[start : start + _QUERIES]
        kept = _keep(pool, members, chunk, want, counts)
        for place, (request, k) in enumerate(zip(requests, ks, strict=True)):
            query, candidate, unserved = _pick(pool.space, request, members, chunk, kept, k)
            pieces[place].append((query, candidate))
            open_queries[place].append(unserved)
    out = []
    for request, k, found, rest in zip(requests, ks, pieces, open_queries, strict=True):
        query = np.concatenate([piece[0] for piece in found])
        candidate = np.concatenate([piece[1] for piece in found])
        unserved = np.concatenate(rest)
        long = np.empty(0, np.int64)
        if len(unserved):
            again = pool.direct(request, k, counts, unserved)
            query = np.concatenate([query, unserved[again.query]])
            candidate = np.concatenate([candidate, again.candidate])
            long = unserved[again.long]
        by = np.argsort(query, kind="stable")
        out.append(Shortlist(query[by], candidate[by], long))
    return out


def _keep(pool: _Pool, members: np.ndarray, chunk: np.ndarray, want: int, counts: Counts) -> _Kept:
    """One pass over the candidates, in blocks."""
    space = pool.space
    queries = pool.queries(chunk)
    raw_limit = _limits(pool, members, queries, want, counts)
    most = nb.greatest_score(raw_limit.dtype)
    number = np.zeros(len(chunk), np.int64)
    error = np.zeros(len(chunk))
    pieces = []
    scores = torch.empty((_PART, len(chunk)), dtype=space.dtype)
    for start in range(0, len(members), _PART):
        part = pool.candidates(members[start : start + _PART])
        np.maximum(error, space.error(part, queries), out=error)
        table = _raw_scores(part, queries, scores)
        counts.scored += table.size
        peaks = _peaks(table)
        hit = np.flatnonzero(peaks >= raw_limit)
        group, query = np.divmod(hit, len(chunk))
        member = group[:, None] * nb.GROUP + np.arange(nb.GROUP)
        np.minimum(member, len(part) - 1, out=member)
        inside = table[member, query[:, None]]
        above = inside >= raw_limit[query][:, None]
        # The last group of a block may be short: its last member is looked at once.
        above[:, 1:] &= member[:, 1:] > member[:, :-1]
        which, place = np.nonzero(above)
        pieces.append((query[which], start + member[which, place], inside[which, place]))
        number += np.bincount(query[which], minlength=len(chunk))
        raw_limit[number > 16 * want] = most
    query, member, value = (np.concatenate(column) for column in zip(*pieces, strict=True))
    keep = raw_limit[query] != most
    query, member, value = query[keep], member[keep], value[keep]
    by = np.argsort(query, kind="stable")
    limit = nb.raw_values(raw_limit)
    limit[raw_limit == most] = np.inf
    return _Kept(query[by], member[by], nb.raw_values(value[by]), limit, error)


def _limits(pool: _Pool, members: np.ndarray, queries: Operand, want: int, counts: Counts) -> np.ndarray:
    """A score limit that about ``want`` candidates of each query reach, estimated from a sample of them."""
    step = max(1, len(members) // _SAMPLE)
    sample = members[::step]
    part = pool.candidates(sample)
    table = _raw_scores(part, queries, torch.empty((len(sample), len(queries)), dtype=pool.space.dtype))
    counts.scored += table.size
    peaks = np.ascontiguousarray(_peaks(table).T)
    place = max(0, len(peaks[0]) - max(4, round(want * len(sample) / len(members))))
    limit = np.partition(peaks, place, axis=1)[:, place]
    # bfloat16 bits compare as whole numbers only above zero; a query with a lower limit is not served.
    return np.where(limit > 0, limit, nb.greatest_score(limit.dtype)).astype(limit.dtype)


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
    space: SweepSpace, request: Request, members: np.ndarray, chunk: np.ndarray, kept: _Kept, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(query, candidate) pairs of the request that may be among its k nearest, and its queries that are not served."""
    place_of_query = np.full(len(chunk), -1)
    inside = np.flatnonzero((request.queries >= chunk[0]) & (request.queries <= chunk[-1]))
    place_of_query[np.searchsorted(chunk, request.queries[inside])] = inside
    place_of_member = np.full(len(members), -1)
    place_of_member[np.searchsorted(members, request.candidates)] = np.arange(len(request.candidates))
    query, candidate = place_of_query[kept.query], place_of_member[kept.member]
    chosen = np.flatnonzero((query >= 0) & (candidate >= 0))
    query, candidate = query[chosen], candidate[chosen]
    if len(request.excluded[0]):
        pairs = np.sort(request.excluded[0] * len(request.candidates) + request.excluded[1])
        pair = query * len(request.candidates) + candidate
        at = np.minimum(np.searchsorted(pairs, pair), len(pairs) - 1)
        stay = pairs[at] != pair
        query, candidate, chosen = query[stay], candidate[stay], chosen[stay]
    local = kept.query[chosen]
    low = nb.lower_bound(space, kept.value[chosen], kept.error[local])
    by = np.lexsort((-low, local))
    floor = nb.kth_floor(local, low[by], len(chunk), k)
    # Whatever was not kept has a score below the limit.
    served = np.isfinite(kept.limit)
    served[served] = floor[served] > nb.upper_bound(space, kept.limit[served], kept.error[served])
    high = nb.upper_bound(space, kept.value[chosen], kept.error[local])
    stay = served[local] & (high >= floor[local])
    crowded = np.bincount(local[stay], minlength=len(chunk)) > nb.crowd(k)
    stay &= ~crowded[local]
    asked = place_of_query >= 0
    return query[stay], candidate[stay], place_of_query[asked & (~served | crowded)]
