"""LogME: log evidence per image of a Bayesian linear model from features to a finding, at its optimum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

# Rows turned to float64 at a time while the Gram matrix is summed.
BLOCK = 4096
# log λ is searched on this grid, relative to the mean eigenvalue, then refined inside the best cell.
GRID = np.linspace(-30.0, 30.0, 121)


@dataclass(frozen=True)
class GramFactor:
    """Eigendecomposition of ZᵀZ, shared by all findings that are labelled on the same images.

    Args:
        vectors: eigenvectors of the r eigenvalues that are not numerically zero, shape (d, r), float64.
        values: those eigenvalues, shape (r,), float64.
        n: number of images.
    """

    vectors: np.ndarray
    values: np.ndarray
    n: int


@dataclass(frozen=True)
class LogMe:
    """LogME of one finding.

    Args:
        value: mean over both one-hot columns of the log evidence per image; None when undefined.
        log_ratio: log(α/β) at the optimum of the positive column; ``inf`` stands for α → ∞ (null evidence).
        status: ``ok`` or ``insufficient``.
        reason: why there is no value, else None.
    """

    value: float | None
    log_ratio: float | None
    status: str
    reason: str | None


def factorise(features: np.ndarray) -> GramFactor:
    """The eigendecomposition of ZᵀZ in float64.

    Eigenvalues below max(n, d)·ε·(largest) are numerically zero and are dropped.

    Args:
        features: Z, shape (n, d), float32 or float64, finite.

    Raises:
        ValueError: ``features`` is not a finite matrix with at least one row.
    """
    if features.ndim != 2 or len(features) == 0:
        raise ValueError(f"features must be a matrix with at least one row, has shape {features.shape}")
    gram = np.zeros((features.shape[1], features.shape[1]))
    for start in range(0, len(features), BLOCK):
        block = np.asarray(features[start : start + BLOCK], dtype=np.float64)
        gram += block.T @ block
    if not np.isfinite(gram).all():
        bad = np.flatnonzero(~np.isfinite(features).all(axis=1))[0]
        raise ValueError(f"features[{bad}] is not finite")
    values, vectors = np.linalg.eigh(gram)
    kept = values > max(features.shape) * np.finfo(np.float64).eps * values[-1]
    return GramFactor(np.ascontiguousarray(vectors[:, kept]), values[kept], len(features))


def logme(features: np.ndarray, labels: np.ndarray) -> list[LogMe]:
    """LogME of each finding, with one factorisation for all findings labelled on the same images.

    For a column y the model is y ~ N(Zw, β⁻¹I), w ~ N(0, α⁻¹I). The evidence is maximised over α and β; with
    λ = α/β the best β is n/Q(λ), Q(λ) = ‖y‖² − Σ (uᵢ·y)²σᵢ²/(λ + σᵢ²), which leaves the one-dimensional
    −(n/2)·log Q(λ) + ½·Σ log(λ/(λ + σᵢ²)), searched on a grid and refined, and compared with λ → ∞ (α → ∞), where the
    features say nothing.

    Args:
        features: Z, unit rows of the n training images, shape (n, d), float32 or float64.
        labels: shape (n, F): 1, 0 or -1 (the image is left out for that finding).

    Returns:
        F results; ``insufficient`` without positives or negatives, or when the features fit the labels exactly and the
        evidence has no maximum.

    Raises:
        ValueError: shapes differ or a feature is not finite.

    Source: You et al., LogME, ICML 2021; the optimum is exact instead of eleven fixed-point steps.
    """
    labels = np.asarray(labels)
    if labels.ndim != 2 or len(labels) != len(features):
        raise ValueError(f"labels {labels.shape} must have one row per feature row ({len(features)})")
    results: list[LogMe] = [LogMe(None, None, "insufficient", "no labelled image")] * labels.shape[1]
    known = labels >= 0
    masks, of_mask = np.unique(known.T, axis=0, return_inverse=True) if labels.size else (known.T, np.empty(0, int))
    for m, mask in enumerate(masks):
        findings = np.flatnonzero(of_mask.ravel() == m)
        if not mask.any():
            continue
        part = features if mask.all() else features[mask]
        factor = factorise(part)
        targets = (labels[mask][:, findings] == 1).astype(np.float64)
        projected = _project(
            factor, part, np.concatenate([targets, targets.sum(axis=1, keepdims=True) * 0 + 1], axis=1)
        )
        for j, finding in enumerate(findings):
            results[finding] = _of_finding(factor, targets[:, j], projected[:, j], projected[:, -1])
    return results


def _project(factor: GramFactor, features: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """uᵢ·y for each column y, shape (r, C): coordinates of the targets in the features' column space."""
    moments = np.zeros((features.shape[1], targets.shape[1]))
    for start in range(0, len(features), BLOCK):
        rows = slice(start, start + BLOCK)
        moments += np.asarray(features[rows], dtype=np.float64).T @ targets[rows]
    return (factor.vectors.T @ moments) / np.sqrt(factor.values)[:, None]


def _of_finding(factor: GramFactor, target: np.ndarray, positive: np.ndarray, ones: np.ndarray) -> LogMe:
    n_positive = int(target.sum())
    if n_positive in (0, factor.n):
        return LogMe(None, None, "insufficient", "no positive" if n_positive == 0 else "no negative")
    columns = [
        evidence_at_optimum(factor.values, coordinates, float(squared), factor.n)
        for coordinates, squared in ((positive, n_positive), (ones - positive, factor.n - n_positive))
    ]
    if any(column is None for column in columns):
        return LogMe(None, None, "insufficient", "the features fit the labels exactly: the evidence has no maximum")
    values = [column[0] / factor.n for column in columns if column is not None]
    assert columns[0] is not None
    return LogMe(float(np.mean(values)), columns[0][1], "ok", None)


def evidence_at_optimum(
    values: np.ndarray, coordinates: np.ndarray, squared: float, n: int
) -> tuple[float, float] | None:
    """The largest log evidence of one column over α and β.

    Args:
        values: eigenvalues σ² of ZᵀZ, shape (r,), positive.
        coordinates: uᵢ·y, shape (r,).
        squared: ‖y‖².
        n: number of images.

    Returns:
        (log evidence, log(α/β)), the latter ``inf`` when the null model is best; None when there is no maximum because
        the residual is zero.
    """
    energy = coordinates**2
    residual = max(squared - float(energy.sum()), 0.0)
    if residual <= 1e-12 * squared:
        return None
    centre = float(np.log(values.mean())) if len(values) else 0.0

    def loss(log_ratio: float) -> float:
        ratio = np.exp(log_ratio)
        quadratic = residual + float((energy * (ratio / (ratio + values))).sum())
        return 0.5 * (n * np.log(quadratic) + float(np.log1p(values / ratio).sum()))

    losses = [loss(centre + step) for step in GRID]
    best = int(np.argmin(losses))
    null = 0.5 * n * np.log(squared)
    found, at = losses[best], centre + GRID[best]
    if 0 < best < len(GRID) - 1:
        refined = minimize_scalar(
            loss, bounds=(centre + GRID[best - 1], centre + GRID[best + 1]), method="bounded", options={"xatol": 1e-9}
        )
        found, at = min((float(refined.fun), float(refined.x)), (found, float(at)))
    constant = 0.5 * n * (np.log(n) - np.log(2 * np.pi) - 1.0)
    if found >= null:
        return float(constant - null), float("inf")
    return float(constant - found), float(at)
