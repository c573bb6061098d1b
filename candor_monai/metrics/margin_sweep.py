"""The margin classifier's sweep: every labelled image against the drawn sets of every finding.

Blocks of images are read once and scored against the sets of all findings. Only the k nearest similarities are
needed, not whose they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from . import neighbours as nb
from .discordance import neighbour_mean
from .draw import matches
from .neighbours import Counts, Request
from .options import Options
from .similarity import FeatureRows
from .sweep import union
from .sweep_space import Operand, SweepSpace, choose_precision

_IMAGES = 2048


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
class _Prepared:
    """A side with what every block needs: its operand, and where each row and excluded pair is."""

    side: Side
    operand: Operand
    place: np.ndarray
    excluded: tuple[np.ndarray, np.ndarray]


def nearest_means(
    rows: FeatureRows, sides: Sequence[Side], options: Options, counts: Counts, order: np.ndarray
) -> list[np.ndarray]:
    """c of every image of every side: the mean of its k largest exact similarities, NaN where fewer are left.

    Args:
        rows: the features.
        sides: images and sets; every set has at least k candidates.
        options: ``k``, ``precision`` and ``memory_bytes`` are used.
        counts: is added to.
        order: place of each row among equal similarities, shape (N,), int64.

    Returns:
        for each side, shape (M,), float64.
    """
    means = [np.full(len(side.images), np.nan) for side in sides]
    if not sides:
        return means
    space = SweepSpace(rows, union([side.candidates for side in sides], len(rows)), choose_precision(options.precision))
    for batch in _batches(rows, sides, options, space):
        prepared = [_prepare(rows, space, sides[place]) for place in batch]
        images = union([item.side.images for item in prepared], len(rows))
        for start in range(0, len(images), _IMAGES):
            block = images[start : start + _IMAGES]
            queries = space.queries(block)
            for place, item in zip(batch, prepared, strict=True):
                inside = item.place[block]
                there = np.flatnonzero(inside >= 0)
                if len(there):
                    members = inside[there]
                    means[place][members] = _block_means(
                        rows, space, item, queries.take(there), members, options.k, counts, order
                    )
    return means


def _batches(rows: FeatureRows, sides: Sequence[Side], options: Options, space: SweepSpace) -> Iterator[list[int]]:
    """Sides whose operands fit the memory together."""
    batch: list[int] = []
    size = 0
    for place, side in enumerate(sides):
        need = len(side.candidates) * (rows.dimension + 3) * space.dtype.itemsize + 8 * len(rows)
        if batch and size + need > options.memory_bytes // 2:
            yield batch
            batch, size = [], 0
        batch.append(place)
        size += need
    yield batch


def _prepare(rows: FeatureRows, space: SweepSpace, side: Side) -> _Prepared:
    place = np.full(len(rows), -1)
    place[side.images] = np.arange(len(side.images))
    by = np.argsort(side.excluded[0], kind="stable")
    return _Prepared(side, space.candidates(side.candidates), place, (side.excluded[0][by], side.excluded[1][by]))


def _block_means(
    rows: FeatureRows,
    space: SweepSpace,
    item: _Prepared,
    queries: Operand,
    members: np.ndarray,
    k: int,
    counts: Counts,
    order: np.ndarray,
) -> np.ndarray:
    images = item.side.images[members]
    excluded = _excluded_in(item, members)
    query, candidate, unserved = _listed(space, item.operand, queries, excluded, k)
    counts.scored += len(queries) * len(item.operand)
    exact = rows.similarities(images[query], item.side.candidates[candidate])
    counts.settled += len(exact)
    number = np.bincount(query, minlength=len(images))
    largest = np.full((len(images), max(k, int(number.max(initial=0)))), -np.inf)
    rank = np.arange(len(query)) - np.repeat(np.cumsum(number) - number, number)
    largest[query, rank] = exact
    largest = -np.sort(-largest, axis=1)[:, :k]
    counts.undecided += int((number - k).clip(0).sum())
    if len(unserved):
        inside = np.isin(excluded[0], unserved)
        again = Request(
            images[unserved],
            item.side.candidates,
            (np.searchsorted(unserved, excluded[0][inside]), excluded[1][inside]),
        )
        listed = nb.shortlist(
            space,
            queries.take(unserved),
            again,
            k,
            counts,
            lambda start, stop: item.operand.take(np.arange(start, stop)),
        )
        largest[unserved] = nb.settle_together(rows, [again], [listed], [k], order, counts)[0].similarities
    out = np.full(len(images), np.nan)
    enough = np.isfinite(largest[:, k - 1])
    out[enough] = neighbour_mean(largest[enough], k)
    return out


def _excluded_in(item: _Prepared, members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Excluded pairs of some images, by place among them."""
    query, at = matches(members, item.excluded[0])
    return query, item.excluded[1][at]


def _listed(
    space: SweepSpace, candidates: Operand, queries: Operand, excluded: tuple[np.ndarray, np.ndarray], k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(query, candidate) pairs that may be among the k nearest, sorted by query, and the queries left to the slow way.

    A query is left when its k-th score is not above zero (the bits of bfloat16 compare as whole numbers only there),
    when it has too few candidates, or too many near ties.
    """
    width = len(queries)
    scores = nb.Scores(space, candidates, queries.matrix, excluded)
    groups = len(scores.table) // nb.GROUP
    if groups < 2 * k:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.arange(width)
    peaks = scores.peaks()
    kth = np.partition(np.ascontiguousarray(peaks.T), groups - k, axis=1)[:, groups - k]
    error = space.error(candidates, queries)
    limit, served = _limit(space, kth, error, scores.dtype)
    hit = peaks >= limit
    group, query = np.divmod(np.flatnonzero(hit), width)
    inside = scores.table.reshape(groups, nb.GROUP, width)[group, :, query]
    which, place = np.nonzero(inside >= limit[query][:, None])
    query, candidate, value = query[which], group[which] * nb.GROUP + place, inside[which, place]
    query, candidate, value = _by_query_and_value(query, candidate, value)
    number = np.bincount(query, minlength=width)
    start = np.cumsum(number) - number
    full = np.flatnonzero(number >= k)
    limit[full] = np.maximum(limit[full], _limit(space, value[start[full] + k - 1], error[full], scores.dtype)[0])
    served &= number <= nb.LONG
    keep = (value >= limit[query]) & served[query]
    return query[keep], candidate[keep], np.flatnonzero(~served)


def _limit(space: SweepSpace, kth: np.ndarray, error: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The least score that may be among the k nearest, given the k-th score, and whether it is above zero."""
    positive = kth > 0
    value = nb.raw_values(np.where(positive, kth, 0).astype(dtype))
    limit = nb.floor_to(nb.score_limit(space, nb.lower_bound(space, value, error), error), dtype)
    positive &= limit > 0
    return np.where(positive, limit, nb.greatest_score(dtype)).astype(dtype), positive


def _by_query_and_value(
    query: np.ndarray, candidate: np.ndarray, value: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorted by query, then by falling value."""
    if value.dtype != np.int16:
        by = np.lexsort((-value, query))
        return query[by], candidate[by], value[by]
    # One 64-bit key sorts much faster: query, value, candidate.
    key = (query << 40) | ((np.int64(32767) - value) << 24) | candidate
    key.sort()
    return key >> 40, key & 0xFFFFFF, (np.int64(32767) - ((key >> 24) & 0xFFFF)).astype(np.int16)
