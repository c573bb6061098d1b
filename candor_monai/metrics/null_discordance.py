"""Discordance of many relabelled cohorts of one group, from distances that are computed once.

Two ways give the same answer. `from_distances` compares each query with every candidate; it is taken
for rare findings. `from_lists` walks down each query's list of nearest images until k members of either
set are found; it is taken for common findings, and in large groups for rare ones. Cohorts in which many of the listed
images are queries walk 64 at a time (`lane_walk`), others query by query, 64 positions a word: the places that are
found are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from .lane_walk import CALL_BYTES, PAIR_BYTES, first_members

# Pairs of a query and a candidate that are compared at once, so that they stay in a cache.
_ELEMENTS = 2**17
# Positions of lists that are looked at between two looks at who has finished, and (query, position) pairs at once.
_COLUMNS = 64
_PLACES = 2**16
_PLACE_BYTES = 48
# Images that are turned into words at once.
_IMAGES = 1024
# Looks at positions whose bits are read together.
_WORDS_TOGETHER = 16
# Queries of a word of cohorts from which on the cohorts walk together, and listed images that do at once.
_WORTH_LANES = 10
_LANE_QUERIES = 1024
# Bytes of a query and a candidate that are compared: their distance and who is left out, with all that it takes.
_PAIR_BYTES = 12
_FEWEST = 20

#: (queries, shape (B, Q)), (candidates, shape (B, n)) -> 1 − cosine, shape (B, Q, n), float32; infinite where the query
#: is of the candidate's code.
Distances = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Relabelled:
    """Queries and candidates of some relabelled cohorts, as positions in the group.

    Args:
        queries: shape (B, Q), int64; −1 where a cohort has fewer.
        positives: R⁺ in the order of the draw, shape (B, n), int64.
        negatives: R⁻ likewise.
    """

    queries: np.ndarray
    positives: np.ndarray
    negatives: np.ndarray

    def part(self, rows: slice) -> Relabelled:
        return Relabelled(self.queries[rows], self.positives[rows], self.negatives[rows])


@dataclass(frozen=True)
class Rules:
    """Who is left out of whose candidates.

    Args:
        key: code of each image of the group, shape (N,), int64: a query meets no candidate of its own code.
        equalise: the larger side loses its last-ranked candidate, so that both sides are equal; a code then stands on
            each side once at most.
        balance: fraction in [0, 1) of each image, shape (N,), float64: where a query is taken out of one side,
            the candidate at this place of the other side is too; or None.
        k: neighbours a side.
    """

    key: np.ndarray
    equalise: bool
    balance: np.ndarray | None
    k: int


@dataclass(frozen=True)
class NullLists:
    """Nearest images of those who may be queries, without images of their own code.

    Args:
        images: positions in the group of those who may be queries, shape (M,), int64.
        index: positions of the images nearest to each, nearest first, shape (M, L), int32; N where fewer are left.
        distance: 1 − cosine, shape (M, L), float32; 0 where fewer are left.
        length: how far down they are read, at most L.
    """

    images: np.ndarray
    index: np.ndarray
    distance: np.ndarray
    length: int


def from_distances(
    cohorts: Relabelled, rules: Rules, distances: Distances, memory: int, image_bytes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Discordant queries and queries of each cohort, every candidate compared.

    Args:
        cohorts, rules: the relabelled cohorts, and who is left out.
        distances: of queries to candidates.
        memory: bytes that may be taken for what is compared at once; at least `_FEWEST` queries are.
        image_bytes: what `distances` takes for each image it is given.

    Returns:
        two arrays of shape (B,), int64.
    """
    batch, (count, size) = len(cohorts.queries), (cohorts.queries.shape[1], cohorts.positives.shape[1])
    width = min(_queries_at_once(size, memory, image_bytes), max(1, count))
    whole = (size + width) * image_bytes + _PAIR_BYTES * size * width
    step = max(1, min(_ELEMENTS // max(1, width * size), memory // whole))
    discordant, kept = np.zeros((2, batch), np.int64)
    for start in range(0, batch, step):
        rows = slice(start, start + step)
        part = cohorts.part(rows)
        for first in range(0, count, width):
            found = _whole(replace(part, queries=part.queries[:, first : first + width]), rules, distances)
            discordant[rows] += found[0].sum(axis=1)
            kept[rows] += found[1].sum(axis=1)
    return discordant, kept


def _queries_at_once(size: int, memory: int, image_bytes: int) -> int:
    return max((memory - size * image_bytes) // (_PAIR_BYTES * size + image_bytes), _FEWEST)


def from_lists(
    asked: np.ndarray,
    sides: tuple[np.ndarray, np.ndarray],
    rules: Rules,
    lists: NullLists,
    distances: Distances,
    memory: int,
    image_bytes: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Discordant queries and queries of each cohort, walking down lists of nearest images.

    Args:
        asked: whether each of the listed images is a query, shape (B, M), bool.
        sides: R⁺ and R⁻ of each cohort, as positions in the group, in the order of the draw, shape (B, n), int64.
        rules: who is left out; `rules.balance` is not supported.
        lists: of everyone who may be a query.
        distances: for queries whose list runs out.
        memory: bytes for what is looked at at once, whatever is least needed.
        image_bytes: of those queries, as in `from_distances`.

    Returns:
        two arrays of shape (B,), int64.
    """
    batch = len(asked)
    members = _Members(sides, len(rules.key), memory // 4)
    gone = _codes_of(sides, rules.key) if rules.equalise else None
    discordant, kept = np.zeros((2, batch), np.int64)
    for cohort, query, places in _found(asked, members, rules, lists, memory):
        if gone is not None:
            _equalise(places, cohort, query, members, gone, rules, lists, memory)
        sums = [_sum(lists.distance, query, side) for side in places]
        is_discordant, is_kept = sums[1] < sums[0], np.ones(len(query), bool)
        short = np.flatnonzero((places[0, -1] == lists.length) | (places[1, -1] == lists.length))
        width = _queries_at_once(sides[0].shape[1], memory, image_bytes)
        for at in np.unique(cohort[short]):
            mine = short[cohort[short] == at]
            for first in range(0, len(mine), width):
                some = mine[first : first + width]
                alone = Relabelled(lists.images[None, query[some]], sides[0][None, at], sides[1][None, at])
                (is_discordant[some],), (is_kept[some],) = _whole(alone, rules, distances)
        discordant += np.bincount(cohort[is_kept & is_discordant], minlength=batch)
        kept += np.bincount(cohort[is_kept], minlength=batch)
    return discordant, kept


class _Members:
    """Who is in R⁺ and in R⁻ of some cohorts, as tables of images that are made when they are asked for.

    Args:
        sides: R⁺ and R⁻, shape (B, n), int64.
        images: in the group.
        memory: bytes of a table; it has one cohort at least.
    """

    def __init__(self, sides: tuple[np.ndarray, np.ndarray], images: int, memory: int) -> None:
        self.sides, self.images = sides, images
        # Whole words of cohorts, where there is room for one.
        step = max(1, memory // (images + 1))
        self._step = min(step // 64 * 64 or step, len(sides[0]))
        self._first, self._table = -1, np.empty(0, np.uint8)

    @property
    def table_bytes(self) -> int:
        return self._step * (self.images + 1)

    def words(self) -> np.ndarray | None:
        """As the tables, a cohort a bit: those of R⁺, then of R⁻, shape (images + 1, 2·⌈B/64⌉), uint64.

        None: a table has no room for a word.
        """
        batch = len(self.sides[0])
        if self._step < min(batch, 64):
            return None
        words = -(-batch // 64)
        out = np.zeros((self.images + 1, 2, 8 * words), np.uint8)
        for cohorts, table, _ in self.tables(np.arange(batch)):
            rows = table.reshape(-1, self.images + 1)
            for first in range(0, rows.shape[1], _IMAGES):
                images = slice(first, first + _IMAGES)
                turned = np.ascontiguousarray(rows[:, images].T)
                for label in (0, 1):
                    bits = np.packbits(turned == label + 1, axis=1, bitorder="little")
                    out[images, label, cohorts.start // 8 : cohorts.start // 8 + bits.shape[1]] = bits
        return out.reshape(len(out), -1).view("<u8").astype(np.uint64, copy=False)

    def tables(self, cohort: np.ndarray) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Pairs, sorted by cohort, with a flat table of their cohorts' images and where each pair's images start in it.

        The table holds 1 for images of R⁺, 2 for those of R⁻, else 0; behind them stands a 0 for no image.
        """
        if not len(cohort):
            return
        for first in range(int(cohort[0]) // self._step * self._step, int(cohort[-1]) + 1, self._step):
            low, high = np.searchsorted(cohort, (first, first + self._step))
            if low < high:
                yield slice(low, high), self._of(first), (cohort[low:high] - first) * (self.images + 1)

    def _of(self, first: int) -> np.ndarray:
        if first != self._first:
            cohorts = slice(first, first + self._step)
            table = np.zeros((len(self.sides[0][cohorts]), self.images + 1), np.uint8)
            for label, side in enumerate(self.sides):
                for row, mine in zip(table, side[cohorts], strict=True):
                    row[mine] = label + 1
            self._first, self._table = first, table.reshape(-1)
        return self._table


def _found(
    asked: np.ndarray, members: _Members, rules: Rules, lists: NullLists, memory: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Pairs of a cohort and a query, with the places of the k nearest members of both sides in the query's list.

    Yields:
        cohorts and listed images, shape (pairs,), int64, and places, shape (2, k, pairs); L where the list runs out.
    """
    images, words = len(rules.key), -(-len(asked) // 64)
    table = 16 * words * (images + 1) + members.table_bytes
    room = (memory - table - CALL_BYTES) // (2 * words * rules.k * PAIR_BYTES + 16 * len(asked))
    worth = asked.sum() >= _WORTH_LANES * words * asked.shape[1]
    member = members.words() if worth and room >= min(_LANE_QUERIES, len(lists.images)) else None
    if member is not None:
        yield from _by_lanes(asked, member, rules.k, lists)
    else:
        cohort, query = np.nonzero(asked)
        step = max(1, memory // 2 // (rules.k * 48))
        for first in range(0, len(cohort), step):
            part = slice(first, first + step)
            places = _by_rows(cohort[part], query[part], members, rules.k, lists, memory // 2)
            yield cohort[part], query[part], places


def _by_lanes(
    asked: np.ndarray, member: np.ndarray, k: int, lists: NullLists
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """As `_found`, with the words of `_Members`."""
    words = member.shape[1] // 2
    for first in range(0, asked.shape[1], _LANE_QUERIES):
        part = slice(first, first + _LANE_QUERIES)
        here = np.zeros((len(lists.images[part]), 64 * words), bool)
        here[:, : len(asked)] = asked[:, part].T
        wanted = np.packbits(here, axis=1, bitorder="little").view("<u8").astype(np.uint64, copy=False)
        places = first_members(lists.index[part, : lists.length], member, np.tile(wanted, (1, 2)), k)
        lanes = places.transpose(2, 0, 1).reshape(k, -1)
        asks = np.flatnonzero(here)
        query = asks // (64 * words)
        cohort = asks - query * (64 * words)
        at = query * (128 * words) + cohort
        found = np.stack([lanes.take(at, axis=1), lanes.take(at + 64 * words, axis=1)])
        yield cohort, query + first, found


def _by_rows(
    cohort: np.ndarray, query: np.ndarray, members: _Members, k: int, lists: NullLists, memory: int
) -> np.ndarray:
    """Places of the first k members of both sides in the lists of some pairs, sorted by cohort: shape (2, k, pairs)."""
    places = np.full((2, k, len(query)), lists.length, np.min_scalar_type(lists.length))
    # So far down most find k.
    enough = int((k + np.sqrt(k)) * members.images / members.sides[0].shape[1])
    for pairs, table, base in members.tables(cohort):
        _scan(table, base, query[pairs], lists, places[:, :, pairs], enough, memory // 2)
    return places


def _scan(
    member: np.ndarray,
    base: np.ndarray,
    query: np.ndarray,
    lists: NullLists,
    places: np.ndarray,
    enough: int,
    memory: int,
) -> None:
    """Write the places of the first k members of lists, shape (2, k, pairs)."""
    k, start, left = places.shape[1], 0, np.arange(len(query))
    room = min(_PLACES, memory // _PLACE_BYTES)
    width = min(-(-enough // _COLUMNS) * _COLUMNS, max(_COLUMNS, room // _COLUMNS * _COLUMNS))
    while start < lists.length and len(left):
        stop = min(start + width, lists.length)
        step = max(1, room // (stop - start))
        for first in range(0, len(left), _WORDS_TOGETHER * step):
            together = left[first : first + _WORDS_TOGETHER * step]
            words = np.empty((2, len(together), -(-(stop - start) // 64)), np.uint64)
            for low in range(0, len(together), step):
                some = together[low : low + step]
                label = member.take(lists.index[query[some], start:stop] + base[some, None], mode="clip")
                for side in (0, 1):
                    words[side, low : low + step] = _packed(label == side + 1)
            for side in (0, 1):
                found = _first_bits(words[side], k, start, lists.length)
                if start:
                    found = np.sort(np.concatenate([places[side][:, together], found]), axis=0)[:k]
                places[side][:, together] = found
        left = left[(places[0, -1, left] == lists.length) | (places[1, -1, left] == lists.length)]
        start, width = stop, _COLUMNS


def _packed(flags: np.ndarray) -> np.ndarray:
    """Flags, shape (R, C), as bits of words, the first the lowest: shape (R, ⌈C/64⌉), uint64."""
    packed = np.packbits(flags, axis=1, bitorder="little")
    missing = -packed.shape[1] % 8
    if missing:
        packed = np.pad(packed, ((0, 0), (0, missing)))
    return packed.view("<u8").astype(np.uint64, copy=False)


def _first_bits(words: np.ndarray, k: int, start: int, end: int) -> np.ndarray:
    """Numbers of the first k bits that are set in rows of words.

    Args:
        words: shape (R, W), uint64.
        start: number of the lowest bit of the first word.
        end: what stands where fewer are set.

    Returns:
        shape (k, R), int64.

    >>> _first_bits(np.array([[0b1010, 0b1], [0, 0]], np.uint64), 3, 100, 999).T.tolist()
    [[101, 103, 164], [999, 999, 999]]
    """
    rows, width = words.shape
    flat, at, last = words.reshape(-1), np.arange(rows) * width, np.arange(1, rows + 1) * width - 1
    now = words[:, 0].copy()
    number = np.full(rows, start)
    out = np.empty((k, rows), np.int64)
    one = np.uint64(1)
    for found in out:
        empty = np.flatnonzero(now == 0)
        while len(empty):
            empty = empty[at[empty] < last[empty]]
            at[empty] += 1
            number[empty] += 64
            now[empty] = flat[at[empty]]
            empty = empty[now[empty] == 0]
        below = now - one
        # The lowest bit that is set is a power of two, whose logarithm a float holds exactly; 0 becomes −1.
        lowest = (now & ~below).astype(np.float64)
        np.add(number, np.frexp(lowest)[1] - 1, out=found)
        found[now == 0] = end
        now &= below
    return out


def _sum(distance: np.ndarray, query: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Sums of distances at places (k, pairs) of the queries' lists, nearest first, float64; any number past the end."""
    flat, start = distance.reshape(-1), query * distance.shape[1]
    total = np.zeros(len(query))
    for place in places:
        total += flat.take(start + place, mode="clip")
    return total


def _codes_of(sides: tuple[np.ndarray, np.ndarray], key: np.ndarray) -> np.ndarray:
    """Whether each code is one of R⁺'s, of R⁻'s: shape (2, B, codes), bool."""
    present = np.zeros((2, len(sides[0]), int(key.max()) + 1), bool)
    for found, side in zip(present, sides, strict=True):
        found[np.arange(len(side))[:, None], key[side]] = True
    return present


def _equalise(
    places: np.ndarray,
    cohort: np.ndarray,
    query: np.ndarray,
    members: _Members,
    gone: np.ndarray,
    rules: Rules,
    lists: NullLists,
    memory: int,
) -> None:
    """Where a query loses a side's last candidate and that is among the k that were found, take the next one.

    Args:
        places: shape (2, k, pairs), written to.
        gone: of `_codes_of`.
    """
    at = cohort * gone.shape[2] + rules.key[lists.images].take(query)
    meets = [present.reshape(-1).take(at) for present in gone]
    for side in (0, 1):
        loses = np.flatnonzero(meets[1 - side] > meets[side])
        lasts = members.sides[side][:, -1]
        last = lasts.take(cohort[loses])
        near = _listed(lists, query[loses], places[side].take(loses, axis=1))
        again = loses[(near == last).any(axis=0)]
        again = again[np.argsort(cohort[again], kind="stable")]
        more = _by_rows(cohort[again], query[again], members, rules.k + 1, lists, memory // 2)[side]
        stays = _listed(lists, query[again], more) != lasts.take(cohort[again])
        # k of the k + 1 stay; those of a pair lie side by side when pairs come first.
        places[side][:, again] = more.T[stays.T].reshape(-1, rules.k).T


def _listed(lists: NullLists, query: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The images at places (k, pairs) of the queries' lists; −1 past the end."""
    near = lists.index.reshape(-1).take(query * lists.index.shape[1] + places, mode="clip")
    near[places == lists.length] = -1
    return near


def _whole(cohorts: Relabelled, rules: Rules, distances: Distances) -> tuple[np.ndarray, np.ndarray]:
    """Whether each query is discordant, and whether it is one, each of shape (B, Q), bool."""
    query = np.maximum(cohorts.queries, 0)
    sides = (cohorts.positives, cohorts.negatives)
    apart = [distances(query, side) for side in sides]
    if rules.equalise:
        met = [far.max(axis=2) == np.inf for far in apart]
        for mine, other in ((0, 1), (1, 0)):
            apart[mine][:, :, -1][met[other] & ~met[mine]] = np.inf
    elif rules.balance is not None:
        last = np.floor(rules.balance[query] * sides[0].shape[1]).astype(np.int64)
        inside = [(query[:, :, None] == side[:, None, :]).any(axis=2) for side in sides]
        for mine, other in ((0, 1), (1, 0)):
            batch, column = np.nonzero(inside[other])
            apart[mine][batch, column, last[batch, column]] = np.inf
    sums = []
    valid = cohorts.queries >= 0
    for far in apart:
        if far.shape[2] < rules.k:
            return np.zeros(valid.shape, bool), np.zeros(valid.shape, bool)
        far.partition(rules.k - 1, axis=2)
        near = np.sort(far[:, :, : rules.k], axis=2)
        sums.append(near.sum(axis=2, dtype=np.float64))
        valid &= near[:, :, -1] < np.inf
    return valid & (sums[1] < sums[0]), valid
