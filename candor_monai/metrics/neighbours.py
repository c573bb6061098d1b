"""Exact nearest neighbours: preselected in low precision under a proven bound, settled in float64.

The result is the K largest exact similarities (:mod:`.similarity`) of each query over its candidates. It does not
depend on the precision, the blocks or the threads of the preselection, which only decides how many pairs are settled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from .largest import by_target, kth_largest, write_nearest
from .score_scan import group_peaks, opened_groups, places_above
from .similarity import FeatureRows
from .sweep_space import Operand, SweepSpace, choose_precision, raw_numbers
from .workers import in_workers

# A query with more candidates than this inside the error bound is settled by the float64 way.
LONG = 512
GROUP = 16
_SCORES = 2**22
_PART = 16384
# Lists of more neighbours are long.
FEW = 64
# Pairs that are held before those that later candidates have ruled out are left out.
_HELD = 2**21


@dataclass(frozen=True)
class Request:
    """Which rows are compared.

    Args:
        queries: rows, shape (Q,), int64.
        candidates: rows, shape (C,), int64, distinct.
        excluded: (index of the query, index of the candidate) of the pairs that are left out, two int64 arrays.
    """

    queries: np.ndarray
    candidates: np.ndarray
    excluded: tuple[np.ndarray, np.ndarray] = field(
        default_factory=lambda: (np.empty(0, np.int64), np.empty(0, np.int64))
    )

    def of_queries(self, only: np.ndarray) -> Request:
        """The request of some of its queries: their places, int64."""
        place = np.full(len(self.queries), -1)
        place[only] = np.arange(len(only))
        inside = place[self.excluded[0]] >= 0
        pairs = (place[self.excluded[0][inside]], self.excluded[1][inside])
        return Request(self.queries[only], self.candidates, pairs)


@dataclass(frozen=True)
class Neighbours:
    """The nearest candidates of each query.

    Attributes:
        similarities: shape (Q, K), float64, descending; -inf where a query has fewer candidates.
        rows: shape (Q, K), int64, the candidates' rows; equal similarities in the order given; -1 where there is none.
    """

    similarities: np.ndarray
    rows: np.ndarray

    def nearest(self, k: int) -> Neighbours:
        """The first k of each query."""
        return Neighbours(self.similarities[:, :k], self.rows[:, :k])


@dataclass
class Counts:
    """What the exact step had to do.

    Attributes:
        scored: pairs scored in low precision.
        settled: pairs settled in float64, in the fixed order.
        undecided: pairs among them that the bound could not rule out and that turned out to be of no k nearest.
        long: (query, set) pairs with so many near ties that the float64 way was taken.
    """

    scored: int = 0
    settled: int = 0
    undecided: int = 0
    long: int = 0

    def add(self, other: Counts) -> None:
        """Count what another counted too."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def __add__(self, other: Counts) -> Counts:
        """Both together."""
        both = replace(self)
        both.add(other)
        return both


@dataclass(frozen=True)
class Shortlist:
    """Candidates that the bound cannot rule out, sorted by query.

    Attributes:
        query: index of the query, shape (S,), int64, ascending.
        candidate: index of the candidate, shape (S,), int64.
        long: indices of the queries with too many, which are not listed.
    """

    query: np.ndarray
    candidate: np.ndarray
    long: np.ndarray


def nearest(
    rows: FeatureRows,
    request: Request,
    k: int,
    *,
    order: np.ndarray | None = None,
    precision: str = "auto",
    space: SweepSpace | None = None,
    counts: Counts | None = None,
) -> Neighbours:
    """The k nearest candidates of each query, exact to the bit.

    Args:
        rows: checked features.
        request: queries, candidates and excluded pairs.
        k: neighbours.
        order: place of each row among equal similarities, shape (N,), int64; None: the row itself.
        precision: of the preselection.
        space: a space to reuse; None: a new one around the candidates.
        counts: is added to.

    Returns:
        the neighbours; fewer than k candidates leave -inf and -1.

    Raises:
        ValueError: k is below 1, a row is no int64, out of range or repeated among the candidates, or ``order`` is
            not that of all rows.

    >>> rows = FeatureRows(np.float32([[1, 0], [1, 1], [0, 1], [1, 2]]))
    >>> nearest(rows, Request(np.array([0]), np.array([1, 2, 3])), 2).rows.tolist()
    [[1, 3]]
    """
    _check(rows, request, k)
    counts = Counts() if counts is None else counts
    order = np.arange(len(rows)) if order is None else order
    if len(order) != len(rows):
        raise ValueError(f"order has {len(order)} places: there are {len(rows)} rows")
    if space is None:
        space = SweepSpace(rows, request.candidates, choose_precision(precision))
    queries = space.queries(request.queries)
    listed = shortlist(space, queries, request, k, counts)
    return settle_together(rows, [request], [listed], [k], order, counts)[0]


def shortlist(
    space: SweepSpace,
    queries: Operand,
    request: Request,
    k: int,
    counts: Counts,
    prepare: Callable[[int, int], Operand] | None = None,
) -> Shortlist:
    """The candidates of each query that can be among its k nearest, by the scores and their error bound.

    Args:
        space: of the scores.
        queries: operand of ``request.queries``.
        request: what is compared.
        k: neighbours.
        counts: is added to.
        prepare: (start, stop) -> operand of ``request.candidates[start:stop]``; None: the space makes it.
    """
    total = len(request.candidates)
    pieces: list[_Piece] = []
    most = _HELD
    floor = np.full(len(queries), -np.inf)
    long = np.zeros(len(queries), bool)
    excluded = _sorted_by_candidate(request.excluded)
    for start in range(0, total, _PART):
        stop = min(start + _PART, total)
        part = space.candidates(request.candidates[start:stop]) if prepare is None else prepare(start, stop)
        low, high = np.searchsorted(excluded[1], (start, stop))
        out = excluded[0][low:high], excluded[1][low:high] - start
        error = space.error(part, queries)
        width = max(1, _SCORES // max(stop - start, 1))
        blocks = [slice(first, min(first + width, len(queries))) for first in range(0, len(queries), width)]
        look = partial(_piece, space, part, start, queries, out, error, k, floor, long)
        pieces += in_workers(look, blocks) if len(blocks) > 1 else map(look, blocks)
        counts.scored += (stop - start) * len(queries)
        if sum(len(piece[0]) for piece in pieces) > most:
            pieces = [_trimmed(space, pieces, floor, k, long)]
            most = max(most, 2 * len(pieces[0][0]))
    if not pieces:
        return Shortlist(np.empty(0, np.int64), np.empty(0, np.int64), np.flatnonzero(long))
    query, candidate, *_ = _trimmed(space, pieces, floor, k, long)
    return Shortlist(query, candidate, np.flatnonzero(long))


#: (query, candidate, value, error) of scores that may be among the k largest.
_Piece = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _piece(
    space: SweepSpace,
    part: Operand,
    start: int,
    queries: Operand,
    excluded: tuple[np.ndarray, np.ndarray],
    error: np.ndarray,
    k: int,
    floor: np.ndarray,
    long: np.ndarray,
    some: slice,
) -> _Piece:
    """What may be among the k nearest of some queries out of a part of the candidates, which begins at ``start``.

    Of ``floor`` and ``long`` what belongs to these queries is updated.
    """
    inside = (excluded[0] >= some.start) & (excluded[0] < some.stop)
    out = excluded[0][inside] - some.start, excluded[1][inside]
    scores = Scores(space, part, queries.part(some), out)
    query, candidate, value = _above(space, scores, error[some], k, floor[some], long[some])
    return query + some.start, candidate + start, value, error[some][query]


def settle_together(
    rows: FeatureRows,
    requests: Sequence[Request],
    listed: Sequence[Shortlist],
    ks: Sequence[int],
    order: np.ndarray,
    counts: Counts,
) -> list[Neighbours]:
    """Exact similarities of shortlists, and the k largest of each query; a pair in several shortlists is settled once.

    Args:
        rows: the features.
        requests: what is compared.
        listed: the shortlist of each.
        ks: neighbours of each.
        order: place of each row among equal similarities, shape (N,), int64.
        counts: is added to.
    """
    query_row = [request.queries[short.query] for request, short in zip(requests, listed, strict=True)]
    found_row = [request.candidates[short.candidate] for request, short in zip(requests, listed, strict=True)]
    # One list that holds most pairs is settled as it is: to look for its pairs in the others would cost more.
    lengths = [len(found) for found in found_row]
    apart = {at for at, k in enumerate(ks) if k > FEW and 2 * lengths[at] > sum(lengths)}
    together = [at for at in range(len(requests)) if at not in apart]
    pairs = [found_row[at] * len(rows) + query_row[at] for at in together] or [np.empty(0, np.int64)]
    distinct, back = np.unique(np.concatenate(pairs), return_inverse=True)
    candidate_row, asked_row = np.divmod(distinct, len(rows))
    settled = rows.similarities(asked_row, candidate_row)
    places = dict(zip(together, np.split(back, np.cumsum([lengths[at] for at in together])[:-1]), strict=False))
    used = np.zeros(len(distinct), bool)
    counts.settled += len(distinct)
    out = []
    for at, (request, short, k) in enumerate(zip(requests, listed, ks, strict=True)):
        similarities = np.full((len(request.queries), k), -np.inf)
        found = np.full((len(request.queries), k), -1, np.int64)
        exact = rows.similarities(query_row[at], found_row[at]) if at in apart else settled[places[at]]
        write_nearest(short.query, found_row[at], exact, order, similarities, found)
        chosen = exact >= similarities[short.query, -1]
        if at in apart:
            counts.settled += len(exact)
            counts.undecided += int((~chosen).sum())
        else:
            used[places[at][chosen]] = True
        if len(short.long):
            counts.long += len(short.long)
            _settle_long(rows, request, short.long, k, order, counts, similarities, found)
        out.append(Neighbours(similarities, found))
    counts.undecided += int((~used).sum())
    return out


def _check(rows: FeatureRows, request: Request, k: int) -> None:
    if k < 1:
        raise ValueError(f"k is {k}: at least 1 is needed")
    for name, members in (("queries", request.queries), ("candidates", request.candidates)):
        if members.dtype != np.int64:
            raise ValueError(f"{name} has dtype {members.dtype}: int64 is needed")
        wrong = np.flatnonzero((members < 0) | (members >= len(rows)))
        if len(wrong):
            raise ValueError(f"{name}[{wrong[0]}] is {members[wrong[0]]}: there are {len(rows)} rows")
    ranked = np.argsort(request.candidates, kind="stable")
    again = np.flatnonzero(np.diff(request.candidates[ranked]) == 0)
    if len(again):
        place = int(ranked[again + 1].min())
        raise ValueError(f"candidates[{place}] repeats row {request.candidates[place]}")


def _sorted_by_candidate(pairs: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    by = np.argsort(pairs[1], kind="stable")
    return pairs[0][by], pairs[1][by]


class Scores:
    """A block of scores as numbers that NumPy compares fast, shape (candidates padded to groups, queries).

    bfloat16 scores are looked at as the whole numbers of their bits. These compare as the scores do as long as the
    larger is above zero, which is so of the nearest candidates but for odd sets; :meth:`order` makes it so of all.
    Excluded and padded places hold a number below every score.
    """

    def __init__(
        self,
        space: SweepSpace,
        part: Operand,
        queries: Operand,
        excluded: tuple[np.ndarray, np.ndarray],
    ) -> None:
        members = len(part)
        padded = -(-members // GROUP) * GROUP
        scores = space.room(padded, len(queries))
        space.write_scores(part, queries, scores[:members])
        self.ordered = space.dtype != torch.bfloat16
        self.table = raw_numbers(scores)
        #: Rows of the groups of candidates, shape (groups, size of a group).
        self.groups = np.arange(padded).reshape(-1, GROUP)
        self._members = members
        self._excluded = excluded
        self._leave_out()

    @property
    def dtype(self) -> np.dtype:
        """int16 for bfloat16 scores, else that of the scores."""
        return self.table.dtype

    def order(self) -> None:
        """Make the numbers compare as the scores do, below zero too."""
        if not self.ordered:
            flip_negative(self.table)
            self.ordered = True
            self._leave_out()

    def peaks(self) -> np.ndarray:
        """The largest of every group of candidates, shape (groups, queries)."""
        return group_peaks(self.table, self.groups)

    def values(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers of the table as float64; what was left out is -inf."""
        if self.dtype != np.int16:
            return numbers.astype(np.float64)
        out = raw_values(numbers ^ ((numbers >> 15) & np.int16(0x7FFF)) if self.ordered else numbers)
        out[numbers == least_score(self.dtype)] = -np.inf
        return out

    def _leave_out(self) -> None:
        self.table[self._members :] = least_score(self.dtype)
        self.table[self._excluded[1], self._excluded[0]] = least_score(self.dtype)


def flip_negative(bits: np.ndarray) -> None:
    """Turn the bits of bfloat16 numbers into int16 of the same order, in place; it is its own inverse."""
    bits ^= (bits >> 15) & np.int16(0x7FFF)


def least_score(dtype: np.dtype) -> float | int:
    """Stands for a pair that is left out: below every score."""
    return int(np.iinfo(dtype).min) if dtype.kind == "i" else -np.inf


def raw_values(raw: np.ndarray) -> np.ndarray:
    """Raw scores (the bits of bfloat16 as int16, or the numbers) as float64."""
    if raw.dtype != np.int16:
        return raw.astype(np.float64)
    return (raw.astype(np.int32) << 16).view(np.float32).astype(np.float64)


def floor_to(limit: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The least ordered score whose value may reach ``limit``."""
    if dtype == np.float64:
        return limit
    single = limit.astype(np.float32)
    single = np.where(single > limit, np.nextafter(single, np.float32(-np.inf)), single)
    if dtype == np.float32:
        return single
    bits = single.view(np.int32)
    ordered = (bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))) >> 16
    return np.maximum(ordered, np.iinfo(np.int16).min + 1).astype(np.int16)


def lower_bound(space: SweepSpace, value: np.ndarray, error: np.ndarray) -> np.ndarray:
    """The least that the similarity (less ⟨z_q, μ⟩) behind a stored score can be."""
    return value - space.rounding * np.abs(value) - error


def upper_bound(space: SweepSpace, value: np.ndarray, error: np.ndarray) -> np.ndarray:
    """The most that the similarity (less ⟨z_q, μ⟩) behind a stored score can be."""
    return value + space.rounding * np.abs(value) + error


def score_limit(space: SweepSpace, floor: np.ndarray, error: np.ndarray) -> np.ndarray:
    """The least stored score whose upper bound reaches ``floor``."""
    target = floor - error
    rounding = space.rounding
    return np.where(target >= 0, target / (1 + rounding), target / (1 - rounding)) - np.abs(target) * 1e-12


def _above(
    space: SweepSpace, scores: Scores, error: np.ndarray, k: int, floor: np.ndarray, long: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(query, candidate, value) of the scores that may be among the k largest; ``floor`` and ``long`` are updated."""
    peaks, limit = _peaks_and_limit(space, scores, error, k, floor)
    if not scores.ordered and bool((limit <= 0).any()):
        scores.order()
        peaks, limit = _peaks_and_limit(space, scores, error, k, floor)
    limit = np.where(long, greatest_score(scores.dtype), limit)
    hit = peaks >= limit
    crowded = hit.sum(axis=0) > crowd(k)
    if crowded.any():
        long |= crowded
        limit[crowded] = greatest_score(scores.dtype)
    if len(peaks) == len(scores.table):
        member, query = places_above(scores.table, limit)
        return query, member, scores.values(scores.table[member, query])
    member, query, value = opened_groups(scores.table, peaks, scores.groups, limit)
    return query, member, scores.values(value)


def _peaks_and_limit(
    space: SweepSpace, scores: Scores, error: np.ndarray, k: int, floor: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Largest scores of groups (or all scores, where there are few), and the limit that the k-th of them sets.

    The limit is not above zero when a k-th score is not, so that scores that do not compare yet are found out.
    """
    peaks = scores.peaks() if len(scores.table) >= 4 * k * GROUP else scores.table
    if len(peaks) >= k:
        place = len(peaks) - k
        kth = scores.values(np.partition(np.ascontiguousarray(peaks.T), place, axis=1)[:, place])
        known = kth > (-np.inf if scores.ordered else 0.0)
        np.maximum(floor, lower_bound(space, np.where(known, kth, 0.0), error), out=floor, where=known)
        if not scores.ordered and not known.all():
            return peaks, np.zeros(len(floor), np.int16)
    limit = score_limit(space, np.where(np.isfinite(floor), floor, -4.0), error)
    return peaks, floor_to(limit, scores.dtype)


def crowd(k: int) -> int:
    """More candidates than this that may be among the k nearest are too many near ties for the fast way."""
    return k + max(LONG, k)


def greatest_score(dtype: np.dtype) -> float | int:
    """Above every score."""
    return int(np.iinfo(dtype).max) if dtype.kind == "i" else np.inf


def _trimmed(space: SweepSpace, pieces: list[_Piece], floor: np.ndarray, k: int, long: np.ndarray) -> _Piece:
    """What may be among the k nearest over all parts so far, by query; ``floor`` and ``long`` are updated.

    Args:
        space: of the scores.
        pieces: of the parts, at least one.
        floor: lower bound of the k-th of each query.
        k: neighbours.
        long: queries with too many, of which nothing is kept.
    """
    query, candidate, value, error = (np.concatenate(column) for column in zip(*pieces, strict=True))
    least = np.where(value > -np.inf, lower_bound(space, value, error), -np.inf)
    np.maximum(floor, kth_largest(query, least, len(floor), k), out=floor)
    keep = (value > -np.inf) & (upper_bound(space, value, error) >= floor[query])
    long |= np.bincount(query[keep], minlength=len(floor)) > crowd(k)
    keep &= ~long[query]
    query, candidate, value, error = query[keep], candidate[keep], value[keep], error[keep]
    by = by_target(query, len(floor))
    return query[by], candidate[by], value[by], error[by]


def _settle_long(
    rows: FeatureRows,
    request: Request,
    queries: np.ndarray,
    k: int,
    order: np.ndarray,
    counts: Counts,
    similarities: np.ndarray,
    found: np.ndarray,
) -> None:
    """The float64 way, for queries with very many near ties.

    Rows that are equal bit for bit have equal similarities: each distinct row is scored once, in float64, and what the
    (now tiny) error bound leaves is settled.
    """
    first, members, start = _distinct(rows, request.candidates, order)
    candidates = request.candidates[first]
    space = SweepSpace(rows, request.candidates, "float64")
    excluded = np.zeros(len(request.candidates), bool)
    by = np.argsort(request.excluded[0], kind="stable")
    out_query, out_candidate = request.excluded[0][by], request.excluded[1][by]
    whole = space.candidates(candidates) if len(candidates) <= _PART else None
    width = max(1, _SCORES // 4 // max(len(first), 1))
    for chunk in range(0, len(queries), width):
        index = queries[chunk : chunk + width]
        operand = space.queries(request.queries[index])
        scores, error = _scores_and_error(space, candidates, whole, operand)
        counts.scored += scores.size
        for place, query in enumerate(index):
            low, high = np.searchsorted(out_query, (query, query + 1))
            excluded[out_candidate[low:high]] = True
            spare = high - low
            # A distinct row can be excluded whole, so that many more are looked at.
            want = min(k + spare, len(first))
            floor = np.partition(scores[place], len(first) - want)[len(first) - want] - 2 * error[place]
            chosen = np.flatnonzero(scores[place] >= floor)
            exact = rows.similarities(np.full(len(chosen), request.queries[query]), candidates[chosen])
            counts.settled += len(chosen)
            best = _expand(exact, chosen, members, start, excluded, k + spare)
            row = request.candidates[best[0]]
            by = np.lexsort((order[row], -best[1]))[:k]
            similarities[query, : len(by)] = best[1][by]
            found[query, : len(by)] = row[by]
            excluded[out_candidate[low:high]] = False


def _scores_and_error(
    space: SweepSpace, candidates: np.ndarray, whole: Operand | None, queries: Operand
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of all candidates, shape (queries, candidates), and their error bound; in parts where they are many."""
    if whole is not None:
        return space.scores(whole, queries).numpy().T, space.error(whole, queries)
    scores, error = np.empty((len(queries), len(candidates))), np.zeros(len(queries))
    for start in range(0, len(candidates), _PART):
        part = space.candidates(candidates[start : start + _PART])
        scores[:, start : start + _PART] = space.scores(part, queries).numpy().T
        np.maximum(error, space.error(part, queries), out=error)
    return scores, error


def _distinct(
    rows: FeatureRows, candidates: np.ndarray, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(a candidate of each distinct row, all candidates by distinct row and order, where each begins)."""
    code = rows.codes(candidates)
    members = np.lexsort((order[candidates], code))
    start = np.flatnonzero(np.r_[True, code[members][1:] != code[members][:-1]])
    return members[start], members, np.append(start, len(members))


def _expand(
    exact: np.ndarray,
    chosen: np.ndarray,
    members: np.ndarray,
    start: np.ndarray,
    excluded: np.ndarray,
    most: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The candidates behind distinct rows: at most ``most`` of each, the excluded ones left out."""
    out = []
    values = []
    for value, distinct in zip(exact, chosen, strict=True):
        inside = members[start[distinct] : min(start[distinct + 1], start[distinct] + most)]
        inside = inside[~excluded[inside]]
        out.append(inside)
        values.append(np.full(len(inside), value))
    return np.concatenate(out), np.concatenate(values)
