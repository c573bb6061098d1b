"""A block of images against the drawn sets of all sides of a batch, by one thread.

An image is scored once against all images that any set holds, which are fewer than the sets together; each set then
looks at its own. A pair of several sets is settled once. Only the k nearest similarities are needed, not whose they
are.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from . import neighbours as nb
from .discordance import neighbour_mean
from .neighbours import Counts, Request
from .options import Options
from .similarity import FeatureRows
from .sweep import union
from .sweep_space import Operand, SweepSpace

# Images of a block: its scores are looked at by all sets while they are in a cache.
_IMAGES = 512
# Candidates of a group, whose largest score is looked at first.
_GROUP = 16
# The first limit is the k-th largest of this many times k larger groups: hardly less than that of all groups.
_LARGE = 10
# Bytes of scores that a set takes out of a block at a time.
_TAKEN = 2**18
# Pairs that are settled together; more only where one set adds them.
_PAIRS = 2**18


@dataclass(frozen=True)
class Side:
    """The images of a cell against one of its sets.

    Attributes:
        cell: number of the cell.
        images: rows of the cell's images, shape (M,), int64.
        candidates: rows of the set, shape (n,), int64.
        excluded: (place in ``images``, place in ``candidates``) of the pairs that are left out.
    """

    cell: int
    images: np.ndarray
    candidates: np.ndarray
    excluded: tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class OfSide:
    """What a block found for one side.

    Attributes:
        images: places in ``Side.images``, int64.
        means: of their k nearest, float64; NaN where fewer are left.
        slow: places of the images that :meth:`Batch.slow_means` is left with, int64.
    """

    images: np.ndarray
    means: np.ndarray
    slow: np.ndarray


@dataclass(frozen=True)
class _Pairs:
    """Pairs that may be among the k nearest.

    Attributes:
        target: whose mean the pair may belong to, int64: the place of the side times the images of the block, plus the
            place of the image; while one side is looked at, that of the image alone.
        member: place among the candidates of the batch, int64.
        score: as stored.
    """

    target: np.ndarray
    member: np.ndarray
    score: np.ndarray

    def __len__(self) -> int:
        return len(self.target)

    def only(self, keep: np.ndarray) -> _Pairs:
        return _Pairs(self.target[keep], self.member[keep], self.score[keep])


class Batch:
    """Sides that are scored together.

    Args:
        rows: the features.
        space: of the scores.
        sides: every set has at least k candidates.
        options: ``k`` and ``memory_bytes`` are used.
        threads: that work on blocks at a time.
    """

    def __init__(
        self, rows: FeatureRows, space: SweepSpace, sides: Sequence[Side], options: Options, threads: int
    ) -> None:
        self._rows, self._space, self._k = rows, space, options.k
        self._images = union([side.images for side in sides], len(rows))
        self._candidates = union([side.candidates for side in sides], len(rows))
        self._operand = space.candidates(self._candidates)
        self._sides: list[_Prepared] = []
        for side in sides:
            last = self._sides[-1] if self._sides else None
            self._sides.append(_Prepared(side, self._candidates, self._operand, options.k, last))
        scores = options.memory_bytes // 4 // threads // space.dtype.itemsize
        self._width = max(1, min(_IMAGES, scores // (len(self._candidates) + 1)))
        self._local = threading.local()

    def starts(self) -> range:
        """Where the blocks of images begin."""
        return range(0, len(self._images), self._width)

    def block(self, start: int) -> tuple[list[OfSide], Counts]:
        """What the block of images that begins there gives for each side; it can be called from several threads."""
        images = self._images[start : start + self._width]
        width, counts = len(images), Counts(scored=len(self._candidates) * len(images))
        queries = self._space.queries(images)
        table = self._scores(queries)
        largest = np.full((len(self._sides) * width, self._k), -np.inf)
        slow = np.zeros(len(largest), bool)
        asked: list[tuple[np.ndarray, np.ndarray]] = []
        waiting: list[_Pairs] = []
        for at, side in enumerate(self._sides):
            low, high = np.searchsorted(side.rows, (images[0], images[-1] + 1))
            there = np.searchsorted(images, side.rows[low:high])
            asked.append((side.by[low:high], at * width + there))
            if low < high:
                pairs, served = self._listed(table, queries, side, int(low), there)
                slow[asked[-1][1]] = ~served[there]
                waiting.append(_Pairs(at * width + pairs.target, pairs.member, pairs.score))
            if sum(map(len, waiting)) > _PAIRS:
                self._settle(images, queries, waiting, largest, counts)
                waiting = []
        self._settle(images, queries, waiting, largest, counts)
        means = _means(largest)
        return [OfSide(places, means[target], places[slow[target]]) for places, target in asked], counts

    def slow_means(self, at: int, places: np.ndarray, order: np.ndarray, counts: Counts) -> np.ndarray:
        """Means of some images of a side, scored against its set alone: any scores and near ties will do.

        Args:
            at: place of the side.
            places: in ``Side.images``, ascending, int64.
            order: place of each row among equal similarities, shape (N,), int64.
            counts: is added to.
        """
        side = self._sides[at].side
        request = Request(side.images, side.candidates, side.excluded).of_queries(places)
        member = np.searchsorted(self._candidates, side.candidates)
        listed = nb.shortlist(
            self._space,
            self._space.queries(request.queries),
            request,
            self._k,
            counts,
            lambda start, stop: self._operand.take(member[start:stop]),
        )
        return _means(nb.settle_together(self._rows, [request], [listed], [self._k], order, counts)[0].similarities)

    def _scores(self, queries: Operand) -> np.ndarray:
        """Scores of all candidates, and one row below every score, shape (candidates + 1, images).

        bfloat16 scores are given as the whole numbers of their bits.
        """
        length = len(self._candidates) + 1
        if not hasattr(self._local, "scores"):
            self._local.scores = torch.empty(length * self._width, dtype=self._space.dtype)
        scores = self._local.scores[: length * len(queries)].view(length, len(queries))
        torch.mm(self._operand.matrix, queries.matrix.T, out=scores[:-1])
        table = (scores.view(torch.int16) if scores.dtype == torch.bfloat16 else scores).numpy()
        table[-1] = nb.least_score(table.dtype)
        return table

    def _listed(
        self, table: np.ndarray, queries: Operand, side: _Prepared, first: int, there: np.ndarray
    ) -> tuple[_Pairs, np.ndarray]:
        """Pairs of one side that may be among the k nearest, and the images that are served.

        Args:
            table: scores; in the end they are as they were.
            queries: operand of the block's images.
            side: the side.
            first: place of the block's first image among those of the side.
            there: places in the block of the side's images, ascending.
        """
        low, high = np.searchsorted(side.excluded[0], (first, first + len(there)))
        out = side.excluded[1][low:high], there[side.excluded[0][low:high] - first]
        kept = table[out]
        table[out] = nb.least_score(table.dtype)
        found = self._above(table, queries, side, there)
        table[out] = kept
        return found

    def _above(
        self, table: np.ndarray, queries: Operand, side: _Prepared, there: np.ndarray
    ) -> tuple[_Pairs, np.ndarray]:
        """Pairs whose score reaches the limit.

        An image is not served when its k-th score is not above zero (the bits of bfloat16 compare as whole numbers
        only there), when it has too few candidates, or too many near ties.
        """
        width = len(queries)
        peaks = _peaks(table, side.across)
        kth = _kth_of_larger(peaks, side.larger, self._k)
        error = self._space.bound(side.length, side.residual, side.shift, queries.length, queries.residual)
        limit, above_zero = _limit(self._space, kth, error, table.dtype)
        served = np.zeros(width, bool)
        served[there] = above_zero[there]
        limit[~served] = nb.greatest_score(table.dtype)
        group, query = np.divmod(np.flatnonzero(peaks >= limit), width)
        member = side.groups.take(group, axis=0)
        inside = table.ravel().take(member * width + query[:, None])
        which, place = np.divmod(np.flatnonzero(inside >= limit[query][:, None]), member.shape[1])
        query = query[which]
        pairs = _Pairs(query, member[which, place], inside[which, place])
        served &= np.bincount(query, minlength=width) <= nb.LONG
        return (pairs if served[there].all() else pairs.only(served[query])), served

    def _settle(
        self, images: np.ndarray, queries: Operand, waiting: Sequence[_Pairs], largest: np.ndarray, counts: Counts
    ) -> None:
        """Write the k largest exact similarities of each target; a pair of several sides is settled once."""
        if not waiting:
            return
        pairs = self._trimmed(queries, _joined(waiting), len(largest))
        image = pairs.target % len(images)
        distinct, back = _distinct(image * len(self._candidates) + pairs.member)
        image, member = np.divmod(distinct, len(self._candidates))
        exact = self._rows.similarities(images[image], self._candidates[member])
        of_pairs = exact[back]
        _write_largest(pairs.target, of_pairs, largest)
        used = np.zeros(len(distinct), bool)
        used[back[of_pairs >= largest[pairs.target, -1]]] = True
        counts.settled += len(distinct)
        counts.undecided += int((~used).sum())

    def _trimmed(self, queries: Operand, pairs: _Pairs, count: int) -> _Pairs:
        """What may be among the k nearest by the error bound of each pair, not of all candidates together."""
        image, member, operand = pairs.target % len(queries), pairs.member, self._operand
        error = self._space.bound(
            operand.length[member],
            operand.residual[member],
            operand.shift[member],
            queries.length[image],
            queries.residual[image],
        )
        value = nb.raw_values(pairs.score)
        floor = _kth_floor(pairs.target, nb.lower_bound(self._space, value, error), count, self._k)
        return pairs.only(nb.upper_bound(self._space, value, error) >= floor[pairs.target])


class _Prepared:
    """A side with what every block needs, its images in the order of their rows.

    Args:
        side: the side.
        candidates: rows of the candidates of the batch, ascending, int64.
        operand: of these.
        k: neighbours.
        last: the side before, which often has the same images, or None.

    Attributes:
        side: the side.
        by: places in ``side.images``, by row, shape (M,), int64.
        rows: rows of the images, ascending, shape (M,), int64.
        groups: places of the set's candidates among those of the batch, in groups whose largest scores are looked at
            first, shape (groups, size of a group), int64. Where none is left: the number of the batch's candidates.
        across: the transpose.
        larger: groups that are taken together for the first limit.
        excluded: (place in ``rows``, ascending, and among the candidates of the batch) of pairs that are left out.
        length, residual, shift: the largest over the candidates.
    """

    def __init__(self, side: Side, candidates: np.ndarray, operand: Operand, k: int, last: _Prepared | None) -> None:
        self.side = side
        self.by: np.ndarray
        self.rows: np.ndarray
        if last is not None and side.images is last.side.images:
            self.by, self.rows = last.by, last.rows
        else:
            self.by = np.argsort(side.images, kind="stable")
            self.rows = side.images[self.by]
        at = np.searchsorted(candidates, side.candidates)
        self.length = operand.length[at].max()
        self.residual = operand.residual[at].max()
        self.shift = operand.shift[at].max()
        size = _GROUP if len(at) >= 2 * k * _GROUP else 1
        self.larger = max(1, len(at) // size // (_LARGE * k))
        number = -(-len(at) // (size * self.larger)) * self.larger
        self.across = np.full((size, number), len(candidates))
        self.across.ravel()[: len(at)] = np.sort(at)
        self.groups = np.ascontiguousarray(self.across.T)
        rank = np.empty(len(self.by), np.int64)
        rank[self.by] = np.arange(len(self.by))
        image = rank[side.excluded[0]]
        order = np.argsort(image, kind="stable")
        self.excluded = image[order], at[side.excluded[1][order]]


def _means(largest: np.ndarray) -> np.ndarray:
    """Means of rows of k similarities, shape (S, k), descending; NaN where fewer are there."""
    out = np.full(len(largest), np.nan)
    enough = np.isfinite(largest[:, -1])
    out[enough] = neighbour_mean(largest[enough], largest.shape[1])
    return out


def _peaks(table: np.ndarray, across: np.ndarray) -> np.ndarray:
    """The largest score of every group of candidates, shape (groups, images)."""
    size, number = across.shape
    width = table.shape[1]
    peaks = np.empty((number, width), table.dtype)
    step = max(1, _TAKEN // (size * width * table.itemsize))
    for start in range(0, number, step):
        stop = min(start + step, number)
        # First all first members, then all second ones: the largest are found by a few long vector operations.
        taken = table.take(across[:, start:stop], axis=0).reshape(size, -1)
        taken.max(axis=0, out=peaks[start:stop].reshape(-1))
    return peaks


def _kth_of_larger(peaks: np.ndarray, together: int, k: int) -> np.ndarray:
    """The k-th largest score of groups of groups, shape (images,), which k candidates reach.

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


def _joined(parts: Sequence[_Pairs]) -> _Pairs:
    return _Pairs(
        np.concatenate([part.target for part in parts]),
        np.concatenate([part.member for part in parts]),
        np.concatenate([part.score for part in parts]),
    )


def _kth_floor(target: np.ndarray, least: np.ndarray, count: int, k: int) -> np.ndarray:
    """A number at or just below the k-th largest lower bound of each target, −inf where there are fewer.

    Args:
        target: shape (S,), int64, below ``count``.
        least: lower bounds, above −4 and below 4, shape (S,), float64.
        count: targets.
        k: neighbours.
    """
    # A 64-bit key sorts much faster than two columns. It holds 31 bits of the bound, rounded down.
    key = np.sort((target << 32) | (2**31 - np.floor((least + 4) * 2.0**28).astype(np.int64)))
    number = np.bincount(target, minlength=count)
    start = np.cumsum(number) - number
    full = np.flatnonzero(number >= k)
    floor = np.full(count, -np.inf)
    floor[full] = (2**31 - (key[start[full] + k - 1] & 0xFFFFFFFF)) * 2.0**-28 - 4
    return floor


def _ranked(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys ascending, and where each was; equal keys stay in their order. Few enough bits are sorted as one number."""
    bits = len(keys).bit_length()
    both = np.sort((keys << bits) | np.arange(len(keys)))
    return both >> bits, both & ((1 << bits) - 1)


def _distinct(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct keys, ascending, and the place of each key among them.

    >>> _distinct(np.array([7, 2, 7]))
    (array([2, 7]), array([1, 0, 1]))
    """
    ranked, by = _ranked(keys)
    new = np.ones(len(keys), bool)
    new[1:] = ranked[1:] != ranked[:-1]
    back = np.empty(len(keys), np.int64)
    back[by] = np.cumsum(new) - 1
    return ranked[new], back


def _write_largest(target: np.ndarray, values: np.ndarray, largest: np.ndarray) -> None:
    """Write the largest values of each target, descending, into its row.

    Args:
        target: shape (S,), int64.
        values: shape (S,), float64.
        largest: shape (targets, k), float64; rows of targets without a value are left as they are.

    >>> largest = np.full((2, 2), -np.inf)
    >>> _write_largest(np.array([1, 1, 1]), np.array([3.0, 5.0, 4.0]), largest)
    >>> largest
    array([[-inf, -inf],
           [  5.,   4.]])
    """
    values = values[_ranked(target)[1]]
    number = np.bincount(target, minlength=len(largest))
    start = np.cumsum(number) - number
    left = np.flatnonzero(number)
    width = k = largest.shape[1]
    while len(left):
        # Those with more values, which are few, wait for a table of twice the width.
        now = left[number[left] <= width]
        place = np.arange(width)
        table = values[np.minimum(start[now][:, None] + place, len(values) - 1)]
        table[place >= number[now][:, None]] = -np.inf
        largest[now] = -np.sort(-table, axis=1)[:, :k]
        left = left[number[left] > width]
        width *= 2
