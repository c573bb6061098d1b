"""Hashes of image and patient ids under a key: every random choice of the measures is made with them.

A hash depends on one id and on the key only, so a draw does not change when rows are permuted, images are added,
another finding is scored beside it, or the work is spread over processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from .compiled import compiled

#: Step of the counter of a SplitMix64 stream.
STEP = np.uint64(0x9E3779B97F4A7C15)
_BLOCK = 16384


def id_digests(ids: Sequence[str] | np.ndarray) -> np.ndarray:
    """The 128-bit BLAKE2b digest of each id: the part of a keyed hash that does not depend on the key.

    Args:
        ids: N text ids.

    Returns:
        shape (N, 2), uint64. Pass it in place of ``ids`` where many keys are used on the same ids.

    Raises:
        ValueError: an id is not text.

    >>> id_digests(["a", "b"]).shape
    (2, 2)
    """
    buffer = bytearray()
    for row, name in enumerate(ids):
        if not isinstance(name, str):
            raise ValueError(f"ids[{row}] is {type(name).__name__}, not text")
        buffer += hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return np.frombuffer(bytes(buffer), dtype="<u8").astype(np.uint64).reshape(-1, 2)


def keyed_hash(ids: Sequence[str] | np.ndarray, *key: str | int) -> np.ndarray:
    """A 64-bit hash of each id under a key, uniform over the keys and independent between ids.

    Args:
        ids: N text ids, or their digests from :func:`id_digests`, shape (N, 2), uint64.
        key: text and whole numbers; ``1`` and ``"1"`` are different parts.

    Returns:
        shape (N,), uint64.

    Raises:
        ValueError: an id is not text, or a part of the key is neither text nor a whole number.

    >>> bool(keyed_hash(["a", "b"], "seed", 1)[1] == keyed_hash(["b"], "seed", 1)[0])
    True
    >>> bool(keyed_hash(["a"], "seed", 1)[0] == keyed_hash(["a"], "seed", "1")[0])
    False
    """
    digests = _as_digests(ids)
    first, second = _key_words(key)
    out = np.empty(len(digests), np.uint64)
    # Two rounds of the SplitMix64 finaliser, one for each half of digest and key, in blocks that stay in a cache.
    for start in range(0, len(digests), _BLOCK):
        part = digests[start : start + _BLOCK]
        mixed = splitmix64((part[:, 0] ^ first) + STEP)
        out[start : start + _BLOCK] = splitmix64((mixed ^ part[:, 1]) + second)
    return out


def splitmix64(words: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64 (Steele, Lea and Flood 2014): uint64 in, well mixed uint64 out.

    >>> splitmix64(np.zeros(1, np.uint64) + STEP).tolist()
    [16294208416658607535]
    """
    mixed = words >> np.uint64(30)
    mixed ^= words
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def keyed_rank(ids: Sequence[str] | np.ndarray, *key: str | int) -> np.ndarray:
    """The order of ids under a key: their positions, sorted by keyed hash, ties by the id itself.

    Args:
        ids: N text ids, or their digests.
        key: see :func:`keyed_hash`.

    Returns:
        shape (N,), int64: ``ids[result[0]]`` comes first.

    >>> names = np.array(["a", "b", "c", "d"])
    >>> first = names[keyed_rank(names, "draw")]
    >>> bool((first == names[::-1][keyed_rank(names[::-1], "draw")]).all())
    True
    """
    digests = _as_digests(ids)
    return _ranked(keyed_hash(digests, *key), digests)


def keyed_first(ids: Sequence[str] | np.ndarray, count: int, *key: str | int) -> np.ndarray:
    """The first ``count`` of :func:`keyed_rank`, without sorting the rest.

    Args:
        ids: N text ids, or their digests.
        count: how many; more than N gives all.
        key: see :func:`keyed_hash`.

    Returns:
        shape (min(count, N),), int64.

    >>> ids = [f"image {i}" for i in range(100)]
    >>> bool((keyed_first(ids, 7, "draw") == keyed_rank(ids, "draw")[:7]).all())
    True
    """
    digests = _as_digests(ids)
    hashes = keyed_hash(digests, *key)
    # Hashes are uniform, so nearly always the first few are below this; sorting the rest would be idle.
    share = (count + 5 * np.sqrt(count) + 5) / max(len(hashes), 1)
    near = np.flatnonzero(hashes < np.uint64(int(share * 2.0**64))) if share < 0.5 else np.arange(len(hashes))
    if len(near) < min(count, len(hashes)):
        near = np.arange(len(hashes))
    return near[_ranked(hashes[near], digests[near])[:count]]


class KeyedRanks:
    """Many keyed rankings of the same ids, of which the first few ids are wanted.

    Each id has one 64-bit keyed hash. Ranking number r orders the ids by 32 bits mixed from that hash and r, ties by
    the id: a few operations on whole numbers of 32 bits, several times cheaper than a keyed hash of every id again. As
    with :func:`keyed_rank`, the place of an id before another depends on the two ids, the key and r alone.

    Args:
        ids: N text ids, or their digests.
        key: see :func:`keyed_hash`.
        items: what is answered in place of each id, shape (N,), int64; None: its position.

    >>> ranks = KeyedRanks([f"image {i}" for i in range(100)], "draws", 1)
    >>> bool((ranks.first(7, 3) == ranks.first(100, 3)[:7]).all())
    True
    >>> len(set(ranks.first(7, 3)) & set(ranks.first(7, 4))) < 7
    True
    """

    def __init__(self, ids: Sequence[str] | np.ndarray, *key: str | int, items: np.ndarray | None = None) -> None:
        digests = _as_digests(ids)
        by = _ranked(digests[:, 0], digests)
        hashes = keyed_hash(digests[by], *key)
        self._items = by if items is None else items[by]
        self._high = (hashes >> np.uint64(32)).astype(np.uint32)
        self._low = hashes.astype(np.uint32)

    def __len__(self) -> int:
        return len(self._items)

    def first(self, count: int, number: int) -> np.ndarray:
        """The first ids of one ranking, in its order.

        Args:
            count: how many; more than N gives all.
            number: of the ranking, below 2³².

        Returns:
            their positions, or items, shape (min(count, N),), int64.
        """
        found = self._near(count, number)
        found.sort()
        return self._first(found, min(count, len(self)) - 1)

    def first_unordered(self, count: int, number: int) -> np.ndarray:
        """The same ids as :meth:`first`, by their digests: for less, where only their set is wanted."""
        found = self._near(count, number)
        last = min(count, len(self)) - 1
        if last < 0:
            return self._first(found, last)
        return self._first(found, last, np.partition(found, last)[last])

    def _first(self, found: np.ndarray, last: int, limit: np.uint64 | None = None) -> np.ndarray:
        """Items of the mixed numbers up to a limit, or to that in place ``last``, in the order given."""
        out = np.empty(last + 1, np.int64)
        if last >= 0:
            _take_up_to(found, found[last] if limit is None else limit, self._items, out)
        return out

    def _near(self, count: int, number: int) -> np.ndarray:
        """The mixed numbers that can be among the first few (more than these, or all), see :meth:`_below`."""
        expected = count + 5 * np.sqrt(count) + 5
        share = expected / max(len(self), 1)
        if share < 0.5:
            found = self._below(int(share * 2**32), number, int(1.2 * expected) + 50)
            if len(found) >= count:
                return found
        return self._below(2**32, number, len(self))

    def _below(self, limit: int, number: int, room: int) -> np.ndarray:
        """The mixed numbers below a limit, each with the place of its id behind it, uint64; ``room`` for so many."""
        # A different word for every number: both steps can be undone.
        word = (number * 0x9E3779B1) & 0xFFFFFFFF
        word = ((word ^ word >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
        while True:
            out = np.empty(room, np.uint64)
            found = int(_mixed_below(self._high, self._low, np.uint32(word), np.uint32(limit - 1), out))
            if found <= room:
                return out[:found]
            room = found


# Numbers that are mixed before they are looked at, so that both loops are short and many at once.
_MIXED = 1024


@compiled
def _mixed_below(high: np.ndarray, low: np.ndarray, word: np.uint32, last: np.uint32, out: np.ndarray) -> int:
    """Mix the words of ids, and write those up to a last number.

    Args:
        high, low: halves of each id's hash, shape (N,), uint32.
        word: of the ranking.
        last: the largest number that is written.
        out: mixed number · 2³² + place of the id, by place, shape (room,), uint64, written.

    Returns:
        how many there are; beyond the room they are counted only.
    """
    mixed = np.empty(_MIXED, np.uint32)
    number = 0
    for start in range(0, len(high), _MIXED):
        # Slices, not indices with an offset: only so the loop is made to mix many at once.
        some_high, some_low = high[start : start + _MIXED], low[start : start + _MIXED]
        # Multiplying carries low bits upwards, shifting by half brings high ones down: the leading bits of the
        # result, which rank, depend on all bits of both halves and of the number.
        for at in range(len(some_high)):
            value = np.uint32((some_high[at] ^ word) * np.uint32(0x7FEB352D))
            value = np.uint32(value ^ (value >> np.uint32(16)) ^ some_low[at])
            mixed[at] = np.uint32(value * np.uint32(0x846CA68B))
        for at in range(len(some_high)):
            if mixed[at] <= last:
                if number < len(out):
                    out[number] = np.uint64(mixed[at]) << np.uint64(32) | np.uint64(start + at)
                number += 1
    return number


@compiled
def _take_up_to(found: np.ndarray, limit: np.uint64, items: np.ndarray, out: np.ndarray) -> None:
    """Write the item behind each mixed number up to a limit.

    Args:
        found: mixed number · 2³² + place of the item, shape (S,), uint64.
        limit: like them.
        items: shape (N,), int64.
        out: one place for each number up to the limit, int64, written.
    """
    to = 0
    for at in range(len(found)):
        if found[at] <= limit:
            out[to] = items[np.int64(found[at] & np.uint64(0xFFFFFFFF))]
            to += 1


def stable_fraction(ids: Sequence[str] | np.ndarray, *key: str | int) -> np.ndarray:
    """A number in [0, 1) for each id under a key, uniform over the keys.

    Args:
        ids: N text ids, or their digests.
        key: see :func:`keyed_hash`.

    Returns:
        shape (N,), float64: the 53 leading bits of the hash.

    >>> bool((stable_fraction(["a", "b"], "split") < 1).all())
    True
    """
    return (keyed_hash(ids, *key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _ranked(hashes: np.ndarray, digests: np.ndarray) -> np.ndarray:
    order = np.argsort(hashes, kind="stable")
    ranked = hashes[order]
    if len(ranked) > 1 and bool((ranked[1:] == ranked[:-1]).any()):
        order = np.lexsort((digests[:, 1], digests[:, 0], hashes))
    return order.astype(np.int64, copy=False)


def _as_digests(ids: Sequence[str] | np.ndarray) -> np.ndarray:
    if isinstance(ids, np.ndarray) and ids.dtype == np.uint64 and ids.ndim == 2 and ids.shape[1] == 2:
        return ids
    return id_digests(ids)


def _key_words(key: tuple[str | int, ...]) -> tuple[np.uint64, np.uint64]:
    parts = bytearray()
    for place, part in enumerate(key):
        if isinstance(part, str):
            kind, text = b"s", part.encode("utf-8", "surrogatepass")
        elif isinstance(part, (int, np.integer)) and not isinstance(part, bool):
            kind, text = b"i", str(int(part)).encode("ascii")
        else:
            raise ValueError(f"key[{place}] is {type(part).__name__}: text or a whole number is needed")
        # The length goes first, so that no two keys give the same bytes.
        parts += kind + len(text).to_bytes(8, "little") + text
    words = np.frombuffer(hashlib.blake2b(bytes(parts), digest_size=16, person=b"candor key").digest(), dtype="<u8")
    return np.uint64(words[0]), np.uint64(words[1])
