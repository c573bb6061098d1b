"""The shared pass over a group gives what each request alone gives, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from candor_monai.metrics import neighbours, sweep
from candor_monai.metrics.neighbours import Counts, Request, nearest
from candor_monai.metrics.options import Options
from candor_monai.metrics.similarity import FeatureRows

from .test_sweep_space import made

KINDS = ["gauss", "cone 0.999", "equal", "opposite", "sparse", "one huge column", "one column"]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that a few hundred images need many, and the shared pass is taken."""
    for name, value in {"MANY": 100, "_PART": 96, "_QUERIES": 64, "_SAMPLE": 64}.items():
        monkeypatch.setattr(sweep, name, value)


def requests_of(count: int, seed: int) -> list[Request]:
    """Every positive and every negative of several findings, each query left out of its side; one rare finding."""
    rng = np.random.default_rng(seed)
    out = []
    for prevalence in (0.5, 0.3, 0.2, 0.03):
        label = rng.random(count) < prevalence
        queries = np.flatnonzero(label & (rng.random(count) < 0.5))
        for side in (np.flatnonzero(label), np.flatnonzero(~label)):
            pairs = np.nonzero(queries[:, None] == side[None, :])
            out.append(Request(queries, side, pairs))
    return out


def test_two_findings_by_hand():
    features = np.float32([[1, 0], [1, 0.1], [1, 0.5], [0, 1]])
    rows = FeatureRows(features)
    requests = [Request(np.array([0]), np.array([1, 3])), Request(np.array([0]), np.array([2, 3]))]
    found = sweep.search(rows, requests, 1, np.arange(4), Options(), Counts())
    assert [answer.rows.tolist() for answer in found] == [[[1]], [[2]]]


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_each_request_alone(small_blocks, kind, precision):
    rows = FeatureRows(made(kind, count=700, dimension=24))
    requests = requests_of(700, seed=1)
    order = np.random.default_rng(0).permutation(700)
    counts = Counts()
    found = sweep.search(rows, requests, 5, order, Options(precision=precision), counts)
    for request, got in zip(requests, found, strict=True):
        want = nearest(rows, request, 5, order=order, precision="float64")
        assert got.similarities.tolist() == want.similarities.tolist()
        assert got.rows.tolist() == want.rows.tolist()
    assert counts.settled > 0


@pytest.mark.parametrize("memory", [2**20, 2**30])
@pytest.mark.parametrize("kind", KINDS)
def test_sets_larger_than_a_part_change_no_bit(kind, memory, monkeypatch):
    """Candidates in the order of a draw, of which each part is prepared on its own."""
    rng = np.random.default_rng(5)
    rows = FeatureRows(made(kind, count=300, dimension=24))
    queries = np.sort(rng.choice(300, 80, replace=False))
    candidates = rng.choice(300, 100, replace=False)
    request = Request(queries, candidates, np.nonzero(queries[:, None] == candidates[None, :]))
    options = Options(memory_bytes=memory)
    (whole,) = sweep.search(rows, [request], 5, np.arange(300), options, Counts())
    monkeypatch.setattr(neighbours, "_PART", 64)
    (split,) = sweep.search(rows, [request], 5, np.arange(300), options, Counts())
    want = nearest(rows, request, 5, precision="float64")
    assert split.similarities.tolist() == whole.similarities.tolist() == want.similarities.tolist()
    assert split.rows.tolist() == whole.rows.tolist() == want.rows.tolist()


def test_the_shared_pass_is_taken_and_serves_nearly_all(small_blocks, monkeypatch):
    served = []
    original = sweep._Pool.direct

    def watched(self, request, k, counts, only=None):
        served.append((len(request.candidates), len(request.queries) if only is None else len(only)))
        return original(self, request, k, counts, only)

    monkeypatch.setattr(sweep._Pool, "direct", watched)
    rows = FeatureRows(made("gauss", count=4000, dimension=24))
    requests = requests_of(4000, seed=2)
    sweep.search(rows, requests, 5, np.arange(4000), Options(), Counts())
    again = sum(number for size, number in served if size > 400)
    assert again < 0.1 * sum(len(request.queries) for request in requests)


def test_little_memory_changes_no_bit(small_blocks):
    rows = FeatureRows(made("gauss", count=3000, dimension=200))
    requests = requests_of(3000, seed=3)
    order = np.arange(3000)
    rich = sweep.search(rows, requests, 5, order, Options(), Counts())
    poor = sweep.search(rows, requests, 5, order, Options(memory_bytes=2**20), Counts())
    for one, two in zip(rich, poor, strict=True):
        assert one.similarities.tolist() == two.similarities.tolist()
        assert one.rows.tolist() == two.rows.tolist()


def test_a_pair_in_two_requests_is_settled_once():
    rows = FeatureRows(made("gauss", count=60))
    request = Request(np.arange(5), np.arange(5, 60))
    once, twice = Counts(), Counts()
    sweep.search(rows, [request], 5, np.arange(60), Options(), once)
    sweep.search(rows, [request, request], 5, np.arange(60), Options(), twice)
    assert once.settled == twice.settled


def test_no_request():
    assert sweep.search(FeatureRows(np.eye(2, dtype=np.float32)), [], 1, np.arange(2), Options(), Counts()) == []
