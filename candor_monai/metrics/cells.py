"""What the exact engine hands over for one finding in one matched group."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Cell:
    """One finding in one group: who was compared with whom, and what came out.

    All rows are positions in the features and observations of the run. A cell of status ``insufficient`` has no
    query and no candidate; its arrays are empty.

    Attributes:
        finding: name of the finding.
        group: name of the matched group.
        rows_pos: every positive image of the cell, shape (P,), int64, ascending.
        rows_neg: every negative image of the cell, shape (N,), int64, ascending.
        cand_pos: the drawn positives R⁺, shape (n,), int64, in the order of the draw.
        cand_neg: the drawn negatives R⁻, shape (n,), int64, in the order of the draw.
        queries: the queries, shape (Q,), int64, ascending.
        query_label: label of each query, shape (Q,), int8: 1, or 0 for the negatives of ``queries="test"``.
        removed: the query, or an image of its patient, was taken out of the set of its own label, shape (Q,), bool.
        c_pos: mean similarity to the k nearest drawn positives, shape (Q,), float64.
        c_neg: mean similarity to the k nearest drawn negatives, shape (Q,), float64.
        dm: discordance margin ``c_neg - c_pos``, shape (Q,), float64.
        c_pos_all: ``c_pos`` with every positive of the group as candidate, shape (Q,), float64.
        c_neg_all: ``c_neg`` with every negative of the group as candidate, shape (Q,), float64.
        dm_all: ``c_neg_all - c_pos_all``, shape (Q,), float64.
        margin: ``c_pos - c_neg`` of every image of ``rows_pos`` followed by ``rows_neg``, shape (P + N,), float64;
            NaN where an image was left with fewer than k candidates. None when not asked for.
        status: ``"ok"``, ``"insufficient"`` or ``"tied"``.
        reason: why the status is not ``"ok"``, or None.
        dropped: queries left with fewer than k candidates on a side, which are not in ``queries``.
        dm_common: ``dm`` with the first ``n_common`` candidates a side, shape (Q,), float64, or None.
        n_common: the set size of ``dm_common``, or None.
        dm_redraws: ``dm`` under each further draw, shape (redraws - 1, Q), float64 (NaN: dropped there).
    """

    finding: str
    group: str
    rows_pos: np.ndarray
    rows_neg: np.ndarray
    cand_pos: np.ndarray
    cand_neg: np.ndarray
    queries: np.ndarray
    query_label: np.ndarray
    removed: np.ndarray
    c_pos: np.ndarray
    c_neg: np.ndarray
    dm: np.ndarray
    c_pos_all: np.ndarray
    c_neg_all: np.ndarray
    dm_all: np.ndarray
    margin: np.ndarray | None
    status: str
    reason: str | None
    dropped: int = 0
    dm_common: np.ndarray | None = None
    n_common: int | None = None
    dm_redraws: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))

    @property
    def n(self) -> int:
        """Candidates a side."""
        return len(self.cand_pos)

    @property
    def own(self) -> np.ndarray:
        """The queries that D counts: those of label 1, shape (Q,), bool."""
        return self.query_label == 1

    @property
    def discordant(self) -> np.ndarray:
        """Whether each query is nearer the other label, shape (Q,), bool; a tie is concordant."""
        return np.where(self.own, self.dm > 0, self.dm < 0)

    @property
    def labelled(self) -> tuple[np.ndarray, np.ndarray]:
        """(rows, whether positive) of every labelled image, ``rows_pos`` before ``rows_neg``, int64 and bool."""
        rows = np.concatenate([self.rows_pos, self.rows_neg])
        return rows, np.arange(len(rows)) < len(self.rows_pos)

    @property
    def scored(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(margin, whether positive, row) of the images that have a margin, float64, bool and int64; none: empty."""
        rows, positive = self.labelled
        margin = np.full(len(rows), np.nan) if self.margin is None else self.margin
        known = np.isfinite(margin)
        return margin[known], positive[known], rows[known]
