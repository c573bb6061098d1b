"""Doubt scores against their definitions, scikit-learn and SciPy."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr
from sklearn.covariance import LedoitWolf
from sklearn.neighbors import NearestNeighbors

from candor_monai.metrics.auroc_tests import auroc
from candor_monai.metrics.error_detection import (
    ReferenceSet,
    confidence_scores,
    ensemble_disagreement,
    fit_tied_gaussians,
    knn_distance,
    ledoit_wolf,
    mahalanobis_doubt,
    neighborhood_impurity,
    proxy_margin,
    threshold_doubt,
)


def test_impurity_by_hand() -> None:
    neighbours = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]], dtype=bool)
    found = neighborhood_impurity(neighbours)
    assert found == pytest.approx([0.0, 0.4, 0.8, 0.0])
    assert (neighborhood_impurity(~neighbours) == found).all()  # ties are ties to the bit


def test_the_proxy_margin_turns_with_the_decision() -> None:
    c_pos, c_neg = np.array([0.9, 0.9]), np.array([0.7, 0.7])
    assert proxy_margin(c_pos, c_neg, np.array([True, False])) == pytest.approx([-0.2, 0.2])


def test_the_three_confidences_order_images_alike() -> None:
    logits = np.random.default_rng(0).normal(size=500) * 8
    errors = (np.random.default_rng(1).random(500) < 1 / (1 + np.abs(logits))).astype(int)
    found = {name: auroc(score, errors) for name, score in confidence_scores(logits).items()}
    assert len(set(found.values())) == 1
    assert next(iter(found.values())) > 0.6


def test_confidences_equal_their_formulas() -> None:
    h = np.array([-3.0, -0.5, 0.0, 2.0])
    found = confidence_scores(h)
    assert found["maximum softmax"] == pytest.approx(1 - 1 / (1 + np.exp(-np.abs(h))), abs=1e-15)
    assert found["maximum logit"] == pytest.approx(-np.maximum(h / 2, -h / 2))
    assert found["energy"] == pytest.approx(-np.log(np.exp(h / 2) + np.exp(-h / 2)))


def test_huge_logits_do_not_tie() -> None:
    found = confidence_scores(np.array([40.0, 50.0, 700.0]))
    assert all(len(np.unique(score)) == 3 for score in found.values())


def test_threshold_doubt_peaks_at_the_threshold() -> None:
    assert threshold_doubt(np.array([0.0, 1.0, 3.0]), 1.0).tolist() == [-1.0, 0.0, -2.0]


def test_disagreement_is_the_variance_of_probabilities() -> None:
    logits = np.array([[0.0, 2.0], [0.0, -2.0]])
    p = 1 / (1 + np.exp(-2.0))
    assert ensemble_disagreement(logits) == pytest.approx([0.0, (p - 0.5) ** 2])


@pytest.mark.parametrize("n, d", [(50, 5), (20, 40), (300, 10)])
def test_ledoit_wolf_equals_scikit_learn(n: int, d: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, d)) @ rng.normal(size=(d, d))
    x -= x.mean(axis=0)
    expected = LedoitWolf(assume_centered=True).fit(x)
    covariance, shrinkage = ledoit_wolf(x)
    assert shrinkage == pytest.approx(expected.shrinkage_, abs=1e-10)
    assert covariance == pytest.approx(expected.covariance_, abs=1e-8)


def test_mahalanobis_equals_scipy() -> None:
    rng = np.random.default_rng(3)
    positive = rng.random(200) < 0.3
    x = rng.normal(size=(200, 6)) + positive[:, None]
    gaussians = fit_tied_gaussians(x, positive)
    centred = np.where(positive[:, None], x - x[positive].mean(axis=0), x - x[~positive].mean(axis=0))
    inverse = np.linalg.inv(LedoitWolf(assume_centered=True).fit(centred).covariance_)
    queries = rng.normal(size=(30, 6))
    expected = cdist(queries, gaussians.means, "mahalanobis", VI=inverse).min(axis=1) ** 2
    assert mahalanobis_doubt(queries, gaussians) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_knn_equals_scikit_learn_also_when_features_are_packed(offset: float) -> None:
    rng = np.random.default_rng(4)
    reference = rng.normal(size=(600, 12)).astype(np.float32)
    queries = rng.normal(size=(40, 12)).astype(np.float32)
    reference[:, 0] += offset
    queries[:, 0] += offset

    def unit(x: np.ndarray) -> np.ndarray:
        return x.astype(float) / np.linalg.norm(x.astype(float), axis=1, keepdims=True)

    expected, rows = NearestNeighbors(n_neighbors=5, algorithm="brute").fit(unit(reference)).kneighbors(unit(queries))
    found = ReferenceSet(reference)
    assert knn_distance(found, queries) == pytest.approx(expected[:, -1], abs=1e-7)
    assert (np.sort(found.nearest(queries)[1]) == np.sort(rows)).all()


def test_neighbours_do_not_depend_on_the_batch() -> None:
    rng = np.random.default_rng(5)
    reference = ReferenceSet(np.repeat(rng.normal(size=(50, 8)), 4, axis=0).astype(np.float32))  # exact duplicates
    queries = rng.normal(size=(64, 8)).astype(np.float32)
    cosines, rows = reference.nearest(queries)
    for q in range(0, 64, 7):
        alone = reference.nearest(queries[q : q + 1])
        assert (alone[0] == cosines[q]).all()
        assert (alone[1] == rows[q]).all()


def test_features_that_are_all_equal_are_all_at_distance_zero() -> None:
    reference = ReferenceSet(np.ones((100, 4), np.float32))
    assert knn_distance(reference, np.ones((3, 4), np.float32)) == pytest.approx([0, 0, 0], abs=1e-7)


def test_distance_grows_away_from_the_reference() -> None:
    rng = np.random.default_rng(6)
    reference = rng.normal(size=(300, 5)).astype(np.float32) + np.array([5, 0, 0, 0, 0], np.float32)
    angle = np.linspace(0, np.pi / 2, 8)
    queries = np.zeros((8, 5), np.float32)
    queries[:, 0], queries[:, 1] = np.cos(angle), np.sin(angle)
    assert spearmanr(angle, knn_distance(ReferenceSet(reference), queries))[0] > 0.9


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"features\[1\] is zero"):
        ReferenceSet(np.array([[1.0, 0.0], [0.0, 0.0]], np.float32))
    with pytest.raises(ValueError, match="k is 5, must be between 1 and the 2"):
        ReferenceSet(np.eye(2, dtype=np.float32)).nearest(np.eye(2, dtype=np.float32))
    with pytest.raises(ValueError, match="one class"):
        fit_tied_gaussians(np.eye(2), np.array([True, True]))
    with pytest.raises(ValueError, match="do not vary"):
        fit_tied_gaussians(np.ones((4, 2)), np.array([True, True, False, False]))
