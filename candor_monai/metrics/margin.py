"""What a small discordance margin means for any smooth head."""

from __future__ import annotations

import numpy as np

from .discordance import _finite


def margin_bound(c_neg: np.ndarray) -> np.ndarray:
    """Largest margin per Lipschitz constant, m/L ≤ ½·sqrt(2 − 2·c⁻), that any head can have at a query.

    It holds for every L-Lipschitz head with h ≥ τ + m at the query and h ≤ τ − m at each of its k nearest negatives.

    Args:
        c_neg: mean similarity to the k nearest negatives, shape (Q,), float64.

    Returns:
        shape (Q,), float64, in [0, 1]. A c⁻ above 1 by rounding (copies of the query) gives 0.

    Raises:
        ValueError: a value is not finite, or lies outside [-1, 1] by more than rounding.

    >>> margin_bound(np.array([0.95])).round(3)
    array([0.158])

    Source: arXiv 2607.18451, the margin bound.
    """
    values = np.asarray(c_neg, np.float64)
    _finite("c_neg", values)
    wrong = np.flatnonzero(np.abs(values) > 1 + 1e-9)
    if len(wrong):
        raise ValueError(f"c_neg[{wrong[0]}] is {values.ravel()[wrong[0]]}: it must lie in [-1, 1]")
    return 0.5 * np.sqrt(np.maximum(2 - 2 * values, 0.0))
