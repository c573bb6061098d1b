"""Do heads err more where neighbours disagree? 2×2 tables, their Mantel–Haenszel difference, patient bootstrap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .auroc_tests import spread
from .mantel_haenszel import mantel_haenszel_risk_difference, resampled_risk_difference

WARNING = (
    "D describes how an encoder arranges a task's images; it does not predict which images a head will miss. "
    "In the published study heads missed 30 % of the discordant positives and 17 % of the others, so 70 % of the "
    "discordant ones were found. No number here is a safety check for a single image."
)


@dataclass(frozen=True)
class Stratum:
    """The images of one encoder and finding: positives with misses, or negatives with false positives.

    Args:
        encoder, finding: what the stratum is.
        error: whether the head errs on each image, shape (Q,), bool.
        exposed: whether each image is discordant (a negative: nearer the positives), shape (Q,), bool.
        patient: code of each image's patient, shape (Q,), int64: row of the bootstrap weights.
    """

    encoder: str
    finding: str
    error: np.ndarray
    exposed: np.ndarray
    patient: np.ndarray

    def __post_init__(self) -> None:
        sizes = {len(self.error), len(self.exposed), len(self.patient)}
        if len(sizes) != 1:
            raise ValueError(f"error, exposed and patient differ in length: {sorted(sizes)}")


@dataclass(frozen=True)
class ErrorComparison:
    """Error rates of exposed and other images over one or more strata; undefined numbers are None.

    ``difference`` is the Mantel–Haenszel risk difference over the strata; ``sd``, ``lo`` and ``hi`` come from the
    patient bootstrap, ``n_skipped`` counts strata without exposed or without other images.
    """

    exposed: int
    exposed_errors: int
    others: int
    other_errors: int
    exposed_rate: float | None
    other_rate: float | None
    difference: float | None
    sd: float | None
    lo: float | None
    hi: float | None
    n_strata: int
    n_skipped: int
    reason: str | None


@dataclass(frozen=True)
class CountedStratum:
    """2×2 counts of a stratum: in the sample, (4,), and in each resample, (4, B): e₁, n₁, e₀, n₀."""

    counts: np.ndarray
    resampled: np.ndarray


def count(stratum: Stratum, weights: np.ndarray) -> CountedStratum:
    """Counts of a stratum in the sample and under the patient weights.

    Args:
        stratum: the images.
        weights: shape (P, B), uint8: weight of each patient in each resample.
    """
    cells = [
        stratum.exposed & stratum.error,
        stratum.exposed,
        ~stratum.exposed & stratum.error,
        ~stratum.exposed,
    ]
    used, codes = np.unique(stratum.patient, return_inverse=True)
    images = np.stack([np.bincount(codes[cell], minlength=len(used)) for cell in cells])
    chosen = weights[used]
    # Whole numbers: float32 adds them exactly up to 2²⁴, float64 up to 2⁵³.
    exact = np.float32 if images.sum() * int(chosen.max(initial=0)) < 2**24 else np.float64
    resampled = (images.astype(exact) @ chosen.astype(exact)).astype(np.int64)
    return CountedStratum(np.array([int(cell.sum()) for cell in cells]), resampled)


def compare_errors(strata: Sequence[CountedStratum]) -> ErrorComparison:
    """Error rates of exposed and other images over the strata, and their Mantel–Haenszel difference.

    Args:
        strata: counted strata: one, those of an encoder, or all.

    Raises:
        ValueError: no stratum.
    """
    if not strata:
        raise ValueError("strata is empty")
    counts = np.stack([stratum.counts for stratum in strata])
    pooled = mantel_haenszel_risk_difference(*counts.T)
    e1, n1, e0, n0 = (int(total) for total in counts.sum(axis=0))
    sd = lo = hi = None
    reason = pooled.reason
    if pooled.value is not None:
        resampled = np.stack([stratum.resampled for stratum in strata], axis=1)
        sd, lo, hi, reason = spread(resampled_risk_difference(*resampled))
    return ErrorComparison(
        n1,
        e1,
        n0,
        e0,
        e1 / n1 if n1 else None,
        e0 / n0 if n0 else None,
        pooled.value,
        sd,
        lo,
        hi,
        pooled.n_strata,
        pooled.n_skipped,
        reason,
    )


def compare_by_encoder(strata: Iterable[tuple[str, CountedStratum]]) -> dict[str, ErrorComparison]:
    """:func:`compare_errors` of each encoder's strata (over its findings)."""
    by_encoder: dict[str, list[CountedStratum]] = {}
    for encoder, stratum in strata:
        by_encoder.setdefault(encoder, []).append(stratum)
    return {encoder: compare_errors(parts) for encoder, parts in by_encoder.items()}
