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
from scipy import sparse
from scipy.special import gammainc

from .keyed_hash import STEP, keyed_hash, splitmix64

MIN_POSITIVE_PATIENTS = 10
MAX_EMPTY_SHARE = 0.01
_RESAMPLES_PER_BLOCK = 32


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
    return poisson_of_bits(uniform_bits(patients, ("weights", seed), resamples))


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
    if draws < 1:
        raise ValueError(f"the number of resamples must be positive, not {draws}")
    ids = np.asarray(patients, dtype=np.str_)
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) < len(ids):
        repeated = unique[counts > 1][0]
        row = int(np.flatnonzero(ids == repeated)[1])
        raise ValueError(f"patients must be distinct: row {row} repeats an earlier one")
    start = keyed_hash(ids.tolist(), *key) if len(ids) else np.empty(0, np.uint64)
    words = -(-draws // 4)
    out = np.empty((len(ids), 4 * words), np.uint16)
    counter = np.arange(1, words + 1, dtype=np.uint64) * STEP
    for block in range(0, len(ids), 4096):
        rows = slice(block, min(block + 4096, len(ids)))
        word = splitmix64(start[rows, None] + counter[None, :])
        for part in range(4):
            out[rows, part::4] = (word >> np.uint64(16 * part)).astype(np.uint16)
    return out[:, :draws]


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
    chosen = weights[present]
    exact = bool(np.all(value == np.rint(value))) and float(np.abs(value).sum()) * 255 < 2**53
    if exact:  # integers in float64: exact in any order, so the fast product is safe
        both = sums @ chosen.astype(np.float64)
    else:  # einsum without optimize sums in a fixed order
        both = np.einsum("ip,pb->ib", sums, chosen.astype(np.float64), optimize=False)
    return Replicates(float(value.sum()), float(len(value)), both[0], both[1], len(present))


def resample_auroc(
    scores: np.ndarray, positive: np.ndarray, patient_codes: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Weighted AUROC in every resample, ties ½, patient weights as case weights.

    Equal to `sklearn.metrics.roc_auc_score(positive, scores, sample_weight=weights[patient_codes, b])`
    for each b. The images are sorted once; the sums of weights between neighbouring scores of the
    rarer class are one sparse product for all resamples.

    Args:
        scores: shape (N,), finite.
        positive: shape (N,), bool.
        patient_codes: row of `weights` of each image's patient, shape (N,), int64.
        weights: shape (P, B).

    Returns:
        shape (B,), float64, NaN where a resample lacks one of the classes.

    Raises:
        ValueError: the lengths differ, a code is out of range, or a score is not finite.
    """
    value = np.asarray(scores, dtype=np.float64)
    codes = _checked_codes(value, patient_codes, weights, "scores")
    label = np.asarray(positive, dtype=bool)
    if label.shape != value.shape:
        raise ValueError(f"positive has shape {label.shape}, scores {value.shape}")
    resamples = weights.shape[1]
    out = np.full(resamples, np.nan)
    if label.all() or not label.any():
        return out
    rarer = label if label.sum() * 2 <= len(label) else ~label
    present, local = np.unique(codes, return_inverse=True)
    levels, at = np.unique(value[rarer], return_inverse=True)
    other = ~rarer
    place = np.searchsorted(levels, value[other], side="right")  # how many levels are ≤ the value
    tied = (place > 0) & (levels[np.maximum(place, 1) - 1] == value[other])
    n, p = len(levels), len(present)
    mine = _counts(at, local[rarer], n, p)
    between = _counts(place, local[other], n + 1, p)  # cumulated: strictly below levels[row]
    equal = _counts(place[tied] - 1, local[other][tied], n, p) if tied.any() else None
    chosen = weights[present]
    # Whole numbers below 2²⁴ are exact in float32, which is twice as fast; beyond that, float64.
    largest = int(chosen.max(initial=0)) ** 2 * len(codes) * int(np.bincount(at).max())
    number = np.float32 if largest < 2**24 else np.float64
    for start in range(0, resamples, _RESAMPLES_PER_BLOCK):
        block = slice(start, min(start + _RESAMPLES_PER_BLOCK, resamples))
        dense = chosen[:, block].astype(number)
        own = mine @ dense
        less = _running_sums(between @ dense)
        wins = (own * less[:-1]).sum(axis=0, dtype=np.float64)
        if equal is not None:
            wins += 0.5 * (own * (equal @ dense)).sum(axis=0, dtype=np.float64)
        pairs = own.sum(axis=0, dtype=np.float64) * less[-1]
        np.divide(wins, pairs, out=out[block], where=pairs > 0)
    return out if rarer is label else 1.0 - out


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


def _running_sums(values: np.ndarray) -> np.ndarray:
    """Cumulative sums down the rows; for whole numbers the same as `np.cumsum` and several times faster."""
    rows, columns = values.shape
    size = 32
    padded = np.zeros((-(-rows // size) * size, columns), values.dtype)
    padded[:rows] = values
    blocks = np.matmul(np.tri(size, dtype=values.dtype), padded.reshape(-1, size, columns))
    blocks[1:] += np.cumsum(blocks[:-1, -1], axis=0)[:, None, :]
    return blocks.reshape(-1, columns)[:rows]


def _counts(rows: np.ndarray, columns: np.ndarray, n: int, p: int) -> sparse.csr_matrix:
    ones = np.ones(len(rows), np.float32)
    return sparse.csr_matrix((ones, (rows, columns)), shape=(n, p))


def _checked_codes(values: np.ndarray, patient_codes: np.ndarray, weights: np.ndarray, name: str) -> np.ndarray:
    codes = np.asarray(patient_codes)
    if codes.shape != values.shape or values.ndim != 1:
        raise ValueError(f"{name} and patient_codes must be one-dimensional and equally long")
    if weights.ndim != 2:
        raise ValueError(f"weights must have shape (patients, resamples), not {weights.shape}")
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise ValueError(f"{name}: row {bad[0]} is not finite")
    outside = np.flatnonzero((codes < 0) | (codes >= weights.shape[0]))
    if len(outside):
        raise ValueError(f"patient_codes: row {outside[0]} is {codes[outside[0]]}, outside 0 … {weights.shape[0] - 1}")
    return codes
