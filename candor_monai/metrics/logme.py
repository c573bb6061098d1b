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
        log_ratio: log(α/β) at the optimum of the positive column; ``inf`` stands for α → ∞ (null evidence),
            ``-inf`` for β → ∞ (no noise; only where there are as many independent features as images).
        status: ``ok`` or ``insufficient``.
        reason: why there is no value, else None.
    """

    value: float | None
    log_ratio: float | None
    status: str
    reason: str | None


def factorise(features: np.ndarray, targets: np.ndarray | None = None) -> tuple[GramFactor, np.ndarray]:
    """The eigendecomposition of ZᵀZ in float64, and the targets' coordinates in it, from one pass over the features.

    Eigenvalues below max(n, d)·ε·(largest) are numerically zero and are dropped.

    Args:
        features: Z, shape (n, d), float32 or float64, finite.
        targets: columns y, shape (n, C), float64; None: no column.

    Returns:
        the factor, and uᵢ·y for each column, shape (r, C), float64.

    Raises:
        ValueError: ``features`` is not a finite matrix with at least one row.
    """
    if features.ndim != 2 or len(features) == 0:
        raise ValueError(f"features must be a matrix with at least one row, has shape {features.shape}")
    columns = np.zeros((len(features), 0)) if targets is None else targets
    gram = np.zeros((features.shape[1], features.shape[1]))
    moments = np.zeros((features.shape[1], columns.shape[1]))
    for start in range(0, len(features), BLOCK):
        rows = slice(start, start + BLOCK)
        block = np.asarray(features[rows], dtype=np.float64)
        gram += block.T @ block
        moments += block.T @ columns[rows]
    if not np.isfinite(gram).all():
        bad = np.flatnonzero(~np.isfinite(features).all(axis=1))[0]
        raise ValueError(f"features[{bad}] is not finite")
    values, vectors = np.linalg.eigh(gram)
    kept = values > max(features.shape) * np.finfo(np.float64).eps * values[-1]
    factor = GramFactor(np.ascontiguousarray(vectors[:, kept]), values[kept], len(features))
    return factor, (factor.vectors.T @ moments) / np.sqrt(factor.values)[:, None]


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
        F results; ``insufficient`` without positives or negatives, or when fewer features than images fit the labels
        exactly, so that the evidence has no maximum.

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
        targets = (labels[mask][:, findings] == 1).astype(np.float64)
        factor, coordinates = factorise(part, np.concatenate([targets, np.ones((len(targets), 1))], axis=1))
        for j, finding in enumerate(findings):
            results[finding] = _of_finding(factor, int(targets[:, j].sum()), coordinates[:, j], coordinates[:, -1])
    return results


def _of_finding(factor: GramFactor, n_positive: int, positive: np.ndarray, ones: np.ndarray) -> LogMe:
    if n_positive in (0, factor.n):
        return LogMe(None, None, "insufficient", "no positive" if n_positive == 0 else "no negative")
    columns = [
        evidence_at_optimum(factor.values, coordinates, float(squared), factor.n)
        for coordinates, squared in ((positive, n_positive), (ones - positive, factor.n - n_positive))
    ]
    if columns[0] is None or columns[1] is None:
        reason = "the labels are fitted exactly by fewer independent features than images: the evidence has no maximum"
        return LogMe(None, None, "insufficient", reason)
    return LogMe((columns[0][0] + columns[1][0]) / (2 * factor.n), columns[0][1], "ok", None)


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
        (log evidence, log(α/β)), the latter ``inf`` when the null model is best and ``-inf`` when the noiseless one
        (β → ∞) is; None when there is no maximum: the labels are fitted exactly by fewer features than images.
    """
    energy = coordinates**2
    residual = max(squared - float(energy.sum()), 0.0)
    if len(values) >= n:  # as many independent features as images: any label is fitted
        residual = 0.0
    elif residual <= 1e-12 * squared:
        return None
    centre = float(np.log(values.mean())) if len(values) else 0.0

    def loss(log_ratio: float) -> float:
        ratio = np.exp(log_ratio)
        quadratic = residual + float((energy * (ratio / (ratio + values))).sum())
        return 0.5 * (n * np.log(quadratic) + float(np.log1p(values / ratio).sum()))

    ratios = np.exp(centre + GRID)[:, None]
    quadratics = residual + (ratios / (ratios + values)) @ energy
    losses = 0.5 * (n * np.log(quadratics) + np.log1p(values / ratios).sum(axis=1))
    best = int(np.argmin(losses))
    null = 0.5 * n * np.log(squared)
    found, at = float(losses[best]), float(centre + GRID[best])
    if 0 < best < len(GRID) - 1:
        refined = minimize_scalar(
            loss, bounds=(centre + GRID[best - 1], centre + GRID[best + 1]), method="bounded", options={"xatol": 1e-9}
        )
        found, at = min((float(refined.fun), float(refined.x)), (found, at))
    if residual == 0.0:
        # λ → 0 (β → ∞, no noise) has a finite evidence here: n/2·log λ of Q and r/2·log λ of the determinant cancel.
        noiseless = 0.5 * (n * np.log(float((energy / values).sum())) + float(np.log(values).sum()))
        if noiseless < found:
            found, at = noiseless, float("-inf")
    constant = 0.5 * n * (np.log(n) - np.log(2 * np.pi) - 1.0)
    if found >= null:
        return float(constant - null), float("inf")
    return float(constant - found), float(at)
