"""How images came to be labelled, and what that does to the measure: the columns of an exported label table.

Reading the most discordant images again corrects labels on one side only and lowers D by construction; images that were
labelled because their features said so are no sample of the others. docs/labels.md derives what is done about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...utils import UserError, unknown
from ..label_policy import BLANKED, label_codes
from .draft import Draft

SELECTED_BY, REREAD_BY, FIRST_READING = "selected_by", "reread_by", "first_reading:"
POLICIES = ("unbiased", "reread", "keep")
REVIEW, REREAD_RANDOM = "candor_review", "reread_random"
# First readings that say nothing about the features.
_UNSELECTED = ("random", "imported", "chosen")
_SELECTED = ("candor_diverse", "candor_uncertain", REVIEW, REREAD_RANDOM)
_KNOWN = (*_UNSELECTED, *_SELECTED)
_REREADS = (REVIEW, REREAD_RANDOM, "chosen")


def selection_columns(columns: Sequence[str], findings: Sequence[str]) -> list[str]:
    """The columns of a label table that say how its images came to be labelled."""
    if SELECTED_BY not in columns and REREAD_BY not in columns:
        return []
    wanted = (SELECTED_BY, REREAD_BY, *(f"{FIRST_READING}{finding}" for finding in findings))
    return [column for column in wanted if column in columns]


def apply_selection(draft: Draft, policy: str, where: str) -> None:
    """Leave out what was selected by a score, and take first readings for later ones, as the policy says.

    Args:
        draft: its records may have the columns ``selected_by``, ``reread_by`` and ``first_reading:<finding>``; without
            the first two nothing happens. Codes change, images are rejected (``selected``, ``reviewed``), the
            decision, its counts and warnings are in ``notes["selection"]``.
        policy: ``unbiased``: images selected by a score are left out, of images that were read again the first reading
            counts. ``reread``: the same, but readings of reviews count where as many concordant images were read again
            blindly. ``keep``: everything counts, with a warning where that is biased.
        where: the cohort's name.

    Raises:
        UserError: an unknown policy or word, or too few blinded re-reads for ``reread``.
    """
    if policy not in POLICIES:
        raise unknown("value of selection:", str(policy), POLICIES)
    records = draft.records
    if SELECTED_BY not in records and REREAD_BY not in records:
        return
    selected = _words(records, SELECTED_BY, _KNOWN, where)
    reread = _words(records, REREAD_BY, _REREADS, where)
    reviews, random = int((reread == REVIEW).sum()), int((reread == REREAD_RANDOM).sum())
    by_score = np.isin(selected, _SELECTED)
    counts: dict[str, Any] = {
        "policy": policy,
        "selected_by": _counted(selected),
        "reread_by": _counted(reread),
        "left_out": 0,
        "first_readings": 0,
        "changed_by_review": _changed(draft, reread == REVIEW),
        "changed_by_random_reread": _changed(draft, reread == REREAD_RANDOM),
    }
    warnings: list[str] = []
    if policy == "reread" and random < reviews:
        raise UserError(
            f"cohort {where!r}: {reviews} discordant images were reviewed, but only {random} randomly chosen "
            f"concordant ones were read again: {reviews - random} more are needed for selection: reread. Draw the list "
            "with draw_rereads (docs/labels.md) and read it blindly, or take selection: unbiased."
        )
    if policy == "keep":
        if by_score.any():
            warnings.append(
                f"{int(by_score.sum())} images were labelled because of a score (selected_by) and are kept: they are "
                "no sample of the cohort, and D may be biased. selection: unbiased leaves them out."
            )
        if reviews > random:
            warnings.append(
                f"{reviews} discordant images were reviewed, but only {random} randomly chosen concordant ones were "
                "read again: D is lowered by construction. selection: unbiased takes the first readings."
            )
    else:
        later = np.isin(reread, _REREADS if policy == "unbiased" else ("chosen",))
        known = _take_first(draft, later)
        counts["first_readings"] = int(known.sum())
        lost = later & ~known
        if lost.any():
            warnings.append(
                f"{int(lost.sum())} images were read again and the table does not hold their first readings "
                f"(columns {FIRST_READING}<finding>): they are left out, which removes discordant images and lowers D."
            )
        counts["left_out"] = int((by_score | lost).sum())
        draft.reject(by_score, "selected", "it was labelled because of a score (selected_by)", stage="labels")
        draft.reject(
            lost[~by_score], "reviewed", "it was read again and its first reading is not in the table", stage="labels"
        )
    counts["warnings"] = warnings
    draft.notes["selection"] = counts
    kept = [column for column in draft.records.columns if not str(column).startswith(FIRST_READING)]
    draft.records = draft.records[kept]


def _words(records: pd.DataFrame, column: str, known: Sequence[str], where: str) -> np.ndarray:
    if column not in records:
        return np.full(len(records), "", dtype=object)
    words = records[column].fillna("").astype(str).str.strip().to_numpy(dtype=object)
    for word in sorted(set(words) - {""}):
        if word not in known:
            told = unknown(f"value in column {column} of cohort {where!r}:", word, known)
            raise UserError(
                f"{told} The column says how an image came to be labelled (docs/labels.md); give one that means "
                "something else another name."
            )
    return words


def _first_codes(draft: Draft) -> np.ndarray | None:
    """Codes of the first readings, shape (N, F); None where the table has none."""
    names = [f"{FIRST_READING}{finding}" for finding in draft.findings]
    if not any(name in draft.records for name in names):
        return None
    codes = np.full(draft.codes.shape, BLANKED, dtype=np.int8)
    for f, name in enumerate(names):
        if name in draft.records:
            codes[:, f] = label_codes(draft.records[name].fillna("").astype(str), name, "the label table")
    return codes


def _changed(draft: Draft, rows: np.ndarray) -> int | None:
    """Images among the rows of which a label differs from its first reading; None where that is not known."""
    first = _first_codes(draft)
    if first is None:
        return None
    return int(((first != draft.codes).any(axis=1) & rows).sum())


def _take_first(draft: Draft, rows: np.ndarray) -> np.ndarray:
    """Put the first readings in the place of the labels; which rows had one, shape (N,), bool."""
    first = _first_codes(draft)
    if first is None:
        return np.zeros(len(rows), np.bool_)
    known = rows & (first != BLANKED).any(axis=1)
    draft.codes = np.where(known[:, None], first, draft.codes)
    return known


def _counted(words: np.ndarray) -> dict[str, int]:
    names, counts = np.unique(words[words != ""].astype(str), return_counts=True)
    return {str(name): int(count) for name, count in zip(names, counts, strict=True)}
