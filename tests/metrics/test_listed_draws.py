"""Margins read off lists by compiled walks, against a loop over draws and queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from candor_monai.metrics.listed_draws import copy_listed, count_listed, leave_out_last, read_margins, set_lane


@dataclass
class Case:
    """Lists of some queries, and draws."""

    lists: list[list[list[tuple[int, float]]]]  # label, query -> (image, similarity), nearest first
    whole: np.ndarray
    inside: np.ndarray  # (images, lanes), bool
    left_out: np.ndarray
    ks: Sequence[int]


def made(seed: int, queries: int, length: int, lanes: int, ks: Sequence[int], share: float, leaving: float) -> Case:
    """Images 0 to 29 positive, 30 to 69 negative; lists of any length up to ``length``, with equal similarities."""
    rng = np.random.default_rng(seed)
    sides = np.arange(30), np.arange(30, 70)
    lists = []
    for side in sides:
        of_label = []
        for _ in range(queries):
            images = rng.permutation(side)[: rng.integers(length + 1)]
            values = np.sort(rng.choice([rng.standard_normal(), *rng.standard_normal(40)], len(images)))[::-1]
            of_label.append(list(zip(images.tolist(), values.tolist(), strict=True)))
        lists.append(of_label)
    left_out = np.full((2, queries if leaving else 0, lanes if leaving else 0), -1, np.int32)
    for label in range(2 if leaving else 0):
        chosen = rng.random((queries, lanes)) < leaving
        left_out[label][chosen] = rng.choice(sides[label], chosen.sum())
    return Case(lists, rng.random((2, queries)) < 0.3, rng.random((70, lanes)) < share, left_out, ks)


def slow(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Every draw of every query on its own."""
    lanes, queries = case.inside.shape[1], case.whole.shape[1]
    margins = np.full((len(case.ks), lanes, queries), np.nan)
    unanswered = np.zeros((lanes, queries), bool)
    for lane in range(lanes):
        for query in range(queries):
            near = []
            for label in (0, 1):
                out = case.left_out[label, query, lane] if case.left_out.size else -1
                listed = case.lists[label][query]
                near.append([value for image, value in listed if case.inside[image, lane] and image != out])
            for place, k in enumerate(case.ks):
                if min(map(len, near)) >= k:
                    means = []
                    for side in near:
                        total = 0.0
                        for value in side[:k]:  # one after the other: sum() of Python adds more exactly
                            total += value
                        means.append(total / k)
                    margins[place, lane, query] = means[1] - means[0]
            short = [len(side) < case.ks[-1] for side in near]
            unanswered[lane, query] = (np.array(short) & ~case.whole[:, query]).any()
    return margins, unanswered


def read(case: Case, before: int = 0, after: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """By the kernels, with further draws before and after in the same table."""
    lanes, queries = case.inside.shape[1], case.whole.shape[1]
    lengths = np.array([[len(listed) for listed in of_label] for of_label in case.lists]).reshape(2, queries)
    start = np.zeros((2, queries + 1), np.int64)
    np.cumsum(lengths, axis=1, out=start[:, 1:])
    start[1] += start[0, -1]
    flat = [pair for of_label in case.lists for listed in of_label for pair in listed]
    member = np.zeros((71, -(-lanes // 64)), np.uint64)
    for lane in range(lanes):
        set_lane(member, np.arange(70, dtype=np.int32), np.flatnonzero(case.inside[:, lane]), lane)
    margins = np.full((len(case.ks), before + lanes + after, queries), np.nan)
    unanswered = np.ones((before + lanes + after, queries), bool)
    read_margins(
        start,
        np.array([image for image, _ in flat], np.int32),
        np.array([value for _, value in flat], np.float64),
        case.whole,
        member,
        lanes,
        case.left_out,
        np.array(case.ks, np.int64),
        before,
        margins,
        unanswered,
    )
    return margins, unanswered


def test_worked_by_hand():
    lists = [[[(0, 0.9), (1, 0.5)]], [[(3, 0.8), (2, 0.25)]]]
    inside = np.zeros((4, 66), bool)
    inside[[0, 1, 2, 3], 0] = True  # all are candidates
    inside[[1, 2], 65] = True
    inside[[0, 3], 1] = True  # one a side is left out
    left_out = np.full((2, 1, 66), -1, np.int32)
    left_out[0, 0, 1] = 0
    case = Case(lists, np.array([[False], [True]]), np.vstack([inside, np.zeros((66, 66), bool)]), left_out, [1, 2])
    margins, unanswered = read(case)
    assert margins[:, 0, 0].tolist() == [0.8 - 0.9, (0.8 + 0.25) / 2 - (0.9 + 0.5) / 2]
    assert margins[0, 65, 0] == 0.25 - 0.5
    assert np.isnan(margins[1, 65, 0])
    assert np.isnan(margins[:, 1:65]).all()
    assert unanswered[:, 0].tolist() == [False] + [True] * 65


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 5),
    st.integers(0, 40),
    st.sampled_from([1, 2, 63, 64, 65, 130]),
    st.sets(st.sampled_from([1, 2, 3, 5, 9, 25, 100]), min_size=1, max_size=4),
    st.sampled_from([0.05, 0.3, 1.0]),
    st.sampled_from([0.0, 0.1, 1.0]),
)
def test_equals_the_loop(seed, queries, length, lanes, ks, share, leaving):
    case = made(seed, queries, length, lanes, sorted(ks), share, leaving)
    want = slow(case)
    found = read(case)
    for one, two in zip(found, want, strict=True):
        assert one.tobytes() == two.tobytes()


def test_draws_before_and_after_are_left_as_they_were():
    case = made(1, 4, 30, 70, [1, 3], 0.4, 0.2)
    margins, unanswered = read(case, before=3, after=2)
    want = slow(case)
    assert margins[:, 3:73].tobytes() == want[0].tobytes()
    assert unanswered[3:73].tobytes() == want[1].tobytes()
    assert np.isnan(margins[:, [0, 1, 2, 73, 74]]).all()
    assert unanswered[[0, 1, 2, 73, 74]].all()


@given(st.integers(0, 2**32 - 1), st.integers(0, 6), st.integers(0, 12), st.floats(0, 1))
def test_lists_are_copied_less_what_is_not_chosen(seed, queries, depth, share):
    rng = np.random.default_rng(seed)
    images = 20
    rows = np.array([rng.permutation(images)[:depth] for _ in range(4)], np.int64).reshape(4, depth)
    rows[np.arange(depth)[None, :] >= rng.integers(0, depth + 1, 4)[:, None]] = -1
    similarities = rng.standard_normal(rows.shape)
    line = rng.integers(-1, 4, queries)
    chosen = np.append(rng.random(images) < share, False)
    place = rng.permutation(images + 1).astype(np.int32)
    number = np.full(queries, 7)
    count_listed(rows, line, chosen, number)
    want = [[at for at in range(depth) if rows[one, at] >= 0 and chosen[rows[one, at]]] for one in line]
    assert number.tolist() == [7 if one < 0 else len(kept) for one, kept in zip(line, want, strict=True)]
    start = np.append(0, np.cumsum(number))
    image, similarity = np.full(start[-1], -5, np.int32), np.full(start[-1], 9.0)
    copy_listed(rows, similarities, line, chosen, place, start, image, similarity)
    for query, (one, kept) in enumerate(zip(line.tolist(), want, strict=True)):
        here = slice(start[query], start[query + 1])
        if one < 0:
            assert (image[here] == -5).all()
            assert (similarity[here] == 9.0).all()
        else:
            assert image[here].tolist() == place[rows[one, kept]].tolist()
            assert similarity[here].tolist() == similarities[one, kept].tolist()


@pytest.mark.parametrize("lane", [0, 63, 64, 130])
def test_a_lane_is_one_bit_of_the_word_of_each_candidate(lane):
    member = np.zeros((6, 3), np.uint64)
    member[2] = 2**64 - 1
    place = np.array([5, 3, 4, 0, 1], np.int32)
    set_lane(member, place, np.array([1, 4, 2]), lane)
    want = np.zeros((6, 3), np.uint64)
    want[2] = 2**64 - 1
    want[[3, 1, 4], lane // 64] = np.uint64(1) << np.uint64(lane % 64)
    assert member.tolist() == want.tolist()


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 8))
def test_the_side_without_the_patient_loses_its_last_where_the_other_has_one(seed, positives, negatives):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 9, 30)
    rows = rng.permutation(30)
    pos, neg, queries = rows[:positives], rows[positives : positives + negatives], rng.integers(0, 30, 7)
    place = rng.permutation(30).astype(np.int32)
    out, sides = np.full((2, 7, 3), -1, np.int32), np.zeros(9, np.uint8)
    leave_out_last(out, codes, queries, pos, neg, place, sides, 1)
    assert not sides.any()
    assert (out[:, :, [0, 2]] == -1).all()
    for query, code in enumerate(codes[queries].tolist()):
        has_pos, has_neg = code in codes[pos], code in codes[neg]
        assert out[0, query, 1] == (place[pos[-1]] if has_neg and not has_pos else -1)
        assert out[1, query, 1] == (place[neg[-1]] if has_pos and not has_neg else -1)
