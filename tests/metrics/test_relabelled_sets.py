"""Candidate sets and queries under exchanges of labels, against plain sorting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from candor_monai.metrics.patient_exchange import PatientExchange
from candor_monai.metrics.relabelled_sets import (
    Order,
    Places,
    relabelled_lanes,
    relabelled_queries,
    relabelled_sides,
    room,
)


def exchange(rng: np.random.Generator, images: int, patients: int) -> tuple[PatientExchange, np.ndarray]:
    units = np.unique(rng.integers(0, patients, images), return_inverse=True)[1]
    names = [f"p{i}" for i in range(units.max() + 1)]
    return PatientExchange(units, names, np.zeros(images, int), np.arange(images), None, ("x",)), units


def places(made: PatientExchange, images: np.ndarray) -> Places:
    return Places(made.patient[images].astype(np.int32), made.slot[images].astype(np.int32))


def ordered(made: PatientExchange, images: np.ndarray, counted: np.ndarray) -> Order:
    place = np.empty(len(images), np.int32)
    place[images] = np.arange(len(images))
    place = np.where(counted, place, np.int32(len(images)))
    return Order(images, places(made, images), place[made.line])


def first(images: np.ndarray, unit: np.ndarray, once: bool) -> list[int]:
    """The images, of each patient the first only."""
    seen: set[int] = set()
    out = []
    for image in images.tolist():
        if not once or unit[image] not in seen:
            out.append(image)
            seen.add(unit[image])
    return out


CASE = (st.integers(0, 10**6), st.sampled_from([1, 5, 63, 64, 65, 400, 700]), st.sampled_from([1, 3, 80, 2000]))


@settings(deadline=None)
@given(*CASE, st.booleans(), st.floats(0.02, 0.98), st.integers(1, 5))
def test_sides_are_the_first_of_the_draw(
    seed: int, images: int, patients: int, once: bool, share: float, batch: int
) -> None:
    rng = np.random.default_rng(seed)
    made, unit = exchange(rng, images, patients)
    label = rng.choice(np.array([1, 0, -1], np.int8), images, p=[0.95 * share, 0.95 * (1 - share), 0.05])
    draw = rng.permutation(images).astype(np.int32)
    moves, sources = made.moves(7, batch), made.sources(7, batch)
    wanted = []
    for source in sources:
        moved = label[source]
        wanted.append([first(draw[moved[draw] == sign], unit, once) for sign in (1, 0)])
    n = min(len(side) for sides in wanted for side in sides)
    order = ordered(made, draw, np.ones(images, bool))
    for rare in (True, False):
        givers = places(made, np.flatnonzero(label == 1)[: None if rare else 0])
        out = np.full((2, batch, n), -5, np.int32)
        there = relabelled_sides(
            moves.sources,
            moves.destinations,
            label[made.line],
            order,
            givers,
            unit,
            room(made.patients, images, unit.max() + 1 if once else 0),
            *out,
        )
        assert there
        for cohort, sides in enumerate(wanted):
            for found, side in zip(out[:, cohort], sides, strict=True):
                assert found.tolist() == side[:n]


@pytest.mark.parametrize("rare", [True, False])
def test_too_few_of_a_label_are_told(rare: bool) -> None:
    made, unit = exchange(np.random.default_rng(0), 50, 20)
    label = np.zeros(50, np.int8)
    label[:4] = 1
    moves, order = made.moves(0, 2), ordered(made, np.arange(50, dtype=np.int32), np.ones(50, bool))
    givers = places(made, np.arange(4 if rare else 0))
    for n, enough in ((4, True), (5, False)):
        out = np.empty((2, 2, n), np.int32)
        work = room(made.patients, 50, 0)
        found = relabelled_sides(moves.sources, moves.destinations, label[made.line], order, givers, unit, work, *out)
        assert found == enough


@settings(deadline=None)
@given(*CASE, st.floats(0.0, 1.0), st.integers(1, 64), st.integers(1, 90))
def test_queries_and_lanes_are_the_first_in_their_order(
    seed: int, images: int, patients: int, share: float, batch: int, most: int
) -> None:
    rng = np.random.default_rng(seed)
    made, unit = exchange(rng, images, patients)
    makes = rng.random(images) < share
    may = rng.random(images) < 0.7
    images_in_turn = rng.permutation(images).astype(np.int32)
    moves, sources = made.moves(3, batch), made.sources(3, batch)
    out = np.empty((batch, most), np.int32)
    work = room(made.patients, images, 0)
    order = ordered(made, images_in_turn, may)
    relabelled_queries(moves.destinations, places(made, np.flatnonzero(makes)), order, unit, work, out)
    lanes = relabelled_lanes(moves.sources, makes[made.line], order.places, may[images_in_turn], most, work)
    for cohort, (source, found) in enumerate(zip(sources, out, strict=True)):
        asks = images_in_turn[(makes[source] & may)[images_in_turn]][:most].tolist()
        assert found.tolist() == asks + [-1] * (most - len(asks))
        assert images_in_turn[lanes >> np.uint64(cohort) & np.uint64(1) == 1].tolist() == asks
    assert not (lanes >> np.uint64(batch)).any() if batch < 64 else True
