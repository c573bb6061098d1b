"""Logistic regression with an L2 penalty, fitted to its optimum by Newton's method; small and deterministic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, log_expit

STEPS = 100


@dataclass(frozen=True)
class LogisticModel:
    """weight (d,) and intercept of a fitted model; ``decision`` gives its logits."""

    weight: np.ndarray
    intercept: float

    def decision(self, inputs: np.ndarray) -> np.ndarray:
        """Logits of inputs of shape (N, d), float64, shape (N,)."""
        return np.asarray(inputs, dtype=np.float64) @ self.weight + self.intercept


def fit_logistic(inputs: np.ndarray, targets: np.ndarray, penalty: float = 1.0) -> LogisticModel:
    """Minimise Σ log(1 + exp(−s·(xw + b))) + penalty/2·‖w‖² (s = ±1; the intercept is free).

    ``penalty`` is scikit-learn's 1/C.

    Args:
        inputs: shape (N, d), finite.
        targets: shape (N,), bool; both values occur.
        penalty: strength, positive: then the optimum is unique, also when the classes are separable.

    Raises:
        ValueError: one class only, or ``penalty`` not positive.
    """
    x = np.asarray(inputs, dtype=np.float64)
    y = np.asarray(targets, dtype=np.bool_)
    if penalty <= 0:
        raise ValueError(f"penalty must be positive, is {penalty}")
    if y.all() or not y.any():
        raise ValueError("targets hold one class only")
    design = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    ridge = np.append(np.full(x.shape[1], penalty), 0.0)
    sign = np.where(y, 1.0, -1.0)

    def loss(beta: np.ndarray) -> float:
        return float(-log_expit(sign * (design @ beta)).sum() + 0.5 * (ridge * beta**2).sum())

    beta = np.zeros(design.shape[1])
    current = loss(beta)
    for _ in range(STEPS):
        p = expit(design @ beta)
        gradient = design.T @ (p - y) + ridge * beta
        if np.abs(gradient).max() < 1e-9 * max(1.0, len(y)):
            break
        hessian = (design * np.maximum(p * (1 - p), 1e-12)[:, None]).T @ design + np.diag(ridge)
        step = np.linalg.solve(hessian, gradient)
        length = 1.0
        while loss(beta - length * step) > current and length > 1e-10:
            length /= 2
        beta = beta - length * step
        current = loss(beta)
    return LogisticModel(beta[:-1], float(beta[-1]))
