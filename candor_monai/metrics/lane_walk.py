"""The first members of sorted lists in many cohorts at once, one cohort a bit.

Redraws and exchanges ask one question again and again: which are the k nearest images of a query that are candidates
in this cohort? The list of a query's nearest images is the same in all cohorts, so 64 of them walk down it together,
each in its own bit (a lane) of a word. Of every pair of a query and a word k planes of bits are kept, "at least i
members found" for i = 1..k. A position turns them on; where they turn on is the answer.

It is noted without looking at single lanes. Bit b of a position p is the parity of the multiples m of 2ᵇ with m ≤ p,
and "m ≤ p" is what plane i denies after m positions. So after m positions the planes are added (exclusive or) to one
sum alone, that of the largest power of two that divides m; the bits of a position are sums of these sums.
"""

from __future__ import annotations

import numpy as np

#: Bytes that :func:`first_members` takes of each query, word and neighbour, its result among them (lists up to 65,535).
PAIR_BYTES = 288
#: Bytes that it takes beside these, besides four words of each image.
CALL_BYTES = 2**22
# Words that walk together: one look at an image's row of `member` serves them all.
_TOGETHER = 4
# Words of all planes that are worked on at once, so that they and their sums stay in a second-level cache.
_WORDS = 8192
# Positions between two looks at who has finished: a power of two, 2 to the number of sums that are kept apart.
_LOW_BITS = 5
_STRIDE = 2**_LOW_BITS
_ALL = np.uint64(2**64 - 1)


def first_members(lists: np.ndarray, member: np.ndarray, wanted: np.ndarray, k: int) -> np.ndarray:
    """Places of the first k members of each query's list, in each of 64·W cohorts.

    Args:
        lists: images as rows of ``member``, nearest first, shape (Q, L), int32; a short list is padded with N.
        member: bit b of word w: the image is a candidate in cohort 64·w + b, shape (N + 1, W), uint64; the last row
            is zero.
        wanted: the cohorts in which each query is asked, as the bits of ``member``, shape (Q, W), uint64.
        k: how many.

    Returns:
        place in the list of the 1st to k-th member, L where the list ends before, shape (Q, 64·W, k), of the smallest
        unsigned type that holds L; where it is not wanted, any number up to L. A view: k varies slowest in memory.

    Raises:
        ValueError: k is below 1, shapes do not fit, or the last row of ``member`` is not zero.

    >>> lists = np.array([[2, 0, 1, 3]], np.int32)
    >>> member = np.array([[1], [1], [2], [0]], np.uint64)  # images 0 and 1 in cohort 0, image 2 in cohort 1
    >>> first_members(lists, member, np.array([[3]], np.uint64), 2)[0, :2].tolist()
    [[1, 2], [0, 4]]
    """
    (queries, length), words = lists.shape, member.shape[1]
    if k < 1:
        raise ValueError(f"k is {k}: at least 1 is needed")
    if wanted.shape != (queries, words):
        raise ValueError(f"wanted has shape {wanted.shape}, not {(queries, words)}")
    if member[-1].any():
        raise ValueError("the last row of member stands for no image: it must be zero")
    out = np.zeros((k, queries, words, 64), np.min_scalar_type(length))
    for word in range(0, words, _TOGETHER):
        some = slice(word, word + _TOGETHER)
        walk = _Walk(lists, np.ascontiguousarray(member[:, some]), wanted[:, some], k)
        start = 0
        while walk.active and start < length:
            stop = min(start + _STRIDE, length)
            walk.forward(start, stop)
            walk.retire(stop, out[:, :, some], everyone=stop == length)
            start = stop
    return out.reshape(k, queries, 64 * words).transpose(1, 2, 0)


class _Walk:
    """Queries that are still on their way in a few words, in the first ``active`` places of all arrays."""

    def __init__(self, lists: np.ndarray, member: np.ndarray, wanted: np.ndarray, k: int) -> None:
        self._lists, self._member = lists, member
        self._query = np.flatnonzero(wanted.any(axis=1))
        self._wanted = wanted[self._query]
        self.active, words = self._wanted.shape
        self._found = np.zeros((k, self.active, words), np.uint64)
        self._sums = np.zeros((lists.shape[1].bit_length(), k, self.active, words), np.uint64)
        # What a block works with lies together: rows far apart would push each other out of the cache.
        self._block = min(max(1, _WORDS // (k * words)), max(self.active, 1))
        width = self._block * words
        self._index = np.empty(_STRIDE * self._block, np.intp)
        self._here, self._turned = np.empty(width, np.uint64), np.empty(k * width, np.uint64)
        self._planes, self._low = np.empty((k + 1) * width, np.uint64), np.empty(_LOW_BITS * k * width, np.uint64)

    def forward(self, start: int, stop: int) -> None:
        """Go on from position ``start`` to ``stop`` of all lists."""
        for first in range(0, self.active, self._block):
            part = slice(first, min(first + self._block, self.active))
            index, here, turned, planes, low = self._buffers(part.stop - first)
            index = index[: stop - start]
            index[:] = self._lists[self._query[part], start:stop].T
            before, found, flat = planes[:-1], planes[1:], here.reshape(-1)
            found[:] = self._found[:, part].reshape(found.shape)
            low[:] = 0
            for row, position in zip(index, range(start + 1, stop + 1), strict=True):
                self._member.take(row, axis=0, out=here, mode="clip")
                np.bitwise_and(before, flat, out=turned)
                np.bitwise_or(found, turned, out=found)
                bit = (position & -position).bit_length() - 1
                if bit < _LOW_BITS:
                    np.bitwise_xor(low[bit], found, out=low[bit])
                else:
                    self._sums[bit, :, part] ^= found.reshape(-1, *here.shape)
            self._found[:, part] = found.reshape(-1, *here.shape)
            sums = self._sums[:_LOW_BITS, :, part]
            sums ^= low[: len(sums)].reshape(sums.shape)

    def _buffers(self, queries: int) -> tuple[np.ndarray, ...]:
        """Where a block of so many queries works: list parts, members, what turns on, planes 0 to k, low sums."""
        k, _, words = self._found.shape
        width = queries * words
        planes = self._planes[: (k + 1) * width].reshape(k + 1, width)
        planes[0] = _ALL  # "at least none found"
        return (
            self._index[: _STRIDE * queries].reshape(_STRIDE, queries),
            self._here[:width].reshape(queries, words),
            self._turned[: k * width].reshape(k, width),
            planes,
            self._low[: _LOW_BITS * k * width].reshape(_LOW_BITS, k, width),
        )

    def retire(self, position: int, out: np.ndarray, everyone: bool) -> None:
        """Write the places of the queries whose wanted lanes have all k, once they are enough to be worth it.

        Args:
            position: how far all have come.
            out: shape (k, Q, words, 64).
            everyone: the lists are at their end.
        """
        active = self.active
        finished = np.ones(active, bool)
        if not everyone:
            finished = ~(~self._found[-1, :active] & self._wanted[:active]).any(axis=1)
        gone = np.flatnonzero(finished)
        if len(gone) * 16 < active:
            return
        bits = position.bit_length()
        for first in range(0, len(gone), self._block):
            some = gone[first : first + self._block]
            out[:, self._query[some]] = _places(_taken(self._sums[:bits], some), position, out.dtype)
        # Those who are left at the end move into the places that became free.
        self.active = active - len(gone)
        free = gone[: np.searchsorted(gone, self.active)]
        late = self.active + np.flatnonzero(~finished[self.active :])
        for table in (self._query, self._wanted, *self._found, *self._sums[:bits].reshape(-1, *self._wanted.shape)):
            table[free] = table.take(late, axis=0)


def _taken(sums: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """``sums[:, :, queries]``, row by row, which is several times faster."""
    out = np.empty((*sums.shape[:2], len(queries), sums.shape[3]), sums.dtype)
    for ours, theirs in zip(out.reshape(-1, *out.shape[2:]), sums.reshape(-1, *sums.shape[2:]), strict=True):
        theirs.take(queries, axis=0, out=ours, mode="clip")
    return out


def _places(sums: np.ndarray, position: int, dtype: np.dtype) -> np.ndarray:
    """Places from the sums of queries that have come as far as ``position``.

    Args:
        sums: shape (bits, k, queries, words), uint64.
        dtype: of places anywhere in the lists; those up to ``position`` may need half of it, or less.

    Returns:
        shape (k, queries, words, 64), of the smallest type that holds ``position``.
    """
    dtype = min(dtype, np.min_scalar_type(position), key=lambda one: one.itemsize)
    bits = 8 * dtype.itemsize
    rows = np.zeros((bits, *sums.shape[1:]), np.uint64)
    rows[: len(sums)] = sums
    for bit in range(len(sums) - 1, -1, -1):
        if bit + 1 < len(sums):
            rows[bit] ^= rows[bit + 1]
    for bit in range(len(sums)):
        if position >> bit & 1:
            np.invert(rows[bit], out=rows[bit])
    _transpose_bits(rows)
    # Lane bits·cell + row lies in this cell of this row; cells count from the lowest bits of a word.
    cells = rows.astype("<u8", copy=False).view(dtype.newbyteorder("<"))
    cells = cells.reshape(*rows.shape, 64 // bits)
    return np.moveaxis(cells, 0, -1).reshape(*rows.shape[1:], 64)


def _transpose_bits(rows: np.ndarray) -> None:
    """Transpose bits of rows in place: bit ``c`` of each cell of row ``r`` changes places with bit ``r`` of row ``c``.

    Args:
        rows: shape (bits, …), uint64, with 8, 16 or 32 rows; a cell is as many bits of a word as there are rows.
    """
    step = len(rows) // 2
    while step:
        shift = np.uint64(step)
        mask = np.uint64(sum(1 << bit for bit in range(64) if not bit & step))
        pairs = rows.reshape(-1, 2, step, *rows.shape[1:])
        low, high = pairs[:, 0], pairs[:, 1]
        swap = low >> shift
        swap ^= high
        swap &= mask
        high ^= swap
        swap <<= shift
        low ^= swap
        step //= 2
