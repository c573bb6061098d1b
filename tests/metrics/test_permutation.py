"""The permutation test, against the exact engine run on relabelled cohorts."""

from __future__ import annotations

import tracemalloc
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from candor_monai.metrics import permutation
from candor_monai.metrics.evaluation import evaluate
from candor_monai.metrics.observations import Observations
from candor_monai.metrics.options import Options
from candor_monai.metrics.permutation import (
    ChanceTest,
    NullReplicates,
    chance_test,
    cohort_exchange,
    is_decided,
    permutation_p,
    permutation_replicates,
    pool_nulls,
    weighted_mean_nulls,
)
from candor_monai.metrics.resampling import Replicates

QUICK = Options(permutation_test=False, total_interval=False, resamples=0, margin=False, permutations=3)


def cohort(seed: int, images: int = 160, per_patient: int = 1, width: int = 6) -> tuple[np.ndarray, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    labels = (rng.random((images, 2)) < [0.4, 0.2]).astype(int)
    labels[rng.random((images, 2)) < 0.05] = -1
    features = rng.normal(size=(images, width)).astype(np.float32)
    features[:, 0] += 2
    patient = [f"p{i // per_patient}" for i in range(images)]
    table = {
        "image_id": [f"i{i}" for i in range(images)],
        "labels": labels,
        "findings": ["a", "b"],
        "group": rng.integers(0, 2, images) if per_patient == 1 else np.arange(images) // per_patient % 2,
        "patient": patient,
        "boxed": (labels == 1) & (rng.random((images, 2)) < 0.7),
        "test": rng.random(images) < 0.5,
    }
    return features, table


def nulls(features: np.ndarray, table: dict[str, Any], options: Options) -> list[NullReplicates]:
    observations = Observations(**table)
    cells = evaluate(features, observations, options).cells
    return permutation_replicates(cells, features, observations, options, early_stop=False)


def test_p_worked_by_hand() -> None:
    # Of three exchanges one is as low: (1 + 1)/4, twice; all but one as high.
    assert permutation_p(0.3, np.array([0.3, 0.5, 0.6])) == 1.0
    assert permutation_p(0.0, np.arange(1, 100) / 100) == pytest.approx(0.02)
    assert permutation_p(1.0, np.arange(1, 100) / 100) == pytest.approx(0.02)
    null = Replicates(12.0, 40.0, np.array([10.0, 20.0, 30.0]), np.full(3, 40.0))
    assert chance_test(NullReplicates(null, 40, 40)) == ChanceTest(1.0, 0.5, 0.25, 3, 1.0, None)


OPTIONS = {
    "patient": {},
    "image": {"sets": "image"},
    "sample": {"sets": "image", "queries": "image_sample", "max_queries": 60},
    "capped": {"max_candidates": 12, "max_queries": 15},
    "boxed": {"queries": "boxed"},
    "test": {"queries": "test"},
    "negatives": {"roles": "negatives"},
    "isolated": {"isolated": True},
    "balanced": {"sets": "image", "balance_removed": True},
    "other patients": {"sets": "image", "exclude_same_patient": True},
    "pooled": {"matched": False},
    "shuffled": {"shuffle_labels": "patient"},
}


@pytest.mark.parametrize("per_patient", [1, 4])
@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_equals_the_engine_on_relabelled_cohorts(
    name: str, lists: bool, per_patient: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(QUICK, **OPTIONS[name])
    if lists:
        monkeypatch.setattr(permutation, "_LIST_OVERHEAD", -1e9)
        monkeypatch.setattr(permutation, "_MAX_LIST", 20)  # some run out
    features, table = cohort(1, per_patient=per_patient)
    observations = Observations(**table)
    found = nulls(features, table, options)
    sources = cohort_exchange(observations, options).sources(0, options.permutations)
    compared = 0
    for b, source in enumerate(sources):
        moved = table | {"labels": table["labels"][source], "boxed": table["boxed"][source]}
        if name == "shuffled":
            # The shuffle comes first, then the exchange.
            from candor_monai.metrics.draw import effective_labels

            moved["labels"] = effective_labels(observations, options)[source]
        cells = evaluate(features, Observations(**moved), replace(options, shuffle_labels=None)).cells
        for cell, null in zip(cells, found, strict=True):
            if not len(null.values.numerators):
                assert null.reason is not None
                continue
            assert null.values.denominators[b] == cell.own.sum()
            assert null.values.numerators[b] == cell.discordant[cell.own].sum()
            compared += 1
    assert compared >= 3


def test_observed_value_is_the_cells() -> None:
    features, table = cohort(2)
    cells = evaluate(features, Observations(**table), QUICK).cells
    for cell, null in zip(cells, nulls(features, table, QUICK), strict=True):
        assert null.values.numerator == (cell.dm > 0).sum()
        assert null.values.denominator == len(cell.queries)


@pytest.mark.filterwarnings("error")
def test_a_group_without_images_says_nothing() -> None:
    labels = np.stack([np.arange(80) % 2, np.full(80, -1)], axis=1)
    features = (np.random.default_rng(0).standard_normal((80, 8)) + labels[:, :1]).astype(np.float32)
    names = [f"image{i}" for i in range(80)]
    seen = Observations(names, labels, ["a", "b"], group=np.zeros(80, int), group_names=["0", "empty"])
    rows = evaluate(features, seen, replace(QUICK, permutation_test=True)).rows
    found = {(row["group"], row["finding"]): row["p_chance"] for row in rows if row["level"] == "group"}
    assert [place for place, p in found.items() if p is not None] == [("0", "a")]


def test_large_groups_use_the_first_queries_of_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permutation, "MAX_LISTED", 40)
    monkeypatch.setattr(permutation, "MOST_LISTED", 40)
    monkeypatch.setattr(permutation, "_MAX_LIST", 0)  # no lists
    features, table = cohort(2, images=400)
    observations = Observations(**table)
    cells = evaluate(features, observations, QUICK).cells
    whole = permutation_replicates(cells, features, observations, QUICK, early_stop=False)
    for null, cell in zip(whole, cells, strict=True):  # direct, with all queries: cheap enough
        assert null.values.denominator == len(cell.queries)
    monkeypatch.setattr(permutation, "MAX_OPERATIONS", 1.0)
    few = permutation_replicates(cells, features, observations, QUICK, early_stop=False)
    for null, cell in zip(few, cells, strict=True):
        assert 0 < null.values.denominator < len(cell.queries)
        assert (null.values.denominators == 20).all()
    monkeypatch.setattr(permutation, "_MAX_LIST", 200)
    monkeypatch.setattr(permutation, "ENOUGH_LISTED", 0)
    listed = permutation_replicates(cells, features, observations, QUICK, early_stop=False)
    for null, cell in zip(listed, cells, strict=True):
        assert 0 < null.values.denominator < len(cell.queries)
        assert len(set(null.values.denominators)) > 1  # the positives among the listed images


def test_rare_findings_of_large_groups_ask_more_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permutation, "MAX_LISTED", 40)
    monkeypatch.setattr(permutation, "MOST_LISTED", 170)
    monkeypatch.setattr(permutation, "MAX_OPERATIONS", 1.0)
    monkeypatch.setattr(permutation, "ENOUGH_LISTED", 30)
    monkeypatch.setattr(permutation, "_POSITION", 0)  # lists are cheap
    features, table = cohort(2, images=400, width=40)
    observations = Observations(**table)
    cells = evaluate(features, observations, QUICK).cells
    options = replace(QUICK, permutations=300)
    for null, cell in zip(permutation_replicates(cells, features, observations, options), cells, strict=True):
        assert 20 < null.values.denominator < len(cell.queries)
        assert null.values.denominator == pytest.approx(30, rel=0.3)


def test_lists_of_middle_groups_hold_all_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """And they answer as all candidates do."""
    monkeypatch.setattr(permutation, "MAX_LISTED", 40)
    features, table = cohort(2, images=400, width=40)
    observations = Observations(**table)
    options = replace(QUICK, permutations=300)
    cells = evaluate(features, observations, QUICK).cells
    asked, walk = [], permutation.from_lists

    def watched(*args):
        asked.append(len(args[0]))
        return walk(*args)

    monkeypatch.setattr(permutation, "from_lists", watched)
    lists = permutation_replicates(cells, features, observations, options, early_stop=False)
    assert min(asked) > 100
    monkeypatch.setattr(permutation, "_MAX_LIST", 0)
    seen = len(asked)
    whole = permutation_replicates(cells, features, observations, options, early_stop=False)
    assert len(asked) == seen, "no lists"
    for one, two, cell in zip(lists, whole, cells, strict=True):
        assert one.values.denominator == len(cell.queries)
        np.testing.assert_array_equal(one.values.numerators, two.values.numerators)
        np.testing.assert_array_equal(one.values.denominators, two.values.denominators)


@pytest.mark.parametrize("name", ["sample", "patient", "pooled", "boxed"])
def test_lists_of_large_groups_answer_as_all_candidates(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pooled matched groups have several images at a place of the query order: those are asked that have lists."""
    monkeypatch.setattr(permutation, "MAX_LISTED", 90)
    monkeypatch.setattr(permutation, "MOST_LISTED", 90)
    monkeypatch.setattr(permutation, "MAX_OPERATIONS", 1.0)
    monkeypatch.setattr(permutation, "ENOUGH_LISTED", 0)
    walk, calls = permutation.from_lists, []

    def both_ways(asked, sides, rules, lists, distances, *room):
        found = walk(asked, sides, rules, lists, distances, *room)
        lanes = np.arange(len(sides[0]), dtype=np.uint64)[:, None]
        queries = np.where(asked >> lanes & np.uint64(1), lists.images, -1)
        wanted = permutation.from_distances(permutation.Relabelled(queries, *sides), rules, distances, *room)
        np.testing.assert_array_equal(found, wanted)
        calls.append(asked)
        return found

    monkeypatch.setattr(permutation, "from_lists", both_ways)
    features, table = cohort(3, images=500, per_patient=2)
    for null in nulls(features, table, replace(QUICK, **OPTIONS[name], permutations=70)):
        assert len(null.values.numerators) == 70
        assert null.values.denominators.max() <= 90
    assert calls
    assert all(len(asked) == 90 for asked in calls)


def test_p_is_uniform_without_an_effect_and_small_with_one() -> None:
    options = replace(QUICK, permutations=199)
    ps = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        labels = rng.permutation(np.arange(90) < 25)[:, None].astype(int)
        features = rng.normal(size=(90, 16)).astype(np.float32)
        features[:, 0] += 6
        table = {"image_id": [f"i{seed}-{i}" for i in range(90)], "labels": labels, "findings": ["a"]}
        ps.append(chance_test(nulls(features, table, options)[0]).p)
    ps = np.array(ps)
    assert 0 <= (ps <= 0.05).sum() <= 8
    assert 0.3 < (ps <= 0.5).mean() < 0.7
    features[:, 1] += 8 * labels[:, 0]
    test = chance_test(nulls(features, table, options)[0])
    assert test.p == 2 / 200
    assert abs(test.mean - 0.5) < 0.1


def test_early_stopping_keeps_a_prefix_and_the_answer() -> None:
    options = replace(QUICK, permutations=2000)
    features, table = cohort(5, images=320)
    observations = Observations(**table)
    cells = evaluate(features, observations, options).cells
    full = permutation_replicates(cells, features, observations, options, early_stop=False)
    early = permutation_replicates(cells, features, observations, options)
    assert any(len(null.values.numerators) < 2000 for null in early)
    for one, two in zip(full, early, strict=True):
        count = len(two.values.numerators)
        np.testing.assert_array_equal(one.values.numerators[:count], two.values.numerators)
        if count < 2000:
            assert abs(chance_test(one).p - chance_test(two).p) < 0.12


def test_a_clear_cell_stops_and_has_the_p_of_all_exchanges() -> None:
    options = replace(QUICK, permutations=3000)
    features, table = cohort(5, images=800)
    features[:, 1] += 3 * (table["labels"][:, 0] == 1)
    observations = Observations(**table)
    cells = evaluate(features, observations, options).cells
    full = permutation_replicates(cells, features, observations, options, early_stop=False)
    early = permutation_replicates(cells, features, observations, options)
    clear = [place for place, cell in enumerate(cells) if cell.finding == "a"]
    for place in clear:
        assert len(early[place].values.numerators) == permutation.CLEAR_AFTER
        assert chance_test(early[place]).p == chance_test(full[place]).p == 2 / 3001


def test_what_is_decided() -> None:
    null = np.random.default_rng(0).normal(0.5, 0.05, 1024)
    assert is_decided(0.5, null[:256])  # both tails are full
    assert not is_decided(0.1, null[:1023])  # clear, but early
    assert is_decided(0.1, null)
    assert is_decided(0.9, null)
    assert not is_decided(0.3, null)  # outside, but not far
    assert not is_decided(0.1, np.append(null, 0.05))  # one as extreme
    assert not is_decided(0.1, np.full(2000, 0.5))  # no spread tells nothing
    assert is_decided(0.1, np.append(null, np.nan))


def test_memory_and_order_change_nothing() -> None:
    features, table = cohort(6, per_patient=2)
    first = nulls(features, table, QUICK)
    small = nulls(features, table, replace(QUICK, memory_bytes=2**20))
    order = np.random.default_rng(0).permutation(160)
    moved = {name: value if name == "findings" else np.asarray(value)[order] for name, value in table.items()}
    for other in (small, nulls(features[order], moved, QUICK)):
        for one, two in zip(first, other, strict=True):
            np.testing.assert_array_equal(one.values.numerators, two.values.numerators)
            np.testing.assert_array_equal(one.values.denominators, two.values.denominators)


@pytest.mark.parametrize("listed", [True, False])
def test_threads_change_nothing(listed: bool, number_of_threads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if listed:
        monkeypatch.setattr(permutation, "_LIST_OVERHEAD", -(10**9))  # of small groups, too
    features, table = cohort(6, per_patient=2)
    found = []
    for threads in (1, 3):
        number_of_threads(threads)
        found.append(nulls(features, table, replace(QUICK, permutations=300)))  # a check in between, an odd end
    for one, two in zip(*found, strict=True):
        assert len(one.values.numerators) == 300
        np.testing.assert_array_equal(one.values.numerators, two.values.numerators)
        np.testing.assert_array_equal(one.values.denominators, two.values.denominators)


def test_the_first_queries_of_several_matched_groups_are_the_same_in_any_order_of_the_rows() -> None:
    """Across groups (matched: false) images have the same places in their groups' query orders."""
    features, table = cohort(6)
    options = replace(QUICK, permutations=40, matched=False, max_queries=7)
    order = np.random.default_rng(0).permutation(160)
    moved = {name: value if name == "findings" else np.asarray(value)[order] for name, value in table.items()}
    for one, two in zip(nulls(features, table, options), nulls(features[order], moved, options), strict=True):
        assert one.values.denominator == two.values.denominator == 7
        np.testing.assert_array_equal(one.values.numerators, two.values.numerators)


def test_unmovable_positives_give_no_p_and_the_reason() -> None:
    features, table = cohort(7)
    labels = np.zeros((160, 1), int)
    labels[:30] = 1
    # The thirty positives: ten patients with images of their own number each.
    patient = [f"u{i}" for i in np.repeat(np.arange(10), [1, 2, 3, 4, 5, 6, 7, 1, 1, 0])[:30]] + [
        f"p{i}" for i in range(130)
    ]
    table |= {"labels": labels, "findings": ["a"], "boxed": None, "group": None, "patient": patient}
    null = nulls(features, table, replace(QUICK, sets="image"))[0]
    assert null.movable == 3
    test = chance_test(null)
    assert (test.p, test.mean, test.permutations) == (None, None, 0)
    assert test.reason == "fewer than 10 positive patients (9)"
    assert test.movable_share == 0.1
    pooled = pool_nulls([null])
    assert chance_test(pooled).reason == "27 of 30 positives belong to patients without a partner to exchange with"


def test_small_cells_have_a_null_but_no_p() -> None:
    features, table = cohort(8)
    null = nulls(features, table, replace(QUICK, max_candidates=15))[0]
    test = chance_test(null)
    assert test.p is None
    assert test.mean is not None
    assert test.reason == "fewer than 20 candidates a side (15)"


def test_a_pooled_level_that_an_early_stop_cut_short_has_a_studentised_p() -> None:
    """Ten groups, each of which alone says little; the one that says least stops after 256 exchanges."""
    rng = np.random.default_rng(0)

    def pooled(asked: int, lengths: list[int]) -> NullReplicates:
        parts = [Replicates(24.0, 60.0, rng.binomial(60, 0.5, n).astype(float), np.full(n, 60.0)) for n in lengths]
        return pool_nulls([NullReplicates(part, 60, 60, None, asked) for part in parts])

    cut = chance_test(pooled(9999, [256] + [9999] * 9))
    whole = chance_test(pooled(9999, [9999] * 10))
    assert cut.permutations == 256
    assert whole.p == cut.p == 2 / 10_000, "z = -4.9: as little as all exchanges could show"
    assert chance_test(pooled(256, [256] * 10)).p == 2 / 257, "no more were asked for"
    near = pooled(9999, [256] + [9999] * 9)
    near = replace(near, values=replace(near.values, numerator=256.0))  # z about -3.6
    assert 2 / 10_000 < chance_test(near).p < 0.001


def test_pooling_shares_the_exchanges() -> None:
    one = NullReplicates(Replicates(1, 4, np.array([1.0, 2.0, 3.0]), np.full(3, 4.0)), 4, 4)
    two = NullReplicates(Replicates(3, 12, np.array([6.0, 6.0]), np.full(2, 12.0)), 12, 6)
    pooled = pool_nulls([one, two])
    assert pooled.values.values().tolist() == [7 / 16, 8 / 16]
    assert (pooled.values.estimate, pooled.positives, pooled.movable) == (0.25, 16, 10)
    assert pooled.reason == "6 of 16 positives belong to patients without a partner to exchange with"
    mean = weighted_mean_nulls([one, two], [3, 1])
    np.testing.assert_allclose(mean.values.values(), [(3 * 0.25 + 0.5) / 4, (3 * 0.5 + 0.5) / 4])
    with pytest.raises(ValueError, match="nothing to pool"):
        pool_nulls([])


class Allocations(TorchDispatchMode):
    """Bytes of arrays and tensors that live at once, at their peak: `tracemalloc` knows those of NumPy alone."""

    def __init__(self) -> None:
        super().__init__()
        self._tensors, self.peak = 0, 0

    def __enter__(self) -> Allocations:
        super().__enter__()
        torch.topk(torch.zeros(1, 2), 1)  # what PyTorch loads at its first operation is not counted
        tracemalloc.start()
        self._tensors, self.peak = 0, 0
        return self

    def __exit__(self, *error: Any) -> None:
        self._look()
        tracemalloc.stop()
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._look()
        out = func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if torch.is_tensor(leaf)}
        for tensor in tree_leaves(out):
            if torch.is_tensor(tensor) and tensor.untyped_storage().data_ptr() not in given:
                size = tensor.untyped_storage().nbytes()
                self._tensors += size
                weakref.finalize(tensor.untyped_storage(), self._gone, size)
        self._look()
        return out

    def _gone(self, size: int) -> None:
        self._look()
        self._tensors -= size

    def _look(self) -> None:
        self.peak = max(self.peak, tracemalloc.get_traced_memory()[1] + self._tensors)
        tracemalloc.reset_peak()


def large_group(images: int = 8000, width: int = 64) -> tuple[np.ndarray, Observations]:
    rng = np.random.default_rng(11)
    labels = (rng.random((images, 3)) < [0.5, 0.05, 0.01]).astype(int)
    features = rng.normal(size=(images, width)).astype(np.float32)
    features[:, :3] += 2 + 0.5 * labels
    patient = [f"p{i}" for i in rng.integers(0, images // 3, images)]
    seen = Observations([f"i{i}" for i in range(images)], labels, ["a", "b", "c"], patient=patient)
    return features, seen


@pytest.mark.parametrize("listed", [True, False])
def test_extra_memory_is_bounded_and_changes_nothing(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if listed:  # else every query is compared with all candidates
        monkeypatch.setattr(permutation, "MAX_OPERATIONS", 1.0)
        monkeypatch.setattr(permutation, "ENOUGH_LISTED", 0)
    features, seen = large_group()
    options = replace(QUICK, permutations=24, max_candidates=500, max_queries=100)
    cells = evaluate(features, seen, options).cells
    whole = permutation_replicates(cells, features, seen, options, early_stop=False)
    assert all(len(one.values.numerators) == 24 for one in whole)
    small = replace(options, memory_bytes=2**24)
    with Allocations() as allocations:
        bounded = permutation_replicates(cells, features, seen, small, early_stop=False)
    assert 2**21 < allocations.peak < small.memory_bytes  # the normalised rows alone are 2 MiB
    for one, two in zip(whole, bounded, strict=True):
        np.testing.assert_array_equal(one.values.numerators, two.values.numerators)
        np.testing.assert_array_equal(one.values.denominators, two.values.denominators)
