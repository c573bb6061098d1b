"""What a cohort holds, beside what its publisher says it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .cohort import Cohort


def describe(cohort: Cohort) -> dict[str, Any]:
    """Counts of a cohort as plain numbers and text, ready for JSON.

    Returns:
        ``name``, ``images``, ``patients`` (None when unknown), ``groups`` (images by group), ``cells`` (a row per
        group × finding × split with positive, negative, unlabelled, uncertain, boxed), ``rejected`` (rows by
        reason), ``counts`` (as read) and ``expected`` (the card's numbers beside those found, each with a sentence).
    """
    codes, names = cohort.groups()
    patient = cohort.records["patient_id"]
    return {
        "name": cohort.name,
        "images": len(cohort),
        "patients": None if patient.isna().all() else int(patient.nunique()),
        "groups": {name: int((codes == i).sum()) for i, name in enumerate(names)},
        "cells": _cells(cohort, codes, names),
        "rejected": {str(k): int(v) for k, v in cohort.rejected["reason"].value_counts().sort_index().items()},
        "counts": cohort.counts,
        "expected": compare_expected(cohort.card.get("expected") or {}, cohort.counts.get("found") or {}),
    }


def compare_expected(expected: dict[str, Any], found: dict[str, Any]) -> list[dict[str, Any]]:
    """The publisher's numbers beside those found; what was not looked at is left out.

    >>> compare_expected({"rows of train.csv": 223414}, {"rows of train.csv": 9})[0]["sentence"]
    'rows of train.csv: expected 223,414, found 9'
    """
    rows = []
    for what, number in expected.items():
        if what in found:
            sentence = f"{what}: expected {number:,}, found {found[what]:,}"
            rows.append({"what": what, "expected": number, "found": found[what], "sentence": sentence})
    return rows


def _cells(cohort: Cohort, codes: np.ndarray, names: tuple[str, ...]) -> list[dict[str, Any]]:
    split = cohort.records["split"].fillna("").to_numpy(dtype=str)
    boxed = cohort.boxed()
    cells = []
    for g, name in enumerate(names):
        for s in sorted(set(split[codes == g])):
            rows = (codes == g) & (split == s)
            for f, finding in enumerate(cohort.findings):
                labels = cohort.labels[rows, f]
                cells.append(
                    {
                        "group": name,
                        "finding": finding,
                        "split": s or None,
                        "positive": int((labels == 1).sum()),
                        "negative": int((labels == 0).sum()),
                        "unlabelled": int((labels == -1).sum()),
                        "uncertain": int(cohort.uncertain[rows, f].sum()),
                        "boxed": int(boxed[rows, f].sum()),
                    }
                )
    return cells
