"""The margin classifier's sweep against exact neighbours of each image."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from candor_monai.metrics import margin_block, neighbours, score_tables
from candor_monai.metrics.discordance import neighbour_mean
from candor_monai.metrics.margin_sweep import nearest_means
from candor_monai.metrics.neighbours import Counts, Request, nearest
from candor_monai.metrics.options import Options
from candor_monai.metrics.similarity import FeatureRows
from candor_monai.metrics.sweep_space import SweepSpace

from .test_sweep_space import made

KINDS = ["gauss", "cone 0.999", "equal", "opposite", "sparse", "one huge column", "one column"]


def sides_of(count: int, seed: int) -> list[Request]:
    rng = np.random.default_rng(seed)
    out = []
    for size in (150, 60, 7):
        images = np.sort(rng.choice(count, count - 40, replace=False))
        images = np.concatenate([images[::2], images[1::2]])
        for _ in range(2):
            candidates = rng.choice(images, size, replace=False)
            out.append(Request(images, candidates, np.nonzero(images[:, None] == candidates[None, :])))
    return out


def test_two_images_by_hand():
    rows = FeatureRows(np.float32([[1, 0], [1, 1], [0, 1]]))
    side = Request(np.array([0, 2]), np.array([1, 2]), (np.array([1]), np.array([1])))
    got = nearest_means(rows, [side], Options(k=1), Counts(), np.arange(3))[0]
    np.testing.assert_allclose(got, np.sqrt([0.5, 0.5]))


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_exact_neighbours_to_the_bit(kind, precision, monkeypatch):
    monkeypatch.setattr(score_tables, "_QUERIES", 100)
    rows = FeatureRows(made(kind, count=400, dimension=24))
    sides = sides_of(400, seed=1)
    options = Options(k=5, precision=precision)
    got = nearest_means(rows, sides, options, Counts(), np.arange(400))
    for side, values in zip(sides, got, strict=True):
        want = nearest(rows, side, 5, precision="float64")
        assert values.tolist() == neighbour_mean(want.similarities, 5).tolist()


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_sets_larger_than_a_part_change_no_bit(kind, precision, monkeypatch):
    """A hundred candidates are too few groups for the fast way, so every query is scored again part by part."""
    rng = np.random.default_rng(3)
    rows = FeatureRows(made(kind, count=300, dimension=24))
    images = np.sort(rng.choice(300, 260, replace=False))
    candidates = rng.choice(images, 100, replace=False)
    side = Request(images, candidates, np.nonzero(images[:, None] == candidates[None, :]))
    options = Options(k=5, precision=precision)
    whole = nearest_means(rows, [side], options, Counts(), np.arange(300))[0]
    monkeypatch.setattr(neighbours, "_PART", 64)
    split = nearest_means(rows, [side], options, Counts(), np.arange(300))[0]
    want = nearest(rows, Request(images, candidates, side.excluded), 5, precision="float64")
    assert split.tolist() == whole.tolist() == neighbour_mean(want.similarities, 5).tolist()


def test_little_memory_changes_no_bit():
    rows = FeatureRows(made("gauss", count=400, dimension=1500))
    sides = sides_of(400, seed=2)
    rich = nearest_means(rows, sides, Options(k=3), Counts(), np.arange(400))
    poor = nearest_means(rows, sides, Options(k=3, memory_bytes=2**20), Counts(), np.arange(400))
    for one, two in zip(rich, poor, strict=True):
        assert one.tolist() == two.tolist()


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", ["gauss", "cone 0.999", "opposite", "equal"])
def test_threads_and_blocks_change_no_bit(kind, precision, number_of_threads, monkeypatch):
    rows = FeatureRows(made(kind, count=400, dimension=24))
    sides = sides_of(400, seed=4)
    found = []
    for threads, images in ((1, 512), (2, 64), (5, 17)):
        number_of_threads(threads)
        monkeypatch.setattr(score_tables, "_QUERIES", images)
        means = nearest_means(rows, sides, Options(k=5, precision=precision), Counts(), np.arange(400))
        found.append([side.tobytes() for side in means])
    assert found[0] == found[1] == found[2]


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_any_sides_equal_exact_neighbours(seed):
    """Sides that share images and sets in part, or not at all, in any order; some pairs left out, some sets tiny."""
    rng = np.random.default_rng(seed)
    kind = str(rng.choice(KINDS))
    rows = FeatureRows(made(kind, count=200, dimension=12))
    k = int(rng.integers(1, 6))
    sides = []
    for _ in range(int(rng.integers(1, 6))):
        images = rng.choice(200, rng.integers(1, 200), replace=False)
        candidates = rng.choice(200, rng.integers(k, 201), replace=False)
        sides.append(Request(images, candidates, np.nonzero(rng.random((len(images), len(candidates))) < 0.02)))
    options = Options(k=k, precision=str(rng.choice(["int8", "bfloat16", "float32", "float64"])))
    got = nearest_means(rows, sides, options, Counts(), np.arange(200))
    for side, values in zip(sides, got, strict=True):
        want = exact_means(rows, side, k)
        assert values.tobytes() == want.tobytes()


def exact_means(rows: FeatureRows, side: Request, k: int) -> np.ndarray:
    """Every similarity of a side, sorted."""
    query, candidate = np.divmod(np.arange(len(side.queries) * len(side.candidates)), len(side.candidates))
    table = rows.similarities(side.queries[query], side.candidates[candidate]).reshape(len(side.queries), -1)
    table[side.excluded] = -np.inf
    table = -np.sort(-table, axis=1)[:, :k]
    out = np.full(len(table), np.nan)
    enough = np.isfinite(table[:, -1])
    out[enough] = neighbour_mean(table[enough], k)
    return out


def test_a_pair_of_several_sets_is_settled_once():
    rows = FeatureRows(made("gauss", count=400, dimension=24))
    side = sides_of(400, seed=5)[0]
    once, often = Counts(), Counts()
    nearest_means(rows, [side], Options(), once, np.arange(400))
    again = nearest_means(rows, [side] * 3, Options(), often, np.arange(400))
    assert vars(often) == vars(once)
    assert again[0].tolist() == again[1].tolist() == again[2].tolist()
    assert once.settled - once.undecided == 5 * len(side.queries)


def test_sides_that_share_little_are_scored_apart():
    """Together they would be four times as many pairs."""
    rows = FeatureRows(made("gauss", count=400, dimension=24))
    nothing = np.empty(0, np.int64)
    sides = [Request(rows_of, rows_of[:180], (nothing, nothing)) for rows_of in (np.arange(200), np.arange(200, 400))]
    counts = Counts()
    nearest_means(rows, sides, Options(), counts, np.arange(400))
    assert counts.scored == 2 * 200 * 180


def test_the_bound_of_each_pair_settles_no_more(monkeypatch):
    """One candidate far from the centre widens the bound of all; the others' own bounds are as narrow as before."""
    features = made("gauss", count=400, dimension=24) * np.float32(0.05) + np.float32(1)
    features[0] = -features[0]
    rows = FeatureRows(features)
    side = Request(np.arange(1, 400), np.arange(300), (np.arange(299), np.arange(1, 300)))
    options = Options(precision="bfloat16")
    narrow, wide = Counts(), Counts()
    got = nearest_means(rows, [side], options, narrow, np.arange(400))[0]
    monkeypatch.setattr(score_tables.Block, "trimmed", lambda self, pairs, count, k: pairs)
    same = nearest_means(rows, [side], options, wide, np.arange(400))[0]
    assert got.tobytes() == same.tobytes() == exact_means(rows, side, 5).tobytes()
    assert narrow.settled < wide.settled


def test_memory_is_bounded_whatever_the_threads(number_of_threads):
    """Four times the scores of all images would not fit the bound."""
    rows = FeatureRows(made("gauss", count=6000, dimension=32))
    nothing = np.empty(0, np.int64)
    images = np.arange(6000)
    sides = [Request(images, images[first::2], (nothing, nothing)) for first in (0, 1)]
    options = Options(memory_bytes=2**24, precision="float32")
    for threads in (1, 4):
        number_of_threads(threads)
        batch = margin_block.Batch(rows, SweepSpace(rows, images, "float32"), sides, options, threads)
        block = batch.starts().step
        assert 0 < threads * block * 6001 * 4 <= 2**22


def test_an_image_left_with_too_few_candidates_has_no_mean():
    rows = FeatureRows(made("gauss", count=10))
    side = Request(np.arange(10), np.array([0, 1, 2]), (np.array([0]), np.array([0])))
    got = nearest_means(rows, [side], Options(k=3), Counts(), np.arange(10))[0]
    assert np.isnan(got).tolist() == [True] + [False] * 9


def test_nothing_to_do():
    assert nearest_means(FeatureRows(np.eye(2, dtype=np.float32)), [], Options(), Counts(), np.arange(2)) == []
