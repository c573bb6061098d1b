"""Occlusion retention: how much of an image's feature is left when the annotated finding is covered.

For unit features g, ρ = ⟨g(x), g(x with the finding covered)⟩; the control covers a region of the same size elsewhere.
Means over images, with intervals over patients; standardised as (ρ − c)/(1 − c), where c is the mean similarity of
unrelated boxed images, so that encoders whose features are all alike can be compared with others.

Source: arXiv 2607.18451, occlusion retention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .keyed_hash import keyed_rank
from .rankings import spearman
from .resampling import Interval, Replicates, patient_weights, percentile_interval
from .similarity import checked_unit

MIN_PATIENTS = 10
MAX_PAIRS = 4096
MIN_SPREAD = 0.01  # least 1 − c by which retention is standardised: below it, noise decides the quotient
# Column of retention.csv (each with its interval, <column>_lo and <column>_hi) -> attribute of Retention.
COLUMNS = {
    "retention": "rho",
    "control": "rho_control",
    "drop": "drop",
    "control_drop": "drop_control",
    "difference": "difference",
    "baseline": "baseline",
    "standardised": "standardised",
    "standardised_control": "standardised_control",
}


@dataclass(frozen=True)
class Retention:
    """Retention of one encoder on one finding.

    Args:
        n_images, n_patients: boxed images with both views, and their patients.
        n_control: those of them with a control view.
        n_pairs: pairs behind ``baseline``.
        rho: mean similarity after covering the finding.
        rho_control: after covering the control.
        drop, drop_control: 1 − ρ of both.
        difference: mean of ρ_control − ρ over the images with a control; positive where the finding matters more.
        baseline: c, the mean similarity of different patients' images.
        standardised, standardised_control: (ρ − c)/(1 − c); none where 1 − c is below ``MIN_SPREAD``.
    """

    n_images: int
    n_patients: int
    n_control: int
    n_pairs: int
    rho: Interval
    rho_control: Interval
    drop: Interval
    drop_control: Interval
    difference: Interval
    baseline: Interval
    standardised: Interval
    standardised_control: Interval

    def row(self) -> dict[str, Any]:
        """The numbers as columns of ``retention.csv``; undefined ones are None."""
        columns: dict[str, Any] = {
            "n_images": self.n_images,
            "n_patients": self.n_patients,
            "n_control": self.n_control,
            "n_pairs": self.n_pairs,
        }
        for column, name in COLUMNS.items():
            interval: Interval = getattr(self, name)
            columns[column] = interval.estimate
            columns[f"{column}_lo"], columns[f"{column}_hi"] = interval.lo, interval.hi
        columns["status"] = "ok" if self.rho.estimate is not None else "insufficient"
        told = [self.rho.reason or self.rho_control.reason]
        if self.rho.estimate is not None and self.standardised.estimate is None:
            told.append(f"standardised: {self.standardised.reason}")
        columns["reason"] = "; ".join(reason for reason in told if reason) or None
        return columns


def cosine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Cosine similarity of rows, in float64.

    Args:
        first, second: (n, d), no row of zeros.

    Returns:
        (n,) float64 in [-1, 1].

    Raises:
        ValueError: shapes differ; a row holds a value that is not finite, or only zeros.

    >>> cosine(np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[2.0, 0.0], [1.0, -1.0]])).tolist()
    [1.0, 0.0]
    """
    a, b = checked_unit(first, "first"), checked_unit(second, "second")
    if a.shape != b.shape:
        raise ValueError(f"first has shape {a.shape}, second {b.shape}")
    return np.clip((a * b).sum(axis=1), -1.0, 1.0)


def retention(
    original: np.ndarray,
    covered: np.ndarray,
    control: np.ndarray,
    has_control: np.ndarray,
    image_ids: Sequence[str],
    patients: Sequence[str],
    seed: int = 42,
    resamples: int = 1000,
    max_pairs: int = MAX_PAIRS,
) -> Retention:
    """Retention of one encoder on the boxed images of one finding.

    Args:
        original: features of the images, (n, d).
        covered: with the finding covered, (n, d).
        control: with the control covered, (n, d); any value where there is none.
        has_control: (n,) bool.
        image_ids: n distinct ids.
        patients: n ids of patients.
        seed: seed of the run.
        resamples: resamples of patients behind each interval.
        max_pairs: pairs behind the baseline at most.

    Returns:
        the means with intervals; without an image, or with fewer than 10 patients, what is missing and why.

    Raises:
        ValueError: arrays do not fit together, an id occurs twice, or a feature is zero or not finite.

    >>> x = np.eye(4)[:3]
    >>> r = retention(x, x, x, np.ones(3, bool), ["a", "b", "c"], ["p", "q", "r"])
    >>> r.rho.estimate, r.difference.estimate, r.standardised.estimate
    (1.0, 0.0, 1.0)
    """
    with_control = np.asarray(has_control, dtype=bool)
    n = len(image_ids)
    for name, value in (("original", original), ("covered", covered), ("control", control), ("patients", patients)):
        if len(value) != n:
            raise ValueError(f"{name} has {len(value)} rows for {n} images")
    if with_control.shape != (n,):
        raise ValueError(f"has_control has shape {with_control.shape} for {n} images")
    if len(set(image_ids)) != n:
        raise ValueError("image_ids must be distinct")
    rho = cosine(original, covered) if n else np.zeros(0)
    rho_control = np.full(n, np.nan)
    if with_control.any():
        rho_control[with_control] = cosine(original[with_control], control[with_control])
    names, codes = np.unique(np.asarray(patients, dtype=object).astype(str), return_inverse=True)
    weights = patient_weights(names.tolist(), seed, resamples) if n else np.zeros((0, resamples), np.uint8)
    pairs = baseline_pairs(image_ids, codes, seed, max_pairs)
    between = cosine(original[pairs[:, 0]], original[pairs[:, 1]]) if len(pairs) else np.zeros(0)

    paired_rows = np.flatnonzero(with_control)
    paired_weights, paired_patients = weights[codes[paired_rows]], len(np.unique(codes[paired_rows]))
    box = _mean(rho, weights[codes], len(names))
    paired = _mean(rho_control[paired_rows], paired_weights, paired_patients)
    gap = _mean((rho_control - rho)[paired_rows], paired_weights, paired_patients)
    pair_weights = weights[codes[pairs[:, 0]]].astype(np.float64) * weights[codes[pairs[:, 1]]]
    base = _mean(between, pair_weights, len(names))
    alike = f"all images are alike to this encoder (1 - c below {MIN_SPREAD})" if len(pairs) else "no two patients"
    return Retention(
        n_images=n,
        n_patients=len(names),
        n_control=int(with_control.sum()),
        n_pairs=len(pairs),
        rho=_interval(box, "no boxed image"),
        rho_control=_interval(paired, "no control"),
        drop=_interval(_one_minus(box), "no boxed image"),
        drop_control=_interval(_one_minus(paired), "no control"),
        difference=_interval(gap, "no control"),
        baseline=_interval(base, "no two patients"),
        standardised=_interval(_standardised(box, base), alike),
        standardised_control=_interval(_standardised(paired, base), alike if len(paired_rows) else "no control"),
    )


def baseline_pairs(image_ids: Sequence[str], patient_codes: np.ndarray, seed: int, most: int = MAX_PAIRS) -> np.ndarray:
    """Fixed random pairs of images of different patients.

    All such pairs where there are at most ``most``; else, on a circle in the order of the ids' hashes under the seed,
    each image with its next neighbours. The order of the rows plays no part.

    Args:
        image_ids: n distinct ids.
        patient_codes: (n,) int64.
        seed: seed of the run.
        most: number of pairs at most.

    Returns:
        (m, 2) int64 rows.
    """
    n = len(image_ids)
    order = keyed_rank(list(image_ids), "retention pairs", seed) if n else np.zeros(0, np.int64)
    if n * (n - 1) // 2 <= most:
        first, second = np.triu_indices(n, 1)
    else:
        steps = np.arange(1, most // n + 2)
        first = np.tile(np.arange(n), len(steps))
        second = (first + np.repeat(steps, n)) % n
    pairs = np.stack([order[first], order[second]], axis=1) if n else np.zeros((0, 2), np.int64)
    return pairs[patient_codes[pairs[:, 0]] != patient_codes[pairs[:, 1]]][:most]


@dataclass(frozen=True)
class Association:
    """Over encoders: how retention goes with discordance.

    Args:
        n_encoders: encoders with both numbers.
        spearman, p: Spearman's rank correlation and its two-sided p of a permutation test, as everywhere
            (:func:`~.rankings.spearman`); None below three encoders.
        reason: why there is none, or None.
    """

    n_encoders: int
    spearman: float | None
    p: float | None
    reason: str | None


def association(retained: Mapping[str, float | None], discordance: Mapping[str, float | None]) -> Association:
    """Spearman correlation of retention (raw or standardised) with D over encoders.

    Args:
        retained: encoder -> mean retention over its findings, None where undefined.
        discordance: encoder -> D over the same findings, None where undefined.

    >>> found = association({"a": 0.9, "b": 0.8, "c": 0.7}, {"a": 0.5, "b": 0.3, "c": 0.1})
    >>> found.spearman, round(found.p, 3)
    (1.0, 0.333)
    """
    pairs = [
        (value, discordance[name])
        for name, value in sorted(retained.items())
        if value is not None and discordance.get(name) is not None
    ]
    if len(pairs) < 3:
        return Association(len(pairs), None, None, "fewer than 3 encoders have both numbers")
    found = spearman(*zip(*pairs, strict=True))
    reason = None if found.value is not None else "all encoders have the same number"
    return Association(len(pairs), found.value, found.p, reason)


def share_lowered_more(differences: Mapping[str, float | None]) -> tuple[int, int]:
    """Encoders for which covering the finding lowers ρ more than covering the control, of those with both.

    >>> share_lowered_more({"a": 0.02, "b": -0.01, "c": None})
    (1, 2)
    """
    known = [value for value in differences.values() if value is not None]
    return sum(value > 0 for value in known), len(known)


def _mean(values: np.ndarray, weights: np.ndarray, patients: int) -> Replicates:
    """A mean and its resampled values, weights (n, B) in a fixed order."""
    counts = weights.astype(np.float64)
    return Replicates(
        float(values.sum()),
        float(len(values)),
        np.einsum("i,ib->b", values, counts, optimize=False),
        counts.sum(axis=0),
        patients,
    )


def _one_minus(mean: Replicates) -> Replicates:
    return Replicates(
        mean.denominator - mean.numerator,
        mean.denominator,
        mean.denominators - mean.numerators,
        mean.denominators,
        mean.patients,
    )


def _standardised(mean: Replicates, base: Replicates) -> Replicates:
    """(ρ − c)/(1 − c) with c recomputed in each resample, as a ratio; without value where the images are too alike."""
    close = base.estimate is not None and 1.0 - base.estimate < MIN_SPREAD

    def ratio(rho: np.ndarray, n: np.ndarray, c: np.ndarray, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        below = np.where((n > 0) & (m > 0) & (m - c > 1e-12 * m), n * (m - c), 0.0)
        return np.where(below > 0, rho * m - c * n, 0.0), below

    one = ratio(*(np.array([v]) for v in (mean.numerator, mean.denominator, base.numerator, base.denominator)))
    many = ratio(mean.numerators, mean.denominators, base.numerators, base.denominators)
    numerator, denominator = (0.0, 0.0) if close else (float(one[0][0]), float(one[1][0]))
    return Replicates(numerator, denominator, *many, min(mean.patients or 0, base.patients or 0))


def _interval(replicates: Replicates, nothing: str) -> Interval:
    """The interval over patients; ``nothing`` is the reason where there is no value."""
    return percentile_interval(replicates, MIN_PATIENTS, "patients", nothing)
