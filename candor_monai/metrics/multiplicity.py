"""Correction of families of p-values, and p-values below what B resamples can show.

Source: Benjamini and Hochberg 1995, "Controlling the false discovery rate".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats


def benjamini_hochberg(p: Sequence[float | None]) -> list[float | None]:
    """q-values of one family: the smallest false discovery rate at which each test is rejected.

    Args:
        p: p-values; None where there was no test, which does not count towards the family.

    Returns:
        q of each, None where p is None.

    Raises:
        ValueError: a p-value is not in [0, 1].

    Examples:
        >>> benjamini_hochberg([0.01, None, 0.04, 0.03])
        [0.03, None, 0.04, 0.04]
    """
    rows = [row for row, value in enumerate(p) if value is not None]
    given = np.array([p[row] for row in rows], dtype=np.float64)
    bad = np.flatnonzero(~((given >= 0) & (given <= 1)))
    if len(bad):
        raise ValueError(f"p: row {rows[bad[0]]} is {given[bad[0]]}, outside [0, 1]")
    order = np.argsort(given, kind="stable")[::-1]
    ranks = np.arange(len(given), 0, -1)
    q = np.minimum(np.minimum.accumulate(given[order] * (len(given) / ranks)), 1.0)
    out: list[float | None] = [None] * len(p)
    for place, value in zip(order.tolist(), q.tolist(), strict=True):
        out[rows[place]] = value
    return out


def studentised_p(estimate: float, sd: float, null: float = 0.0, freedom: float | None = None) -> float:
    """Two-sided p of (estimate − null)/sd, for values beyond the reach of B resamples.

    Args:
        estimate, sd: of the value.
        null: the hypothesis.
        freedom: degrees of freedom of Student's t; None: normal.

    Raises:
        ValueError: `sd` is negative or not finite.

    Examples:
        >>> round(studentised_p(1.96, 1.0), 3)
        0.05
    """
    if not (np.isfinite(sd) and sd >= 0):
        raise ValueError(f"sd must be finite and not negative, not {sd}")
    if estimate == null:
        return 1.0
    if sd == 0:
        return 0.0
    ratio = abs(estimate - null) / sd
    return float(2 * (stats.norm.sf(ratio) if freedom is None else stats.t.sf(ratio, freedom)))
