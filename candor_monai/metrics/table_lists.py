"""Shortlists of requests that are scored together in tables, blocks of queries shared out over threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .largest import by_target
from .neighbours import Counts
from .score_tables import Block, Pairs, ScoreTables, joined
from .workers import in_workers

# Pairs that are trimmed together; more only where one request adds them.
_PAIRS = 2**18


@dataclass(frozen=True)
class Listed:
    """What may be among the k nearest of a request's queries.

    Attributes:
        query: place of the query of each pair, shape (S,), int64, ascending.
        candidate: place of the candidate, shape (S,), int64.
        unserved: places of the queries that need another way, which are not listed, int64, ascending.
    """

    query: np.ndarray
    candidate: np.ndarray
    unserved: np.ndarray


def table_lists(tables: ScoreTables, counts: Counts) -> list[Listed]:
    """The list of each request; ``counts`` is added to."""
    found: list[list[Listed]] = [[] for _ in tables.requests]
    for of_block in in_workers(lambda start: _of_block(tables.block(start), len(found)), tables.starts()):
        for at, piece in of_block:
            found[at].append(piece)
    counts.scored += len(tables.queries) * len(tables.members)
    return [
        _in_request(tables.members, request.candidates, len(request.queries), pieces)
        for request, pieces in zip(tables.requests, found, strict=True)
    ]


def _of_block(block: Block, requests: int) -> list[tuple[int, Listed]]:
    """Of each request what a block holds, in any order, candidates as places in the tables."""
    out: list[tuple[int, Listed]] = []
    waiting: list[tuple[int, np.ndarray, Pairs, np.ndarray]] = []
    for at in range(requests):
        places, pairs, served = block.listed(at)
        if len(places):
            waiting.append((at, places, pairs, places[~served]))
        if waiting and (sum(len(pairs) for _, _, pairs, _ in waiting) > _PAIRS or at == requests - 1):
            out += _trimmed(block, waiting)
            waiting = []
    return out


def _trimmed(block: Block, waiting: Sequence[tuple[int, np.ndarray, Pairs, np.ndarray]]) -> list[tuple[int, Listed]]:
    """(request, its queries in the block, pairs, queries that are not served), all trimmed in one go."""
    ends = np.cumsum([0, *(len(places) for _, places, _, _ in waiting)])
    ks = np.repeat([block.neighbours(at) for at, _, _, _ in waiting], np.diff(ends))
    parts = [pairs.after(first) for (_, _, pairs, _), first in zip(waiting, ends[:-1].tolist(), strict=True)]
    pairs = block.trimmed(joined(parts), int(ends[-1]), ks)
    part = np.searchsorted(ends, pairs.target, side="right") - 1
    cut = np.searchsorted(part, np.arange(len(waiting) + 1)).tolist()
    out = []
    for number, (at, places, _, unserved) in enumerate(waiting):
        here = slice(cut[number], cut[number + 1])
        out.append((at, Listed(places[pairs.target[here] - ends[number]], pairs.member[here], unserved)))
    return out


def _in_request(members: np.ndarray, candidates: np.ndarray, queries: int, pieces: Sequence[Listed]) -> Listed:
    """The pieces of a request as one, candidates as places in the request."""
    query = np.concatenate([piece.query for piece in pieces])
    by = by_target(query, queries)
    place = np.empty(len(members), np.int64)
    place[np.searchsorted(members, candidates)] = np.arange(len(candidates))
    candidate = place[np.concatenate([piece.candidate for piece in pieces])[by]]
    return Listed(query[by], candidate, np.sort(np.concatenate([piece.unserved for piece in pieces])))
