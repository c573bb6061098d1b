"""Discordance of many relabelled cohorts of one group, from distances that are computed once.

Two ways give the same answer. `from_distances` compares each query with every candidate, and `from_table` does where
all distances are held; they are taken for rare findings. `from_lists` walks down each query's list of nearest images
until k members of either set are found; it is taken for common findings, and in large groups for rare ones. Up to 64
cohorts walk together, since they look at the same list: who is a candidate in which of them is a bit of one word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from .compiled import compiled
from .lane_bits import BIT, SPREAD

# Pairs of a query and a candidate that are compared at once, so that they stay in a cache.
_ELEMENTS = 2**17
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


def from_table(cohorts: Relabelled, rules: Rules, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As `from_distances`, from all distances of a small group.

    Args:
        cohorts, rules: as in `from_distances`.
        table: 1 − cosine, shape (N, N), float32, infinite between images of one code.
    """
    last = np.empty(0, np.int64)
    if rules.balance is not None and not rules.equalise:
        last = np.floor(rules.balance * cohorts.positives.shape[1]).astype(np.int64)
    discordant, kept = np.zeros((2, len(cohorts.queries)), np.int64)
    near = np.empty((2, rules.k + 1), np.float32)
    sides = cohorts.positives, cohorts.negatives
    _compare(cohorts.queries, *sides, table, rules.k, rules.equalise, last, near, discordant, kept)
    return discordant, kept


@compiled
def _compare(
    queries: np.ndarray,
    positives: np.ndarray,
    negatives: np.ndarray,
    table: np.ndarray,
    k: int,
    equalise: bool,
    last: np.ndarray,
    near: np.ndarray,
    discordant: np.ndarray,
    kept: np.ndarray,
) -> None:
    """Compare each query with every candidate.

    Args:
        queries, positives, negatives: of `Relabelled`.
        table: of `from_table`.
        k, equalise: of `Rules`.
        last: the place of the candidate that leaves the other side with each image, shape (N,), int64, or empty.
        near: work space, shape (2, k + 1), float32.
        discordant, kept: of each cohort, shape (B,), int64, added to.
    """
    for cohort in range(len(queries)):
        for query in queries[cohort]:
            if query < 0:
                continue
            far = table[query]
            lost_positive = lost_negative = -1
            if equalise:
                met_positive = _meets(far, positives[cohort])
                met_negative = _meets(far, negatives[cohort])
                if met_negative and not met_positive:
                    lost_positive = positives.shape[1] - 1
                if met_positive and not met_negative:
                    lost_negative = negatives.shape[1] - 1
            elif len(last):
                if _holds(query, negatives[cohort]):
                    lost_positive = last[query]
                if _holds(query, positives[cohort]):
                    lost_negative = last[query]
            _nearest(far, positives[cohort], lost_positive, near[0])
            _nearest(far, negatives[cohort], lost_negative, near[1])
            if near[0, k - 1] < np.inf and near[1, k - 1] < np.inf:
                sum_positive = sum_negative = 0.0
                for place in range(k):
                    sum_positive += np.float64(near[0, place])
                    sum_negative += np.float64(near[1, place])
                kept[cohort] += 1
                discordant[cohort] += sum_negative < sum_positive


@compiled
def _meets(far: np.ndarray, side: np.ndarray) -> bool:
    """Whether a candidate is infinitely far."""
    found = False
    for image in side:
        found |= far[image] == np.inf
    return found


@compiled
def _holds(query: int, side: np.ndarray) -> bool:
    found = False
    for image in side:
        found |= image == query
    return found


@compiled
def _nearest(far: np.ndarray, side: np.ndarray, lost: int, near: np.ndarray) -> None:
    """The smallest distances of a side, nearest first, but for one place of it: ``near``, whose last is of no use."""
    near[:] = np.inf
    last = len(near) - 1
    for place in range(len(side)):
        distance = far[side[place]]
        if distance < near[last - 1] and place != lost:
            to = last
            while to > 0 and near[to - 1] > distance:
                near[to] = near[to - 1]
                to -= 1
            near[to] = distance


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

    Beside what is asked for, 32 bytes are taken of each image, and 16 of each code and of each listed image.

    Args:
        asked: bit b: a query in cohort b, of each of the listed images, shape (M,), uint64.
        sides: R⁺ and R⁻ of each cohort, as positions in the group, in the order of the draw, shape (B, n), int32, with
            B ≤ 64.
        rules: who is left out; `rules.balance` is not supported.
        lists: of everyone who may be a query.
        distances: for queries whose list runs out.
        memory: bytes for the distances of these.
        image_bytes: of those queries, as in `from_distances`.

    Returns:
        two arrays of shape (B,), int64.
    """
    member = np.zeros((len(rules.key) + 1, 2), np.uint64)
    _mark(*sides, member)
    code, met, last = np.empty(0, np.int64), np.empty((0, 2), np.uint64), np.empty((0, 2), np.uint64)
    if rules.equalise:
        code, met = rules.key[lists.images], np.zeros((int(rules.key.max()) + 1, 2), np.uint64)
        last = np.zeros_like(member)
        positive_codes, negative_codes = (rules.key[side].astype(np.int32) for side in sides)
        _mark(positive_codes, negative_codes, met)
        last_positive, last_negative = (np.ascontiguousarray(side[:, -1:]) for side in sides)
        _mark(last_positive, last_negative, last)
    discordant, kept = np.zeros((2, len(sides[0])), np.int64)
    short = np.zeros(len(asked), np.uint64)
    _walk(asked, member, lists.index, lists.distance, lists.length, rules.k, code, met, last, discordant, kept, short)
    width = _queries_at_once(sides[0].shape[1], memory, image_bytes)
    unanswered = np.flatnonzero(short)
    for at in range(len(kept) if len(unanswered) else 0):
        mine = lists.images[unanswered[(short[unanswered] >> np.uint64(at) & np.uint64(1)).astype(bool)]]
        cohort = Relabelled(mine[None], *(side[None, at].astype(np.int64) for side in sides))
        for first in range(0, len(mine), width):
            part = replace(cohort, queries=cohort.queries[:, first : first + width])
            (is_discordant,), (is_kept,) = _whole(part, rules, distances)
            discordant[at] += is_discordant.sum()
            kept[at] += is_kept.sum()
    return discordant, kept


@compiled
def _mark(positives: np.ndarray, negatives: np.ndarray, member: np.ndarray) -> None:
    """Set bit b of whoever is in R⁺ and in R⁻ of cohort b: ``member``, a row each, shape (M, 2), uint64."""
    for cohort in range(len(positives)):
        lane = np.uint64(1) << np.uint64(cohort)
        for image in positives[cohort]:
            member[image, 0] |= lane
        for image in negatives[cohort]:
            member[image, 1] |= lane


@compiled
def _walk(
    asked: np.ndarray,
    member: np.ndarray,
    index: np.ndarray,
    distance: np.ndarray,
    length: int,
    k: int,
    code: np.ndarray,
    met: np.ndarray,
    last: np.ndarray,
    discordant: np.ndarray,
    kept: np.ndarray,
    short: np.ndarray,
) -> None:
    """Walk down the list of each listed image until it has k members of both sides in every cohort that asks.

    The cohorts walk together, one bit (a lane) each, and whoever meets a member adds its distance.

    Args:
        asked: bit b: asked in cohort b, shape (M,), uint64.
        member: of `_mark`.
        index, distance, length: of `NullLists`.
        k: neighbours a side.
        code: of each listed image, shape (M,), int64; empty where sides are not made equal.
        met: of `_mark`, for the codes of the candidates; empty likewise.
        last: of `_mark`, for the last-ranked candidates alone; empty likewise.
        discordant, kept: queries of each cohort, shape (B,), int64, added to.
        short: bit b: the list ran out in cohort b, shape (M,), uint64, written to.
    """
    none, one = np.uint64(0), np.uint64(1)
    # Of R⁺ in each lane, then of R⁻.
    sums, found = np.empty(128), np.empty(128, np.int64)
    for query in range(len(asked)):
        wanted = asked[query]
        if wanted == none:
            continue
        # Where the other side alone meets the query's code, a side loses its last-ranked candidate.
        loses_positive, loses_negative = none, none
        if len(met):
            loses_positive = met[code[query], 1] & ~met[code[query], 0]
            loses_negative = met[code[query], 0] & ~met[code[query], 1]
        loses = loses_positive | loses_negative
        seek_positive, seek_negative = wanted, wanted
        sums[:] = 0
        found[:] = 0
        for place in range(length):
            image = index[query, place]
            positive, negative = member[image, 0] & seek_positive, member[image, 1] & seek_negative
            # An image has one label, so it stands on one side of a cohort.
            left = positive | negative
            if left & loses:
                left &= ~((last[image, 0] & loses_positive) | (last[image, 1] & loses_negative))
            if left == none:
                continue
            far = np.float64(distance[query, place])
            full = none
            while left != none:
                lane = left & (~left + one)
                left ^= lane
                at = np.int64(BIT[(lane * SPREAD) >> np.uint64(58)]) + 64 * np.int64((lane & negative) != none)
                sums[at] += far
                count = found[at] + 1
                found[at] = count
                full |= lane if count == k else none
            if full:
                seek_positive &= ~(full & positive)
                seek_negative &= ~(full & negative)
                if (seek_positive | seek_negative) == none:
                    break
        short[query] = seek_positive | seek_negative
        answered = wanted & ~short[query]
        while answered != none:
            lane = answered & (~answered + one)
            answered ^= lane
            cohort = BIT[(lane * SPREAD) >> np.uint64(58)]
            kept[cohort] += 1
            discordant[cohort] += sums[cohort + 64] < sums[cohort]


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
