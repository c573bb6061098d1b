"""Further draws read off lists: the same bits as searching each draw's own sets."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from candor_monai.metrics import redraws
from candor_monai.metrics.draw import DrawnSets, draws
from candor_monai.metrics.engine import group_questions, score_group
from candor_monai.metrics.neighbours import Counts, Neighbours, nearest
from candor_monai.metrics.observations import Observations
from candor_monai.metrics.options import Options
from candor_monai.metrics.redraws import Redraws
from candor_monai.metrics.similarity import FeatureRows
from candor_monai.metrics.sweep import search


def cohort(seed: int, images: int = 240, copies: bool = False) -> tuple[np.ndarray, Observations]:
    """Images of patients with one to four each, a common and a rare finding; ``copies``: few distinct features."""
    rng = np.random.default_rng(seed)
    labels = np.stack([rng.random(images) < 0.4, rng.random(images) < 0.08], axis=1).astype(int)
    labels[rng.random(labels.shape) < 0.05] = -1
    patient = [f"p{code}" for code in rng.integers(images // 2, size=images)]
    features = rng.integers(-1, 2, (images, 3)) + 1.5 if copies else rng.standard_normal((images, 12))
    seen = Observations([f"i{i:03d}" for i in range(images)], labels, ["edema", "mass"], patient=patient)
    return features.astype(np.float32), seen


def scored(features, seen, options):
    rows, counts = FeatureRows(features), Counts()

    def answer(requests, ks):
        return search(rows, requests, ks, seen.order, options, counts)

    (found,) = score_group([group_questions(seen, options, list(draws(seen, options)), 12)], answer)
    return found


def one_by_one(features, seen, options, redraw: int, finding: int) -> list[float]:
    """DM of one draw from exact neighbours in its own sets."""
    from candor_monai.metrics.compared_draw import compare

    draw = list(draws(seen, options))[finding]
    compared = compare(seen, options, draw, redraw, draw.n)
    found = [
        nearest(FeatureRows(features), request, options.k, order=seen.order, precision="float64").similarities
        for request in compared.requests()
    ]
    return compared.dm(found, options.k).tolist()


def planned(depth: int, alone=()):
    """In place of the plan: lists over all images of this length, and labels that have their own."""
    return lambda self, spare: (min(depth, len(self._members)), list(alone))


OPTIONS = [
    Options(k=3, sets="image", redraws=40, max_candidates=30),
    Options(k=3, sets="patient", redraws=40, max_candidates=30),
    Options(k=3, sets="image", redraws=40, max_candidates=30, balance_removed=True),
    Options(k=3, sets="image", redraws=40, max_candidates=30, exclude_same_patient=True),
    Options(k=2, sets="patient", redraws=15, max_candidates=25, ks=(1, 5), sizes=(6, 12, 20)),
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("copies", [False, True])
def test_lists_and_sets_of_their_own_give_the_same_bits(options, copies, monkeypatch):
    features, seen = cohort(1, copies=copies)
    monkeypatch.setattr(redraws, "_WORTH", 1)
    found = []
    for depth in (0, 5, 90, len(seen)):  # no list over all images, too short ones, good ones, whole ones
        monkeypatch.setattr(Redraws, "_plan", planned(depth))
        found.append(scored(features, seen, options))
    monkeypatch.setattr(redraws, "_needed", lambda k, share, members: k + 1)  # so short that many run out
    found += [scored(features, seen, options)]
    monkeypatch.setattr(Redraws, "_plan", planned(60, alone=[(0, 1)]))
    found += [scored(features, seen, options)]
    monkeypatch.setattr(redraws, "_WORTH", 10**9)
    monkeypatch.setattr(Redraws, "_plan", planned(0))
    by_sets = scored(features, seen, options)
    for cells, points in found:
        for one, two in zip(cells, by_sets[0], strict=True):
            assert one.dm_redraws.tobytes() == two.dm_redraws.tobytes()
        for one, two in zip(points, by_sets[1], strict=True):
            assert (one.redraw, one.k, one.n, one.dm.tobytes()) == (two.redraw, two.k, two.n, two.dm.tobytes())


@pytest.mark.parametrize("options", OPTIONS)
def test_threads_change_nothing(options, number_of_threads, monkeypatch):
    features, seen = cohort(3)
    monkeypatch.setattr(redraws, "_WORTH", 1)
    found = []
    for threads in (1, 3):
        number_of_threads(threads)
        found.append(scored(features, seen, options))
    (cells, points), (others, other_points) = found
    for one, two in zip(cells, others, strict=True):
        assert one.dm_redraws.tobytes() == two.dm_redraws.tobytes()
    for one, two in zip(points, other_points, strict=True):
        assert (one.redraw, one.k, one.n, one.dm.tobytes()) == (two.redraw, two.k, two.n, two.dm.tobytes())


@pytest.mark.parametrize("options", OPTIONS[:4])
def test_every_draw_is_that_of_exact_neighbours_in_its_own_sets(options, monkeypatch):
    features, seen = cohort(2)
    monkeypatch.setattr(redraws, "_WORTH", 1)
    cells, _ = scored(features, seen, options)
    for finding, redraw in itertools.product((0, 1), (1, 7, 39)):
        kept = np.isin(list(draws(seen, options))[finding].queries, cells[finding].queries)
        want = np.array(one_by_one(features, seen, options, redraw, finding))[kept]
        assert cells[finding].dm_redraws[redraw - 1].tobytes() == want.tobytes()


def test_lists_are_taken_where_they_pay():
    _, seen = cohort(3)
    few, many = (Options(k=3, sets="image", redraws=count, max_candidates=30) for count in (2, 4000))
    assert not Redraws(seen, few, list(draws(seen, few)), [3]).needs
    assert list(Redraws(seen, many, list(draws(seen, many)), [3]).needs) == [0, 1]
    _, seen = cohort(3, images=480)
    narrow = replace(many, memory_bytes=2**20)  # a quarter for lists: the common finding's take 900 kB, the other's 150
    assert list(Redraws(seen, narrow, list(draws(seen, narrow)), [3]).needs) == [1]


def test_lists_of_several_batches_and_draws_searched_in_parts_give_the_same_bits(monkeypatch):
    features, seen = cohort(5)
    options = Options(k=3, sets="patient", redraws=40, max_candidates=30, memory_bytes=2**22)
    monkeypatch.setattr(redraws, "_WORTH", 1)
    monkeypatch.setattr(Redraws, "_plan", planned(0))
    asked, plain = [], search

    def watched(rows, requests, ks, order, options, counts):
        asked.append(len(requests))
        return plain(rows, requests, ks, order, options, counts)

    found = scored(features, seen, replace(options, memory_bytes=2**30))
    monkeypatch.setitem(scored.__globals__, "search", watched)
    narrow = scored(features, seen, options)
    assert len(asked) > 4
    assert max(asked[1:]) < 2 * 39 * 2
    for one, two in zip(found[0], narrow[0], strict=True):
        assert one.dm_redraws.tobytes() == two.dm_redraws.tobytes()


def test_a_draw_without_a_query_asks_for_nothing():
    seen = Observations(list("abc"), [[1], [0], [0]], ["edema"])
    options = Options(k=1, redraws=5)
    made = Redraws(seen, options, list(draws(seen, options)), [1])

    def search_nothing(requests, ks) -> list[Neighbours]:
        raise AssertionError("nothing is to be searched for")

    assert made.requests() == ([], [])
    assert made.margins([], search_nothing) == [{}]


def test_draws_made_when_asked_for_are_those_of_their_number():
    _, seen = cohort(4)
    options = Options(k=3, redraws=5, max_candidates=10)
    draw = next(draws(seen, options))
    more = next(draws(seen, Options(k=3, redraws=50, max_candidates=10)))
    for number in range(5):
        assert [side.tolist() for side in draw.sets[number]] == [side.tolist() for side in more.sets[number]]
    assert len(draw.sets) == 5
    with pytest.raises(IndexError, match="there are 5 draws, not 6"):
        draw.sets[5]


@pytest.mark.parametrize("sets", ["image", "patient"])
def test_sets_in_any_order_are_those_of_the_draw(sets):
    _, seen = cohort(4)
    options = Options(k=3, redraws=5, max_candidates=10, sets=sets)
    for draw in draws(seen, options):
        assert isinstance(draw.sets, DrawnSets)
        for number in range(1, 5):
            for one, two in zip(draw.sets.unordered(number), draw.sets[number], strict=True):
                assert sorted(one.tolist()) == sorted(two.tolist())
