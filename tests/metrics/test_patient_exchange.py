"""Exchanges of label vectors between patients."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from candor_monai.metrics.patient_exchange import PatientExchange, _rank, _room


def exchange(units: list[int], group: list[int], site: list[str] | None = None) -> PatientExchange:
    names = [f"p{i}" for i in range(max(units) + 1)]
    return PatientExchange(np.array(units), names, np.array(group), np.arange(len(units)), site, (42, "task"))


def test_worked_by_hand() -> None:
    # Patients 0 and 1 have two images each, patient 2 has one: only 0 and 1 can exchange.
    made = exchange([0, 0, 1, 1, 2], [0] * 5)
    assert made.movable.tolist() == [True] * 4 + [False]
    seen = {tuple(row) for row in made.sources(0, 50).tolist()}
    assert seen == {(0, 1, 2, 3, 4), (2, 3, 0, 1, 4)}


def test_signature_is_the_number_of_images_in_every_group() -> None:
    made = exchange([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 0])
    assert made.movable.tolist() == [True] * 4 + [False] * 2
    assert {tuple(row) for row in made.sources(0, 50).tolist()} == {(0, 1, 2, 3, 4, 5), (2, 3, 0, 1, 4, 5)}


def test_sites_stay_apart() -> None:
    made = exchange([0, 1, 2], [0, 0, 0], ["a", "a", "b"])
    assert made.movable.tolist() == [True, True, False]
    assert (made.sources(0, 50)[:, 2] == 2).all()


def test_images_go_in_image_id_order() -> None:
    names = ["p0", "p1"]
    made = PatientExchange(np.array([0, 0, 1, 1]), names, np.zeros(4, int), np.array([1, 0, 2, 3]), None, ("x",))
    assert {tuple(row) for row in made.sources(0, 30).tolist()} == {(0, 1, 2, 3), (3, 2, 1, 0)}


def test_uniform_and_numbered() -> None:
    made = exchange(list(range(4)), [0] * 4)
    sources = made.sources(0, 6000)
    counts = np.unique(sources, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert np.abs(counts - 250).max() < 5 * np.sqrt(250)
    np.testing.assert_array_equal(made.sources(10, 3), sources[10:13])


def test_row_order_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    units, group = rng.integers(0, 20, 60), rng.integers(0, 2, 60)
    names = [f"p{i}" for i in range(20)]
    order = rng.permutation(60)
    one = PatientExchange(units, names, group, np.arange(60), None, ("x",)).sources(0, 5)
    two = PatientExchange(units[order], names, group[order], order, None, ("x",)).sources(0, 5)
    np.testing.assert_array_equal(order[two], one[:, order])


def test_moves_are_the_sources_and_their_inverse() -> None:
    rng = np.random.default_rng(1)
    made = exchange(np.sort(rng.integers(0, 25, 60)).tolist(), rng.integers(0, 2, 60).tolist())
    for part in (made, made.within(np.flatnonzero(rng.random(60) < 2))):
        moves, sources = part.moves(3, 7), part.sources(3, 7)
        to = part.line[moves.destinations[:, part.patient] + part.slot]
        np.testing.assert_array_equal(np.take_along_axis(to, sources, axis=1), np.tile(np.arange(60), (7, 1)))
        assert len(moves) == 7


def test_a_group_has_the_same_exchanges_as_the_cohort() -> None:
    rng = np.random.default_rng(2)
    group = rng.integers(0, 2, 80)
    made = exchange(np.sort(rng.integers(0, 40, 80)).tolist(), group.tolist())
    rows = np.flatnonzero(group == 1)
    np.testing.assert_array_equal(rows[made.within(rows).sources(0, 20)], made.sources(0, 20)[:, rows])


def ranking(hashes: np.ndarray) -> np.ndarray:
    """The order of each row of hashes, shape (B, m)."""
    out = np.empty(hashes.shape, np.int64)
    room = _room(hashes.shape[1])
    for row, order in zip(hashes, out, strict=True):
        room[0][:] = row
        order[:] = _rank(*room)
    return out


@given(st.lists(st.lists(st.integers(0, 12), min_size=5, max_size=5), min_size=1, max_size=4), st.integers(0, 60))
def test_ranking_is_a_stable_sort_of_all_bits(rows: list[list[int]], shift: int) -> None:
    """Small numbers have equal leading bits, and are equal now and then."""
    hashes = np.array(rows, np.uint64) << np.uint64(shift)
    np.testing.assert_array_equal(ranking(hashes), np.argsort(hashes, axis=1, kind="stable"))
    assert ranking(np.empty((3, 0), np.uint64)).shape == (3, 0)
