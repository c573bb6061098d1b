"""Exact similarities: against plain Python, to the bit, and independent of everything but the two rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from candor_monai.metrics.similarity import FeatureRows, fixed_order_dot

from . import reference


def test_a_dot_product_by_hand():
    assert fixed_order_dot(np.float32([[1, 2, 3]]), np.float32([[4, 5, 6]])).tolist() == [32.0]


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 200))
def test_equals_plain_python_to_the_bit(data, width):
    numbers = st.floats(-(2.0**60), 2.0**60, width=32, allow_subnormal=True)
    pair = data.draw(hnp.arrays(np.float32, (2, width), elements=numbers))
    assert fixed_order_dot(pair[:1], pair[1:]).tolist() == [reference.dot(*pair.tolist())]


@pytest.mark.parametrize("width", [1, 63, 64, 65, 128, 130, 768])
def test_near_the_exactly_rounded_sum(width):
    pair = np.random.default_rng(width).standard_normal((2, width)).astype(np.float32)
    exact = math.fsum(float(a) * float(b) for a, b in zip(*pair, strict=True))
    assert fixed_order_dot(pair[:1], pair[1:])[0] == pytest.approx(exact, abs=1e-13)


def test_the_pairs_beside_it_change_no_bit(number_of_threads):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((300, 77)).astype(np.float32)
    left, right = rng.integers(300, size=(2, 9000))
    whole = FeatureRows(features).similarities(left, right)
    few = np.concatenate(
        [FeatureRows(features).similarities(left[i : i + 7], right[i : i + 7]) for i in range(0, 70, 7)]
    )
    assert few.tolist() == whole[:70].tolist()
    number_of_threads(2)
    assert FeatureRows(features).similarities(left, right).tolist() == whole.tolist()
    assert FeatureRows(features).similarities(right, left).tolist() == whole.tolist()
    assert FeatureRows(np.asfortranarray(features)).similarities(left, right).tolist() == whole.tolist()


def test_powers_of_two_change_no_bit():
    rng = np.random.default_rng(1)
    features = rng.standard_normal((20, 33)).astype(np.float32)
    scaled = features * (np.float32(2) ** rng.integers(-60, 60, (20, 1))).astype(np.float32)
    left, right = rng.integers(20, size=(2, 50))
    assert (
        FeatureRows(scaled).similarities(left, right).tolist()
        == FeatureRows(features).similarities(left, right).tolist()
    )


def test_equals_sklearn():
    from sklearn.metrics.pairwise import cosine_similarity

    features = np.random.default_rng(2).standard_normal((30, 50)).astype(np.float32)
    left, right = np.divmod(np.arange(900), 30)
    got = FeatureRows(features).similarities(left, right).reshape(30, 30)
    np.testing.assert_allclose(got, cosine_similarity(features.astype(np.float64)), atol=1e-14)


def test_codes_tell_equal_rows_from_different_ones():
    features = np.float32([[1, 2], [1, 2], [1, 3], [2, 4], [1, 2]])
    codes = FeatureRows(features).codes(np.arange(5))
    assert codes[0] == codes[1] == codes[4]
    assert len({int(code) for code in codes}) == 3


def test_tensors_and_read_only_memory_are_taken():
    features = np.random.default_rng(3).standard_normal((5, 4)).astype(np.float32)
    features.setflags(write=False)
    want = FeatureRows(features).similarities(np.array([0]), np.array([1]))
    assert FeatureRows(torch.tensor(features)).similarities([0], [1]) == want


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.zeros((2, 2, 2), np.float32), r"features has shape \(2, 2, 2\)"),
        (np.zeros((2, 0), np.float32), r"features has shape \(2, 0\)"),
        (np.ones((2, 2), np.float16), "features has dtype float16"),
        (np.ones((2, 2), np.int64), "features has dtype int64"),
        ([[1.0]], "features is list"),
        (np.float32([[1, 1], [0, 0]]), r"features\[1\] is all zero"),
        (np.float32([[1, 1], [0, np.nan]]), r"features\[1\] holds a NaN"),
        (np.float32([[np.inf, 1], [0, np.nan]]), r"features\[0\] holds a NaN or an infinite"),
    ],
)
def test_bad_features_are_named(features, message):
    with pytest.raises(ValueError, match=message):
        FeatureRows(features)


def test_the_first_bad_row_is_named_across_blocks():
    features = np.ones((20000, 1), np.float32)
    features[[17000, 19000]] = 0
    with pytest.raises(ValueError, match=r"features\[17000\] is all zero"):
        FeatureRows(features)


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (np.ones((1, 2), np.float32), np.ones((1, 3), np.float32), "left has shape"),
        (np.ones(2, np.float32), np.ones(2, np.float32), "left has shape"),
        (np.ones((1, 2)), np.ones((1, 2), np.float32), "left has dtype float64"),
    ],
)
def test_bad_pairs_are_named(left, right, message):
    with pytest.raises(ValueError, match=message):
        fixed_order_dot(left, right)


def test_subnormal_and_huge_rows():
    features = np.float32([[1e-42, 2e-42], [1e38, 2e38], [1, 2]])
    assert FeatureRows(features).similarities([0, 1], [1, 2]).tolist() == pytest.approx([1, 1], abs=1e-3)


def test_pairs_that_are_not_there_are_refused():
    rows = FeatureRows(np.float32([[1, 0], [1, 1]]))
    for left, right in (([10**9], [0]), ([0], [2]), ([-3], [0])):
        with pytest.raises(IndexError):
            rows.similarities(left, right)
    with pytest.raises(ValueError, match=r"left has shape \(3,\), right \(1,\)"):
        rows.similarities([0, 0, 0], [0])
