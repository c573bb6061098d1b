"""What requests pick from kept scores: every one that the bound cannot rule out, or the query is not served."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from candor_monai.metrics import neighbours as nb
from candor_monai.metrics.kept_scores import KeptScores, by_query_and_value, pick
from candor_monai.metrics.neighbours import Request
from candor_monai.metrics.similarity import FeatureRows
from candor_monai.metrics.sweep_space import SweepSpace

from .test_sweep_space import made


def kept_of(scores: np.ndarray, limit: np.ndarray, error: np.ndarray) -> KeptScores:
    """From all scores, shape (queries, candidates)."""
    query, member = np.nonzero(scores >= limit[:, None])
    return KeptScores.of_raw(query, member, scores[query, member], limit.astype(np.float64), error)


def slow_pick(space, request, members, chunk, scores, limit, error, k):
    """{query: candidates that may be among its k nearest}, and the queries that are not served."""
    found, unserved = {}, set()
    column = {int(row): at for at, row in enumerate(members)}
    for place, row in enumerate(request.queries):
        at = np.flatnonzero(chunk == row)
        if not len(at):
            continue
        (at,) = at
        left_out = set(request.excluded[1][request.excluded[0] == place].tolist())
        mine = [
            (float(scores[at, column[int(c)]]), number)
            for number, c in enumerate(request.candidates)
            if number not in left_out and scores[at, column[int(c)]] >= limit[at]
        ]
        lower = sorted((nb.lower_bound(space, np.float64(v), error[at]) for v, _ in mine), reverse=True)
        floor = lower[k - 1] if len(lower) >= k else -np.inf
        chosen = {number for v, number in mine if nb.upper_bound(space, np.float64(v), error[at]) >= floor}
        if not floor > nb.upper_bound(space, np.float64(limit[at]), error[at]) or len(chosen) > nb.crowd(k):
            unserved.add(place)
        else:
            found[place] = chosen
    return found, unserved


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=80, deadline=None)
def test_equals_a_look_at_every_pair(seed):
    rng = np.random.default_rng(seed)
    rows = FeatureRows(made("gauss", count=80, dimension=6))
    precision = str(rng.choice(["float32", "bfloat16"]))
    space = SweepSpace(rows, np.arange(80), precision)
    members = np.sort(rng.choice(80, 50, replace=False))
    chunk = np.sort(rng.choice(80, 20, replace=False))
    request = Request(rng.permutation(80)[:30], rng.permutation(members)[: rng.integers(1, 50)])
    query, candidate = np.nonzero(rng.random((30, len(request.candidates))) < 0.1)
    by = rng.permutation(len(query))
    request = replace(request, excluded=(query[by], candidate[by]))
    # Few distinct numbers: ties. Those of bfloat16 are its own.
    scores = rng.integers(1, 9, (20, 50)).astype(np.float32) / 8
    limit, error = rng.integers(0, 7, 20).astype(np.float32) / 8 + 1 / 16, rng.choice([1e-3, 0.2], 20)
    raw = scores if precision == "float32" else (scores.view(np.int32) >> 16).astype(np.int16)
    query, member = np.nonzero(scores >= limit[:, None])
    kept = KeptScores.of_raw(query, member, raw[query, member], limit.astype(np.float64), error)
    place_of_row = np.full(80, -1)
    place_of_row[members] = np.arange(50)
    k = int(rng.integers(1, 6))
    needed = np.full(20, np.inf)
    got_query, got_candidate, left = pick(space, request, place_of_row, chunk, kept, k, needed)
    want, unserved = slow_pick(space, request, members, chunk, scores, limit, error, k)
    assert set(left.tolist()) == unserved
    got: dict[int, set[int]] = {place: set() for place in want}
    for place, candidate in zip(got_query.tolist(), got_candidate.tolist(), strict=True):
        assert candidate not in got[place]
        got[place].add(candidate)
    assert got == want
    # A second pass with the limit that is asked for serves whoever had k candidates.
    again = nb.floor_to(np.minimum(needed, limit), np.dtype(np.float32))
    after, _ = slow_pick(space, request, members, chunk, scores, again, error, k)
    asked = {int(row): at for at, row in enumerate(chunk)}
    assert set(after) >= {p for p in unserved if np.isfinite(needed[asked[int(request.queries[p])]])}


def test_what_is_above_a_higher_limit():
    scores = np.float32([[0.5, 0.25, 0.75], [0.5, 1.0, 0.125]])
    kept = kept_of(scores, np.float32([0.25, 0.125]), np.zeros(2))
    assert kept.member.tolist() == [2, 0, 1, 1, 0, 2]
    higher = kept.above(np.array([0.5, 0.0]))
    assert higher.start.tolist() == [0, 2, 5]
    assert higher.member.tolist() == [2, 0, 1, 0, 2]
    assert higher.limit.tolist() == [0.5, 0.125]


def test_a_crowded_query_is_not_served(monkeypatch):
    monkeypatch.setattr(nb, "LONG", 0)
    rows = FeatureRows(made("equal", count=12, dimension=4))
    space = SweepSpace(rows, np.arange(12), "float32")
    scores = np.full((1, 11), 0.5, np.float32)
    kept = kept_of(scores, np.float32([0.1]), np.array([1e-6]))
    request = Request(np.array([11]), np.arange(11))
    query, candidate, left = pick(space, request, np.append(np.arange(11), -1), np.array([11]), kept, 5)
    assert (len(query), len(candidate), left.tolist()) == (0, 0, [0])


@pytest.mark.parametrize("dtype", [np.int16, np.float32, np.float64])
def test_order_of_kept_scores(dtype):
    rng = np.random.default_rng(0)
    query, member = rng.integers(0, 9, 300), rng.permutation(300)
    value = rng.integers(1, 50, 300).astype(dtype)
    got = by_query_and_value(query, member, value)
    by = np.lexsort((-value.astype(np.float64), query))
    assert (got[0] == query[by]).all()
    assert (got[2] == value[by]).all()
    assert sorted(zip(*map(np.ndarray.tolist, got), strict=True)) == sorted(
        zip(query.tolist(), member.tolist(), value.tolist(), strict=True)
    )
