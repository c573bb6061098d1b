"""Requests that share queries and candidates, scored together: a block of queries against all their candidates.

A block is scored once, by one thread; each request then looks at its own rows (candidates) and columns (queries) of
the table: at the largest scores of groups of candidates first, then at the candidates of the groups that reach the
limit that these set.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from . import neighbours as nb
from .largest import kth_largest
from .neighbours import Request
from .score_scan import group_peaks, in_reach, opened_groups
from .sweep_space import Operand, SweepSpace, raw_numbers

# Queries of a block: its scores are looked at by all requests while they are in a cache.
_QUERIES = 512
# Candidates of a group, whose largest score is looked at first.
_GROUP = 16
# The first limit is the k-th largest of this many times k larger groups: hardly less than that of all groups.
_LARGE = 10
# Where a request has fewer than this share of a block's queries, their columns are copied out first.
_COLUMNS = 0.75


def union(parts: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Distinct rows of several sets out of ``count`` rows, ascending."""
    there = np.zeros(count, bool)
    for part in parts:
        there[part] = True
    return np.flatnonzero(there)


def batches(requests: Sequence[Request], count: int, row_bytes: int, most_bytes: int) -> Iterator[list[int]]:
    """Requests that fit the memory together, and that are no more pairs together than each alone.

    Args:
        requests: what is compared.
        count: rows that there are.
        row_bytes: bytes of a row of an operand.
        most_bytes: that the operand of the candidates, and places of the queries, may take.
    """
    whole = _Together(count)
    for request in requests:
        whole.add(request)
    if whole.bytes(row_bytes) <= most_bytes and whole.pairs <= whole.alone:
        yield list(range(len(requests)))
        return
    batch: list[int] = []
    now = _Together(count)
    for at, request in enumerate(requests):
        before = now.pairs
        now.add(request)
        large = now.bytes(row_bytes) > most_bytes
        if batch and (large or now.pairs > before + len(request.queries) * len(request.candidates)):
            yield batch
            batch, now = [], _Together(count)
            now.add(request)
        batch.append(at)
    yield batch


class _Together:
    """Size of what several requests hold together."""

    def __init__(self, count: int) -> None:
        self._queries, self._members = np.zeros(count, bool), np.zeros(count, bool)
        self._number = self._length = self._places = self.alone = 0

    def add(self, request: Request) -> None:
        self._number += int((~self._queries[request.queries]).sum())
        self._length += int((~self._members[request.candidates]).sum())
        self._queries[request.queries], self._members[request.candidates] = True, True
        self._places += len(request.queries)
        self.alone += len(request.queries) * len(request.candidates)

    @property
    def pairs(self) -> int:
        """Of the union of the queries and that of the candidates."""
        return self._number * self._length

    def bytes(self, row_bytes: int) -> int:
        return self._length * row_bytes + 16 * self._places


@dataclass(frozen=True)
class Pairs:
    """Pairs that may be among the k nearest.

    Attributes:
        target: number of whose neighbour the pair may be, shape (S,), int64.
        query: place among the queries of the block, shape (S,), int64.
        member: place among the candidates of the tables, shape (S,), int64.
        score: as stored, shape (S,).
    """

    target: np.ndarray
    query: np.ndarray
    member: np.ndarray
    score: np.ndarray

    def __len__(self) -> int:
        return len(self.target)

    def only(self, keep: np.ndarray) -> Pairs:
        return Pairs(self.target[keep], self.query[keep], self.member[keep], self.score[keep])

    def after(self, first: int) -> Pairs:
        """The same with targets that count from ``first``."""
        return Pairs(first + self.target, self.query, self.member, self.score)


def joined(parts: Sequence[Pairs]) -> Pairs:
    return Pairs(
        np.concatenate([part.target for part in parts]),
        np.concatenate([part.query for part in parts]),
        np.concatenate([part.member for part in parts]),
        np.concatenate([part.score for part in parts]),
    )


class ScoreTables:
    """Requests that are scored together.

    Args:
        space: of the scores.
        requests: what is compared; the queries of each are distinct.
        ks: neighbours of each, at most as many as it has candidates.
        members: rows of all candidates, ascending, int64.
        operand: of these.
        prepare: rows -> their operand as queries.
        most_bytes: that the tables of all threads may take.
        threads: that work on blocks at a time.

    Attributes:
        queries: rows of all queries, int64, those of the same requests next to each other.
    """

    def __init__(
        self,
        space: SweepSpace,
        requests: Sequence[Request],
        ks: Sequence[int],
        members: np.ndarray,
        operand: Operand,
        prepare: Callable[[np.ndarray], Operand],
        most_bytes: int,
        threads: int,
    ) -> None:
        self.space, self.operand, self.members, self.requests = space, operand, members, requests
        self._prepare = prepare
        self.queries = _side_by_side([request.queries for request in requests], len(space.rows))
        place = np.full(len(space.rows), -1)
        place[self.queries] = np.arange(len(self.queries))
        self.sides: list[_Side] = []
        for request, k in zip(requests, ks, strict=True):
            last = self.sides[-1] if self.sides else None
            self.sides.append(_Side(request, k, members, operand, place, last))
        own = max(len(request.queries) for request in requests)
        columns = _COLUMNS if own < len(self.queries) else 0.0
        line = (1 + columns) * (len(members) + 1) * space.dtype.itemsize * threads
        self.width = max(1, min(_QUERIES, int(most_bytes / line)))
        self._local = threading.local()

    def starts(self) -> range:
        """Where the blocks of queries begin."""
        return range(0, len(self.queries), self.width)

    def block(self, start: int) -> Block:
        """The scores of the block of queries that begins there, until this thread asks for another."""
        rows = self.queries[start : start + self.width]
        queries = self._prepare(rows)
        length = len(self.members) + 1
        scores = self._buffer("scores", length * self.width)[: length * len(rows)].view(length, len(rows))
        self.space.write_scores(self.operand, queries, scores[:-1])
        table = raw_numbers(scores)
        table[-1] = nb.least_score(table.dtype)
        return Block(self, start, rows, queries, table)

    def columns(self, table: np.ndarray, there: np.ndarray) -> np.ndarray:
        """Some columns of a table, in a buffer of this thread."""
        size = len(table) * len(there)
        buffer = self._buffer("columns", int(len(table) * _COLUMNS * self.width) + 1)
        out = raw_numbers(buffer)[:size].reshape(len(table), len(there))
        if there[-1] - there[0] == len(there) - 1:
            np.copyto(out, table[:, there[0] : there[-1] + 1])
        else:
            table.take(there, axis=1, out=out, mode="clip")
        return out

    def _buffer(self, name: str, size: int) -> torch.Tensor:
        if not hasattr(self._local, name):
            setattr(self._local, name, torch.empty(size, dtype=self.space.dtype))
        buffer: torch.Tensor = getattr(self._local, name)
        return buffer


class Block:
    """Scores of all candidates for some queries, shape (candidates + 1, queries), with a last row below every score.

    bfloat16 scores are given as the whole numbers of their bits.
    """

    def __init__(self, tables: ScoreTables, start: int, rows: np.ndarray, queries: Operand, table: np.ndarray) -> None:
        self.rows = rows
        self._tables, self._start, self._queries, self._table = tables, start, queries, table
        self._there = np.arange(len(rows))
        self._part = table

    def neighbours(self, at: int) -> int:
        """k of one request."""
        return self._tables.sides[at].k

    def listed(self, at: int) -> tuple[np.ndarray, Pairs, np.ndarray]:
        """Pairs of one request that may be among its k nearest.

        Args:
            at: place of the request.

        Returns:
            (places of the block's queries among the request's, pairs with these numbered from 0, which are served).
            A query is not served when its k-th score is not above zero (the bits of bfloat16 compare as whole numbers
            only there), when it has too few candidates, or too many near ties.
        """
        side = self._tables.sides[at]
        low, high = np.searchsorted(side.places, (self._start, self._start + len(self.rows)))
        there = side.places[low:high] - self._start
        if low == high:
            nothing = np.empty(0, np.int64)
            return nothing, Pairs(nothing, nothing, nothing, self._table[-1, :0]), np.empty(0, bool)
        table, own = self._columns(there)
        first, last = np.searchsorted(side.excluded[0], (low, high))
        out = side.excluded[1][first:last], own[side.excluded[0][first:last] - low]
        kept = table[out]
        table[out] = nb.least_score(table.dtype)
        pairs, served = self._above(table, side, there, own)
        table[out] = kept
        return side.by[low:high], pairs, served

    def trimmed(self, pairs: Pairs, count: int, k: int | np.ndarray) -> Pairs:
        """What may be among the k nearest by the error bound of each pair, not of all candidates together.

        Args:
            pairs: of ``count`` targets.
            count: of targets.
            k: neighbours, or those of each target.
        """
        space, operand, queries = self._tables.space, self._tables.operand, self._queries
        error = space.bound(
            operand.length[pairs.member],
            operand.residual[pairs.member],
            operand.shift[pairs.member],
            queries.length[pairs.query],
            queries.residual[pairs.query],
        )
        value = nb.raw_values(pairs.score)
        floor = kth_largest(pairs.target, nb.lower_bound(space, value, error), count, k)
        return pairs.only(nb.upper_bound(space, value, error) >= floor[pairs.target])

    def _columns(self, there: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A table with the columns of some queries, and where they are in it."""
        if len(there) >= _COLUMNS * len(self.rows):
            return self._table, there
        if not np.array_equal(there, self._there):
            self._there, self._part = there, self._tables.columns(self._table, there)
        return self._part, np.arange(len(there))

    def _above(self, table: np.ndarray, side: _Side, there: np.ndarray, own: np.ndarray) -> tuple[Pairs, np.ndarray]:
        """Pairs whose score reaches the limit, and the queries that are served."""
        space, operand, width = self._tables.space, self._tables.operand, table.shape[1]
        peaks = group_peaks(table, side.groups)
        kth = kth_of_larger(peaks, side.larger, side.k)[own]
        length, residual = self._queries.length[there], self._queries.residual[there]
        error = space.bound(side.length, side.residual, side.shift, length, residual)
        limit = np.full(width, nb.greatest_score(table.dtype), table.dtype)
        limit[own], served = _limit(space, kth, error, table.dtype)
        member, column, score = opened_groups(table, peaks, side.groups, limit)
        if space.is_coarse:
            # Of each pair's own bound only what its candidate's length and residual make of it.
            stored = length + residual
            common = error - (residual * side.length + stored * side.residual) + 1e-12
            by_column = np.zeros((3, width))  # residual, ‖row of the matrix‖ and floor
            reached = nb.lower_bound(space, np.where(served, kth, 0), error)
            by_column[:, own] = residual, stored, reached - common
            keep = in_reach(member, column, score, operand.length, operand.residual, *by_column)
            member, column, score = member[keep], column[keep], score[keep]
        target = np.full(width, -1)
        target[own] = np.arange(len(own))
        target = target[column]
        pairs = Pairs(target, there[target], member, score)
        served &= np.bincount(target, minlength=len(own)) <= nb.crowd(side.k)
        return (pairs if served.all() else pairs.only(served[target])), served


class _Side:
    """A request with what every block needs, its queries in the order of the tables.

    Args:
        request: what is compared.
        k: neighbours.
        members: rows of the candidates of the tables, ascending, int64.
        operand: of these.
        place: place of each row among the queries of the tables, int64.
        last: the side before, which often has the same queries, or None.

    Attributes:
        request: what is compared.
        k: neighbours.
        by: places in ``request.queries``, in the order of the tables, shape (Q,), int64.
        places: of these queries among those of the tables, ascending, shape (Q,), int64.
        groups: places of the request's candidates among those of the tables, in groups whose largest scores are looked
            at first, shape (groups, size of a group), int64. Where none is left: the number of the tables' candidates.
        larger: groups that are taken together for the first limit.
        excluded: (number in ``by``, ascending, and place among the candidates of the tables) of pairs left out.
        length, residual, shift: the largest over the candidates.
    """

    def __init__(
        self, request: Request, k: int, members: np.ndarray, operand: Operand, place: np.ndarray, last: _Side | None
    ) -> None:
        self.request, self.k = request, k
        self.by: np.ndarray
        self.places: np.ndarray
        if last is not None and request.queries is last.request.queries:
            self.by, self.places = last.by, last.places
        else:
            places = place[request.queries]
            self.by = np.argsort(places, kind="stable")
            self.places = places[self.by]
        at = np.searchsorted(members, request.candidates)
        self.length = operand.length[at].max()
        self.residual = operand.residual[at].max()
        self.shift = operand.shift[at].max()
        size = _GROUP if len(at) >= 2 * k * _GROUP else 1
        self.larger = max(1, len(at) // size // (_LARGE * k))
        number = -(-len(at) // (size * self.larger)) * self.larger
        # Ranks go round the groups, so that groups of groups differ little.
        across = np.full((size, number), len(members))
        across.ravel()[: len(at)] = np.sort(at)
        self.groups = np.ascontiguousarray(across.T)
        rank = np.empty(len(self.by), np.int64)
        rank[self.by] = np.arange(len(self.by))
        query = rank[request.excluded[0]]
        order = np.argsort(query, kind="stable")
        self.excluded = query[order], at[request.excluded[1][order]]


def _side_by_side(parts: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Distinct rows of several sets, so that those of a large set, and of the same sets, follow each other.

    >>> _side_by_side([np.array([1]), np.array([0, 1, 3])], 4)
    array([1, 0, 3])
    """
    whole = union(parts, count)
    keys = []
    different = {part.tobytes(): part for part in parts if len(part) < len(whole)}
    for part in sorted(different.values(), key=len):
        missing = np.ones(count, bool)
        missing[part] = False
        keys.append(missing[whole])
    return whole[np.lexsort(keys)] if keys else whole


def kth_of_larger(peaks: np.ndarray, together: int, k: int) -> np.ndarray:
    """The k-th largest score of groups of groups, shape (queries,), which k candidates reach.

    Where there are fewer it is below every score.
    """
    larger = peaks if together == 1 else peaks.reshape(together, -1, peaks.shape[1]).max(axis=0)
    if len(larger) < k:
        return np.full(peaks.shape[1], nb.least_score(peaks.dtype), peaks.dtype)
    place = len(larger) - k
    return np.partition(np.ascontiguousarray(larger.T), place, axis=1)[:, place]


def _limit(space: SweepSpace, kth: np.ndarray, error: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The least score that may be among the k nearest, given the k-th score, and whether it is above zero."""
    positive = kth > 0
    value = nb.raw_values(np.where(positive, kth, 0).astype(dtype))
    limit = nb.floor_to(nb.score_limit(space, nb.lower_bound(space, value, error), error), dtype)
    positive &= limit > 0
    return np.where(positive, limit, nb.greatest_score(dtype)).astype(dtype), positive
