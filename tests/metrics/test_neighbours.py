"""Exact neighbours against brute force, on features made to mislead low precision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from candor_monai.metrics.neighbours import Counts, Request, flip_negative, nearest
from candor_monai.metrics.similarity import FeatureRows

from .test_sweep_space import KINDS, PRECISIONS, made


def brute(rows: FeatureRows, request: Request, k: int, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All exact similarities, sorted."""
    count, width = len(request.queries), len(request.candidates)
    exact = rows.similarities(np.repeat(request.queries, width), np.tile(request.candidates, count))
    exact = exact.reshape(count, width)
    exact[request.excluded] = -np.inf
    similarities, found = np.full((count, k), -np.inf), np.full((count, k), -1)
    for query in range(count):
        by = np.lexsort((order[request.candidates], -exact[query]))[:k]
        by = by[exact[query, by] > -np.inf]
        similarities[query, : len(by)] = exact[query, by]
        found[query, : len(by)] = request.candidates[by]
    return similarities, found


def request_over(count: int, seed: int, queries: int = 25) -> Request:
    rng = np.random.default_rng(seed)
    candidates = rng.permutation(count)[: max(1, int(0.8 * count))]
    asked = rng.choice(count, min(queries, count), replace=False)
    pairs = (asked[:, None] == candidates[None, :]) | (rng.random((len(asked), len(candidates))) < 0.02)
    return Request(asked, candidates, np.nonzero(pairs))


def test_three_angles_by_hand():
    features = np.float32([[1, 0], [1, 1], [0, 1], [-1, 0]])
    got = nearest(FeatureRows(features), Request(np.array([0]), np.array([3, 2, 1])), 2)
    assert got.rows.tolist() == [[1, 2]]
    np.testing.assert_allclose(got.similarities, [[np.sqrt(0.5), 0]])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 5, 20])
def test_equals_brute_force_to_the_bit(kind, precision, k):
    rows = FeatureRows(made(kind, count=900, dimension=40))
    request = request_over(900, seed=k)
    order = np.random.default_rng(0).permutation(900)
    want = brute(rows, request, k, order)
    got = nearest(rows, request, k, order=order, precision=precision)
    assert got.similarities.tolist() == want[0].tolist()
    assert got.rows.tolist() == want[1].tolist()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 40),
    st.integers(1, 6),
    st.integers(1, 9),
    st.sampled_from(PRECISIONS),
    st.sampled_from([0, 1, 4]),
)
def test_small_and_full_of_ties(seed, count, dimension, k, precision, levels):
    """Whole-number features: exact ties, copies, fewer candidates than k."""
    rng = np.random.default_rng(seed)
    features = rng.integers(-levels, levels + 1, (count, dimension)).astype(np.float32)
    features[(features == 0).all(axis=1), 0] = 1
    rows = FeatureRows(features)
    request = request_over(count, seed, queries=8)
    order = rng.permutation(count)
    want = brute(rows, request, k, order)
    got = nearest(rows, request, k, order=order, precision=precision)
    assert got.similarities.tolist() == want[0].tolist()
    assert got.rows.tolist() == want[1].tolist()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_thousands_of_copies_are_scored_once(precision):
    """Ten distinct images, each under 900 ids: every query has 900 exact ties."""
    rng = np.random.default_rng(1)
    rows = FeatureRows(np.repeat(rng.standard_normal((10, 16)), 900, axis=0).astype(np.float32))
    request = Request(np.arange(0, 9000, 1000), np.arange(9000), (np.arange(9), np.arange(0, 9000, 1000)))
    counts = Counts()
    got = nearest(rows, request, 5, precision=precision, counts=counts)
    assert counts.long == 9
    assert counts.settled < 200
    start = np.arange(0, 9000, 1000) // 900 * 900
    for query, row in enumerate(got.rows):
        block = np.arange(start[query], start[query] + 6)
        assert row.tolist() == block[block != query * 1000][:5].tolist()


def test_near_copies_one_ulp_apart_are_told_apart():
    rng = np.random.default_rng(2)
    base = rng.standard_normal(32).astype(np.float32)
    features = np.tile(base, (700, 1))
    for row in range(1, 700):
        column = row % 32
        for _ in range(1 + row // 32):
            features[row, column] = np.nextafter(features[row, column], np.float32(9))
    rows = FeatureRows(features)
    request = Request(np.array([0, 5]), np.arange(1, 700), (np.array([1]), np.array([4])))
    want = brute(rows, request, 7, np.arange(700))
    for precision in PRECISIONS:
        got = nearest(rows, request, 7, precision=precision)
        assert got.similarities.tolist() == want[0].tolist()
        assert got.rows.tolist() == want[1].tolist()


def test_equals_sklearn_and_faiss_where_nothing_ties():
    import faiss
    from sklearn.neighbors import NearestNeighbors

    features = np.random.default_rng(3).standard_normal((500, 24)).astype(np.float32)
    got = nearest(FeatureRows(features), Request(np.arange(50), np.arange(50, 500)), 5).rows
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    index = faiss.IndexFlatIP(24)
    index.add(unit[50:])
    assert (index.search(unit[:50], 5)[1] + 50 == got).all()
    theirs = NearestNeighbors(n_neighbors=5, metric="cosine").fit(features[50:])
    assert (theirs.kneighbors(features[:50], return_distance=False) + 50 == got).all()


def test_bits_of_bfloat16_in_order():
    import torch

    values = torch.tensor([-torch.inf, -3.0, -1.5, -1e-30, -0.0, 0.0, 1e-30, 0.25, 2.0]).bfloat16()
    bits = values.clone().view(torch.int16).numpy()
    flip_negative(bits)
    assert (np.diff(bits.astype(int)) >= 0).all()
    flip_negative(bits)
    assert torch.equal(torch.from_numpy(bits).view(torch.bfloat16), values)


def test_no_query_and_no_candidate():
    rows = FeatureRows(np.eye(3, dtype=np.float32))
    none = np.empty(0, np.int64)
    assert nearest(rows, Request(none, np.arange(3)), 2).rows.shape == (0, 2)
    assert nearest(rows, Request(np.arange(3), none), 2).rows.tolist() == [[-1, -1]] * 3


@pytest.mark.parametrize(
    ("request_", "k", "message"),
    [
        (Request(np.array([0]), np.array([1])), 0, "k is 0"),
        (Request(np.array([0, 9]), np.array([1])), 1, r"queries\[1\] is 9"),
        (Request(np.array([0]), np.array([1, -1])), 1, r"candidates\[1\] is -1"),
        (Request(np.array([0]), np.array([1, 2, 1])), 1, r"candidates\[2\] repeats row 1"),
    ],
)
def test_bad_requests_are_named(request_, k, message):
    with pytest.raises(ValueError, match=message):
        nearest(FeatureRows(np.eye(3, dtype=np.float32)), request_, k)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float64])
def test_rows_of_another_dtype_are_refused(dtype):
    rows, some = FeatureRows(np.eye(3, dtype=np.float32)), np.arange(3)
    with pytest.raises(ValueError, match=f"candidates has dtype {np.dtype(dtype)}: int64 is needed"):
        nearest(rows, Request(some, some.astype(dtype)), 1)


def test_an_order_of_fewer_rows_is_refused():
    rows, some = FeatureRows(np.ones((3, 2), np.float32)), np.arange(3)
    with pytest.raises(ValueError, match="order has 2 places: there are 3 rows"):
        nearest(rows, Request(some, some), 1, order=np.arange(2))
