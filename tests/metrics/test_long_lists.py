"""Lists gathered from blocks, against a sort of everything."""

from __future__ import annotations

import numpy as np
import pytest

from candor_monai.metrics.long_lists import LongLists


def gathered(distances: np.ndarray, length: int, block: int, sample: np.ndarray | None) -> tuple[np.ndarray, ...]:
    """Fill lists block by block, as the permutation test does."""
    queries, images = distances.shape
    lists = LongLists(queries, images, length)
    nothing = np.zeros(images, np.float32), np.zeros(queries, np.float32)

    def add(part: slice, first: int) -> None:
        some = slice(first, min(first + block, images))
        lists.add(part, first, -distances[part, some], nothing[0][some], nothing[1][part])

    parts = [slice(start, min(start + 3, queries)) for start in range(0, queries, 3)]
    if sample is not None:
        for part in parts:
            lists.expect(part, distances[part][:, sample])
    for first in range(0, images, block):
        for part in parts:
            add(part, first)
    short = lists.too_short()
    for query in short:
        for first in range(0, images, block):
            add(slice(query, query + 1), first)
    return *lists.result(), short


def check(distances: np.ndarray, length: int, index: np.ndarray, distance: np.ndarray) -> None:
    """The right distances in order, of the images that have them, each once."""
    ranked = np.sort(distances, axis=1)[:, :length]
    there = np.isfinite(ranked)
    np.testing.assert_array_equal(distance, np.where(there, ranked, 0))
    assert (index[~there] == distances.shape[1]).all()
    for row, (images, inside) in enumerate(zip(index, there, strict=True)):
        assert len(set(images[inside])) == inside.sum()
        np.testing.assert_array_equal(distances[row, images[inside]], ranked[row, inside])


def test_worked_by_hand() -> None:
    distances = np.float32([[3, 1, np.inf, 2, 0]])
    index, distance, _ = gathered(distances, 3, 2, None)
    assert index.tolist() == [[4, 1, 3]]
    assert distance.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("length", [1, 7, 60, 400])
@pytest.mark.parametrize("block", [1, 50, 400])
@pytest.mark.parametrize("kind", ["random", "ties", "sorted", "reversed", "none left", "few left"])
def test_equals_a_sort(kind: str, block: int, length: int) -> None:
    rng = np.random.default_rng(0)
    distances = rng.random((8, 400), dtype=np.float32)
    if kind == "ties":
        distances = np.round(distances * 3)
    elif kind in ("sorted", "reversed"):  # a first block that is no sample of the others
        distances = np.sort(distances, axis=1)[:, :: 1 if kind == "sorted" else -1].copy()
    elif kind in ("none left", "few left"):
        distances[:, (2 if kind == "few left" else 0) :] = np.inf
    for sample in (None, rng.permutation(400)[:100]):
        index, distance, _ = gathered(distances, length, block, sample)
        check(distances, length, index, distance)


def test_a_sample_that_misleads_costs_time_only() -> None:
    """The sample holds the nearest of all, so far too few are kept at first."""
    distances = np.tile(np.arange(400, dtype=np.float32), (4, 1))
    index, distance, short = gathered(distances, 100, 50, np.arange(80))
    assert short.tolist() == [0, 1, 2, 3]
    check(distances, 100, index, distance)
