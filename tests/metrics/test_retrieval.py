"""R-precision and MAP@R against the definitions, and their chance levels."""

import numpy as np
import pytest

from candor_monai.metrics.retrieval import chance, retrieval


def test_by_hand() -> None:
    # angles 0, 10, 20, 30 degrees; positives 0, 20, 30. Query 0: R = 2, nearest 10 (neg), 20 (pos):
    # R-precision 1/2, MAP@R = (1/2)·(1/2) = 1/4
    angle = np.deg2rad([0.0, 10.0, 20.0, 30.0])
    features = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    found = retrieval(features, np.array([True, False, True, True]), np.array([0]))
    assert (found.r_precision, found.map_at_r) == (0.5, 0.25)
    assert found.chance_r_precision == pytest.approx(2 / 3)


def _slow(features: np.ndarray, positive: np.ndarray, query: int, owner: np.ndarray) -> tuple[float, float]:
    unit = features.astype(float) / np.linalg.norm(features.astype(float), axis=1, keepdims=True)
    others = [i for i in range(len(unit)) if owner[i] != owner[query]]
    others.sort(key=lambda i: -float(unit[i] @ unit[query]))
    relevant = sum(positive[i] for i in others)
    hits = [bool(positive[i]) for i in others[:relevant]]
    precision = [sum(hits[: i + 1]) / (i + 1) for i in range(relevant)]
    return sum(hits) / relevant, sum(p * h for p, h in zip(precision, hits, strict=True)) / relevant


def test_equals_the_definition_with_patients_left_out() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(80, 5)).astype(np.float32)
    positive = rng.random(80) < 0.3
    owner = np.arange(80) // 2
    queries = np.flatnonzero(positive)
    found = retrieval(features, positive, queries, owner)
    slow = np.mean([_slow(features, positive, int(q), owner) for q in queries], axis=0)
    assert (found.r_precision, found.map_at_r) == pytest.approx(tuple(slow), abs=1e-12)


def test_chance_is_what_random_rankings_give() -> None:
    rng = np.random.default_rng(1)
    relevant, total = 6, 20
    values = []
    for _ in range(20_000):
        hits = (rng.permutation(total) < relevant)[:relevant]
        values.append((hits.mean(), (np.cumsum(hits) / np.arange(1, relevant + 1) * hits).sum() / relevant))
    assert chance(relevant, total) == pytest.approx(tuple(np.mean(values, axis=0)), abs=0.004)


def test_features_that_are_all_equal_are_near_chance() -> None:
    rng = np.random.default_rng(2)
    positive = rng.random(400) < 0.25
    found = retrieval(np.ones((400, 3)), positive, np.flatnonzero(positive))
    assert found.r_precision == pytest.approx(found.chance_r_precision, abs=0.08)


def test_a_lone_positive_has_no_score() -> None:
    found = retrieval(np.eye(3), np.array([True, False, False]), np.array([0]))
    assert found.r_precision is None
    assert found.reason


def test_no_query_has_no_score() -> None:
    assert retrieval(np.eye(3), np.array([False] * 3), np.array([], dtype=int)).n_queries == 0


def test_a_negative_query_is_refused() -> None:
    with pytest.raises(ValueError, match="query row 1 is not a positive"):
        retrieval(np.eye(2), np.array([True, False]), np.array([1]))
