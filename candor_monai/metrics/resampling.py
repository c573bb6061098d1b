"""The conditional interval: patients are resampled, the candidate sets stay as drawn.

Every patient gets one weight per resample, Poisson(1), from a counter-based generator keyed by
(seed, resample, patient). A weight therefore depends on nobody else in the run, and two encoders,
two findings or two runs that share a patient share its weights: every difference is paired.

All weights are small integers and every sum over them is exact, so a value does not depend on the
number of threads, on the block size or on the order of the images.

Source: arXiv 2607.18451 (percentile interval over 1,000 resamples of patients); the Poisson weights
in place of the multinomial ones are a choice (Chamandy et al. 2012, "Estimating uncertainty for
massive data streams").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammainc

from .compiled import compiled
from .keyed_hash import STEP, keyed_hash
from .similarity import in_threads

MIN_POSITIVE_PATIENTS = 10
MAX_EMPTY_SHARE = 0.01
# Patients whose weights a thread makes are a multiple of this.
_PATIENTS = 256


@dataclass(frozen=True)
class Interval:
    """An estimate with its uncertainty; undefined numbers are None and `reason` says why.

    Args:
        estimate: the value on the data as they are.
        sd: standard deviation.
        lo, hi: limits of the 95 % interval.
        reason: why there is no interval, else None.
        empty: resamples in which the value was undefined.
    """

    estimate: float | None = None
    sd: float | None = None
    lo: float | None = None
    hi: float | None = None
    reason: str | None = None
    empty: int = 0


@dataclass(frozen=True)
class Replicates:
    """One number and its B resampled values, kept as ratios so that pooling is a sum.

    D of a cell is (weight of the discordant queries) / (weight of the queries). An AUROC is stored as
    AUROC × (weight of the queries) over the same denominator, since AUROCs are pooled over groups as
    D is. The pooled value of several cells is the ratio of the summed numerators and denominators.

    Args:
        numerator: of the data as they are.
        denominator: of the data as they are.
        numerators: shape (B,), float64.
        denominators: shape (B,), float64; 0 where the resample holds no query.
        patients: number of distinct patients behind the value, or None when unknown.
    """

    numerator: float
    denominator: float
    numerators: np.ndarray
    denominators: np.ndarray
    patients: int | None = None

    @property
    def estimate(self) -> float | None:
        return self.numerator / self.denominator if self.denominator > 0 else None

    def values(self) -> np.ndarray:
        """The resampled values, shape (B,), NaN where a resample holds no query."""
        out = np.full(len(self.numerators), np.nan)
        np.divide(self.numerators, self.denominators, out=out, where=self.denominators > 0)
        return out


def patient_weights(patients: Sequence[str], seed: int, resamples: int) -> np.ndarray:
    """Poisson(1) weights of patients, keyed by (seed, resample, patient).

    Each patient's key starts a SplitMix64 stream; each 64-bit word gives four weights by a table of
    2¹⁶ entries, so the probabilities are those of Poisson(1) rounded to multiples of 2⁻¹⁶.

    Args:
        patients: distinct ids, length P.
        seed: the run's seed.
        resamples: B.

    Returns:
        shape (P, B), uint8.

    Raises:
        ValueError: an id occurs twice, or `resamples` is not positive.

    Examples:
        >>> both = patient_weights(["a", "b"], seed=42, resamples=8)
        >>> alone = patient_weights(["b"], seed=42, resamples=8)
        >>> bool((both[1] == alone[0]).all())
        True
    """
    return _looked_up(patients, ("weights", seed), resamples, _POISSON)


def poisson_of_bits(bits: np.ndarray) -> np.ndarray:
    """Poisson(1) by inversion of uniform 16-bit numbers.

    Args:
        bits: any shape, uint16.

    Returns:
        the same shape, uint8.

    Examples:
        >>> poisson_of_bits(np.array([0, 30_000, 65_535], np.uint16)).tolist()
        [0, 1, 8]
    """
    return _POISSON[bits]


def uniform_bits(patients: Sequence[str], key: tuple[str | int, ...], draws: int) -> np.ndarray:
    """Independent uniform 16-bit numbers of each patient, a pure function of (key, patient, draw).

    Args:
        patients: distinct ids, length P.
        key: what the numbers are for.
        draws: B.

    Returns:
        shape (P, B), uint16.

    Raises:
        ValueError: an id occurs twice, or `draws` is not positive.

    Examples:
        >>> uniform_bits(["a"], ("weights", 1), 5).shape
        (1, 5)
    """
    return _looked_up(patients, key, draws, _UNIFORM)


def _looked_up(patients: Sequence[str], key: tuple[str | int, ...], draws: int, table: np.ndarray) -> np.ndarray:
    """What uniform 16-bit numbers of each patient stand for in a table of 2¹⁶ entries, shape (P, B)."""
    if draws < 1:
        raise ValueError(f"the number of resamples must be positive, not {draws}")
    ids = np.asarray(patients, dtype=np.str_)
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) < len(ids):
        repeated = unique[counts > 1][0]
        row = int(np.flatnonzero(ids == repeated)[1])
        raise ValueError(f"patients must be distinct: row {row} repeats an earlier one")
    start = keyed_hash(ids.tolist(), *key) if len(ids) else np.empty(0, np.uint64)
    out = np.empty((len(ids), draws), table.dtype)
    in_threads(lambda span: _look_up(start[slice(*span)], table, out[slice(*span)]), len(ids), _PATIENTS)
    return out


@compiled
def _look_up(start: np.ndarray, table: np.ndarray, out: np.ndarray) -> None:
    """Four entries of a table from each word of SplitMix64 streams.

    Args:
        start: of each stream, shape (P,), uint64.
        table: 2¹⁶ entries.
        out: written, shape (P, B).
    """
    draws = out.shape[1]
    for patient in range(len(start)):
        word = start[patient]
        for first in range(0, draws, 4):
            # The output function of SplitMix64, as in `keyed_hash`.
            word += STEP
            mixed = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed ^= mixed >> np.uint64(31)
            for place in range(first, min(first + 4, draws)):
                out[patient, place] = table[mixed & np.uint64(0xFFFF)]
                mixed >>= np.uint64(16)


def resample_mean(values: np.ndarray, patient_codes: np.ndarray, weights: np.ndarray) -> Replicates:
    """A mean over queries and its resampled values Σ w·value / Σ w.

    Args:
        values: of the queries, shape (Q,); bool or numbers.
        patient_codes: row of `weights` of each query's patient, shape (Q,), int64.
        weights: from `patient_weights`, shape (P, B).

    Raises:
        ValueError: the lengths differ, a code is out of range, or a value is not finite.
    """
    value = np.asarray(values, dtype=np.float64)
    codes = _checked_codes(value, patient_codes, weights, "values")
    present, local = np.unique(codes, return_inverse=True)
    sums = np.stack([np.bincount(local, value, len(present)), np.bincount(local, minlength=len(present))])
    if bool(np.all(value == np.rint(value))) and float(np.abs(value).sum()) * 255 < 2**53:
        both = np.zeros((2, weights.shape[1]), np.int64)
        _add_weighted(sums.astype(np.int64), present, weights, both)
    else:  # einsum without optimize sums in a fixed order
        both = np.einsum("ip,pb->ib", sums, weights[present].astype(np.float64), optimize=False)
    both = both.astype(np.float64)
    return Replicates(float(value.sum()), float(len(value)), both[0], both[1], len(present))


@compiled
def _add_weighted(sums: np.ndarray, patients: np.ndarray, weights: np.ndarray, out: np.ndarray) -> None:
    """Add up two numbers of each patient with its weights.

    Args:
        sums: shape (2, p), int64.
        patients: rows of the weights, shape (p,), int64.
        weights: shape (P, B), uint8.
        out: zeros; written, shape (2, B), int64.
    """
    for place in range(len(patients)):
        weight = weights[patients[place]]
        for number in range(2):
            total, value = out[number], sums[number, place]
            for resample in range(len(weight)):
                total[resample] += value * weight[resample]


def resample_auroc(
    scores: np.ndarray, positive: np.ndarray, patient_codes: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Weighted AUROC in every resample, ties ½, patient weights as case weights.

    Equal to `sklearn.metrics.roc_auc_score(positive, scores, sample_weight=weights[patient_codes, b])`
    for each b. The images are sorted once, and gone through once for all resamples.

    Args:
        scores: shape (N,), finite.
        positive: shape (N,), bool.
        patient_codes: row of `weights` of each image's patient, shape (N,), int64.
        weights: shape (P, B), uint8.

    Returns:
        shape (B,), float64, NaN where a resample lacks one of the classes.

    Raises:
        ValueError: the lengths differ, a code is out of range, a score is not finite, or weights are not uint8.
    """
    value = np.asarray(scores, dtype=np.float64)
    codes = _checked_codes(value, patient_codes, weights, "scores")
    label = np.asarray(positive, dtype=bool)
    if label.shape != value.shape:
        raise ValueError(f"positive has shape {label.shape}, scores {value.shape}")
    out = np.full(weights.shape[1], np.nan)
    if label.all() or not label.any():
        return out
    rarer = label if label.sum() * 2 <= len(label) else ~label
    by = np.argsort(value, kind="stable")
    level = np.append(np.flatnonzero(np.diff(value[by], prepend=-np.inf) > 0), len(by))
    below = np.zeros(len(out), np.uint32 if len(by) < 2**24 else np.uint64)
    wins, own = np.zeros((2, len(out)), np.uint64)
    _count_wins(level, rarer[by], codes[by].astype(np.int64), weights, below, wins, own)
    # Whole numbers far below 2⁵³.
    pairs = own.astype(np.float64) * below.astype(np.float64)
    np.divide(0.5 * wins, pairs, out=out, where=pairs > 0)
    return out if rarer is label else 1.0 - out


@compiled
def _count_wins(
    level: np.ndarray,
    mine: np.ndarray,
    codes: np.ndarray,
    weights: np.ndarray,
    below: np.ndarray,
    wins: np.ndarray,
    own: np.ndarray,
) -> None:
    """Weighted pairs in which one class has the larger score, twice, in every resample; equal scores count once.

    Args:
        level: where the images of each distinct score begin, and where all end, int64.
        mine: whether images are of the class, by rising score, shape (N,), bool.
        codes: row of their weights, shape (N,), int64.
        weights: shape (P, B), uint8.
        below: zeros; the weight of the other class, written, shape (B,), uint32 or uint64.
        wins: zeros; written, shape (B,), uint64.
        own: zeros; the weight of the class, written, shape (B,), uint64.
    """
    resamples = len(wins)
    equal = np.zeros(resamples, below.dtype)
    for number in range(len(level) - 1):
        first, last = level[number], level[number + 1]
        tied = last - first > 1
        if tied:
            equal[:] = 0
            for place in range(first, last):
                if not mine[place]:
                    weight = weights[codes[place]]
                    for resample in range(resamples):
                        equal[resample] += weight[resample]
        # Nothing is decided inside of these loops, so that they are made of vector instructions.
        for place in range(first, last):
            weight = weights[codes[place]]
            if mine[place] and tied:
                for resample in range(resamples):
                    one = np.uint64(weight[resample])
                    own[resample] += one
                    wins[resample] += one * (np.uint64(2) * np.uint64(below[resample]) + np.uint64(equal[resample]))
            elif mine[place]:
                for resample in range(resamples):
                    one = np.uint64(weight[resample])
                    own[resample] += one
                    wins[resample] += np.uint64(2) * (one * np.uint64(below[resample]))
            elif not tied:
                for resample in range(resamples):
                    below[resample] += weight[resample]
        if tied:
            for resample in range(resamples):
                below[resample] += equal[resample]


def auroc_replicates(
    scores: np.ndarray, positive: np.ndarray, patient_codes: np.ndarray, weights: np.ndarray, queries: Replicates
) -> Replicates:
    """An AUROC as `Replicates` over the query weights of its cell, so that it pools as D does.

    Args:
        scores, positive, patient_codes, weights: as in `resample_auroc`.
        queries: the cell's D; only its denominators are used.
    """
    plain = resample_auroc(scores, positive, np.zeros(len(scores), np.int64), np.ones((1, 1), np.uint8))[0]
    values = resample_auroc(scores, positive, patient_codes, weights)
    known = np.isfinite(values)
    return Replicates(
        numerator=float(plain * queries.denominator),
        denominator=queries.denominator,
        numerators=np.where(known, values, 0.0) * queries.denominators,
        denominators=np.where(known, queries.denominators, 0.0),
        patients=queries.patients,
    )


def pool_replicates(parts: Sequence[Replicates]) -> Replicates:
    """The value pooled over cells by number of queries: numerators and denominators are summed.

    Raises:
        ValueError: no part is given, or the numbers of resamples differ.
    """
    if not parts:
        raise ValueError("parts: nothing to pool")
    if len({len(part.numerators) for part in parts}) > 1:
        raise ValueError("parts: the numbers of resamples differ")
    return Replicates(
        sum(part.numerator for part in parts),
        sum(part.denominator for part in parts),
        np.sum([part.numerators for part in parts], axis=0),
        np.sum([part.denominators for part in parts], axis=0),
    )


def weighted_mean_replicates(parts: Sequence[Replicates], weights: Sequence[float]) -> Replicates:
    """The weighted mean of several values (the severity-weighted mean over findings), resample by resample.

    A resample in which a part is undefined is undefined.

    Raises:
        ValueError: the lengths differ, a part has no value, or no weight is positive.
    """
    if len(parts) != len(weights) or not parts:
        raise ValueError(f"parts and weights must have one positive length, not {len(parts)} and {len(weights)}")
    total = float(sum(weights))
    if min(weights) < 0 or total <= 0:
        raise ValueError("weights must be non-negative with a positive sum")
    estimates = [part.estimate for part in parts]
    if any(value is None for value in estimates):
        raise ValueError(f"parts: row {estimates.index(None)} has no value")
    values = np.sum([w * part.values() for part, w in zip(parts, weights, strict=True)], axis=0) / total
    known = np.isfinite(values)
    estimate = sum(w * float(v or 0.0) for v, w in zip(estimates, weights, strict=True)) / total
    return Replicates(estimate, 1.0, np.where(known, values, 0.0), known.astype(np.float64))


def percentile_interval(
    replicates: Replicates, min_patients: int = 0, who: str = "positive patients", nothing: str = "no query"
) -> Interval:
    """The 2.5 % and 97.5 % percentiles of the resampled values, and their standard deviation.

    Args:
        replicates: a value with its resamples.
        min_patients: fewer patients than this get no interval (only where the number is known).
        who: what the reason calls them.
        nothing: the reason where there is no value.
    """
    estimate = replicates.estimate
    if estimate is None:
        return Interval(reason=nothing)
    if replicates.patients is not None and replicates.patients < min_patients:
        reason = f"fewer than {min_patients} {who} ({replicates.patients})"
        return Interval(estimate=estimate, reason=reason)
    values = replicates.values()
    known = values[np.isfinite(values)]
    empty = len(values) - len(known)
    if empty > MAX_EMPTY_SHARE * len(values):
        return Interval(estimate=estimate, reason=f"{empty} of {len(values)} resamples hold no query", empty=empty)
    if len(known) < 2:
        return Interval(estimate=estimate, reason="one resample shows no spread", empty=empty)
    lo, hi = np.quantile(known, [0.025, 0.975])
    return Interval(estimate, float(known.std(ddof=1)), float(lo), float(hi), None, empty)


def conditional_interval(
    values: np.ndarray,
    patient_codes: np.ndarray,
    weights: np.ndarray,
    min_patients: int = MIN_POSITIVE_PATIENTS,
) -> Interval:
    """The paper's interval of a mean over queries (D, D_all): patients resampled, candidates fixed.

    Args:
        values: of the queries, shape (Q,).
        patient_codes: row of `weights` of each query's patient, shape (Q,), int64.
        weights: from `patient_weights`, shape (P, B).
        min_patients: with fewer patients among the queries there is no interval.

    Raises:
        ValueError: the lengths differ, a code is out of range, or a value is not finite.

    Source: arXiv 2607.18451; measures, "Uncertainty".

    Examples:
        >>> weights = patient_weights([f"p{i}" for i in range(20)], seed=42, resamples=1000)
        >>> interval = conditional_interval(np.arange(20) < 8, np.arange(20), weights)
        >>> interval.estimate, interval.lo < 0.4 < interval.hi
        (0.4, True)
    """
    if len(np.atleast_1d(values)) == 0:
        return Interval(reason="no query")
    return percentile_interval(resample_mean(values, patient_codes, weights), min_patients)


def _poisson_table() -> np.ndarray:
    """Poisson(1) by inversion of a 16-bit uniform: entry u is the number of CDF cuts ≤ u."""
    cuts = np.rint((1.0 - gammainc(np.arange(1, 12), 1.0)) * 65536).astype(np.int64)
    return np.searchsorted(cuts, np.arange(65536), side="right").astype(np.uint8)


_POISSON = _poisson_table()
_UNIFORM = np.arange(2**16, dtype=np.uint16)


def _checked_codes(values: np.ndarray, patient_codes: np.ndarray, weights: np.ndarray, name: str) -> np.ndarray:
    codes = np.asarray(patient_codes)
    if codes.shape != values.shape or values.ndim != 1:
        raise ValueError(f"{name} and patient_codes must be one-dimensional and equally long")
    if weights.ndim != 2:
        raise ValueError(f"weights must have shape (patients, resamples), not {weights.shape}")
    if weights.dtype != np.uint8:
        raise ValueError(f"weights have dtype {weights.dtype}: whole numbers from 0 to 255, uint8, are needed")
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise ValueError(f"{name}: row {bad[0]} is not finite")
    outside = np.flatnonzero((codes < 0) | (codes >= weights.shape[0]))
    if len(outside):
        raise ValueError(f"patient_codes: row {outside[0]} is {codes[outside[0]]}, outside 0 … {weights.shape[0] - 1}")
    return codes
