"""Answers many requests of one group together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .neighbours import Counts, Neighbours, Request, nearest
from .options import Options
from .similarity import FeatureRows


def search(
    rows: FeatureRows,
    requests: Sequence[Request],
    k: int,
    order: np.ndarray,
    options: Options,
    counts: Counts,
) -> list[Neighbours]:
    """The k nearest of every request.

    Args:
        rows: the features.
        requests: what is compared.
        k: neighbours.
        order: place of each row among equal similarities, shape (N,), int64.
        options: ``precision`` is used.
        counts: is added to.
    """
    return [nearest(rows, request, k, order=order, precision=options.precision, counts=counts) for request in requests]
