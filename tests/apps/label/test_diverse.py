"""Covering the feature space: by hand, against the slow definition, and the same on any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from candor_monai.apps.label.diverse import _whole_numbers, farthest_first


def slow(features: np.ndarray, order: np.ndarray, labelled: np.ndarray, most: int) -> list[int]:
    whole = _whole_numbers(features).astype(np.int64)
    distance = ((whole[:, None] - whole[None]) ** 2).sum(axis=2)
    centres, chosen = np.flatnonzero(labelled).tolist(), []
    while len(chosen) < min(most, int((~labelled).sum())):
        free = [i for i in range(len(features)) if i not in centres]
        if centres:
            best = max(free, key=lambda i: (distance[i, centres].min(), -order[i]))
        else:
            best = min(free, key=lambda i: ((whole[i] ** 2).sum(), order[i]))
        centres.append(best)
        chosen.append(best)
    free = [i for i in range(len(features)) if i not in centres]
    return chosen + sorted(free, key=lambda i: (-distance[i, centres].min(), order[i]))


@pytest.mark.parametrize("labelled", [0, 1, 7])
@pytest.mark.parametrize("most", [0, 1, 10, 100])
def test_the_order_is_that_of_the_definition(labelled: int, most: int) -> None:
    rng = np.random.default_rng(labelled)
    features = (rng.standard_normal((40, 5)) + 3).astype(np.float32)
    features[30:] = features[:10]  # copies
    order = rng.permutation(40)
    known = np.zeros(40, bool)
    known[rng.choice(40, labelled, replace=False)] = True
    if most or labelled:
        assert farthest_first(features, order, known, most).tolist() == slow(features, order, known, most)
    assert sorted(farthest_first(features, order, known, most).tolist()) == np.flatnonzero(~known).tolist()


def test_products_are_exact_in_float32() -> None:
    """What makes the order independent of threads and machines: no sum is rounded, in whatever order it is taken."""
    rng = np.random.default_rng(0)
    for width in (1, 7, 768, 4096):
        for shift in (0, 50):  # packed in a cone
            features = (rng.standard_normal((200, width)) + shift).astype(np.float32)
            whole = _whole_numbers(features)
            assert (whole == np.rint(whole)).all()
            assert (np.abs(whole.astype(np.float64)) @ np.abs(whole.astype(np.float64)).T).max() < 2**24
            exact = whole.astype(np.int64) @ whole.astype(np.int64).T
            np.testing.assert_array_equal((whole @ whole.T).astype(np.int64), exact)


def test_odd_sets() -> None:
    same = np.ones((5, 3), np.float32)
    assert farthest_first(same, np.arange(5)[::-1], np.zeros(5, bool)).tolist() == [4, 3, 2, 1, 0]
    assert farthest_first(same, np.arange(5), np.ones(5, bool)).tolist() == []
    assert farthest_first(same[:1], np.arange(1), np.zeros(1, bool)).tolist() == [0]
