"""Margins of every image, labelled or not, kept true label by label.

The definitions are those of the measure: the candidate sets are the draw of ``metrics/draw.py`` over the images
labelled so far, similarities are exact, and a margin is the same to the bit whether it came about label by label or
all at once, here or in an evaluation of the exported labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...metrics.discordance import discordance_margin, neighbour_mean
from ...metrics.draw import candidate_sets
from ...metrics.error_detection import neighborhood_impurity
from ...metrics.neighbours import Neighbours, Request, nearest
from ...metrics.observations import Observations
from ...metrics.options import Options
from ...metrics.similarity import FeatureRows
from ...utils import UserError
from .columns import GroupColumns
from .side_lists import SideLists, without

# Labels of a cell up to which an image is prepared to be a candidate.
_FIRST_LABELS = 64
USED_OPTIONS = ("k", "seed", "max_candidates", "sets", "exclude_same_patient")
# Options that change the sets in ways that labelling has no use for.
_FIXED = {
    "matched": True,
    "roles": "positives",
    "isolated": False,
    "balance_removed": False,
    "shuffle_labels": None,
}


@dataclass(frozen=True)
class Near:
    """Neighbours of one image for one finding.

    Args:
        c_pos, c_neg: mean similarity to the k nearest positives and negatives; None where ``reason`` says why.
        dm: c⁻ − c⁺, or None.
        impurity: r of the k nearest of both, or None.
        n: candidates a side in the image's group; 0 where there are too few.
        positives, negatives: (row, similarity), nearest first, at most k. Where there are too few for a margin, those
            of all labelled images of the group.
        reason: why there is no margin, or None.
    """

    c_pos: float | None
    c_neg: float | None
    dm: float | None
    impurity: float | None
    n: int
    positives: list[tuple[int, float]]
    negatives: list[tuple[int, float]]
    reason: str | None


@dataclass
class _Cell:
    """One finding in one group; the arrays belong to the group's members."""

    pos: SideLists
    neg: SideLists
    dropping: tuple[np.ndarray, np.ndarray]
    reason: str | None = "no labelled image"


class MarginIndex:
    """Margins of N images with features.

    Args:
        features: shape (N, d), float32, finite, no row zero.
        observations: the N images in the same order; its labels are not looked at.
        options: of the measure; k, seed, max_candidates, sets and exclude_same_patient count.
        labels: shape (N, F): 1, 0 or -1.

    Attributes:
        labels: shape (N, F), int8.
        c_pos, c_neg, dm, impurity: shape (N, F), float64; NaN where there is none.
        n: candidates a side, shape (F, G), int64.

    Raises:
        UserError: an option that labelling does not have.
        ValueError: a feature is not finite or zero, or shapes do not fit.

    >>> rng = np.random.default_rng(0)
    >>> labels = np.array([[1], [1], [1], [0], [0], [0], [-1]])
    >>> features = (rng.standard_normal((7, 8)) + np.array([[5]] * 3 + [[-5]] * 4)).astype(np.float32)
    >>> index = MarginIndex(features, Observations(list("abcdefg"), labels, ["Edema"]), Options(k=2), labels)
    >>> (index.dm[:, 0] > 0).tolist(), float(index.impurity[6, 0])
    ([False, False, False, True, True, True, True], 0.0)
    """

    def __init__(self, features: np.ndarray, observations: Observations, options: Options, labels: np.ndarray) -> None:
        check_options(options)
        self.rows = FeatureRows(features)
        if len(self.rows) != len(observations):
            raise ValueError(f"features has {len(self.rows)} rows, observations {len(observations)}")
        self.observations = observations
        self.options = options
        shape = (len(observations), len(observations.findings))
        self.labels = np.full(shape, -1, np.int8)
        self.c_pos, self.c_neg, self.dm, self.impurity = (np.full(shape, np.nan) for _ in range(4))
        self.n = np.zeros((shape[1], len(observations.group_names)), np.int64)
        by_patient = options.sets == "patient" or options.exclude_same_patient
        self._codes = observations.units if by_patient else np.arange(len(observations))
        self._members = [np.flatnonzero(observations.group == code) for code in range(self.n.shape[1])]
        self._columns: dict[int, GroupColumns] = {}
        self._cells: dict[tuple[int, int], _Cell] = {}
        self.update(np.arange(len(observations)), labels)

    def update(self, rows: np.ndarray | Sequence[int], labels: np.ndarray) -> dict[int, np.ndarray]:
        """Take the labels of some images; only what they affect is computed.

        Args:
            rows: R rows.
            labels: shape (R, F): 1, 0 or -1.

        Returns:
            finding's column -> rows whose margin or impurity changed, int64, ascending.
        """
        rows = np.asarray(rows, np.int64)
        table = np.asarray(labels)
        if table.shape != (len(rows), self.labels.shape[1]) or not np.isin(table, (-1, 0, 1)).all():
            raise ValueError(f"labels must be 1, 0 or -1, of shape ({len(rows)}, {self.labels.shape[1]})")
        differs = self.labels[rows] != table
        self.labels[rows] = table
        affected: dict[int, list[np.ndarray]] = {}
        for column in np.flatnonzero(differs.any(axis=0)).tolist():
            changed = rows[differs[:, column]]
            for code in np.unique(self.observations.group[changed]).tolist():
                affected.setdefault(column, []).append(self._update_cell(column, code))
                self._prepare(column, code, changed[self.observations.group[changed] == code])
        return {column: np.sort(np.concatenate(parts)) for column, parts in affected.items()}

    def near(self, row: int, column: int) -> Near:
        """Neighbours of an image for a finding."""
        code = int(self.observations.group[row])
        cell = self._cells.get((column, code))
        place = int(np.searchsorted(self._members[code], row))
        reason = self._reason(column, code, place)
        if cell is None or cell.reason is not None:
            positives, negatives = self._all_near(row, column, code)
        else:
            sides = (cell.pos, cell.dropping[0]), (cell.neg, cell.dropping[1])
            positives, negatives = (self._listed(lists, drop, place) for lists, drop in sides)
        tables = (self.c_pos, self.c_neg, self.dm, self.impurity)
        c_pos, c_neg, dm, impurity = (None if reason else float(table[row, column]) for table in tables)
        return Near(c_pos, c_neg, dm, impurity, int(self.n[column, code]), positives, negatives, reason)

    def near_feature(self, feature: np.ndarray, code: int, own: np.ndarray, column: int) -> Near:
        """Neighbours of an image that is not among the N.

        Args:
            feature: shape (d,), float32.
            code: its group.
            own: which of the N images are its patient's, shape (N,), bool.
            column: the finding's.

        Raises:
            ValueError: the feature is not finite, zero or of another length.
        """
        candidates = self._candidates(column, code)
        reason = self._too_few(column, code)
        sides = [side[~own[side]] for side in candidates]
        if reason is None:
            if self.options.sets == "patient":
                # Equal sides: where its patient took one from one side only, the other loses its last-ranked.
                least = min(map(len, sides))
                sides = [side[:least] for side in sides]
            if min(map(len, sides)) < self.options.k:
                reason = self._too_few_left(column, code)
        joined = np.concatenate(sides)
        # Row 0 is the image itself, the others are the candidates.
        whole = np.concatenate([np.asarray(feature, np.float32)[None], self.rows.array[joined]])
        rows, order = FeatureRows(whole), np.append(-1, self.observations.order[joined])
        lists, start = [], 1
        for side in sides:
            request = Request(np.array([0]), np.arange(start, start + len(side)))
            found = nearest(rows, request, self.options.k, order=order)
            lists.append([(int(joined[row - 1]), value) for row, value in _pairs(found)])
            start += len(side)
        n = int(self.n[column, code])
        if reason is not None:
            return Near(None, None, None, None, n, lists[0], lists[1], reason)
        near_pos, near_neg = (np.array([[value for _, value in side]]) for side in lists)
        rows_pos, rows_neg = (np.array([[row for row, _ in side]]) for side in lists)
        c_pos, c_neg = (neighbour_mean(side, self.options.k) for side in (near_pos, near_neg))
        dm = float(discordance_margin(c_pos, c_neg)[0])
        impurity = float(self._impurity(near_pos, near_neg, rows_pos, rows_neg)[0])
        return Near(float(c_pos[0]), float(c_neg[0]), dm, impurity, n, lists[0], lists[1], None)

    def _update_cell(self, column: int, code: int) -> np.ndarray:
        """Bring a cell up to date with the labels; rows whose numbers changed."""
        members = self._members[code]
        cell = self._cells.get((column, code))
        if cell is None:
            columns = self._columns.get(code)
            if columns is None:
                columns = self._columns[code] = GroupColumns(self.rows, members, self.observations.order)
            # One more than k, since the last-ranked candidate may have to be left out.
            pos, neg = (SideLists(columns, self._codes, self.options.k + 1) for _ in range(2))
            none = np.zeros(len(members), np.bool_)
            cell = self._cells[column, code] = _Cell(pos, neg, (none, none))
        cand_pos, cand_neg, cell.reason = self._draw(column, code)
        self.n[column, code] = len(cand_pos)
        before = [lists.candidates[-1:] for lists in (cell.pos, cell.neg)]
        changed = cell.pos.replace(cand_pos) | cell.neg.replace(cand_neg)
        dropping = self._dropping(cell)
        for lists, last, was, now in zip((cell.pos, cell.neg), before, cell.dropping, dropping, strict=True):
            changed |= was != now
            if not np.array_equal(last, lists.candidates[-1:]):
                changed |= now
        cell.dropping = dropping
        return self._compute(cell, column, members, np.flatnonzero(changed))

    def _prepare(self, column: int, code: int, rows: np.ndarray) -> None:
        """Compare an image labelled singly with its group before it is a candidate.

        The label that makes a cell's first margins possible would else wait for all of its candidates at once.
        """
        members = self._members[code]
        few = int((self.labels[members, column] >= 0).sum()) <= _FIRST_LABELS
        if self._cells[column, code].reason is None or not few or len(rows) > 1:
            return
        for row in rows[self.labels[rows, column] >= 0].tolist():
            self._columns[code].exact(row, np.arange(len(members)))

    def _draw(self, column: int, code: int) -> tuple[np.ndarray, np.ndarray, str | None]:
        members = self._members[code]
        label = self.labels[members, column]
        names = self.observations.findings[column], self.observations.group_names[code]
        return candidate_sets(self.observations, self.options, *names, members[label == 1], members[label == 0])

    def _dropping(self, cell: _Cell) -> tuple[np.ndarray, np.ndarray]:
        """Members whose positives, and whose negatives, lose their last-ranked candidate, for equal sides."""
        if self.options.sets != "patient":
            return np.zeros(len(cell.pos.own), bool), np.zeros(len(cell.neg.own), bool)
        return cell.pos.own < cell.neg.own, cell.neg.own < cell.pos.own

    def _compute(self, cell: _Cell, column: int, members: np.ndarray, places: np.ndarray) -> np.ndarray:
        k = self.options.k
        rows = members[places]
        new = np.full((4, len(places)), np.nan)
        kept = np.flatnonzero(
            (cell.pos.left - cell.dropping[0] >= k)[places] & (cell.neg.left - cell.dropping[1] >= k)[places]
        )
        if len(kept) and cell.reason is None:
            sides = [
                _nearest_left(lists, drop, places[kept], k)
                for lists, drop in zip((cell.pos, cell.neg), cell.dropping, strict=True)
            ]
            (rows_pos, near_pos), (rows_neg, near_neg) = sides
            new[0, kept], new[1, kept] = neighbour_mean(near_pos, k), neighbour_mean(near_neg, k)
            new[2, kept] = discordance_margin(new[0, kept], new[1, kept])
            new[3, kept] = self._impurity(near_pos, near_neg, rows_pos, rows_neg)
        tables = (self.c_pos, self.c_neg, self.dm, self.impurity)
        old = np.stack([table[rows, column] for table in tables])
        for table, values in zip(tables, new, strict=True):
            table[rows, column] = values
        same = (old == new) | (np.isnan(old) & np.isnan(new))
        return rows[~same.all(axis=0)]

    def _impurity(
        self, near_pos: np.ndarray, near_neg: np.ndarray, rows_pos: np.ndarray, rows_neg: np.ndarray
    ) -> np.ndarray:
        """r of the k nearest of both sides; of equal similarities the one named first comes first."""
        similarity = np.concatenate([near_pos, near_neg], axis=1)
        place = self.observations.order[np.concatenate([rows_pos, rows_neg], axis=1)]
        by = np.lexsort((place, -similarity), axis=1)[:, : self.options.k]
        return neighborhood_impurity(by < near_pos.shape[1])

    def _candidates(self, column: int, code: int) -> tuple[np.ndarray, np.ndarray]:
        """The cell's sets; where there are too few for sets, all its labelled images."""
        cell = self._cells.get((column, code))
        if cell is not None and cell.reason is None:
            return cell.pos.candidates, cell.neg.candidates
        members = self._members[code]
        label = self.labels[members, column]
        return members[label == 1], members[label == 0]

    def _too_few(self, column: int, code: int) -> str | None:
        cell = self._cells.get((column, code))
        return "no labelled image" if cell is None else cell.reason

    def _too_few_left(self, column: int, code: int) -> str:
        k, n = self.options.k, self.n[column, code]
        return f"of the {n} candidates a side fewer than k = {k} are left without its own patient"

    def _reason(self, column: int, code: int, place: int) -> str | None:
        reason = self._too_few(column, code)
        if reason is None and np.isnan(self.dm[self._members[code][place], column]):
            return self._too_few_left(column, code)
        return reason

    def _all_near(self, row: int, column: int, code: int) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
        out = []
        for side in self._candidates(column, code):
            side = side[self._codes[side] != self._codes[row]]
            found = nearest(self.rows, Request(np.array([row]), side), self.options.k, order=self.observations.order)
            out.append(_pairs(found))
        return out[0], out[1]

    def _listed(self, lists: SideLists, drop: np.ndarray, place: int) -> list[tuple[int, float]]:
        rows, similarities = _nearest_left(lists, drop, np.array([place]), self.options.k)
        return _pairs(Neighbours(similarities, rows))


def check_options(options: Options) -> None:
    """Refuse options that labelling does not have.

    Raises:
        UserError: one is set.
    """
    for name, value in _FIXED.items():
        if getattr(options, name) != value:
            raise UserError(f"{name} is {getattr(options, name)!r}: for labelling it must be {value!r}.")


def signed_margin(dm: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How far an image lies on the other label's side: DM of a positive, −DM of a negative; NaN without a label.

    >>> signed_margin(np.array([0.25, 0.25, 0.25]), np.array([1, 0, -1]))
    array([ 0.25, -0.25,   nan])
    """
    return np.where(labels == 1, dm, np.where(labels == 0, -dm, np.nan))


def _pairs(found: Neighbours) -> list[tuple[int, float]]:
    """(row, similarity) of the neighbours of a single query."""
    pairs = zip(found.rows[0].tolist(), found.similarities[0].tolist(), strict=True)
    return [(row, value) for row, value in pairs if row >= 0]


def _nearest_left(lists: SideLists, drop: np.ndarray, places: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and similarities of the k nearest, without the last-ranked candidate where it is dropped."""
    rows, similarities = lists.rows[places], lists.similarities[places]
    last = lists.candidates[-1] if len(lists.candidates) else -2
    hit = (rows == last) & drop[places, None]
    if hit.any():
        rows, similarities = without(rows, similarities, hit)
    return rows[:, :k], similarities[:, :k]


def labelled_counts(labels: np.ndarray, findings: Sequence[str]) -> dict[str, dict[str, int]]:
    """Images with each label, by finding."""
    return {
        finding: {
            "positive": int((labels[:, f] == 1).sum()),
            "negative": int((labels[:, f] == 0).sum()),
            "unlabelled": int((labels[:, f] < 0).sum()),
        }
        for f, finding in enumerate(findings)
    }


def plain_near(near: Near, ids: Sequence[str]) -> Mapping[str, Any]:
    """Neighbours as plain JSON values, with image ids in the place of rows."""
    listed = {
        name: [{"image_id": str(ids[row]), "similarity": value} for row, value in getattr(near, name)]
        for name in ("positives", "negatives")
    }
    numbers = {name: getattr(near, name) for name in ("c_pos", "c_neg", "dm", "impurity", "n", "reason")}
    return {**numbers, **listed}
