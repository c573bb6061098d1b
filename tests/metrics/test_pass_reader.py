"""A request that reads its scores off a pass holds every one of its k nearest, or gives the query up."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from candor_monai.metrics.neighbours import Request
from candor_monai.metrics.pass_reader import PassReader
from candor_monai.metrics.similarity import FeatureRows
from candor_monai.metrics.sweep_space import SweepSpace

from .test_sweep_space import made

KINDS = ["gauss", "cone 0.999", "equal", "opposite", "sparse", "one huge column", "one column"]


def read_off(
    rows: FeatureRows, request: Request, k: int, members: np.ndarray, chunk: np.ndarray, precision: str, part: int
) -> PassReader:
    """What a pass over ``members`` in parts, for the queries of ``chunk``, leaves in a reader."""
    space = SweepSpace(rows, members, precision)
    place = np.full(len(rows), -1)
    place[members] = np.arange(len(members))
    reader = PassReader(space, request, k, place, chunk)
    queries, error = space.queries(chunk), np.zeros(len(chunk))
    for start in range(0, len(members), part):
        operand = space.candidates(members[start : start + part])
        np.maximum(error, space.error(operand, queries), out=error)
        scores = space.scores(operand, queries)
        reader.read((scores.view(torch.int16) if precision == "bfloat16" else scores).numpy(), start, error)
    return reader


def nearest_pairs(rows: FeatureRows, request: Request, k: int, query: int) -> set[tuple[int, int]]:
    """The k nearest of one query; those as near as the last may stand for it."""
    exact = rows.similarities(np.full(len(request.candidates), request.queries[query]), request.candidates)
    exact[request.excluded[1][request.excluded[0] == query]] = -np.inf
    by = np.argsort(-exact, kind="stable")[:k]
    kth = exact[by[-1]]
    return {(query, int(c)) for c in np.flatnonzero((exact >= kth) & (exact > -np.inf))}


def check(rows: FeatureRows, request: Request, k: int, reader: PassReader) -> int:
    """How many of the chunk's queries are served; each of them must hold its k nearest."""
    query, candidate, lost = reader.found()
    held = set(zip(query.tolist(), candidate.tolist(), strict=True))
    assert len(held) == len(query)
    assert held.isdisjoint(zip(request.excluded[0].tolist(), request.excluded[1].tolist(), strict=True))
    served = sorted(set(reader.queries.tolist()) - set(lost.tolist()))
    assert set(query.tolist()) <= set(served)
    for place in served:
        assert nearest_pairs(rows, request, k, place) <= held
    return len(served)


def test_two_parts_by_hand():
    rows = FeatureRows(np.float32([[1, 0], [1, 0.1], [1, 0.5], [0, 1], [1, 0.05]]))
    request = Request(np.array([0]), np.array([4, 3, 1]), (np.array([0]), np.array([0])))
    reader = read_off(rows, request, 1, np.array([1, 2, 3, 4]), np.array([0]), "float32", 2)
    assert [part.tolist() for part in reader.found()] == [[0], [2], []]


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_every_one_of_the_nearest_is_held(seed):
    rng = np.random.default_rng(seed)
    rows = FeatureRows(made(str(rng.choice(KINDS)), count=150, dimension=12))
    members = np.sort(rng.choice(150, rng.integers(20, 151), replace=False))
    candidates = rng.choice(members, rng.integers(1, len(members) + 1), replace=False)
    queries = rng.choice(150, rng.integers(1, 40), replace=False)
    chunk = np.sort(rng.choice(150, rng.integers(1, 150), replace=False))
    request = Request(queries, candidates, np.nonzero(rng.random((len(queries), len(candidates))) < 0.05))
    k = int(rng.integers(1, 7))
    precision = str(rng.choice(["int8", "bfloat16", "float32", "float64"]))
    reader = read_off(rows, request, k, members, chunk, precision, int(rng.choice([1, 7, 40, 150])))
    assert set(queries[reader.queries].tolist()) == set(queries.tolist()) & set(chunk.tolist())
    check(rows, request, k, reader)


def test_a_wider_bound_that_comes_late_leaves_nothing_out():
    """The first part's limit is too high for a candidate whose score may be further from its similarity."""
    rows = FeatureRows(made("gauss", count=9, dimension=4))
    space = SweepSpace(rows, np.arange(8), "float32")
    reader = PassReader(space, Request(np.array([8]), np.arange(8)), 1, np.arange(9), np.array([8]))
    reader.read(np.float32([[0.5], [0.4], [0.1], [0.2]]), 0, np.array([0.001]))
    reader.read(np.float32([[0.45], [0.0], [0.39], [-1.0]]), 4, np.array([0.1]))
    # The similarity of the first is at least 0.499; that of the fifth may be 0.55, that of the seventh 0.49.
    assert [part.tolist() for part in reader.found()] == [[0, 0], [0, 4], []]


def test_a_query_with_too_many_near_ties_is_given_up():
    rows = FeatureRows(made("equal", count=300, dimension=12))
    request = Request(np.arange(5), np.arange(5, 300))
    reader = read_off(rows, request, 3, np.arange(300), np.arange(5), "float32", 50)
    assert check(rows, request, 3, reader) == 0


def test_nearly_all_are_served():
    rows = FeatureRows(made("gauss", count=600, dimension=24))
    request = Request(np.arange(100), np.arange(100, 600, 2))
    reader = read_off(rows, request, 5, np.arange(600), np.arange(100), "float32", 64)
    assert check(rows, request, 5, reader) >= 99
