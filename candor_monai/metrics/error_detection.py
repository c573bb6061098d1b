"""Scores that guess, without the label, which images a head gets wrong; larger always means more doubtful."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from .similarity import checked_unit

K = 5
# Float64 values held at once while neighbours are settled.
BLOCK_VALUES = 2**23
_SINGLE = float(np.finfo(np.float32).eps)

CONFIDENCE = "maximum softmax"
SCORES = (
    CONFIDENCE,
    "maximum logit",
    "energy",
    "threshold distance",
    "ensemble disagreement",
    "Mahalanobis",
    "kNN distance",
    "neighborhood impurity",
    "proxy margin",
)


def confidence_scores(logits: np.ndarray) -> dict[str, np.ndarray]:
    """Doubt by the three confidences of a single logit h, read as the two logits (−h/2, h/2).

    Maximum softmax σ(|h|), maximum logit |h|/2, energy log(2·cosh(h/2)): all grow with |h|, so they
    order images alike and differ in nothing but name. Returned as doubt: 1 − σ(|h|) = σ(−|h|), which
    does not round to a tie for large logits, and the other two negated.

    Args:
        logits: h, shape (N,), float64.

    >>> {name: float(value[0].round(3)) for name, value in confidence_scores(np.array([2.0])).items()}
    {'maximum softmax': 0.119, 'maximum logit': -1.0, 'energy': -1.127}
    """
    size = np.abs(np.asarray(logits, dtype=np.float64))
    return {
        CONFIDENCE: expit(-size),
        "maximum logit": -size / 2,
        "energy": -np.logaddexp(size / 2, -size / 2),
    }


def threshold_doubt(logits: np.ndarray, threshold: float) -> np.ndarray:
    """−|h − τ|: nearness to the operating point, where errors are made; shape (N,)."""
    return -np.abs(np.asarray(logits, dtype=np.float64) - threshold)


def ensemble_disagreement(logits: np.ndarray) -> np.ndarray:
    """Variance over the members of their probabilities.

    Args:
        logits: shape (M, N), float64.

    Returns:
        shape (N,), float64.

    >>> ensemble_disagreement(np.array([[0.0], [0.0]]))
    array([0.])
    """
    return np.var(expit(np.asarray(logits, dtype=np.float64)), axis=0)


@dataclass(frozen=True)
class TiedGaussians:
    """Class means, shape (2, d), and the Cholesky factor of the tied covariance, shape (d, d), float64."""

    means: np.ndarray
    factor: np.ndarray


def fit_tied_gaussians(features: np.ndarray, positive: np.ndarray) -> TiedGaussians:
    """Class means and the Ledoit–Wolf estimate of the covariance of the class-centred features.

    Args:
        features: training features, shape (n, d), finite.
        positive: shape (n,), bool; both values occur.

    Raises:
        ValueError: one class only, or the features do not vary within the classes.
    """
    positive = np.asarray(positive, dtype=np.bool_)
    if positive.all() or not positive.any():
        raise ValueError("positive holds one class only")
    centred = np.array(features, dtype=np.float64)
    means = np.stack([centred[~positive].mean(axis=0), centred[positive].mean(axis=0)])
    centred -= means[positive.astype(np.int64)]
    covariance, _ = ledoit_wolf(centred)
    if not np.trace(covariance) > 0:
        raise ValueError("features do not vary within the classes")
    return TiedGaussians(means, np.linalg.cholesky(covariance))


def ledoit_wolf(centred: np.ndarray) -> tuple[np.ndarray, float]:
    """Ledoit–Wolf covariance of centred rows: (1 − s)·S + s·(tr S/d)·I.

    Args:
        centred: shape (n, d), float64, mean zero.

    Returns:
        the covariance, shape (d, d), and the shrinkage s in [0, 1].

    Source: Ledoit and Wolf, J. Multivariate Analysis 2004, 88:365.
    """
    n, d = centred.shape
    empirical = centred.T @ centred / n
    mean = np.trace(empirical) / d
    squares = float((empirical**2).sum())
    distance = squares / d - mean**2
    fourth = float(((centred**2).sum(axis=1) ** 2).sum()) / n
    noise = min((fourth - squares) / (n * d), distance)
    shrinkage = float(noise / distance) if distance > 0 else 1.0
    covariance = (1 - shrinkage) * empirical
    covariance[np.diag_indices(d)] += shrinkage * mean
    return covariance, shrinkage


def mahalanobis_doubt(features: np.ndarray, gaussians: TiedGaussians) -> np.ndarray:
    """Squared Mahalanobis distance to the nearer class mean, shape (N,), float64."""
    from scipy.linalg import solve_triangular

    x = np.asarray(features, dtype=np.float64)
    distances = [
        (solve_triangular(gaussians.factor, (x - mean).T, lower=True, check_finite=False) ** 2).sum(axis=0)
        for mean in gaussians.means
    ]
    return np.minimum(*distances)


class ReferenceSet:
    """A fixed set of features that is searched for the k nearest by cosine: faiss preselects, float64 decides.

    faiss' float32 result depends on the batch. It only preselects here: more than k candidates are taken, their cosines
    are recomputed in float64, and a query whose k-th cosine is not above what the last preselected could hide within
    the float32 error bound is preselected again by a float64 product.

    Args:
        features: shape (n, d), float32, finite and not zero.

    Raises:
        ValueError: a feature is zero or not finite; names the first such row.
    """

    def __init__(self, features: np.ndarray) -> None:
        import faiss

        self.unit = checked_unit(features, "features")
        self.index = faiss.IndexFlatIP(self.unit.shape[1])
        self.index.add(self.unit.astype(np.float32))
        # d terms of a dot product of two rounded unit rows
        self.bound = (self.unit.shape[1] + 4) * _SINGLE

    def __len__(self) -> int:
        return len(self.unit)

    def nearest(self, queries: np.ndarray, k: int = K) -> tuple[np.ndarray, np.ndarray]:
        """The k largest cosines of each query, descending, and the rows that have them.

        Args:
            queries: shape (Q, d), float32, finite and not zero.
            k: number of neighbours.

        Returns:
            cosines, shape (Q, k), float64, and row numbers, shape (Q, k), int64; equal cosines by row number.

        Raises:
            ValueError: fewer than k features, or a query is zero or not finite.
        """
        if not 0 < k <= len(self):
            raise ValueError(f"k is {k}, must be between 1 and the {len(self)} reference rows")
        unit = checked_unit(queries, "queries")
        wanted = min(len(self), 4 * k + 16)
        cosines, rows = np.empty((len(unit), k)), np.empty((len(unit), k), dtype=np.int64)
        block = max(1, BLOCK_VALUES // max(wanted * unit.shape[1], len(self)))
        for start in range(0, len(unit), block):
            part = unit[start : start + block]
            rough, near = self.index.search(part.astype(np.float32), wanted)
            top, found = self._settled(part, near, k)
            unsure = np.flatnonzero(top[:, -1] <= rough[:, -1] + 2 * self.bound)
            if wanted < len(self) and len(unsure):
                whole = part[unsure] @ self.unit.T
                near = np.argpartition(-whole, wanted - 1, axis=1)[:, :wanted]
                top[unsure], found[unsure] = self._settled(part[unsure], near, k)
            cosines[start : start + block], rows[start : start + block] = top, found
        return cosines, rows

    def _settled(self, queries: np.ndarray, near: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        near = np.sort(near, axis=1)
        exact = np.einsum("qd,qwd->qw", queries, self.unit[near])
        order = np.argsort(-exact, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(exact, order, axis=1), np.take_along_axis(near, order, axis=1)


def knn_distance(reference: ReferenceSet, queries: np.ndarray, k: int = K) -> np.ndarray:
    """Euclidean distance between unit features from each query to its k-th nearest training image, shape (Q,).

    Source: Sun et al., Out-of-distribution detection with deep nearest neighbors, ICML 2022.
    """
    cosines, _ = reference.nearest(queries, k)
    return np.sqrt(np.maximum(2 - 2 * cosines[:, -1], 0.0))


def neighborhood_impurity(positive_neighbours: np.ndarray) -> np.ndarray:
    """r = 1 − |2·p̂ − 1|, p̂ the share of positives among the k nearest candidates.

    Args:
        positive_neighbours: whether each of the k nearest is positive, shape (Q, k), bool.

    Returns:
        shape (Q,), float64: 0 when the neighbours agree, near 1 when they are mixed.

    >>> neighborhood_impurity(np.array([[True] * 5, [True, True, False, False, False]])).round(12)
    array([0. , 0.8])
    """
    near = np.asarray(positive_neighbours, dtype=np.bool_)
    # From whole numbers, so that one positive of five and four of five tie to the bit.
    return 1 - np.abs(2 * near.sum(axis=1) - near.shape[1]) / near.shape[1]


def proxy_margin(c_pos: np.ndarray, c_neg: np.ndarray, decisions: np.ndarray) -> np.ndarray:
    """The discordance margin with the head's decision in the place of the label.

    Args:
        c_pos, c_neg: mean cosine to the k nearest positives and negatives (by true label), shape (Q,).
        decisions: ŷ, shape (Q,), bool.

    Returns:
        c⁻ − c⁺ where ŷ = 1 and c⁺ − c⁻ where ŷ = 0, shape (Q,).

    >>> proxy_margin(np.array([0.9, 0.9]), np.array([0.8, 0.8]), np.array([True, False])).round(12)
    array([-0.1,  0.1])
    """
    margin = np.asarray(c_neg, dtype=np.float64) - np.asarray(c_pos, dtype=np.float64)
    return np.where(np.asarray(decisions, dtype=np.bool_), margin, -margin)
