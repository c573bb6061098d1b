"""The k largest of many lists of numbers at once, whose members come in any order: compiled heaps.

A list is a target; each member says which target it is of. Of every target the k largest so far are held as a heap
whose root is the least of them, so most members cost one comparison.
"""

from __future__ import annotations

import numpy as np

from .compiled import compiled

# Lists of more neighbours are sorted in tables, of so many places at once.
_FEW, _TABLE = 64, 2**20


def kth_largest(target: np.ndarray, value: np.ndarray, count: int, k: int | np.ndarray) -> np.ndarray:
    """The k-th largest value of each target, −inf where there are fewer.

    Args:
        target: shape (S,), int64, below ``count``.
        value: shape (S,), float64, no NaN.
        count: targets.
        k: at least 1, of all or of each target, shape (count,).

    Returns:
        shape (count,), float64.

    >>> kth_largest(np.array([1, 1, 1]), np.array([3.0, 5.0, 4.0]), 2, 2).tolist()
    [-inf, 4.0]
    """
    start = np.zeros(count + 1, np.int64)
    np.cumsum(np.broadcast_to(k, (count,)), out=start[1:])
    heap, size = np.empty(start[-1]), np.zeros(count, np.int64)
    _hold(target, np.ascontiguousarray(value), start, heap, size)
    full = size == np.diff(start)
    out = np.full(count, -np.inf)
    out[full] = heap[start[:-1][full]]
    return out


def write_largest(target: np.ndarray, value: np.ndarray, largest: np.ndarray) -> None:
    """Write the largest values of each target, descending, into its row.

    Args:
        target: shape (S,), int64.
        value: shape (S,), float64, no NaN.
        largest: shape (targets, k), float64, contiguous; what a target has too few values for is left as it is.

    Raises:
        ValueError: ``largest`` is not contiguous.

    >>> largest = np.full((2, 2), -np.inf)
    >>> write_largest(np.array([1, 1, 1]), np.array([3.0, 5.0, 4.0]), largest)
    >>> largest.tolist()
    [[-inf, -inf], [5.0, 4.0]]
    """
    if not largest.flags.c_contiguous:
        raise ValueError("largest is not contiguous: what is written would be lost")
    start = np.arange(len(largest) + 1) * largest.shape[1]
    size = np.zeros(len(largest), np.int64)
    _hold(target, np.ascontiguousarray(value), start, largest.reshape(-1), size)
    _descend(start, largest.reshape(-1), size)


@compiled
def by_target(target: np.ndarray, count: int) -> np.ndarray:
    """The places of members, target by target, those of a target in their order.

    Args:
        target: shape (S,), int64, below ``count``.
        count: targets.

    Returns:
        shape (S,), int64.

    >>> by_target(np.array([1, 0, 1]), 2).tolist()
    [1, 0, 2]
    """
    start = np.zeros(count + 1, np.int64)
    for at in range(len(target)):
        start[target[at] + 1] += 1
    for one in range(count):
        start[one + 1] += start[one]
    out = np.empty(len(target), np.int64)
    for at in range(len(target)):
        out[start[target[at]]] = at
        start[target[at]] += 1
    return out


@compiled
def _hold(target: np.ndarray, value: np.ndarray, start: np.ndarray, heap: np.ndarray, size: np.ndarray) -> None:
    """Fill the heaps of all targets.

    Args:
        target, value: the members.
        start: where the heap of each target begins, and where all end, shape (targets + 1,), int64.
        heap: written.
        size: zeros; what each heap holds in the end, shape (targets,), int64, written.
    """
    for at in range(len(target)):
        one, new = target[at], value[at]
        first, room = start[one], start[one + 1] - start[one]
        if size[one] < room:
            place = size[one]
            size[one] += 1
            while place > 0 and heap[first + (place - 1) // 2] > new:
                heap[first + place] = heap[first + (place - 1) // 2]
                place = (place - 1) // 2
            heap[first + place] = new
        elif new > heap[first]:
            _sink(heap, first, room, new)


@compiled
def _sink(heap: np.ndarray, first: int, size: int, new: float) -> None:
    """Put a number in the place of the root of a heap of ``size`` that begins at ``first``."""
    place = 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and heap[first + below + 1] < heap[first + below]:
            below += 1
        if heap[first + below] >= new:
            break
        heap[first + place] = heap[first + below]
        place = below
    heap[first + place] = new


@compiled
def _descend(start: np.ndarray, heap: np.ndarray, size: np.ndarray) -> None:
    """Sort every heap, the largest first."""
    for one in range(len(size)):
        first = start[one]
        for last in range(size[one] - 1, 0, -1):
            least, moved = heap[first], heap[first + last]
            _sink(heap, first, last, moved)
            heap[first + last] = least


def write_nearest(
    query: np.ndarray,
    row: np.ndarray,
    similarity: np.ndarray,
    order: np.ndarray,
    similarities: np.ndarray,
    found: np.ndarray,
) -> None:
    """Write the most similar candidates of each query, descending, equal similarities in the order given.

    Args:
        query: of each pair, shape (S,), int64, ascending.
        row: of its candidate, distinct within a query, shape (S,), int64.
        similarity: shape (S,), float64, no NaN.
        order: place of each row among equal similarities, distinct, shape (N,), int64.
        similarities: −inf everywhere, shape (Q, k), float64, written as far as a query has candidates.
        found: their rows, −1 everywhere, shape (Q, k), int64, likewise.

    >>> similarities, found = np.full((1, 2), -np.inf), np.full((1, 2), -1)
    >>> row, similarity = np.array([4, 2, 7]), np.array([0.5, 0.9, 0.5])
    >>> write_nearest(np.zeros(3, int), row, similarity, np.arange(8), similarities, found)
    >>> found.tolist()
    [[2, 4]]
    """
    if similarities.shape[1] <= _FEW:
        _hold_nearest(query, row, similarity, order, similarities, found)
        return
    # Long lists: lines of a table, sorted by vector instructions.
    k = similarities.shape[1]
    number = np.bincount(query, minlength=len(similarities))
    place = np.arange(len(query)) - np.repeat(np.cumsum(number) - number, number)
    lines = max(1, _TABLE // max(1, int(number.max(initial=0))))
    for first in range(0, len(similarities), lines):
        last = min(first + lines, len(similarities))
        low, high = np.searchsorted(query, (first, last))
        shape = last - first, max(k, int(number[first:last].max(initial=0)))
        values, member = np.full(shape, np.inf), np.full(shape, -1, np.int64)
        values[query[low:high] - first, place[low:high]] = -similarity[low:high]
        member[query[low:high] - first, place[low:high]] = row[low:high]
        by = np.argsort(values, axis=1)
        values = np.take_along_axis(values, by, axis=1)
        member = np.take_along_axis(member, by, axis=1)
        equal = (values[:, 1:] == values[:, :-1]) & (member[:, 1:] >= 0) & (member[:, :-1] >= 0)
        tied = np.flatnonzero(equal.any(axis=1))
        by = np.lexsort((order[member[tied]], values[tied]), axis=1)
        member[tied] = np.take_along_axis(member[tied], by, axis=1)
        similarities[first:last], found[first:last] = -values[:, :k], member[:, :k]


@compiled
def _hold_nearest(
    query: np.ndarray,
    row: np.ndarray,
    similarity: np.ndarray,
    order: np.ndarray,
    similarities: np.ndarray,
    found: np.ndarray,
) -> None:
    """`write_nearest` by heaps, in whatever order the queries come."""
    k = similarities.shape[1]
    size = np.zeros(len(similarities), np.int64)
    for at in range(len(query)):
        one, new, place = query[at], similarity[at], order[row[at]]
        best, who = similarities[one], found[one]
        if size[one] < k:
            hole = size[one]
            size[one] += 1
            while hole > 0:
                above = (hole - 1) // 2
                if best[above] < new or (best[above] == new and order[who[above]] > place):
                    break
                best[hole], who[hole] = best[above], who[above]
                hole = above
            best[hole], who[hole] = new, row[at]
        elif new > best[0] or (new == best[0] and place < order[who[0]]):
            _sink_pair(best, who, order, k, new, row[at])
    for one in range(len(similarities)):
        best, who = similarities[one], found[one]
        for last in range(size[one] - 1, 0, -1):
            least, least_row = best[0], who[0]
            _sink_pair(best, who, order, last, best[last], who[last])
            best[last], who[last] = least, least_row


@compiled
def _sink_pair(best: np.ndarray, who: np.ndarray, order: np.ndarray, size: int, new: float, row: int) -> None:
    """Put a candidate in the place of the root of a heap of ``size``: the least similar, of these the last in order."""
    hole = 0
    while 2 * hole + 1 < size:
        below = 2 * hole + 1
        other = below + 1
        if other < size and (
            best[other] < best[below] or (best[other] == best[below] and order[who[other]] > order[who[below]])
        ):
            below = other
        if best[below] > new or (best[below] == new and order[who[below]] < order[row]):
            break
        best[hole], who[hole] = best[below], who[below]
        hole = below
    best[hole], who[hole] = new, row
