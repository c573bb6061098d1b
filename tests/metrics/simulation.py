"""Simulated cohorts with known hubs, clusters and effects: what the intervals are tested and studies planned on.

Features are Gaussian of a given width around an offset along the first axis. Without offset no candidate is
near everything; with one (features packed in a cone) a few are, the more the wider the features. Images of a
patient share a part of their variance. The positives of a finding are shifted along an axis of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from candor_monai.metrics.cells import Cell


@dataclass(frozen=True)
class Setting:
    """A kind of cohort.

    Args:
        positives: positive images of each finding in each group.
        images: labelled images of each group.
        width: of the features.
        offset: length of the mean of all features, in standard deviations of one coordinate.
        spread: log-normal spread of the length of each image's deviation from the mean; makes hubs of any strength.
        shift: distance between the means of positives and negatives.
        images_per_patient: of every patient; 0: between 1 and 20, uniformly.
        mixed: a patient's images may have different labels (a third of those of patients who have any
            positive); else all images of a patient share their label.
        within: share of the variance that a patient's images have in common.
        sets: ``"patient"`` or ``"image"``.
        groups: matched groups, each with patients of its own.
        findings: findings on the same images.
        k: neighbours a side.
        max_candidates: largest number of candidates a side.
    """

    positives: int
    images: int
    width: int = 64
    offset: float = 0.0
    spread: float = 0.0
    shift: float = 0.0
    images_per_patient: int = 1
    mixed: bool = False
    within: float = 0.3
    sets: str = "patient"
    groups: int = 1
    findings: int = 1
    k: int = 5
    max_candidates: int = 4000


@dataclass(frozen=True)
class SimulatedCohort:
    """One cohort: the images that matter, and its cells.

    Args:
        features: of the drawn candidates and the queries, shape (N, width), float32.
        units: code of each image's patient, shape (N,), int64.
        labels: shape (N, findings), int8.
        cells: findings of the first group, then of the second, …
    """

    features: np.ndarray
    units: np.ndarray
    labels: np.ndarray
    cells: list[Cell]


def simulate(setting: Setting, rng: np.random.Generator, second: float | None = None) -> list[SimulatedCohort]:
    """Draw a cohort; with `second`, as two encoders see it.

    Args:
        setting: the kind of cohort.
        rng: source of randomness.
        second: correlation of the two encoders' features (1: the same up to nothing); None: one encoder.

    Returns:
        one `SimulatedCohort` an encoder; labels, sets and queries are the same.

    Examples:
        >>> cohort = simulate(Setting(positives=30, images=90), np.random.default_rng(0))[0]
        >>> cohort.cells[0].n, len(cohort.cells[0].queries)
        (30, 30)
    """
    tables = [_table(setting, rng) for _ in range(setting.groups)]
    start_unit = np.cumsum([0] + [int(units.max()) + 1 for units, _, _ in tables])
    start_row = np.cumsum([0] + [len(units) for units, _, _ in tables])
    units = np.concatenate([one + start for (one, _, _), start in zip(tables, start_unit[:-1], strict=True)])
    labels = np.concatenate([one for _, one, _ in tables])
    plans = [
        tuple(rows + start for rows in plan)
        for (_, _, group_plans), start in zip(tables, start_row[:-1], strict=True)
        for plan in group_plans
    ]
    features = [_features(setting, units, labels, rng)]
    if second is not None:
        other = _features(setting, units, labels, rng)
        features.append(_blend(setting, features[0], other, labels, second))
    return [
        SimulatedCohort(one, units, labels, [_cell(setting, one, units, plan, i) for i, plan in enumerate(plans)])
        for one in features
    ]


def _table(setting: Setting, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, ...]]]:
    """Patients and labels of the images of a group that are drawn or queries, and the plans of its cells."""
    units = _patients(setting, rng)
    labels = np.stack([_labels(setting, units, rng) for _ in range(setting.findings)], axis=1)
    drawn = []
    for finding in range(setting.findings):
        rank = rng.permutation(setting.images)
        positive, negative = (rank[labels[rank, finding] == label] for label in (1, 0))
        queries = positive[: setting.max_candidates]
        if setting.sets == "patient":
            positive, negative = (
                side[np.sort(np.unique(units[side], return_index=True)[1])] for side in (positive, negative)
            )
        n = min(setting.max_candidates, len(positive), len(negative))
        drawn.append((np.sort(queries), positive[:n], negative[:n]))
    kept = np.unique(np.concatenate([rows for plan in drawn for rows in plan]))
    plans = [tuple(np.searchsorted(kept, rows) for rows in plan) for plan in drawn]
    return np.unique(units[kept], return_inverse=True)[1], labels[kept], plans


def _patients(setting: Setting, rng: np.random.Generator) -> np.ndarray:
    if setting.images_per_patient == 0:
        sizes = rng.integers(1, 21, setting.images)
        return np.repeat(np.arange(setting.images), sizes)[: setting.images]
    return np.arange(setting.images) // setting.images_per_patient


def _labels(setting: Setting, units: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Exactly `positives` positive images: of whole patients, or a third of those of patients who have any."""
    order = rng.permutation(int(units.max()) + 1)
    by_patient = np.argsort(np.argsort(order)[units], kind="stable")
    share = 3 if setting.mixed and setting.images_per_patient != 1 else 1
    pool = by_patient[: min(share * setting.positives, setting.images)]
    labels = np.zeros(setting.images, np.int8)
    labels[rng.permutation(pool)[: setting.positives] if share > 1 else pool] = 1
    return labels


def _features(setting: Setting, units: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    features = rng.standard_normal((len(units), setting.width)).astype(np.float32)
    if setting.images_per_patient != 1:
        shared = rng.standard_normal((int(units.max()) + 1, setting.width)).astype(np.float32)
        features = np.sqrt(1 - setting.within) * features + np.sqrt(setting.within) * shared[units]
    if setting.spread:
        features *= np.exp(setting.spread * rng.standard_normal((len(units), 1)))
    features = features.astype(np.float32)
    return _placed(setting, features, labels)


def _placed(setting: Setting, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    features[:, 0] += setting.offset
    for finding in range(setting.findings):
        features[:, 1 + finding] += setting.shift * labels[:, finding]
    return features


def _blend(
    setting: Setting, first: np.ndarray, other: np.ndarray, labels: np.ndarray, correlation: float
) -> np.ndarray:
    """A second encoder: correlated noise, and the same offset and shift."""
    where = _placed(setting, np.zeros_like(first), labels)
    mixed = correlation * (first - where) + np.sqrt(1 - correlation**2) * (other - where)
    return (mixed + where).astype(np.float32)


def _cell(setting: Setting, features: np.ndarray, units: np.ndarray, plan: tuple[np.ndarray, ...], number: int) -> Cell:
    queries, positive, negative = plan
    key = units if setting.sets == "patient" else np.arange(len(units))
    c_pos, c_neg = _nearest_means(setting, features, key, queries, positive, negative)
    dm = c_neg - c_pos
    return Cell(
        finding=f"finding{number % setting.findings}",
        group=f"group{number // setting.findings}",
        rows_pos=queries,
        rows_neg=np.sort(negative),
        cand_pos=positive,
        cand_neg=negative,
        queries=queries,
        query_label=np.ones(len(queries), np.int8),
        removed=np.ones(len(queries), bool),
        c_pos=c_pos,
        c_neg=c_neg,
        dm=dm,
        c_pos_all=c_pos,
        c_neg_all=c_neg,
        dm_all=dm,
        margin=None,
        status="ok",
        reason=None,
    )


def _nearest_means(
    setting: Setting,
    features: np.ndarray,
    key: np.ndarray,
    queries: np.ndarray,
    positive: np.ndarray,
    negative: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean similarity to the k nearest of either side, in float32; both sides are equal for every query."""
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    means, near, gone = [], [], []
    for side in (positive, negative):
        near.append(unit[queries] @ unit[side].T)
        own = key[queries][:, None] == key[side][None, :]
        near[-1][own] = -2
        gone.append(own.sum(axis=1))
    for mine, other in ((0, 1), (1, 0)):
        if setting.sets == "patient":
            near[mine][gone[other] > gone[mine], -1] = -2
        top = np.partition(near[mine], -setting.k, axis=1)[:, -setting.k :]
        means.append(top.mean(axis=1, dtype=np.float64))
    return means[0], means[1]
