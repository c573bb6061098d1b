"""Matched groups: images that share every covariate named, with names that stay the same from run to run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..utils import unknown

MISSING = "(missing)"


def matched_groups(records: pd.DataFrame, match_on: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Group of each record by the values of the covariates named.

    A missing value is a value of its own, written ``(missing)`` and never merged with another. Codes follow the
    sorted names, so they do not depend on the order of the records.

    Args:
        records: one row an image.
        match_on: columns of ``records``; none puts all images into one group, ``all``.

    Returns:
        codes, shape (N,), int64, and the names that they index.

    Raises:
        UserError: a column does not exist; names the nearest.

    >>> matched_groups(pd.DataFrame({"site": ["b", "a"], "view": ["AP", None]}), ["site", "view"])
    (array([1, 0]), ('site=a|view=(missing)', 'site=b|view=AP'))
    """
    codes = np.zeros(len(records), dtype=np.int64)
    names = [""]
    for position, column in enumerate(match_on):
        if column not in records.columns:
            raise unknown("matching covariate", column, [str(c) for c in records.columns])
        own, values = pd.factorize(records[column])
        texts = [f"{column}={escape(str(value))}" for value in values]
        missing = own < 0
        if missing.any():
            own = np.where(missing, len(texts), own)
            texts.append(f"{column}={MISSING}")
        # pandas numbers the pairs that occur, so the product of many covariates cannot overflow
        pairs, seen = pd.factorize(pd.Series(codes * max(len(texts), 1) + own))
        names = [
            (names[pair // len(texts)] + ("|" if position else "")) + texts[pair % len(texts)] for pair in seen.tolist()
        ]
        codes = pairs.astype(np.int64)
    if not match_on:
        return codes, ("all",)
    order = sorted(range(len(names)), key=names.__getitem__)
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    return rank[codes] if len(codes) else codes, tuple(names[i] for i in order)


def escape(value: str) -> str:
    """A covariate value as it stands in a group's name: ``%``, ``=``, ``|``, a leading ``(`` and control characters
    are percent-encoded, so that two groups never share a name.

    >>> escape("AP|sitting"), escape("(missing)")
    ('AP%7Csitting', '%28missing)')
    """
    text = "".join(f"%{ord(c):02X}" if c in "%=|" or ord(c) < 32 else c for c in value)
    return f"%28{text[1:]}" if text.startswith("(") else text
