"""Sorted lists of the nearest candidates, against a full sort."""

from __future__ import annotations

import numpy as np
import pytest

from candor_monai.metrics.nearest_lists import NearestLists, nearest_lists
from candor_monai.metrics.similarity import FeatureRows


def listed(
    features: np.ndarray, queries: np.ndarray, candidates: np.ndarray, units: np.ndarray, same: bool, length: int
) -> NearestLists:
    return nearest_lists(FeatureRows(features), [(queries, candidates)], units, same, length)[0]


def test_worked_by_hand() -> None:
    # The query points along x; candidates at 0°, 90°, 180° and the query itself.
    features = np.array([[2.0, 0], [1, 0], [0, 3], [-1, 0]], np.float32)
    lists = listed(features, np.array([0]), np.array([3, 0, 2, 1]), np.arange(4), False, 4)
    assert lists.index.tolist() == [[3, 2, 0, 4]]
    np.testing.assert_allclose(lists.distance, [[0, 1, 2, np.inf]], atol=1e-7)
    assert lists.units_of_nearest(2).tolist() == [1, 2]


@pytest.mark.parametrize("same_patient", [False, True])
def test_equals_a_full_sort(same_patient: bool) -> None:
    rng = np.random.default_rng(0)
    features = (rng.normal(size=(60, 5)) + 1e3 * np.eye(5)[0]).astype(np.float32)  # packed in a cone
    units = np.arange(60) // 3
    queries, candidates = np.arange(20), rng.permutation(60)[:40]
    lists = listed(features, queries, candidates, units, same_patient, 7)
    unit = features.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    for place, row in enumerate(queries):
        far = 1 - unit[candidates] @ unit[row]
        far[(units[candidates] == units[row]) if same_patient else (candidates == row)] = np.inf
        order = np.argsort(far, kind="stable")
        np.testing.assert_array_equal(lists.index[place], order[:7])
        index, distance = lists.longer(np.array([place]), 1000)
        left = np.isfinite(far).sum()
        np.testing.assert_array_equal(index[0, :left], order[:left])
        assert (index[0, left:] == 40).all()
        assert np.isinf(distance[0, left:]).all()


def test_copies_are_at_no_distance_whatever_is_computed_beside() -> None:
    """Else the last bits of a product would decide on which side a query with copies on both lies."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(10, 5)).astype(np.float32)[rng.integers(0, 10, 90)]
    queries, candidates = np.arange(90), rng.permutation(90)[:60]
    lists = listed(features, queries, candidates, np.arange(90), False, 60)
    same = (features[queries][:, None] == features[candidates][None]).all(axis=2) & (queries[:, None] != candidates)
    assert (lists.distance == 0).sum(axis=1).tolist() == same.sum(axis=1).tolist()
    alone = listed(features, queries[17:18], candidates, np.arange(90), False, 60)
    np.testing.assert_array_equal(alone.distance[0], lists.distance[17])
    np.testing.assert_array_equal(alone.index[0], lists.index[17])
