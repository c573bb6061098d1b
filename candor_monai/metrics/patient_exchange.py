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

from .keyed_hash import STEP, keyed_hash, splitmix64

# Hashes that are sorted at once.
_TOGETHER = 2**15


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
        counter = np.arange(first + 1, first + count + 1, dtype=np.uint64)[:, None] * STEP
        at = 0
        for members, start in self._blocks:
            patients = slice(at, at + len(members))
            own, step = self._starts[patients], max(1, _TOGETHER // len(members))
            for low in range(0, count, step):
                rows = slice(low, low + step)
                taken = ranking(splitmix64(start[None, :] + counter[rows]))
                sources[rows, patients] = own.take(taken)
                for row, order in zip(destinations[rows, patients], taken, strict=True):
                    row[order] = own
            at = patients.stop
        return Moves(sources, destinations)

    def sources(self, first: int, count: int) -> np.ndarray:
        """Exchanges number `first` and on: in exchange b, image i takes the labels of image `result[b, i]`.

        Returns:
            shape (count, N), int64, each row a permutation.
        """
        return self.line[self.moves(first, count).sources[:, self.patient] + self.slot]


def ranking(hashes: np.ndarray) -> np.ndarray:
    """``np.argsort(hashes, axis=1, kind="stable")`` of 64-bit hashes, several times faster.

    The leading bits of a hash and its place in one number are sorted; the rare rows in which leading bits are equal
    are sorted by all.

    Args:
        hashes: shape (B, m), uint64.

    Returns:
        shape (B, m), int64.

    >>> ranking(np.array([[2**63, 5, 2**62]], np.uint64)).tolist()
    [[1, 2, 0]]
    """
    bits = max(hashes.shape[1] - 1, 0).bit_length()
    low = np.uint64(2**bits - 1)
    keys = hashes & ~low
    keys |= np.arange(hashes.shape[1], dtype=np.uint64)
    keys.sort(axis=1)
    same = ((keys[:, 1:] ^ keys[:, :-1]) <= low).any(axis=1)
    keys &= low
    order = keys.view(np.int64)
    order[same] = np.argsort(hashes[same], axis=1, kind="stable")
    return order


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
