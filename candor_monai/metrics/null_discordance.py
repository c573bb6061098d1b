"""Discordance of many relabelled cohorts of one group, from distances that are computed once.

Two ways give the same answer. `from_distances` compares each query with every candidate; it is taken
for rare findings. `from_lists` walks down each query's list of nearest images until k members of either
set are found; it is taken for common findings in large groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

_ELEMENTS = 2_000_000
_COLUMNS = 8
# Bytes of a query and a candidate that are compared: their distance and who is left out, with all that it takes.
_PAIR_BYTES = 12
_FEWEST = 20

#: distances (queries, shape (..., Q)), (candidates, shape (..., n)) -> shape (..., Q, n), float32
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
        equalise: the larger side loses its last-ranked candidate, so that both sides are equal.
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
        index: positions in the group, nearest first, shape (M, L), int32; N where fewer are left.
        distance: 1 − cosine, shape (M, L), float32; 0 where fewer are left.
        place: column of `index` of each image of the group, shape (N,), int64; −1 for images that are never queries.
    """

    index: np.ndarray
    distance: np.ndarray
    place: np.ndarray


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
    cohorts: Relabelled, rules: Rules, lists: NullLists, distances: Distances, memory: int, image_bytes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Discordant queries and queries of each cohort, walking down lists of nearest images.

    Args:
        cohorts, rules: the relabelled cohorts, and who is left out; `rules.balance` is not supported.
        lists: nearest images of everyone who may be a query, without those of the same code.
        distances: for queries whose list runs out.
        memory, image_bytes: of those queries, as in `from_distances`.

    Returns:
        two arrays of shape (B,), int64.
    """
    batch, width = len(cohorts.queries), len(lists.place) + 1
    cohort, column = np.nonzero(cohorts.queries >= 0)
    query = cohorts.queries[cohort, column]
    member, keeps = _members(cohorts, rules, cohort, query, width)
    sums, short = _walk(lists, rules.k, member.ravel(), cohort * width, lists.place[query], keeps)
    discordant, kept = sums[1] < sums[0], np.ones(len(query), bool)
    width = _queries_at_once(cohorts.positives.shape[1], memory, image_bytes)
    for at in np.unique(cohort[short]):
        mine = short[cohort[short] == at]
        for first in range(0, len(mine), width):
            some = mine[first : first + width]
            alone = Relabelled(query[None, some], cohorts.positives[None, at], cohorts.negatives[None, at])
            (discordant[some],), (kept[some],) = _whole(alone, rules, distances)
    return (
        np.bincount(cohort[kept & discordant], minlength=batch),
        np.bincount(cohort[kept], minlength=batch),
    )


def _members(
    cohorts: Relabelled, rules: Rules, cohort: np.ndarray, query: np.ndarray, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """What each image is in each cohort, and which queries keep the last candidates.

    Returns:
        shape (B, width), uint8: 1 in R⁺, 2 in R⁻, 3 and 4 the last of either where it may be lost, 0 neither;
        and shape (2, pairs), bool: the query keeps the last of R⁺, of R⁻.
    """
    rows = np.arange(len(cohorts.queries))
    member = np.zeros((len(rows), width), np.uint8)
    keeps = np.ones((2, len(query)), bool)
    sides = (cohorts.positives, cohorts.negatives)
    for label, side in enumerate(sides):
        member[rows[:, None], side] = label + 1
    if rules.equalise:
        codes = int(rules.key.max()) + 1
        gone = []
        for side in sides:
            present = np.zeros((len(rows), codes), bool)
            present[rows[:, None], rules.key[side]] = True
            gone.append(present[cohort, rules.key[query]])
        for mine, other in ((0, 1), (1, 0)):
            member[rows, sides[mine][:, -1]] = mine + 3
            keeps[mine] = ~(gone[other] & ~gone[mine])
    return member, keeps


def _walk(
    lists: NullLists, k: int, member: np.ndarray, base: np.ndarray, where: np.ndarray, keeps: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sum of the k smallest distances to either side of each pair, shape (2, pairs), and the pairs that ran out."""
    total = np.zeros((2, len(base)))
    left = np.arange(len(base))
    sums, counts = np.zeros((2, len(base))), np.zeros((2, len(base)), np.uint8)
    for column, (nearest, distance) in enumerate(zip(lists.index, lists.distance, strict=True), start=1):
        far, side = distance[where], member[base + nearest[where]]
        for label in (0, 1):
            inside = (side == label + 1) | ((side == label + 3) & keeps[label])
            inside &= counts[label] < k
            counts[label] += inside
            sums[label] += far * inside
        if column % _COLUMNS == 0 or column == len(lists.index):
            on = (counts < k).any(axis=0)
            total[:, left[~on]] = sums[:, ~on]
            left, base, where = left[on], base[on], where[on]
            keeps, sums, counts = keeps[:, on], sums[:, on], counts[:, on]
            if not len(left):
                break
    return total, left


def _whole(cohorts: Relabelled, rules: Rules, distances: Distances) -> tuple[np.ndarray, np.ndarray]:
    """Whether each query is discordant, and whether it is one, each of shape (B, Q), bool."""
    query = np.maximum(cohorts.queries, 0)
    sides = (cohorts.positives, cohorts.negatives)
    out = [rules.key[query][:, :, None] == rules.key[side][:, None, :] for side in sides]
    gone = [one.sum(axis=2) for one in out]
    if rules.equalise:
        for mine, other in ((0, 1), (1, 0)):
            out[mine][:, :, -1] |= gone[mine] < gone[other]
    elif rules.balance is not None:
        last = np.floor(rules.balance[query] * sides[0].shape[1]).astype(np.int64)
        for mine, other in ((0, 1), (1, 0)):
            batch, column = np.nonzero((query[:, :, None] == sides[other][:, None, :]).any(axis=2))
            out[mine][batch, column, last[batch, column]] = True
    means = []
    valid = cohorts.queries >= 0
    for side, excluded in zip(sides, out, strict=True):
        far = distances(query, side)
        far[excluded] = np.inf
        nearest = torch.topk(torch.from_numpy(far), min(rules.k, far.shape[2]), dim=2, largest=False, sorted=True)
        means.append(nearest.values.numpy().sum(axis=2, dtype=np.float64))
        valid &= far.shape[2] - excluded.sum(axis=2) >= rules.k
    return valid & (means[1] < means[0]), valid
