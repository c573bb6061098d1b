"""Discordance of many relabelled cohorts of one group, from distances that are computed once.

Two ways give the same answer. `from_distances` compares each query with every candidate; it is taken
for rare findings. `from_lists` walks down each query's list of nearest images until k members of either
set are found; it is taken for common findings in large groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

_ELEMENTS = 2_000_000
_COLUMNS = 32

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


def from_distances(cohorts: Relabelled, rules: Rules, distances: Distances) -> tuple[np.ndarray, np.ndarray]:
    """Discordant queries and queries of each cohort, every candidate compared.

    Returns:
        two arrays of shape (B,), int64.
    """
    count, size = cohorts.queries.shape[1], cohorts.positives.shape[1]
    step = max(1, _ELEMENTS // max(1, count * size))
    found = [
        _whole(cohorts.part(slice(start, start + step)), rules, distances)
        for start in range(0, len(cohorts.queries), step)
    ]
    return np.concatenate([one[0] for one in found]), np.concatenate([one[1] for one in found])


def from_lists(
    cohorts: Relabelled, rules: Rules, index: np.ndarray, distance: np.ndarray, place: np.ndarray, distances: Distances
) -> tuple[np.ndarray, np.ndarray]:
    """Discordant queries and queries of each cohort, walking down lists of nearest images.

    Args:
        cohorts, rules: the relabelled cohorts, and who is left out.
        index: positions of the nearest images of each listed image, nearest first, shape (L, M).
        distance: their distances, shape (L, M), float32.
        place: row of `index` of each image of the group, shape (N,), int64; −1 for images that are never queries.
        distances: for queries whose list runs out.

    Returns:
        two arrays of shape (B,), int64.
    """
    batch, images = len(cohorts.queries), len(place)
    member = np.zeros((batch, images), np.uint8)
    rows = np.arange(batch)[:, None]
    member[rows, cohorts.positives] = 1
    member[rows, cohorts.negatives] = 2
    cohort, column = np.nonzero(cohorts.queries >= 0)
    query = cohorts.queries[cohort, column]
    drop = _dropped(cohorts, rules, cohort, query)
    sums, counts = np.zeros((2, len(query))), np.zeros((2, len(query)), np.int64)
    active = np.arange(len(query))
    for start in range(0, index.shape[1], _COLUMNS):
        if not len(active):
            break
        where = place[query[active]]
        near, far = index[where, start : start + _COLUMNS], distance[where, start : start + _COLUMNS]
        side = member[cohort[active][:, None], near]
        side[rules.key[near] == rules.key[query[active]][:, None]] = 0
        side[(near == drop[0, active, None]) | (near == drop[1, active, None])] = 0
        for label in (0, 1):
            inside = side == label + 1
            taken = inside & (np.cumsum(inside, axis=1) + counts[label, active, None] <= rules.k)
            sums[label, active] += np.where(taken, far, 0).sum(axis=1, dtype=np.float64)
            counts[label, active] += taken.sum(axis=1)
        active = active[(counts[:, active] < rules.k).any(axis=0)]
    discordant = sums[1] < sums[0]
    kept = np.ones(len(query), bool)
    for one in active:
        at = cohort[one]
        alone = Relabelled(query[None, one, None], cohorts.positives[None, at], cohorts.negatives[None, at])
        hit, valid = _whole(alone, rules, distances)
        discordant[one], kept[one] = hit[0] > 0, valid[0] > 0
    return (
        np.bincount(cohort[kept & discordant], minlength=batch),
        np.bincount(cohort[kept], minlength=batch),
    )


def _whole(cohorts: Relabelled, rules: Rules, distances: Distances) -> tuple[np.ndarray, np.ndarray]:
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
    discordant = valid & (means[1] < means[0])
    return discordant.sum(axis=1), valid.sum(axis=1)


def _dropped(cohorts: Relabelled, rules: Rules, cohort: np.ndarray, query: np.ndarray) -> np.ndarray:
    """The further candidate that each query loses on either side, shape (2, pairs); −1: none."""
    drop = np.full((2, len(query)), -1, np.int64)
    if not rules.equalise and rules.balance is None:
        return drop
    sides = (cohorts.positives, cohorts.negatives)
    code = rules.key if rules.equalise else np.arange(len(rules.key))
    gone = []
    for side in sides:
        present = np.zeros((len(side), int(code.max()) + 1), bool)
        present[np.arange(len(side))[:, None], code[side]] = True
        gone.append(present[cohort, code[query]])
    for mine, other in ((0, 1), (1, 0)):
        if rules.equalise:
            loses = gone[other] & ~gone[mine]
            drop[mine, loses] = sides[mine][cohort[loses], -1]
        elif rules.balance is not None:
            loses = gone[other]
            last = np.floor(rules.balance[query[loses]] * sides[mine].shape[1]).astype(np.int64)
            drop[mine, loses] = sides[mine][cohort[loses], last]
    return drop
