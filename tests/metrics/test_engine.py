"""From draws to cells: every size, redraw and exclusion meets its own answer."""

from __future__ import annotations

import numpy as np

from candor_monai.metrics.draw import draws
from candor_monai.metrics.engine import group_questions, score_group
from candor_monai.metrics.neighbours import Neighbours
from candor_monai.metrics.observations import Observations
from candor_monai.metrics.options import Options


def constant_search(requests, ks):
    """Every similarity is the size of the set it comes from."""
    return [
        Neighbours(np.full((len(r.queries), k), len(r.candidates) / 1000), np.zeros((len(r.queries), k), int))
        for r, k in zip(requests, ks, strict=True)
    ]


def test_answers_go_where_they_belong():
    """20 positives and 30 negatives: sets of 20, of the common 8, and the whole group."""
    seen = Observations([f"i{i}" for i in range(50)], (np.arange(50) < 20).astype(int)[:, None], ["edema"])
    options = Options(k=2, sets="image", redraws=2, sizes=(5,), ks=(1, 3))
    ((cells, grid),) = score_group([group_questions(seen, options, list(draws(seen, options)), 8)], constant_search)
    (cell,) = cells
    assert (cell.n, cell.n_common, len(cell.queries)) == (20, 8, 20)
    assert set(cell.c_pos) == set(cell.c_neg) == {0.02}
    assert set(cell.c_pos_all) == {0.02}
    assert set(cell.c_neg_all) == {0.03}
    assert set(cell.dm_all.round(9)) == {0.01}
    assert cell.dm_common.tolist() == [0.0] * 20
    assert cell.dm_redraws.shape == (1, 20)
    points = {(point.redraw, point.n, point.k) for point in grid}
    assert points == {(redraw, n, k) for redraw in (0, 1) for n in (5, 20) for k in (1, 2, 3)}
    assert all(len(point.dm) == 20 for point in grid)


def test_an_insufficient_draw_asks_for_nothing():
    asked = []

    def search(requests, k):
        asked.extend(requests)
        return []

    seen = Observations(list("abc"), [[1], [0], [0]], ["edema"])
    options = Options(k=1)
    ((cells, grid),) = score_group([group_questions(seen, options, list(draws(seen, options)), None)], search)
    assert asked == []
    assert grid == []
    assert cells[0].status == "insufficient"
    assert len(cells[0].queries) == cells[0].n == 0
