"""The margin classifier's sweep against exact neighbours of each image."""

from __future__ import annotations

import numpy as np
import pytest

from candor_monai.metrics import margin_sweep, neighbours
from candor_monai.metrics.discordance import neighbour_mean
from candor_monai.metrics.margin_sweep import Side, nearest_means
from candor_monai.metrics.neighbours import Counts, Request, nearest
from candor_monai.metrics.options import Options
from candor_monai.metrics.similarity import FeatureRows

from .test_sweep_space import made

KINDS = ["gauss", "cone 0.999", "equal", "opposite", "sparse", "one huge column", "one column"]


def sides_of(count: int, seed: int) -> list[Side]:
    rng = np.random.default_rng(seed)
    out = []
    for cell, size in enumerate((150, 60, 7)):
        images = np.sort(rng.choice(count, count - 40, replace=False))
        images = np.concatenate([images[::2], images[1::2]])
        for _ in range(2):
            candidates = rng.choice(images, size, replace=False)
            out.append(Side(cell, images, candidates, np.nonzero(images[:, None] == candidates[None, :])))
    return out


def test_two_images_by_hand():
    rows = FeatureRows(np.float32([[1, 0], [1, 1], [0, 1]]))
    side = Side(0, np.array([0, 2]), np.array([1, 2]), (np.array([1]), np.array([1])))
    got = nearest_means(rows, [side], Options(k=1), Counts(), np.arange(3))[0]
    np.testing.assert_allclose(got, np.sqrt([0.5, 0.5]))


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_exact_neighbours_to_the_bit(kind, precision, monkeypatch):
    monkeypatch.setattr(margin_sweep, "_IMAGES", 100)
    rows = FeatureRows(made(kind, count=400, dimension=24))
    sides = sides_of(400, seed=1)
    options = Options(k=5, precision=precision)
    got = nearest_means(rows, sides, options, Counts(), np.arange(400))
    for side, values in zip(sides, got, strict=True):
        want = nearest(rows, Request(side.images, side.candidates, side.excluded), 5, precision="float64")
        assert values.tolist() == neighbour_mean(want.similarities, 5).tolist()


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_sets_larger_than_a_part_change_no_bit(kind, precision, monkeypatch):
    """A hundred candidates are too few groups for the fast way, so every query is scored again part by part."""
    rng = np.random.default_rng(3)
    rows = FeatureRows(made(kind, count=300, dimension=24))
    images = np.sort(rng.choice(300, 260, replace=False))
    candidates = rng.choice(images, 100, replace=False)
    side = Side(0, images, candidates, np.nonzero(images[:, None] == candidates[None, :]))
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


def test_an_image_left_with_too_few_candidates_has_no_mean():
    rows = FeatureRows(made("gauss", count=10))
    side = Side(0, np.arange(10), np.array([0, 1, 2]), (np.array([0]), np.array([0])))
    got = nearest_means(rows, [side], Options(k=3), Counts(), np.arange(10))[0]
    assert np.isnan(got).tolist() == [True] + [False] * 9


def test_nothing_to_do():
    assert nearest_means(FeatureRows(np.eye(2, dtype=np.float32)), [], Options(), Counts(), np.arange(2)) == []
