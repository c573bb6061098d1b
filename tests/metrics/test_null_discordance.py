"""Discordance of relabelled cohorts from lists, against every candidate compared."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from candor_monai.metrics.null_discordance import NullLists, Relabelled, Rules, from_distances, from_lists, from_table

IMAGES, LISTED, COHORTS = 120, 70, 64


def lanes(asked: np.ndarray) -> np.ndarray:
    """Flags, shape (B, M), as bits of a word of each listed image."""
    return (asked.astype(np.uint64) << np.arange(len(asked), dtype=np.uint64)[:, None]).sum(axis=0, dtype=np.uint64)


def case(seed: int, share: float, per_patient: int, length: int, grid: bool = False, cohorts: int = COHORTS) -> tuple:
    """Random cohorts, and distances as a table; on a grid, so that sums are exact and ties are there."""
    rng = np.random.default_rng(seed)
    table = rng.random((IMAGES, IMAGES), dtype=np.float32)
    if grid:
        table = np.round(table * 16) / 16
    key = np.arange(IMAGES) // per_patient
    images = rng.permutation(IMAGES)[:LISTED]
    far = np.where(key[images][:, None] == key[None, :], np.float32(np.inf), table[images])
    index = np.argsort(far, axis=1, kind="stable")[:, :length].astype(np.int32)
    distance = np.take_along_axis(far, index, axis=1)
    index[np.isinf(distance)], distance[np.isinf(distance)] = IMAGES, 0
    # One image a patient a side, as the draws are.
    heads = np.arange(0, IMAGES, per_patient)
    drawn = np.stack([rng.permutation(heads)[:30] for _ in range(cohorts)]) + rng.integers(0, per_patient)
    drawn = drawn.astype(np.int32)
    asked = rng.random((cohorts, LISTED)) < share

    def distances(queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        same = key[queries][:, :, None] == key[candidates][:, None, :]
        return np.where(same, np.float32(np.inf), table[queries[:, :, None], candidates[:, None, :]])

    return asked, (drawn[:, :15], drawn[:, 15:]), key, NullLists(images, index, distance, length), distances


def expected(asked: np.ndarray, sides: tuple, rules: Rules, lists: NullLists, distances) -> tuple[np.ndarray, ...]:
    queries = np.where(asked, lists.images, -1)
    return from_distances(Relabelled(queries, *sides), rules, distances, 10**6, 4)


@pytest.mark.parametrize("share", [0.0, 0.03, 0.6])
@pytest.mark.parametrize(("per_patient", "equalise"), [(1, False), (3, True)])
@pytest.mark.parametrize("length", [12, 40, IMAGES])
@pytest.mark.parametrize("k", [1, 4])
def test_equals_all_candidates(share: float, per_patient: int, equalise: bool, length: int, k: int) -> None:
    asked, sides, key, lists, distances = case(int(100 * share) + length, share, per_patient, length, grid=k == 4)
    rules = Rules(key, equalise, None, k)
    wanted = expected(asked, sides, rules, lists, distances)
    for memory in (10**9, 1000):
        found = from_lists(lanes(asked), sides, rules, lists, distances, memory, 4)
        np.testing.assert_array_equal(found, wanted)


@settings(deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.02, 0.3, 1.0]),
    st.sampled_from([(1, False), (2, False), (3, True)]),
    st.sampled_from([1, 5, 30, IMAGES]),
    st.booleans(),
    st.sampled_from([1, 2, 63, 64]),
    st.integers(1, 15),
)
def test_any_cohorts_equal_all_candidates(
    seed: int, share: float, patients: tuple[int, bool], length: int, grid: bool, cohorts: int, k: int
) -> None:
    per_patient, equalise = patients
    asked, sides, key, lists, distances = case(seed, share, per_patient, length, grid, cohorts)
    rules = Rules(key, equalise, None, k)
    found = from_lists(lanes(asked), sides, rules, lists, distances, 10**6, 4)
    np.testing.assert_array_equal(found, expected(asked, sides, rules, lists, distances))


def test_findings_that_ask_the_first_of_the_listed_only() -> None:
    """Lists serve several findings, of which some ask fewer images."""
    asked, sides, key, lists, distances = case(2, 0.5, 3, 40)
    asked[:, 33:] = False
    rules = Rules(key, True, None, 3)
    found = from_lists(lanes(asked)[:33], sides, rules, lists, distances, 10**6, 4)
    np.testing.assert_array_equal(found, expected(asked, sides, rules, lists, distances))


@settings(deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.02, 0.3, 1.0]),
    st.sampled_from([(1, False), (2, False), (3, True)]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 2, 70]),
    st.integers(1, 16),
)
def test_a_table_answers_as_distances_do(
    seed: int, share: float, patients: tuple[int, bool], balanced: bool, grid: bool, cohorts: int, k: int
) -> None:
    per_patient, equalise = patients
    asked, sides, key, lists, distances = case(seed, share, per_patient, 10, grid, cohorts)
    balance = np.random.default_rng(seed).random(IMAGES) if balanced else None
    rules = Rules(key, equalise, balance, k)
    everyone = np.arange(IMAGES)[None]
    table = np.ascontiguousarray(distances(everyone, everyone)[0])
    queries = np.where(asked, lists.images, -1)
    relabelled = Relabelled(queries, *(side.astype(np.int64) for side in sides))
    wanted = from_distances(relabelled, rules, distances, 10**6, 4)
    np.testing.assert_array_equal(from_table(relabelled, rules, table), wanted)


@pytest.mark.parametrize("per_patient", [1, 3])
@pytest.mark.parametrize("equalise", [False, True])
def test_all_candidates_worked_out_one_by_one(per_patient: int, equalise: bool) -> None:
    """Each query against its sorted candidates; whoever has fewer than k left is no query."""
    asked, sides, key, lists, distances = case(5, 0.3, per_patient, 10)
    found = expected(asked, sides, Rules(key, equalise, None, 14), lists, distances)
    for cohort, (discordant, kept) in enumerate(zip(*found, strict=True)):
        count = []
        for query in lists.images[asked[cohort]]:
            left = [[image for image in side[cohort] if key[image] != key[query]] for side in sides]
            for mine, other in ((0, 1), (1, 0)):
                if equalise and len(left[mine]) == 15 > len(left[other]):
                    left[mine] = left[mine][:-1]
            near = [np.sort(distances(query[None, None], np.array([side]))[0, 0])[:14] for side in left]
            if min(map(len, near)) == 14:
                count.append(near[1].sum(dtype=np.float64) < near[0].sum(dtype=np.float64))
        assert (discordant, kept) == (sum(count), len(count))


def test_the_lost_last_candidate_is_replaced_by_the_next() -> None:
    """The query's patient has an image in R⁺, so R⁻ loses its last; that is the query's nearest negative."""
    key = np.array([0, 0, 1, 2, 3, 4])  # the query is image 0; R⁺ = 1, 2; R⁻ = 3, 4
    far = np.float32([np.inf, np.inf, 0.5, 0.6, 0.1, 0.9])
    index = np.argsort(far, kind="stable")[None, :4].astype(np.int32)
    lists = NullLists(np.array([0]), index, far[index], 4)
    sides = np.array([[1, 2]], np.int32), np.array([[3, 4]], np.int32)

    def distances(queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        raise AssertionError("the list answers")

    found = from_lists(np.array([1], np.uint64), sides, Rules(key, True, None, 1), lists, distances, 10**6, 4)
    assert [part.tolist() for part in found] == [[0], [1]], "0.6 against 0.5, not 0.1"
    found = from_lists(np.array([1], np.uint64), sides, Rules(key, False, None, 1), lists, distances, 10**6, 4)
    assert [part.tolist() for part in found] == [[1], [1]]
