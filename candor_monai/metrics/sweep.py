"""Answers the requests of one group together: the group is scored once for all findings, sets and set sizes.

Requests with few candidates (drawn sets, rare labels) are scored directly, or in tables of their union where that is
fewer pairs than they are together (:mod:`.score_tables`). Those with many (every positive, every
negative of a group) share one pass over the group (:mod:`.shared_pass`): of each query, every candidate above a score
limit is kept, and each request picks its own from those. Where they do not suffice by the error bound, the request
is scored directly for that query. So the pass, like all scores, decides the time and not a bit of a result.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from . import neighbours as nb
from .neighbours import Counts, Neighbours, Request, Shortlist
from .operand_pool import MANY, OperandPool
from .options import Options
from .score_tables import ScoreTables, union
from .shared_pass import shared_pass
from .similarity import FeatureRows
from .table_lists import table_lists

# A request must hold at least this share of the group, or too few of the kept candidates are its own.
_SHARE = 0.1
# With more neighbours than this of so many candidates, what would be kept for all requests is too much.
_DEEP = 128
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
    pool = OperandPool(rows, requests, ks, members, options)
    listed: list[Shortlist | None] = [None] * len(requests)
    shared = _worth_sharing(requests, ks, len(rows))
    if shared:
        read = _worth_reading(requests, ks, shared, len(rows))
        many, few = ([(requests[i], ks[i]) for i in some] for some in (shared, read))
        together = shared_pass(pool, many, few, counts)
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


def _worth_tables(pool: OperandPool, requests: Sequence[Request], ks: Sequence[int]) -> list[list[int]]:
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


def _from_tables(pool: OperandPool, requests: Sequence[Request], ks: Sequence[int], counts: Counts) -> list[Shortlist]:
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
        pool.completed(request, k, listed.query, listed.candidate, listed.unserved, counts)
        for request, k, listed in zip(requests, ks, found, strict=True)
    ]


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
