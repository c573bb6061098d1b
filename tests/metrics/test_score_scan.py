"""Looks at blocks of scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from candor_monai.metrics.score_scan import group_peaks, in_reach, opened_groups, places_above, taken

DTYPES = (np.int16, np.float32, np.float64)


def table(rng: np.random.Generator, rows: int, columns: int, apart: int, dtype: type) -> np.ndarray:
    """Scores with ties; what lies between their rows is above every limit."""
    whole = np.full((rows, columns + apart), np.iinfo(np.int16).max).astype(dtype)
    whole[:, :columns] = rng.integers(-9, 10, (rows, columns))
    return whole[:, :columns]


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(0, 9),
    columns=st.sampled_from([0, 1, 5, 63, 64, 65, 128, 200]),
    apart=st.sampled_from([0, 3]),
    dtype=st.sampled_from(DTYPES),
)
def test_both_equal_numpy(seed, rows, columns, apart, dtype):
    rng = np.random.default_rng(seed)
    scores = table(rng, rows, columns, apart, dtype)
    limit = rng.integers(-9, 11, columns).astype(dtype)
    row, column = places_above(scores, limit)
    expected = np.nonzero(scores >= limit)
    assert (row == expected[0]).all()
    assert (column == expected[1]).all()
    some = rng.integers(rows, size=min(rows, 4)), rng.integers(columns, size=7) if columns else np.empty(0, np.int64)
    found = taken(scores, *some)
    assert found.dtype == scores.dtype
    assert (found == scores[np.ix_(*some)]).all()


@pytest.mark.parametrize("turn", [np.transpose, np.asfortranarray, lambda scores: scores[::2, ::3]])
def test_any_layout(turn):
    scores = turn(table(np.random.default_rng(1), 40, 80, 0, np.float32))
    limit = np.full(scores.shape[1], 3, np.float32)
    found = places_above(scores, limit)
    assert all((ours == theirs).all() for ours, theirs in zip(found, np.nonzero(scores >= limit), strict=True))
    assert (taken(scores, np.array([3, 1]), np.array([0, 5])) == scores[np.ix_([3, 1], [0, 5])]).all()


def test_everything_above_is_more_than_the_first_room():
    scores = np.ones((70, 100), np.float32)
    row, column = places_above(scores, np.zeros(100, np.float32))
    assert (row == np.repeat(np.arange(70), 100)).all()
    assert (column == np.tile(np.arange(100), 70)).all()


def test_infinite_limits_and_left_out_scores():
    scores = np.array([[-np.inf, 1.0, 2.0]], np.float32)
    limit = np.array([np.finfo(np.float32).min, np.inf, 2.0], np.float32)
    assert [found.tolist() for found in places_above(scores, limit)] == [[0], [2]]


@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 4),
    number=st.integers(0, 5),
    columns=st.sampled_from([1, 5, 64, 100]),
    apart=st.sampled_from([0, 3]),
    dtype=st.sampled_from(DTYPES),
)
def test_groups_equal_numpy(seed, size, number, columns, apart, dtype):
    rng = np.random.default_rng(seed)
    scores = table(rng, 20, columns, apart, dtype)
    groups = rng.permutation(20)[: size * number].reshape(number, size)
    peaks = group_peaks(scores, groups)
    assert peaks.dtype == dtype
    assert (peaks == scores[groups].max(axis=1)).all()
    limit = rng.integers(-9, 11, columns).astype(dtype)
    member, column, score = opened_groups(scores, peaks, groups, limit)
    assert (scores[member, column] == score).all()
    inside = np.isin(np.arange(20), groups)[:, None] & (scores >= limit)
    found = sorted(zip(member.tolist(), column.tolist(), strict=True))
    assert found == [tuple(pair) for pair in np.argwhere(inside).tolist()]


def test_in_reach_equals_numpy():
    rng = np.random.default_rng(2)
    member, query = rng.integers(30, size=500), rng.integers(7, size=500)
    score = rng.standard_normal(500).astype(np.float32)
    length, residual = rng.random((2, 30))
    of_query = rng.random((3, 7))
    found = in_reach(member, query, score, length, residual, *of_query)
    reach = score + (of_query[0, query] * length[member] + of_query[1, query] * residual[member]) * (1 + 2e-6)
    assert 0 < len(found) < 500
    assert found.tolist() == np.flatnonzero(reach >= of_query[2, query]).tolist()
