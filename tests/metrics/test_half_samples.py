"""Random halves of patients, and the nearest members of either half, against loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from candor_monai.metrics.half_samples import Halves
from candor_monai.metrics.nearest_lists import nearest_lists
from candor_monai.metrics.resampling import uniform_bits
from candor_monai.metrics.similarity import FeatureRows
from tests.metrics.inference_cases import gaussian_cell


def test_worked_by_hand() -> None:
    # Four positive patients, four negative: the two with the smaller numbers are in half 1.
    bits = np.array([[1], [9], [5], [2], [7], [3], [8], [4]], np.uint16)
    halves = Halves(bits, np.array([0, 1, 2, 3]), np.array([4, 5, 6, 7]), np.array([1, 0]), k=5)
    assert halves.positive_half[:, 0].tolist() == [1, 2, 2, 1]
    assert halves.negative_half[:, 0].tolist() == [2, 1, 2, 1]
    assert halves.query_half[:, 0].tolist() == [2, 1]
    assert halves.size.tolist() == [2]
    assert halves.neighbours.tolist() == [1]  # two candidates less the query's own


def test_sets_of_a_split_are_equal_and_cut_from_the_end_of_the_draw() -> None:
    bits = np.array([[1], [2], [3], [4], [5], [6], [7]], np.uint16)
    halves = Halves(bits, np.array([0, 1, 1, 0, 0]), np.array([2, 3, 4, 5, 6]), np.array([0]), k=2)
    # Of the positives three images are in half 1 and two in half 2; every set is cut to two.
    assert halves.positive_half[:, 0].tolist() == [1, 2, 2, 1, 0]
    assert sorted(np.bincount(halves.negative_half[:, 0], minlength=3)[1:]) == [2, 2]


@pytest.mark.parametrize("images_per_patient", [1, 6])
@pytest.mark.parametrize("k", [1, 5])
def test_mean_distance_equals_a_loop(k: int, images_per_patient: int) -> None:
    cell, features, units = gaussian_cell(1, 36, 48, images_per_patient=images_per_patient)
    bits = uniform_bits([str(i) for i in range(84)], ("test",), 30)
    halves = Halves(bits, units[cell.cand_pos], units[cell.cand_neg], units[cell.queries], k)
    # Lists of three run out at once and have to be made longer.
    (lists,) = nearest_lists(FeatureRows(features), [(cell.queries, cell.cand_neg)], units, True, 3)
    found = halves.mean_distance(lists, halves.negative_half)
    index, distance = lists.longer(np.arange(len(cell.queries)), len(cell.cand_neg))
    for side in (1, 2):
        for place in range(len(cell.queries)):
            for split in range(30):
                inside = [
                    d
                    for c, d in zip(index[place], distance[place], strict=True)
                    if c < len(lists) and halves.negative_half[c, split] == side
                ]
                expected = np.mean(inside[: halves.neighbours[split]]) if inside else np.inf
                assert found[side - 1, place, split] == pytest.approx(expected, rel=1e-5)


def test_more_neighbours_than_a_byte_counts() -> None:
    cell, features, units = gaussian_cell(1, 20, 700)
    cell = replace(cell, cand_neg=cell.rows_neg)
    bits = uniform_bits([str(i) for i in range(720)], ("test",), 2)
    halves = Halves(bits, units[cell.rows_neg], units[cell.cand_neg], units[cell.queries], 300)
    assert halves.neighbours.tolist() == [300, 300]
    (lists,) = nearest_lists(FeatureRows(features), [(cell.queries, cell.cand_neg)], units, True, 700)
    found = halves.mean_distance(lists, halves.negative_half)
    for side in (1, 2):
        inside = halves.negative_half[lists.index[0], 0] == side
        assert found[side - 1, 0, 0] == pytest.approx(lists.distance[0][inside][:300].mean(), rel=1e-5)


def test_patients_stay_together_and_halves_are_balanced() -> None:
    cell, _, units = gaussian_cell(1, 60, 61, images_per_patient=3)
    bits = uniform_bits([str(i) for i in range(121)], ("test",), 50)
    halves = Halves(bits, units[cell.cand_pos], units[cell.cand_neg], units[cell.queries], 5)
    for split in range(50):
        sides = {}
        for unit, side in zip(units[cell.queries], halves.query_half[:, split], strict=True):
            assert sides.setdefault(unit, side) == side
        assert sum(side == 1 for side in sides.values()) == 10
    assert halves.size.min() >= 27  # 30 images, less one patient's three
