"""Which precision preselects neighbours: whole numbers of 8 bits where that is fast and leaves few pairs undecided.

Where the processor has units for products of bfloat16, these are as fast, and leave fewer.
"""

from __future__ import annotations

import numpy as np

from . import whole_numbers
from .similarity import FeatureRows
from .sweep_space import SweepSpace, choose_precision, has_bfloat16_units

# Fewer pairs than this are scored as soon in any precision.
_WORTH = 2**22
# What is looked at: queries, candidates, and how many of these are nearer than the bound reaches from.
_QUERIES, _CANDIDATES, _NEAREST = 64, 2048, 5
# Of three quarters of the queries, at most so many candidates may be within the bound of the nearest.
_UNDECIDED = 128
#: Products of two elements that take as long as what whole numbers leave undecided of a query in one request: where
#: requests are looked at in tables, and where they pick from a pass that keeps little of each query.
IN_TABLES, IN_PASS = 1e6, 7e6


def chosen_space(
    rows: FeatureRows, members: np.ndarray, queries: np.ndarray, precision: str, undecided: float = 0.0
) -> SweepSpace:
    """The space of a sweep; whichever it is, it changes the time and not a bit of a result.

    Args:
        rows: the features.
        members: rows of all candidates, int64.
        queries: rows of all queries, int64.
        precision: ``"auto"`` tries whole numbers on a sample of both, where the processor multiplies them fast; others
            are taken as they are, if the machine keeps within their bound. Rows of more than 131,072 elements are not
            made whole numbers.
        undecided: what whole numbers would leave undecided in all requests, in products of two elements.
    """
    if rows.dimension > whole_numbers.MOST_COLUMNS:
        precision = "float32" if precision in ("auto", "int8") else precision
    pairs = len(members) * len(queries)
    worth = pairs >= _WORTH and pairs * rows.dimension >= undecided
    if precision == "auto" and worth and whole_numbers.has_fast_products() and not has_bfloat16_units():
        whole = SweepSpace(rows, members, choose_precision("int8"))
        if whole.is_coarse and _leaves_few(whole, members, queries):
            return whole
        return SweepSpace(rows, members, choose_precision("auto"), whole.centre)
    return SweepSpace(rows, members, choose_precision(precision))


def _leaves_few(space: SweepSpace, members: np.ndarray, queries: np.ndarray) -> bool:
    """Whether few candidates of a sample are as near, by the bound, as the nearest ones of their query."""
    members = members[:: max(1, len(members) // _CANDIDATES)]
    asked = space.queries(queries[:: max(1, len(queries) // _QUERIES)])
    candidates = space.candidates(members)
    scores = -np.sort(-space.scores(candidates, asked).numpy(), axis=0)
    reach = scores[min(_NEAREST, len(scores) - 1)] - 2 * space.error(candidates, asked)
    return float(np.quantile((scores >= reach).sum(axis=0), 0.75)) <= _UNDECIDED
