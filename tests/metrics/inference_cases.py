"""Small cohorts for the tests of the inference code: a cell made without the exact engine."""

from __future__ import annotations

import numpy as np

from candor_monai.metrics.cells import Cell


def gaussian_cell(
    seed: int,
    positives: int,
    negatives: int,
    width: int = 8,
    offset: float = 0.0,
    shift: float = 0.0,
    images_per_patient: int = 1,
    k: int = 5,
    same_patient: bool = True,
) -> tuple[Cell, np.ndarray, np.ndarray]:
    """A cell with `sets="image"`-like draws of Gaussian features, its features and its units."""
    rng = np.random.default_rng(seed)
    total = positives + negatives
    units = np.arange(total) // images_per_patient
    features = rng.normal(size=(total, width)).astype(np.float32)
    features[:, 0] += offset
    features[:positives, -1] += shift
    n = min(positives, negatives)
    cand_pos = rng.permutation(positives)[:n]
    cand_neg = positives + rng.permutation(negatives)[:n]
    queries = np.arange(positives)
    c_pos, c_neg = (mean_similarity(features, queries, side, units, k, same_patient) for side in (cand_pos, cand_neg))
    rows = np.arange(total)
    every = [mean_similarity(features, rows, side, units, k, same_patient) for side in (cand_pos, cand_neg)]
    dm = c_neg - c_pos
    cell = Cell(
        finding="effusion",
        group="PA",
        rows_pos=queries,
        rows_neg=positives + np.arange(negatives),
        cand_pos=cand_pos,
        cand_neg=cand_neg,
        queries=queries,
        query_label=np.ones(positives, np.int8),
        removed=np.ones(positives, bool),
        c_pos=c_pos,
        c_neg=c_neg,
        dm=dm,
        c_pos_all=c_pos,
        c_neg_all=c_neg,
        dm_all=dm,
        margin=every[0] - every[1],
        status="ok",
        reason=None,
    )
    return cell, features, units


def mean_similarity(
    features: np.ndarray, queries: np.ndarray, side: np.ndarray, units: np.ndarray, k: int, same_patient: bool
) -> np.ndarray:
    """Mean similarity to the k nearest of `side`, the slow way; NaN without any."""
    unit = features.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    out = np.full(len(queries), np.nan)
    for place, row in enumerate(queries):
        allowed = side[(units[side] != units[row]) if same_patient else (side != row)]
        if len(allowed):
            out[place] = np.sort(unit[allowed] @ unit[row])[::-1][:k].mean()
    return out
