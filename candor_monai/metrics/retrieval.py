"""R-precision and MAP@R of positives, with their chance levels: what discordance is often mistaken for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Float64 similarities held at once.
BLOCK_VALUES = 2**25
# Rows turned to float64 at a time.
ROWS = 8192


@dataclass(frozen=True)
class Retrieval:
    """Retrieval scores of the positive queries of one finding and group.

    Args:
        r_precision: mean share of positives among the R nearest, R being the number of other positives.
        map_at_r: mean of (1/R)·Σ over ranks i ≤ R of precision at i where rank i is a positive.
        chance_r_precision, chance_map_at_r: their expectations when the ranking is random.
        n_queries: queries that count.
        reason: why there is no value, else None.
    """

    r_precision: float | None
    map_at_r: float | None
    chance_r_precision: float | None
    chance_map_at_r: float | None
    n_queries: int
    reason: str | None


def retrieval(
    features: np.ndarray,
    positive: np.ndarray,
    queries: np.ndarray,
    clusters: np.ndarray | None = None,
) -> Retrieval:
    """R-precision and MAP@R over all labelled images of a group.

    Unlike D, whose two candidate sets are equal in number, these depend on how rare the finding is: their chance
    level is about its prevalence. Ties of similarity are ordered by the row, so give rows in an order that has nothing
    to do with the label (the draw's).

    Args:
        features: one row for each labelled image of the group, shape (N, d), not zero.
        positive: whether each has the finding, shape (N,), bool.
        queries: rows of positive queries, shape (Q,), int64.
        clusters: shape (N,), patient codes: images of the query's patient are left out; None leaves out the query.

    Raises:
        ValueError: a query is not a positive, or shapes differ.
    """
    positive = np.asarray(positive, dtype=np.bool_)
    queries = np.asarray(queries, dtype=np.int64)
    owner = np.arange(len(positive)) if clusters is None else np.asarray(clusters)
    if len(features) != len(positive) or len(owner) != len(positive):
        raise ValueError(f"features, positive and clusters have {len(features)}, {len(positive)}, {len(owner)} rows")
    wrong = queries[~positive[queries]]
    if len(wrong):
        raise ValueError(f"query row {wrong[0]} is not a positive")
    scores = []
    block = max(1, BLOCK_VALUES // max(1, len(features)))
    for start in range(0, len(queries), block):
        part = queries[start : start + block]
        for row, query in zip(_cosines(features, part), part, strict=True):
            other = owner != owner[query]
            relevant = int((positive & other).sum())
            if relevant and relevant < int(other.sum()):
                scores.append((*_of_query(row, positive, other, relevant), *chance(relevant, int(other.sum()))))
    if not scores:
        return Retrieval(None, None, None, None, 0, "no query has another patient's positive and negative")
    own, mapped, chance_own, chance_mapped = (float(mean) for mean in np.mean(scores, axis=0))
    return Retrieval(own, mapped, chance_own, chance_mapped, len(scores), None)


def _cosines(features: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Float64 cosines of some rows with all rows, shape (Q, N), converted a block of rows at a time."""
    own = _unit(features[queries])
    result = np.empty((len(queries), len(features)))
    for start in range(0, len(features), ROWS):
        result[:, start : start + ROWS] = own @ _unit(features[start : start + ROWS]).T
    return result


def _unit(features: np.ndarray) -> np.ndarray:
    values = np.asarray(features, dtype=np.float64)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def _of_query(similarity: np.ndarray, positive: np.ndarray, other: np.ndarray, relevant: int) -> tuple[float, float]:
    masked = np.where(other, similarity, -np.inf)
    # All rows at least as near as the R-th are sorted, so that ties at the edge are settled by the row.
    edge = np.partition(masked, len(masked) - relevant)[len(masked) - relevant]
    near = np.flatnonzero(masked >= edge)
    hits = positive[near[np.argsort(-masked[near], kind="stable")][:relevant]]
    precision = np.cumsum(hits) / np.arange(1, relevant + 1)
    return float(hits.mean()), float((precision * hits).sum() / relevant)


def chance(relevant: int, total: int) -> tuple[float, float]:
    """Expected R-precision and MAP@R of a random ranking of ``total`` images, ``relevant`` of them positive.

    With p = R/M: E[R-precision] = p, E[MAP@R] = (p/R)·Σ_{i≤R} (1 + (i − 1)·(R − 1)/(M − 1))/i.

    >>> chance(1, 4)
    (0.25, 0.25)
    """
    share = relevant / total
    rank = np.arange(1, relevant + 1)
    follow = (relevant - 1) / (total - 1) if total > 1 else 0.0
    return share, float(share * np.mean((1 + (rank - 1) * follow) / rank))
