"""Exchanges of whole label vectors between patients, the permutations of the test against chance.

Patients of one site who have the same number of images in every matched group may exchange all their
labels (every finding, missing ones included), image by image in image-id order. Under the hypothesis that
features know nothing of the labels, given site, groups and numbers of images, every such exchange is as
likely as what was seen. A patient whom nobody matches stays as it is and is counted as not movable.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from .keyed_hash import STEP, keyed_hash, splitmix64


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
        return part

    def sources(self, first: int, count: int) -> np.ndarray:
        """Exchanges number `first` and on: in exchange b, image i takes the labels of image `result[b, i]`.

        Returns:
            shape (count, N), int64, each row a permutation.
        """
        out = np.tile(np.arange(self.images), (count, 1))
        counter = np.arange(first + 1, first + count + 1, dtype=np.uint64)[:, None] * STEP
        for members, start in self._blocks:
            out[:, members] = members[np.argsort(splitmix64(start[None, :] + counter), axis=1, kind="stable")]
        return out


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
