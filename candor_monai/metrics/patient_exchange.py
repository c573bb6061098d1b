"""Exchanges of whole label vectors between patients, the permutations of the test against chance.

Patients of one site who have the same number of images in every matched group may exchange all their
labels (every finding, missing ones included), image by image in image-id order. Under the hypothesis that
features know nothing of the labels, given site, groups and numbers of images, every such exchange is as
likely as what was seen. A patient whom nobody matches stays as it is and is counted as not movable.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from .compiled import compiled
from .keyed_hash import STEP, keyed_hash


@dataclass(frozen=True)
class Moves:
    """Some exchanges, patient by patient, by places in :attr:`PatientExchange.line`.

    Args:
        sources: where the images start whose labels a patient takes, shape (B, U), int32.
        destinations: where the images start that take a patient's labels, shape (B, U), int32.
    """

    sources: np.ndarray
    destinations: np.ndarray

    def __len__(self) -> int:
        return len(self.sources)


class PatientExchange:
    """The exchanges allowed in a cohort.

    Args:
        units: code of each image's patient, shape (N,), int64.
        unit_names: name of each patient, by which its random numbers are drawn.
        group: code of each image's matched group, shape (N,), int64.
        order: place of each image in the sorted image ids, shape (N,), int64.
        site: name of each image's site, or None: one site.
        key: of the random numbers.

    Attributes:
        movable: whether an image's patient has a partner, shape (N,), bool.
        line: the images in an order in which those of a patient stand together, shape (N,), int64. An image without a
            partner stands for a patient of its own.
        patient: number of each image's patient, in the order of `line`, shape (N,), int64.
        slot: place of each image among its patient's, shape (N,), int64.

    Examples:
        >>> one = PatientExchange(np.array([0, 1, 2]), ["a", "b", "c"], np.zeros(3, int), np.arange(3), None, ("x",))
        >>> sorted(one.sources(0, 1)[0].tolist())
        [0, 1, 2]
    """

    def __init__(
        self,
        units: np.ndarray,
        unit_names: Sequence[str],
        group: np.ndarray,
        order: np.ndarray,
        site: Sequence[str] | np.ndarray | None,
        key: tuple[str | int, ...],
    ) -> None:
        self.images = len(units)
        start = keyed_hash([str(name) for name in unit_names], "exchange", *key)
        self._blocks: list[tuple[np.ndarray, np.ndarray]] = []
        self.movable = np.zeros(self.images, bool)
        for members in exchangeable(units, group, order, site):
            if len(members) > 1:
                self._blocks.append((members, start[units[members[:, 0]]]))
                self.movable[members.ravel()] = True
        self._line_up()

    def within(self, rows: np.ndarray) -> PatientExchange:
        """The same exchanges of the images of one or several whole matched groups, counted from 0 within them.

        Args:
            rows: every image of these groups, shape (M,), int64, in any order.
        """
        place = np.full(self.images, -1, np.int64)
        place[rows] = np.arange(len(rows))
        part = copy(self)
        part.images, part.movable = len(rows), self.movable[rows]
        # All patients of a block have the same groups in the same columns, so a column is inside or not.
        inside = [(place[members][:, place[members[0]] >= 0], start) for members, start in self._blocks]
        part._blocks = [(members, start) for members, start in inside if members.shape[1]]
        part._line_up()
        return part

    def _line_up(self) -> None:
        fixed = np.flatnonzero(~self.movable)[:, None]
        members = [members for members, _ in self._blocks] + [fixed]
        self.line = np.concatenate([part.ravel() for part in members]).astype(np.int64, copy=False)
        sizes = np.repeat([part.shape[1] for part in members], [len(part) for part in members])
        self._starts = (np.cumsum(sizes) - sizes).astype(np.int32)
        self.patient, self.slot = np.empty((2, self.images), np.int64)
        self.patient[self.line] = np.repeat(np.arange(len(sizes)), sizes)
        self.slot[self.line] = np.arange(self.images) - self._starts[self.patient[self.line]]

    @property
    def patients(self) -> int:
        """Patients, and images that stand for one."""
        return len(self._starts)

    @property
    def unmoved(self) -> Moves:
        """One exchange in which everything stays as it is."""
        return Moves(self._starts[None], self._starts[None])

    def moves(self, first: int, count: int) -> Moves:
        """Exchanges number `first` and on. Image i takes the labels of the image that stands in `line` at
        ``sources[b, patient[i]] + slot[i]``, and gives its own to that at ``destinations[b, patient[i]] + slot[i]``.
        """
        sources, destinations = (np.tile(self._starts, (count, 1)) for _ in range(2))
        counter = np.arange(first + 1, first + count + 1, dtype=np.uint64) * STEP
        at = 0
        for members, start in self._blocks:
            _exchange(start, counter, at, self._starts, sources, destinations, *_room(len(start)))
            at += len(members)
        return Moves(sources, destinations)

    def sources(self, first: int, count: int) -> np.ndarray:
        """Exchanges number `first` and on: in exchange b, image i takes the labels of image `result[b, i]`.

        Returns:
            shape (count, N), int64, each row a permutation.
        """
        return self.line[self.moves(first, count).sources[:, self.patient] + self.slot]


def _room(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Where so many hashes are sorted: as they come, sorted, their places, and starts of as many buckets or more."""
    buckets = 1 << max(count - 1, 1).bit_length()
    hashes, ranked = np.empty((2, count), np.uint64)
    return hashes, ranked, np.empty(count, np.int32), np.empty(buckets + 1, np.int32)


@compiled
def _rank(hashes: np.ndarray, ranked: np.ndarray, order: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The stable order of hashes: into buckets by their leading bits, about one a bucket, then by insertion.

    Args:
        hashes, ranked, order, starts: of `_room`; all but the first are written to.

    Returns:
        ``order``, shape (m,), int32.
    """
    shift = np.uint64(64)
    buckets = len(starts) - 1
    while buckets > 1:
        buckets >>= 1
        shift -= np.uint64(1)
    starts[:] = 0
    for hashed in hashes:
        starts[np.int64(hashed >> shift) + 1] += 1
    for bucket in range(1, len(starts)):
        starts[bucket] += starts[bucket - 1]
    for place in range(len(hashes)):
        mine = np.int64(hashes[place] >> shift)
        free = starts[mine]
        starts[mine] = free + 1
        ranked[free] = hashes[place]
        order[free] = place
    for place in range(1, len(ranked)):
        hashed, number = ranked[place], order[place]
        to = place
        while to > 0 and ranked[to - 1] > hashed:
            ranked[to], order[to] = ranked[to - 1], order[to - 1]
            to -= 1
        ranked[to], order[to] = hashed, number
    return order


@compiled
def _exchange(
    start: np.ndarray,
    counters: np.ndarray,
    first: int,
    own: np.ndarray,
    sources: np.ndarray,
    destinations: np.ndarray,
    hashes: np.ndarray,
    ranked: np.ndarray,
    order: np.ndarray,
    starts: np.ndarray,
) -> None:
    """Exchange the labels of some patients: each takes those of the patient at its place in a ranking by hashes.

    Args:
        start: of each patient's stream of SplitMix64, shape (m,), uint64.
        counters: what each exchange adds to it, shape (B,), uint64.
        first: place of the first patient among all.
        own: where each patient's images start, shape (U,), int32.
        sources, destinations: of `Moves`, written to.
        hashes, ranked, order, starts: of `_room`.
    """
    for number in range(len(counters)):
        for patient in range(len(start)):
            # The output function of SplitMix64, as in `keyed_hash`.
            word = start[patient] + counters[number]
            word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            hashes[patient] = word ^ (word >> np.uint64(31))
        _rank(hashes, ranked, order, starts)
        for patient in range(len(start)):
            sources[number, first + patient] = own[first + order[patient]]
            destinations[number, first + order[patient]] = own[first + patient]


def exchangeable(
    units: np.ndarray, group: np.ndarray, order: np.ndarray, site: Sequence[str] | np.ndarray | None
) -> list[np.ndarray]:
    """Rows of the images of patients who may be exchanged, one array (patients, images) a signature.

    Args:
        units, group, order, site: as in `PatientExchange`.

    Returns:
        arrays of rows, int64: patients by their code, the images of each by group, then in image-id order.
    """
    rows = np.lexsort((order, group, units))
    edges = np.flatnonzero(np.diff(units[rows])) + 1
    starts, ends = np.concatenate([[0], edges]), np.concatenate([edges, [len(rows)]])
    sites = np.zeros(len(units), np.int64)
    if site is not None:
        sites = np.unique(np.asarray(site, dtype=np.str_), return_inverse=True)[1]
    found: dict[tuple[bytes, bytes], list[np.ndarray]] = {}
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        mine = rows[start:end]
        key = (np.unique(sites[mine]).tobytes(), group[mine].astype(np.int64).tobytes())
        found.setdefault(key, []).append(mine)
    return [np.stack(members) for members in found.values()]
