"""Heaps against sorting, with ties, short lists and targets that have nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from candor_monai.metrics import largest
from candor_monai.metrics.largest import by_target, kth_largest, write_largest, write_nearest


def members(seed: int, count: int, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Targets (some without a member) and values of few levels, so that many are equal."""
    rng = np.random.default_rng(seed)
    target = rng.integers(0, count, rng.integers(0, 12 * count))
    return target, rng.integers(-levels, levels + 1, len(target)) / levels


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 40))
def test_the_largest_are_those_of_sorting(seed: int, count: int, levels: int) -> None:
    target, value = members(seed, count, levels)
    ks = np.random.default_rng(seed).integers(1, 15, count)
    width = int(ks.max())
    table = np.full((count, width), -np.inf)
    write_largest(target, value, table)
    for one in range(count):
        mine = np.sort(value[target == one])[::-1]
        expected = np.full(width, -np.inf)
        expected[: min(len(mine), width)] = mine[:width]
        assert table[one].tolist() == expected.tolist()
    assert kth_largest(target, value, count, ks).tolist() == table[np.arange(count), ks - 1].tolist()
    assert kth_largest(target, value, count, width).tolist() == table[:, -1].tolist()
    by = by_target(target, count)
    assert by.tolist() == np.argsort(target, kind="stable").tolist()


@pytest.mark.parametrize("few", [0, 64])
@given(seed=st.integers(0, 10**6), queries=st.integers(1, 6), k=st.integers(1, 70), levels=st.integers(1, 30))
def test_the_nearest_stand_in_the_order_of_equal_similarities(
    few: int, seed: int, queries: int, k: int, levels: int
) -> None:
    rng = np.random.default_rng(seed)
    order = rng.permutation(90)
    pairs = [(query, row) for query in range(queries) for row in rng.permutation(90)[: rng.integers(0, 90)]]
    query, row = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
    similarity = rng.integers(-levels, levels + 1, len(row)) / levels
    similarities, found = np.full((queries, k), -np.inf), np.full((queries, k), -1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(largest, "_FEW", few)
        patch.setattr(largest, "_TABLE", 100)
        write_nearest(query, row, similarity, order, similarities, found)
    for one in range(queries):
        mine = [(-s, order[r], r) for q, r, s in zip(query, row, similarity, strict=True) if q == one]
        best = sorted(mine)[:k]
        missing = k - len(best)
        assert found[one].tolist() == [int(r) for _, _, r in best] + [-1] * missing
        assert similarities[one].tolist() == [-float(s) for s, _, _ in best] + [-np.inf] * missing


def test_room_that_cannot_be_written_in_place_is_refused() -> None:
    with pytest.raises(ValueError, match="largest is not contiguous"):
        write_largest(np.zeros(3, np.int64), np.arange(3.0), np.full((3, 2), -np.inf).T)
