"""First members of lists in many cohorts at once, against a loop over lanes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from candor_monai.metrics import lane_walk
from candor_monai.metrics.lane_walk import CALL_BYTES, PAIR_BYTES, first_members


def slow(lists: np.ndarray, member: np.ndarray, k: int) -> np.ndarray:
    """Every lane on its own, one position after the other."""
    queries, length = lists.shape
    lanes = 64 * member.shape[1]
    out = np.full((queries, lanes, k), length)
    for query in range(queries):
        for lane in range(lanes):
            found = 0
            for position, image in enumerate(lists[query].tolist()):
                if found < k and int(member[image, lane // 64]) >> lane % 64 & 1:
                    out[query, lane, found] = position
                    found += 1
    return out


def case(
    seed: int, queries: int, length: int, words: int, share: float = 0.1, images: int = 50
) -> tuple[np.ndarray, np.ndarray]:
    """Lists with images missing at their ends, and members with the given share."""
    rng = np.random.default_rng(seed)
    lists = rng.integers(0, images, (queries, length)).astype(np.int32)
    lists[np.arange(length)[None, :] >= rng.integers(length // 2, length + 1, queries)[:, None]] = images
    return lists, packed(rng.random((images, 64 * words)) < share)


def packed(bits: np.ndarray) -> np.ndarray:
    """Members, shape (N, 64·W), bool, as words with the zero row behind."""
    words = np.packbits(bits, axis=1, bitorder="little").view("<u8").astype(np.uint64)
    return np.concatenate([words, np.zeros((1, words.shape[1]), np.uint64)])


def everyone(lists: np.ndarray, member: np.ndarray) -> np.ndarray:
    return np.full((len(lists), member.shape[1]), 2**64 - 1, np.uint64)


def test_worked_by_hand() -> None:
    lists = np.array([[3, 0, 2, 1], [1, 2, 4, 4]], np.int32)  # image 4 is no image
    member = np.zeros((5, 1), np.uint64)
    member[[0, 1, 2], 0] = 1  # cohort 0
    member[[1, 3], 0] |= np.uint64(1 << 63)  # cohort 63
    found = first_members(lists, member, everyone(lists, member), 2)
    assert found[:, 0].tolist() == [[1, 2], [0, 1]]
    assert found[:, 63].tolist() == [[0, 3], [0, 4]]
    assert found[:, 7].tolist() == [[4, 4], [4, 4]]


@given(
    st.integers(0, 10**6),
    st.integers(0, 6),
    st.sampled_from([0, 1, 2, 7, 8, 31, 32, 33, 64, 100, 257]),
    st.integers(0, 6),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    st.sampled_from([1, 40, 8192]),
)
def test_equals_a_loop(seed: int, queries: int, length: int, words: int, k: int, share: float, room: int) -> None:
    lists, member = case(seed, queries, length, words, share)
    rng = np.random.default_rng(seed + 1)
    asked = rng.random((queries, 64 * words)) < rng.choice([0.0, 0.02, 1.0])
    wanted = packed(asked)[:-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane_walk, "_WORDS", room)
        found = first_members(lists, member, wanted, k)
    assert found.shape == (queries, 64 * words, k)
    np.testing.assert_array_equal(found[asked], slow(lists, member, k)[asked])
    assert (found <= length).all(), "undefined, but in range"


@pytest.mark.parametrize(
    ("length", "dtype"), [(255, np.uint8), (256, np.uint16), (65_535, np.uint16), (65_536, np.uint32)]
)
def test_places_at_the_very_end_of_long_lists(length: int, dtype: type) -> None:
    lists = np.zeros((2, length), np.int32)
    lists[0, -1] = lists[1, -2:] = 1
    member = packed(np.array([[False] * 64, [True] * 64]))
    found = first_members(lists, member, everyone(lists, member), 2)
    assert found.dtype == dtype
    assert (found[0] == [length - 1, length]).all()
    assert (found[1] == [length - 2, length - 1]).all()


def test_rare_lanes_do_not_depend_on_the_others() -> None:
    lists, member = case(3, 40, 300, 3)
    rng = np.random.default_rng(4)
    asked = rng.random((40, 192)) < 0.02
    some = first_members(lists, member, packed(asked)[:-1], 4)
    whole = first_members(lists, member, everyone(lists, member), 4)
    np.testing.assert_array_equal(some[asked], whole[asked])


@pytest.mark.parametrize(
    ("queries", "length", "words", "k"), [(600, 1000, 4, 5), (200, 5000, 9, 2), (2000, 100, 1, 20)]
)
def test_memory_is_as_stated(queries: int, length: int, words: int, k: int) -> None:
    lists, member = case(5, queries, length, words, 0.01, images=500)
    wanted = everyone(lists, member)
    tracemalloc.start()
    first_members(lists, member, wanted, k)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < queries * words * k * PAIR_BYTES + CALL_BYTES


def test_what_does_not_fit_is_refused() -> None:
    lists, member = case(0, 2, 5, 1)
    wanted = everyone(lists, member)
    with pytest.raises(ValueError, match="k is 0: at least 1 is needed"):
        first_members(lists, member, wanted, 0)
    with pytest.raises(ValueError, match=r"wanted has shape \(1, 1\), not \(2, 1\)"):
        first_members(lists, member, wanted[:1], 1)
    member[-1] = 1
    with pytest.raises(ValueError, match="the last row of member stands for no image"):
        first_members(lists, member, wanted, 1)
