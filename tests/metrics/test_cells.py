"""A cell's queries of both labels."""

from __future__ import annotations

import numpy as np

from candor_monai.metrics.cells import Cell


def test_a_negative_query_is_discordant_when_it_is_nearer_the_positives():
    rows, dm = np.arange(4), np.array([0.1, -0.1, -0.1, 0.0])
    cell = Cell(
        "edema",
        "AP",
        rows[:2],
        rows[2:],
        rows[:2],
        rows[2:],
        rows,
        np.array([1, 1, 0, 0], np.int8),
        np.zeros(4, bool),
        *(dm,) * 6,
        None,
        "ok",
        None,
    )
    assert cell.n == 2
    assert cell.own.tolist() == [True, True, False, False]
    assert cell.discordant.tolist() == [True, False, True, False]
