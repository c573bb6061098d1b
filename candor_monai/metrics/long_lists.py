"""The nearest of very many images, far down, gathered from blocks of distances.

Sorting every block would cost more than the distances. A random sample of the images tells how near the last of a list
is about; what is nearer than a little beyond that is kept, and sorted once. Where the sample was wrong, a list that has
too many is cut to its nearest, and one that has too few says so: the answer is exact either way.

A distance and its image are kept as one whole number, which sorts as the distance does, then as the image.
"""

from __future__ import annotations

import numpy as np

from .compiled import compiled
from .score_scan import lines
from .similarity import in_threads

_NO_LIMIT = np.finfo(np.float32).max
# So many standard deviations beyond what a sample tells; a list then has too few once in a hundred thousand.
_MARGIN = 4.5
# A sample holds about so many images that a list will.
_EXPECTED = 150
# Distances of a line that are compared before any of them is looked at.
_TOGETHER = 64
# Queries that a thread looks at are a multiple of this.
_LEAST = 32


def sample_size(images: int, length: int) -> int:
    """Images of a random sample that tells how near the last of a list of so many is about.

    >>> sample_size(10_000, 2_000)
    750
    """
    return min(images, -(-_EXPECTED * images // length))


class LongLists:
    """Lists that are being filled.

    Args:
        queries: how many, M.
        images: how many there are to choose from, N.
        length: of the lists, at most N.

    >>> lists = LongLists(1, 4, 2)
    >>> lists.add(slice(0, 1), 0, -np.float32([[3, 1, np.inf, 2]]), np.zeros(4, np.float32), np.zeros(1, np.float32))
    >>> lists.too_short().tolist(), lists.result()[0].tolist()
    ([], [[1, 3]])
    """

    def __init__(self, queries: int, images: int, length: int) -> None:
        self._images, self._length = images, length
        self._key = np.empty((queries, min(2 * length, images)), np.int64)
        self._filled = np.zeros(queries, np.int64)
        self._limit = np.full(queries, _NO_LIMIT, np.float32)

    def expect(self, part: slice, sample: np.ndarray) -> None:
        """Set how near an image must be to be kept, from distances to a random sample of the images.

        Args:
            part: of the queries.
            sample: shape (queries of the part, S), float32; infinite for images that are left out.
        """
        within = self._length * sample.shape[1] / self._images
        rank = int(within + _MARGIN * np.sqrt(within) + _MARGIN**2)
        if rank < sample.shape[1]:
            self._limit[part] = np.minimum(np.partition(sample, rank, axis=1)[:, rank], _NO_LIMIT)

    def add(self, part: slice, first: int, products: np.ndarray, half: np.ndarray, near: np.ndarray) -> None:
        """Look at some images, whose distances are ``half − products + near``.

        Args:
            part: of the queries.
            first: number of the first image; the others follow.
            products: shape (queries of the part, images), float32, whose rows may lie apart; −∞ for images that are
                left out.
            half: half the squared length of each image, shape (images,), float32.
            near: that of each query, shape (queries of the part,), float32.
        """
        flat, width = lines(products)
        full = np.zeros(len(near), bool)
        lists = self._limit[part], self._key[part], self._filled[part], full

        def append(span: tuple[int, int]) -> None:
            some = slice(*span)
            _append(flat[span[0] * width :], width, half, near[some], first, *(one[some] for one in lists))

        in_threads(append, len(near), _LEAST)
        for query in np.flatnonzero(full):
            self._cut(part.start + query, first, (half - products[query]) + near[query])

    def _cut(self, query: int, first: int, distances: np.ndarray) -> None:
        """Keep the nearest of what a list holds and of some further images."""
        found = np.flatnonzero(distances <= self._limit[query])
        both = np.concatenate([self._key[query, : self._filled[query]], _keys(distances[found], first + found)])
        both.sort()
        self._key[query, : self._length] = both[: self._length]
        self._filled[query] = self._length
        self._limit[query] = min(self._limit[query], _distances(both[self._length - 1 : self._length])[0])

    def too_short(self) -> np.ndarray:
        """Queries whose lists the sample kept too short: they are emptied, and must look at all images again."""
        short = np.flatnonzero((self._filled < self._length) & (self._limit < _NO_LIMIT))
        self._filled[short] = 0
        self._limit[short] = _NO_LIMIT
        return short

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Images, int32, and distances, float32, nearest first, shape (M, length); N and 0 where fewer are left."""
        shape = len(self._key), self._length
        index, distance = np.full(shape, self._images, np.int32), np.zeros(shape, np.float32)

        def sort(span: tuple[int, int]) -> None:
            for query in range(*span):
                held = self._key[query, : self._filled[query]]
                held.sort()
                held = held[: self._length]
                index[query, : len(held)] = held & 0xFFFFFFFF
                distance[query, : len(held)] = _distances(held)

        in_threads(sort, len(self._key), _LEAST)
        return index, distance


def _keys(distance: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Distances, float32, and images, below 2³², as numbers that sort as they do, int64."""
    bits = distance.view(np.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64) << 32 | image


def _distances(key: np.ndarray) -> np.ndarray:
    """The distances of keys, float32."""
    bits = (key >> 32).astype(np.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(np.float32)


@compiled
def _append(
    flat: np.ndarray,
    width: int,
    half: np.ndarray,
    near: np.ndarray,
    first: int,
    limit: np.ndarray,
    key: np.ndarray,
    filled: np.ndarray,
    full: np.ndarray,
) -> None:
    """Write what is within the limit of each query behind what its list holds.

    Args:
        flat, width: products of each query, in lines that begin ``width`` apart.
        half, near, first: as in `LongLists.add`.
        limit, key, filled: of these queries; the last two are written, keys as `_keys` makes them.
        full: false; written where a query had no room for all, and its list is as it was.
    """
    images, room = len(half), key.shape[1]
    blocks = -(-images // _TOGETHER)
    reached = np.ones(blocks, np.bool_)  # the last block, which may be short, is always looked at
    for query in range(len(near)):
        line, own, most = flat[query * width : query * width + images], near[query], limit[query]
        for block in range(images // _TOGETHER):
            start, hit = block * _TOGETHER, False
            for step in range(_TOGETHER):
                hit = hit | ((half[start + step] - line[start + step]) + own <= most)
            reached[block] = hit
        to = filled[query]
        for block in range(blocks):
            if not reached[block] or full[query]:
                continue
            for image in range(block * _TOGETHER, min((block + 1) * _TOGETHER, images)):
                far = np.float32((half[image] - line[image]) + own)
                if far <= most:
                    if to == room:
                        full[query] = True
                        break
                    bits = np.int64(far.view(np.int32))
                    key[query, to] = ((bits ^ ((bits >> 63) & 0x7FFFFFFF)) << 32) | (first + image)
                    to += 1
        if not full[query]:
            filled[query] = to
