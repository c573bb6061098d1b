"""Keyed hashes: against the plain-Python reference, and what they must not depend on."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from candor_monai.metrics.keyed_hash import KeyedRanks, id_digests, keyed_first, keyed_hash, keyed_rank, stable_fraction

from . import reference

hashing = sys.modules[KeyedRanks.__module__]  # the package's attribute of this name is the function

KEYS = st.lists(st.one_of(st.text(max_size=8), st.integers(-(2**70), 2**70)), max_size=4)
IDS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), min_size=1, max_size=20)


def test_a_known_value_never_changes():
    """Draws of published results must be drawn again the same for ever."""
    assert keyed_hash(["image 1"], "draw", 42, "chest", "edema").tolist() == [0x945E31D1B94201D8]


@given(IDS, KEYS)
def test_equals_the_reference(ids, key):
    assert keyed_hash(ids, *key).tolist() == [reference.keyed_hash(name, *key) for name in ids]


@given(IDS, KEYS)
def test_depends_on_the_id_alone_and_digests_stand_for_ids(ids, key):
    whole = keyed_hash(ids, *key)
    assert whole.tolist() == [int(keyed_hash([name], *key)[0]) for name in ids]
    assert whole.tolist() == keyed_hash(id_digests(ids), *key).tolist()


def test_parts_of_a_key_do_not_run_into_each_other():
    keys = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), (1, 2), (12,), ("1", 2), (1, "2"), ()]
    values = [int(keyed_hash(["x"], *key)[0]) for key in keys]
    assert len(set(values)) == len(keys)


def test_rank_is_the_order_of_the_hashes():
    ids = [f"image {i}" for i in range(500)]
    order = keyed_rank(ids, "draw", 1)
    assert sorted(order.tolist()) == list(range(500))
    hashes = keyed_hash(ids, "draw", 1)[order]
    assert (hashes[1:] >= hashes[:-1]).all()


@given(st.integers(0, 300), st.integers(0, 120), st.integers(0, 1000))
def test_the_first_of_the_rank_without_the_rest(images, count, key):
    ids = [f"image {i}" for i in range(images)]
    assert keyed_first(ids, count, key).tolist() == keyed_rank(ids, key)[:count].tolist()
    twice = ids + ids[:5]
    assert len(keyed_first(twice, count, key)) == min(count, len(twice))


def test_equal_ids_do_not_break_the_rank():
    assert sorted(keyed_rank(["a", "a", "b"], 0).tolist()) == [0, 1, 2]


@given(st.integers(0, 60), st.integers(0, 70), st.integers(0, 2**32 - 1))
def test_further_rankings_equal_the_reference(images, count, number):
    ids = [f"image {i}" for i in range(images)]
    ranks = KeyedRanks(ids, "draws", 3)
    ranked = sorted(range(images), key=lambda i: reference.ranking_number(ids[i], number, "draws", 3))
    assert ranks.first(count, number).tolist() == ranked[:count]
    assert sorted(ranks.first_unordered(count, number).tolist()) == sorted(ranked[:count])
    items = 100 - np.arange(images)
    named = KeyedRanks(ids, "draws", 3, items=items)
    assert named.first(count, number).tolist() == items[ranked[:count]].tolist()
    assert sorted(named.first_unordered(count, number).tolist()) == sorted(items[ranked[:count]].tolist())


def test_further_rankings_do_not_depend_on_the_rows_and_order_what_ties_by_id(monkeypatch):
    ids = [f"image {i}" for i in range(200)]
    backwards = KeyedRanks(ids[::-1], 7).first(30, 5)
    assert [ids[199 - place] for place in backwards] == [ids[place] for place in KeyedRanks(ids, 7).first(30, 5)]
    monkeypatch.setattr(hashing, "keyed_hash", lambda digests, *key: np.zeros(len(digests), np.uint64))
    tied = [sorted(ids[place] for place in KeyedRanks(ids, 7).first(9, number)) for number in (1, 2)]
    tied.append(sorted(ids[199 - place] for place in KeyedRanks(ids[::-1], 7).first(9, 1)))
    assert tied[0] == tied[1] == tied[2]


def mixed(high: int, low: int, word: int) -> int:
    """The 32 bits by which an id is ranked, in whole numbers of Python."""
    first = (high ^ word) * 0x7FEB352D % 2**32
    return ((first ^ first >> 16 ^ low) * 0x846CA68B) % 2**32


@given(
    st.sampled_from([0, 1, 1023, 1024, 1025, 3000]),
    st.one_of(st.sampled_from([1, 2**32]), st.integers(1, 2**32)),
    st.integers(0, 2**32 - 1),
    st.integers(0, 4000),
    st.integers(0, 2**32 - 1),
)
def test_what_is_mixed_below_a_limit_is_written_and_beyond_the_room_counted(images, limit, number, room, seed):
    rng = np.random.default_rng(seed)
    ranks = KeyedRanks([], "draws")
    ranks._high, ranks._low = rng.integers(0, 2**32, (2, images), dtype=np.uint32)
    word = number * 0x9E3779B1 % 2**32
    word = (word ^ word >> 16) * 0x85EBCA6B % 2**32
    values = [mixed(high, low, word) for high, low in zip(ranks._high.tolist(), ranks._low.tolist(), strict=True)]
    want = [value << 32 | place for place, value in enumerate(values) if value < limit]
    assert ranks._below(limit, number, room).tolist() == want
    out = np.zeros(room + 3, np.uint64)
    kernel = hashing._mixed_below
    assert kernel(ranks._high, ranks._low, np.uint32(word), np.uint32(limit - 1), out[:room]) == len(want)
    assert out.tolist() == [*(want + [0] * room)[:room], 0, 0, 0]


def test_a_known_further_ranking_never_changes():
    ids = [f"image {i}" for i in range(1000)]
    assert KeyedRanks(ids, "draws", 42).first(5, 1).tolist() == [236, 46, 646, 24, 479]


def test_further_rankings_are_uniform_draws():
    """Inclusion of one id, of pairs, of one id in two draws, and the spread of a mean are those of random samples."""
    images, count, number = 500, 60, 2000
    ranks = KeyedRanks([f"image {i}" for i in range(images)], "draws")
    drawn = np.zeros((number, images))
    for draw in range(number):
        drawn[draw, ranks.first(count, draw + 1)] = 1
    share = count / images
    times = drawn.sum(axis=0)
    assert stats.chi2.sf(((times - number * share) ** 2).sum() / (number * share * (1 - share)), images - 1) > 1e-3
    together = (drawn.T @ drawn)[np.triu_indices(images, 1)]
    expected = share * (count - 1) / (images - 1)
    assert together.var() / (number * expected * (1 - expected)) == pytest.approx(1, abs=0.03)
    kept = (drawn[1:] * drawn[:-1]).sum(axis=1)
    spread = count * share * (1 - share) * (images - count) / (images - 1)
    assert kept.mean() == pytest.approx(count * share, abs=4 * np.sqrt(spread / number))
    values = np.random.default_rng(0).standard_normal(images)
    means = drawn @ values / count
    assert means.var() / (values.var(ddof=1) / count * (1 - share)) == pytest.approx(1, abs=0.15)


def test_fractions_are_uniform_and_keys_independent():
    ids = [f"image {i}" for i in range(20000)]
    one, two = stable_fraction(ids, "a"), stable_fraction(ids, "b")
    assert (one >= 0).all()
    assert (one < 1).all()
    assert stats.kstest(one, "uniform").pvalue > 1e-4
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.03
    assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 0.03


def test_nothing_in_nothing_out():
    assert keyed_hash([], 1).shape == (0,)
    assert keyed_rank([], 1).shape == (0,)


@pytest.mark.parametrize(("ids", "message"), [([1], r"ids\[0\] is int"), (["a", None], r"ids\[1\] is NoneType")])
def test_ids_are_text(ids, message):
    with pytest.raises(ValueError, match=message):
        keyed_hash(ids, 1)


@pytest.mark.parametrize("part", [1.5, None, True, b"x"])
def test_key_parts_are_text_or_whole_numbers(part):
    with pytest.raises(ValueError, match=r"key\[1\]"):
        keyed_hash(["a"], "seed", part)
