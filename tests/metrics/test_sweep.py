"""The shared pass over a group gives what each request alone gives, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from candor_monai.metrics import neighbours, score_tables, shared_pass, sweep
from candor_monai.metrics.neighbours import Counts, Request, nearest
from candor_monai.metrics.operand_pool import OperandPool
from candor_monai.metrics.options import Options
from candor_monai.metrics.similarity import FeatureRows
from candor_monai.metrics.sweep_space import SweepSpace

from .test_sweep_space import made

KINDS = ["gauss", "cone 0.999", "equal", "opposite", "sparse", "one huge column", "one column"]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that a few hundred images need many, and the shared pass is taken."""
    monkeypatch.setattr(sweep, "MANY", 100)
    for name, value in {"_BLOCK_BYTES": 96 * 64 * 4, "_QUERIES": 64, "_SAMPLE": 64}.items():
        monkeypatch.setattr(shared_pass, name, value)


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


@pytest.mark.parametrize("precision", ["int8", "bfloat16", "float32"])
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


@pytest.mark.parametrize("precision", ["int8", "bfloat16", "float32"])
def test_the_shared_pass_is_taken_and_serves_nearly_all(small_blocks, precision, monkeypatch):
    passes, served = [], []
    shared, direct, completed = sweep.shared_pass, OperandPool.direct, OperandPool.completed

    def watched_pass(pool, many, few, counts):
        passes.append(len(many))
        return shared(pool, many, few, counts)

    def watched_direct(self, request, k, counts):
        served.append((len(request.candidates), len(request.queries)))
        return direct(self, request, k, counts)

    def watched_completed(self, request, k, query, candidate, left, counts):
        served.append((len(request.candidates), len(left)))
        return completed(self, request, k, query, candidate, left, counts)

    monkeypatch.setattr(sweep, "shared_pass", watched_pass)
    monkeypatch.setattr(OperandPool, "direct", watched_direct)
    monkeypatch.setattr(OperandPool, "completed", watched_completed)
    rows = FeatureRows(made("gauss", count=4000, dimension=24))
    requests = requests_of(4000, seed=2)
    sweep.search(rows, requests, 5, np.arange(4000), Options(precision=precision), Counts())
    assert passes
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


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_a_second_pass_of_few_queries_makes_no_larger_operand(small_blocks, precision, monkeypatch):
    """Where the group's operand is not kept, a block's candidates are made for it, however few scores it has."""
    monkeypatch.setattr(shared_pass, "_BLOCK_ROWS", 50)
    monkeypatch.setattr(shared_pass, "_OF_RISE", 3.0)  # limits that are too high, so that much goes through again
    made_of: list[int] = []
    queries_of_passes: list[int] = []
    candidates, keep = SweepSpace.candidates, shared_pass._Pass._keep

    def watched_keep(self, queries, *others):
        queries_of_passes.append(len(queries))
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(SweepSpace, "candidates", lambda *given: made_of.append(len(given[1])) or candidates(*given))
            return keep(self, queries, *others)

    monkeypatch.setattr(shared_pass._Pass, "_keep", watched_keep)
    rows = FeatureRows(made("gauss", count=1200, dimension=400))
    options = Options(memory_bytes=2**20, precision=precision)
    sweep.search(rows, requests_of(1200, seed=1), 5, np.arange(1200), options, Counts())
    assert min(queries_of_passes) < 64
    assert 0 < max(made_of) <= 50


def test_a_pair_in_two_requests_is_settled_once():
    rows = FeatureRows(made("gauss", count=60))
    request = Request(np.arange(5), np.arange(5, 60))
    once, twice = Counts(), Counts()
    sweep.search(rows, [request], 5, np.arange(60), Options(), once)
    sweep.search(rows, [request, request], 5, np.arange(60), Options(), twice)
    assert once.settled == twice.settled


def test_no_request():
    assert sweep.search(FeatureRows(np.eye(2, dtype=np.float32)), [], 1, np.arange(2), Options(), Counts()) == []


def drawn_of(requests: list[Request], seed: int) -> list[Request]:
    """The requests, and of each a draw of its candidates in the order of the draw."""
    rng = np.random.default_rng(seed)
    out = list(requests)
    for request in requests:
        candidates = rng.permutation(request.candidates)[: max(1, len(request.candidates) // 3)]
        out.append(Request(request.queries, candidates, np.nonzero(request.queries[:, None] == candidates[None, :])))
    return out


def assert_each_alone(rows: FeatureRows, requests, ks, order, options: Options) -> Counts:
    counts = Counts()
    found = sweep.search(rows, requests, ks, order, options, counts)
    for request, k, got in zip(requests, ks, found, strict=True):
        want = nearest(rows, request, k, order=order, precision="float64")
        assert got.similarities.tobytes() == want.similarities.tobytes()
        assert got.rows.tobytes() == want.rows.tobytes()
    return counts


@pytest.fixture
def always_shared(monkeypatch):
    """However little is saved, tables and readers are taken."""
    for name in ("_SAVED", "_WORTH"):
        monkeypatch.setattr(sweep, name, -(10**9))


@pytest.mark.parametrize("memory", [2**20, 2**30])
@pytest.mark.parametrize("precision", ["int8", "bfloat16", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_drawn_sets_equal_each_request_alone(
    small_blocks, always_shared, kind, precision, memory, number_of_threads, monkeypatch
):
    """Read off the shared pass, and (where nothing is large enough for one) taken out of tables."""
    rows = FeatureRows(made(kind, count=500, dimension=24))
    requests = drawn_of(requests_of(500, seed=4), seed=5)
    order = np.random.default_rng(1).permutation(500)
    options = Options(precision=precision, memory_bytes=memory)
    for many, threads, width in ((100, 1, 512), (10**6, 2, 37), (10**6, 3, 512)):
        number_of_threads(threads)
        monkeypatch.setattr(sweep, "MANY", many)
        monkeypatch.setattr(score_tables, "_QUERIES", width)
        assert_each_alone(rows, requests, [5] * len(requests), order, options)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_any_requests_equal_each_alone(seed):
    """Requests that share queries and candidates in part or not at all, in any order, each with its k; copies of rows,
    pairs left out, sets of fewer than k."""
    rng = np.random.default_rng(seed)
    features = made(str(rng.choice(KINDS)), count=160, dimension=12)
    features[rng.integers(160, size=20)] = features[rng.integers(160, size=20)]
    rows = FeatureRows(features)
    requests, ks = [], []
    for _ in range(int(rng.integers(1, 7))):
        queries = rng.choice(160, rng.integers(0, 160), replace=False)
        candidates = rng.choice(160, rng.integers(1, 161), replace=False)
        excluded = np.nonzero(rng.random((len(queries), len(candidates))) < 0.03)
        requests.append(Request(queries, candidates, excluded))
        ks.append(int(rng.choice([1, 3, 5, 70])))
    options = Options(precision=str(rng.choice(["int8", "bfloat16", "float32", "float64"])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "_SAVED", int(rng.choice([-(10**9), 0])))
        patch.setattr(sweep, "_WORTH", 0)
        patch.setattr(sweep, "MANY", int(rng.choice([60, 10**6])))
        patch.setattr(score_tables, "_QUERIES", int(rng.choice([11, 512])))
        assert_each_alone(rows, requests, ks, rng.permutation(160), options)


def test_requests_that_overlap_are_scored_once(monkeypatch):
    monkeypatch.setattr(sweep, "_SAVED", 1)
    rows = FeatureRows(made("gauss", count=1000, dimension=24))
    requests = drawn_of(requests_of(1000, seed=6)[:6], seed=7)
    counts = assert_each_alone(rows, requests, [5] * 12, np.arange(1000), Options())
    asked = len(sweep.union([request.queries for request in requests], 1000))
    alone = sum(len(request.queries) * len(request.candidates) for request in requests)
    again = counts.scored - asked * 1000
    assert 0 <= again < 0.05 * alone < asked * 1000


def test_requests_that_share_nothing_are_scored_apart(monkeypatch):
    monkeypatch.setattr(sweep, "_SAVED", 1)
    rows = FeatureRows(made("gauss", count=400, dimension=24))
    requests = [Request(np.arange(0, 50), np.arange(50, 200)), Request(np.arange(200, 250), np.arange(250, 400))]
    assert assert_each_alone(rows, requests, [5, 5], np.arange(400), Options()).scored == 2 * 50 * 150


def test_drawn_sets_are_read_off_the_shared_pass(small_blocks, always_shared):
    """Beside the pass and its sample next to nothing is scored."""
    rows = FeatureRows(made("gauss", count=4000, dimension=24))
    many = requests_of(4000, seed=2)[:6]
    alone, both = Counts(), Counts()
    sweep.search(rows, many, 5, np.arange(4000), Options(), alone)
    requests = drawn_of(many, seed=3)
    few = [Request(one.queries, one.candidates[:99], (np.empty(0, np.int64),) * 2) for one in requests[6:]]
    sweep.search(rows, many + few, 5, np.arange(4000), Options(), both)
    assert both.scored - alone.scored < 0.1 * sum(len(one.queries) * len(one.candidates) for one in few)
