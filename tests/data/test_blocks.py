"""Fixed blocks: the same images together whatever else is missing, each image once whatever the ranks."""

from __future__ import annotations

import numpy as np
import pytest

from candor_monai.data.blocks import EMPTY, fixed_blocks, work_blocks


def test_three_ids_in_blocks_of_two_follow_the_sorted_order():
    assert fixed_blocks(["c", "a", "b"], 2).tolist() == [[1, 2], [0, EMPTY]]
    assert fixed_blocks([], 2).tolist() == []


def test_row_order_does_not_move_an_image():
    ids = [f"i{n}" for n in range(50)]
    shuffled = list(np.random.default_rng(0).permutation(ids))
    named = [[ids[i] for i in block if i >= 0] for block in fixed_blocks(ids, 7)]
    assert [[shuffled[i] for i in block if i >= 0] for block in fixed_blocks(shuffled, 7)] == named


def test_what_is_left_after_an_interruption_keeps_its_places():
    ids = [f"{n:02d}" for n in range(12)]
    missing = np.ones(12, dtype=bool)
    missing[:4] = False
    missing[5] = False  # rejected before the interruption
    assert work_blocks(ids, missing, 4).tolist() == [[4, EMPTY, 6, 7], [8, 9, 10, 11]]


def test_a_few_new_images_do_not_cost_a_whole_pass():
    ids = [f"{n:03d}" for n in range(400)]
    missing = np.zeros(400, dtype=bool)
    missing[::50] = True
    assert work_blocks(ids, missing, 4).tolist() == [[0, 50, 100, 150], [200, 250, 300, 350]]


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 13])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_every_missing_image_is_in_exactly_one_rank(n, world_size):
    ids = [f"{i:02d}" for i in range(n)]
    missing = np.arange(n) % 3 != 0
    parts = [work_blocks(ids, missing, 4, rank, world_size) for rank in range(world_size)]
    assert all(part.shape[1] == 4 for part in parts)
    dealt = np.concatenate([part.reshape(-1) for part in parts])
    assert sorted(dealt[dealt != EMPTY].tolist()) == np.flatnonzero(missing).tolist()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((["a"], np.array([True]), 0), "batch_size"),
        ((["a"], np.array([True, False]), 1), "missing has 2 values"),
        ((["a"], np.array([True]), 1, 2, 2), "rank 2"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        work_blocks(*arguments)
