"""Random halves of a cell's patients, and what D would be with the candidates of one half."""

from __future__ import annotations

import numpy as np

from .compiled import compiled
from .nearest_lists import NearestLists

_BLOCK = 256
_LONGER = 4


class Halves:
    """B balanced splits of the patients of a cell into two halves.

    Patients with positives, with both labels and with negatives only are split apart, each at the median
    of their random numbers. A patient's half thus hardly depends on who else is in the cell, and two
    cells that share patients share the splits. In each split the four sets of candidates are cut to one
    size, the last drawn first, so that D of both halves has equal sets.

    Args:
        bits: random numbers of all units, shape (U, B), uint16.
        positives: unit of each drawn positive, in the order of the draw, shape (n,), int64.
        negatives: unit of each drawn negative, likewise.
        queries: unit of each query, shape (Q,), int64.
        k: neighbours a side.

    Attributes:
        positive_half, negative_half: shape (n, B), uint8: 1 or 2, the half whose candidates hold the image;
            0: cut.
        query_half: shape (Q, B), uint8: 1 or 2.
        size: candidates a side in each half, shape (B,), int64.
        neighbours: k, or less where a half is too small for it, shape (B,), int64; 0: the split is unusable.
        full: k.
    """

    def __init__(
        self, bits: np.ndarray, positives: np.ndarray, negatives: np.ndarray, queries: np.ndarray, k: int
    ) -> None:
        own = np.unique(np.concatenate([positives, queries]))
        other = np.unique(negatives)
        both = np.intersect1d(own, other)
        strata = [np.setdiff1d(own, both), both, np.setdiff1d(other, both)]
        involved = np.concatenate(strata)
        half = np.empty((len(involved), bits.shape[1]), np.uint8)
        start = 0
        for number, stratum in enumerate(strata):
            # Of an odd stratum one half gets one patient more: in turn the first and the second.
            middle = (len(stratum) + number % 2) // 2
            part = half[start : start + len(stratum)]
            part[:] = 2
            if middle > 0:
                drawn = bits[stratum]
                cut = np.partition(drawn, middle - 1, axis=0)[middle - 1]
                part[drawn <= cut] = 1
            start += len(stratum)
        order = np.argsort(involved)
        involved, half = involved[order], half[order]
        placed = [half[np.searchsorted(involved, units)] for units in (positives, negatives, queries)]
        counts = [(one == side).sum(axis=0) for one in placed[:2] for side in (1, 2)]
        self.size = np.min(counts, axis=0)
        self.positive_half, self.negative_half = (_cut(one, self.size) for one in placed[:2])
        self.query_half = placed[2]
        self.neighbours = np.clip(self.size - 1, 0, k)
        self.full = k

    def mean_distance(self, lists: NearestLists, member: np.ndarray) -> np.ndarray:
        """Mean distance of each query to its nearest members of either half.

        Args:
            lists: the queries' nearest candidates of one side.
            member: `positive_half` or `negative_half`.

        Returns:
            shape (2, Q, B), float32; infinite where a half holds no candidate for a query.
        """
        padded = np.concatenate([member, np.zeros((1, member.shape[1]), np.uint8)])
        out = np.empty((2, len(lists.index), member.shape[1]), np.float32)
        for start in range(0, len(lists.index), _BLOCK):
            part = np.arange(start, min(start + _BLOCK, len(lists.index)))
            self._fill(out, part, lists, lists.index[part], lists.distance[part], padded)
        return out

    def _fill(
        self,
        out: np.ndarray,
        which: np.ndarray,
        lists: NearestLists,
        index: np.ndarray,
        distance: np.ndarray,
        padded: np.ndarray,
    ) -> None:
        limit = self.neighbours.astype(np.min_scalar_type(self.full))  # one byte for the usual k
        shape = (len(which), padded.shape[1])
        counts, sums = np.zeros((2, *shape), limit.dtype), np.zeros((2, *shape), np.float32)
        near = np.where(np.isfinite(distance), distance, 0).astype(np.float32)
        _add_nearest(index, near, padded, limit, counts, sums)
        short = (counts < limit).any(axis=(0, 2)) & (index.shape[1] < len(lists)) & (index[:, -1] < len(lists))
        with np.errstate(invalid="ignore", divide="ignore"):
            out[:, which] = np.where(counts > 0, sums / counts, np.inf)
        if short.any():
            again = which[short]
            self._fill(out, again, lists, *lists.longer(again, index.shape[1] * _LONGER), padded)


@compiled
def _add_nearest(
    index: np.ndarray, near: np.ndarray, half: np.ndarray, limit: np.ndarray, counts: np.ndarray, sums: np.ndarray
) -> None:
    """Count the nearest members of either half in every split, and add up their distances, nearest first.

    Args:
        index: candidates of each query, nearest first, shape (Q, L), int64.
        near: their distances, shape (Q, L), float32.
        half: half of each candidate in each split, shape (candidates, B), uint8: 1, 2, or 0 for neither.
        limit: neighbours, shape (B,).
        counts, sums: written, shape (2, Q, B), as ``limit`` and float32; zero at first.
    """
    splits = len(limit)
    for query in range(len(index)):
        for place in range(index.shape[1]):
            member, distance = half[index[query, place]], near[query, place]
            for side in range(2):
                count, total = counts[side, query], sums[side, query]
                # Nothing is decided inside, so that the loop is made of vector instructions.
                for split in range(splits):
                    take = (member[split] == side + 1) & (count[split] < limit[split])
                    count[split] += take
                    total[split] += np.float32(take) * distance
            if place % 4 == 3:
                left = False
                for split in range(splits):
                    left = left | (counts[0, query, split] < limit[split]) | (counts[1, query, split] < limit[split])
                if not left:
                    break


@compiled
def _cut(half: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Keep the first candidates of each half, in the order of the draw.

    Args:
        half: 1 or 2, shape (n, B), uint8.
        size: of both halves, shape (B,), int64.

    Returns:
        shape (n, B), uint8; 0 where a candidate is left out.
    """
    splits = len(size)
    out, most = np.empty_like(half), size.astype(np.int32)
    first, second = np.zeros((2, splits), np.int32)
    for place in range(len(half)):
        member, kept = half[place], out[place]
        # Nothing is decided inside, so that the loop is made of vector instructions.
        for split in range(splits):
            first[split] += member[split] == 1
            second[split] += member[split] == 2
            number = first[split] if member[split] == 1 else second[split]
            kept[split] = member[split] if number <= most[split] else 0
    return out
