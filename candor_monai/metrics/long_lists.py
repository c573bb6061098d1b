"""The nearest of very many images, far down, gathered from blocks of distances.

Sorting every block would cost more than the distances. A random sample of the images tells how near the last of a list
is about; what is nearer than a little beyond that is kept, and sorted once. Where the sample was wrong, a list that has
too many is cut to its nearest, and one that has too few says so: the answer is exact either way.
"""

from __future__ import annotations

import numpy as np
import torch

from .compiled import compiled
from .score_scan import lines
from .similarity import in_threads

_NO_LIMIT = np.finfo(np.float32).max
# So many standard deviations beyond what a sample tells; a list then has too few once in a hundred thousand.
_MARGIN = 4.5
# Distances of a line that are compared before any of them is looked at.
_TOGETHER = 64
# Queries that a thread looks at are a multiple of this.
_LEAST = 32


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
        width = min(2 * length, images)
        self._index = np.full((queries, width), images, np.int32)
        self._distance = np.full((queries, width), np.inf, np.float32)
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
        found = np.zeros(len(near), bool)
        lists = self._limit[part], self._index[part], self._distance[part], self._filled[part], found

        def append(span: tuple[int, int]) -> None:
            some = slice(*span)
            _append(flat[span[0] * width :], width, half, near[some], first, *(one[some] for one in lists))

        in_threads(append, len(near), _LEAST)
        full = np.flatnonzero(found)
        if len(full):
            self._cut(part.start + full, first, half - products[full] + near[full, None])

    def _cut(self, queries: np.ndarray, first: int, distances: np.ndarray) -> None:
        """Keep the nearest of what lists hold and of some further images."""
        width, length = self._index.shape[1], self._length
        both = torch.from_numpy(np.concatenate([self._distance[queries], distances], axis=1))
        nearest = torch.topk(both, length, dim=1, largest=False, sorted=True)
        values, column = nearest.values.numpy(), nearest.indices.numpy()
        old = np.take_along_axis(self._index[queries], np.minimum(column, width - 1), axis=1)
        self._index[queries, :length] = np.where(column < width, old, column + (first - width))
        self._distance[queries, :length] = values
        self._index[queries, length:], self._distance[queries, length:] = self._images, np.inf
        self._filled[queries] = np.isfinite(values).sum(axis=1)
        self._limit[queries] = np.minimum(self._limit[queries], values[:, -1])

    def too_short(self) -> np.ndarray:
        """Queries whose lists the sample kept too short: they are emptied, and must look at all images again."""
        short = np.flatnonzero((self._filled < self._length) & (self._limit < _NO_LIMIT))
        self._index[short], self._distance[short], self._filled[short] = self._images, np.inf, 0
        self._limit[short] = _NO_LIMIT
        return short

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Images, int32, and distances, float32, nearest first, shape (M, length); N and 0 where fewer are left."""
        step = 256
        for start in range(0, len(self._index), step):
            part = slice(start, start + step)
            found = torch.from_numpy(self._distance[part])
            nearest = torch.topk(found, self._length, dim=1, largest=False, sorted=True)
            self._index[part, : self._length] = np.take_along_axis(self._index[part], nearest.indices.numpy(), axis=1)
            self._distance[part, : self._length] = nearest.values.numpy()
        self._index = np.ascontiguousarray(self._index[:, : self._length])
        self._distance = np.ascontiguousarray(self._distance[:, : self._length])
        missing = np.isinf(self._distance)
        self._index[missing], self._distance[missing] = self._images, 0
        return self._index, self._distance


@compiled
def _append(
    flat: np.ndarray,
    width: int,
    half: np.ndarray,
    near: np.ndarray,
    first: int,
    limit: np.ndarray,
    index: np.ndarray,
    distance: np.ndarray,
    filled: np.ndarray,
    full: np.ndarray,
) -> None:
    """Write what is within the limit of each query behind what its list holds.

    Args:
        flat, width: products of each query, in lines that begin ``width`` apart.
        half, near, first: as in `LongLists.add`.
        limit, index, distance, filled: of these queries; the last three are written.
        full: false; written where a query had no room for all, and its list is as it was.
    """
    images, room = len(half), index.shape[1]
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
                far = (half[image] - line[image]) + own
                if far <= most:
                    if to == room:
                        full[query] = True
                        break
                    index[query, to] = first + image
                    distance[query, to] = far
                    to += 1
        if full[query]:
            distance[query, filled[query] :] = np.inf
        else:
            filled[query] = to
