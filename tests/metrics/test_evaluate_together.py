"""Several option sets in one sweep of each group: the bits of separate evaluations, and what is shared."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from candor_monai.metrics import engine, evaluation
from candor_monai.metrics.evaluation import (
    Evaluation,
    Portion,
    evaluate,
    evaluate_together,
    evaluation_plan,
    score_together,
)
from candor_monai.metrics.neighbours import Counts
from candor_monai.metrics.observations import Observations
from candor_monai.metrics.options import Options
from candor_monai.metrics.similarity import FeatureRows

from .test_evaluation import cohort
from .test_permutation import Allocations
from .test_small_blocks import cohort as blocks_cohort
from .test_small_blocks import random_options, shrink

PLAIN = Options(k=2, total_interval=False, permutation_test=False, resamples=20)
CHANGES: dict[str, dict[str, Any]] = {
    "main": {},
    "negatives": {"roles": "negatives"},
    "isolated": {"isolated": True, "k": 1},
    "isolated negatives": {"isolated": True, "k": 1, "roles": "negatives", "sets": "image"},
    "image": {"sets": "image"},
    "balance": {"sets": "image", "balance_removed": True},
    "balance negatives": {"sets": "image", "balance_removed": True, "roles": "negatives"},
    "same patient": {"sets": "image", "exclude_same_patient": True},
    "boxed": {"queries": "boxed"},
    "sample": {"queries": "image_sample", "max_queries": 15},
    "test": {"queries": "test"},
    "small": {"max_candidates": 4, "max_queries": 6},
    "grid": {"ks": (1, 3, 7), "sizes": (4, 6), "redraws": 3},
    "redraws": {"redraws": 12, "max_candidates": 8},
    "redraws negatives": {"redraws": 12, "max_candidates": 8, "roles": "negatives"},
    "shuffled": {"shuffle_labels": "image"},
    "shuffled patients": {"shuffle_labels": "patient"},
    "unmatched": {"matched": False},
    "unmatched negatives": {"matched": False, "roles": "negatives"},
    "other k": {"k": 5},
    "too many k": {"k": 14},  # nothing can be estimated in most cells
    "seed": {"seed": 7, "margin": False},
    "common": {"common_candidates": 5},
}


def plainly(value: Any) -> Any:
    """Nested values that compare to the bit."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plainly(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return {key: plainly(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plainly(item) for item in value]
    return repr(value)


def numbers(found: Evaluation) -> Any:
    """All of an evaluation but what tells of the work."""
    values = plainly(found)
    return {name: value for name, value in values.items() if name not in ("counts", "seconds", "together")}


def assert_as_alone(features: np.ndarray, seen: Observations, options: Mapping[str, Options]) -> dict[str, Evaluation]:
    together = evaluate_together(features, seen, options)
    assert list(together) == list(options)
    for name, found in together.items():
        alone = evaluate(features, seen, options[name])
        assert numbers(found) == numbers(alone), name
        assert alone.together == 1
        assert found.together == sum(one.matched == options[name].matched for one in options.values())
        assert set(found.seconds) == set(alone.seconds)
    return together


@pytest.mark.parametrize("seed", [3, 4])
def test_every_option_at_once_gives_the_bits_of_each_alone(seed):
    features, seen = cohort(seed)
    found = assert_as_alone(features, seen, {name: replace(PLAIN, **more) for name, more in CHANGES.items()})
    status = {name: [cell.status for cell in one.cells] for name, one in found.items()}
    assert "insufficient" in status["too many k"]
    assert "insufficient" not in status["main"]


def test_intervals_and_tests_are_those_of_each_alone():
    features, seen = cohort(5)
    options = Options(k=2, resamples=40, permutations=30)
    assert_as_alone(features, seen, {role: replace(options, roles=role) for role in ("positives", "negatives")})


NAMES = st.lists(st.sampled_from(sorted(CHANGES)), min_size=2, max_size=3, unique=True)


@settings(max_examples=25, deadline=None)
@given(names=NAMES, seed=st.integers(0, 50), copies=st.booleans())
def test_any_option_sets_together_are_each_alone(names, seed, copies):
    """Also where few features are distinct, so that most similarities are equal."""
    features, seen = cohort(seed, images=48)
    if copies:
        features = (np.round(features[:, :2]) + 0.25).astype(np.float32)
    assert_as_alone(features, seen, {name: replace(PLAIN, **CHANGES[name]) for name in names})


@pytest.mark.parametrize("kind", ["gauss", "cone", "copies", "opposite", "scales"])
def test_tiny_sizes_change_no_bit(kind, monkeypatch):
    rng = np.random.default_rng([5, len(kind)])
    features, seen = blocks_cohort(21, kind)
    options = {f"set {n}": replace(random_options(rng), precision="float32", redraws=1 + 4 * (n % 2)) for n in range(5)}
    want = {name: numbers(evaluate(features, seen, one)) for name, one in options.items()}
    shrink(monkeypatch, rng)
    monkeypatch.setattr(engine, "_ANSWER_BYTES", int(rng.choice([1, 160, 10**9])))
    found = evaluate_together(features, seen, options)
    assert {name: numbers(one) for name, one in found.items()} == want


def two_findings(images: int, dimension: int = 16) -> tuple[np.ndarray, Observations]:
    rng = np.random.default_rng(8)
    labels = (rng.random((images, 2)) < (0.4, 0.1)).astype(int)
    labels[rng.random(labels.shape) < 0.05] = -1
    features = rng.standard_normal((images, dimension)) + labels[:, :1]
    patient = [f"p{code}" for code in rng.integers(images // 2, size=images)]
    seen = Observations([f"i{i}" for i in range(images)], labels, ["edema", "mass"], patient=patient)
    return features.astype(np.float32), seen


def scored(features: np.ndarray, seen: Observations, options: Mapping[str, Options]) -> tuple[int, int]:
    """Pairs that are scored for all option sets together, and the sum of those of each alone."""
    together = evaluate_together(features, seen, options)
    counts = {found.counts["scored"] for found in together.values()}
    assert len(counts) == 1, "they tell of the same work"
    return counts.pop(), sum(evaluate(features, seen, one).counts["scored"] for one in options.values())


ROLES = {role: replace(PLAIN, roles=role) for role in ("positives", "negatives")}


def test_both_roles_are_one_sweep():
    """Alone, the positives and the negatives of each of two findings would meet every image, in two passes."""
    features, seen = two_findings(1500)
    searched = {name: replace(one, margin=False) for name, one in ROLES.items()}
    together, apart = scored(features, seen, searched)
    assert together < 0.8 * apart


def test_margins_of_exchanged_roles_are_scored_once():
    features, seen = two_findings(600)
    both = evaluate_together(features, seen, ROLES)
    for one, other in zip(both["positives"].cells, both["negatives"].cells, strict=True):
        count = len(one.rows_pos)
        assert other.margin.tobytes() == (-np.concatenate([one.margin[count:], one.margin[:count]])).tobytes()
    searched = {name: replace(one, margin=False) for name, one in ROLES.items()}
    alone = (
        evaluate(features, seen, PLAIN).counts["scored"]
        - evaluate(features, seen, searched["positives"]).counts["scored"]
    )
    assert both["positives"].counts["scored"] - scored(features, seen, searched)[0] == alone > 0


def test_what_differs_in_k_alone_costs_nothing_more():
    features, seen = two_findings(800)
    options = {f"k {k}": replace(PLAIN, k=k, margin=False) for k in (10, 1, 2, 5)}
    most = evaluate(features, seen, options["k 10"]).counts
    assert evaluate_together(features, seen, options)["k 1"].counts == most


def test_pooled_and_matched_groups_are_counted_apart():
    features, seen = cohort(6, images=120)
    options = {"matched": PLAIN, "negatives": ROLES["negatives"], "pooled": replace(PLAIN, matched=False)}
    found = evaluate_together(features, seen, options)
    assert {name: one.together for name, one in found.items()} == {"matched": 2, "negatives": 2, "pooled": 1}
    assert found["pooled"].counts == evaluate(features, seen, options["pooled"]).counts
    assert found["matched"].counts == found["negatives"].counts


def test_work_without_the_margin_classifier_is_not_told_of_it():
    features, seen = cohort(6)
    options = {"with": PLAIN, "without": replace(PLAIN, margin=False)}
    found = evaluate_together(features, seen, options)
    assert "margin sweep" not in found["without"].seconds
    assert found["without"].counts["scored"] < found["with"].counts["scored"]


def test_each_group_is_asked_about_once(monkeypatch):
    features, seen = cohort(7, images=150, groups=3)
    asked, plain = [], evaluation.search

    def watched(rows, requests, *more):
        asked.append(len(requests))
        return plain(rows, requests, *more)

    monkeypatch.setattr(evaluation, "search", watched)
    options = {name: replace(PLAIN, **CHANGES[name]) for name in ("main", "negatives", "isolated", "image", "boxed")}
    evaluate_together(features, seen, options)
    assert len(asked) == 3


def test_portions_of_groups_may_differ():
    """As after a run that was cut off: of one option set less is left to do."""
    features, seen = cohort(7, images=150, groups=3)
    plans = {name: evaluation_plan(seen, one) for name, one in ROLES.items()}
    names = {"positives": ["group 2"], "negatives": ["group 0", "group 2"]}
    rows = FeatureRows(features)
    portions = [Portion(one, plans[name], names[name]) for name, one in ROLES.items()]
    for portion, found in zip(portions, score_together(rows, seen, portions), strict=True):
        (alone,) = score_together(rows, seen, [portion])
        assert [cell.group for cell in found.cells] == [cell.group for cell in alone.cells]
        assert plainly([found.cells, found.companions]) == plainly([alone.cells, alone.companions])


def test_what_cannot_be_done_is_told_with_its_name():
    features, seen = cohort(2)
    bare = replace(seen, boxed=None)
    with pytest.raises(ValueError, match=r"option set 'boxes': queries is 'boxed', but observations.boxed is None"):
        evaluate_together(features, bare, {"main": PLAIN, "boxes": replace(PLAIN, queries="boxed")})
    for changes in ({"precision": "float64"}, {"memory_bytes": 2**24}):
        (name,) = changes
        with pytest.raises(ValueError, match=f"^{name} is .* in 'main', .* in 'other': what is scored together"):
            evaluate_together(features, seen, {"main": PLAIN, "other": replace(PLAIN, **changes)})
    with pytest.raises(ValueError, match="rows, observations"):
        evaluate_together(features[1:], seen, ROLES)
    assert evaluate_together(features, seen, {}) == {}


def test_answers_of_many_option_sets_stay_within_the_memory():
    """40 option sets whose sets are drawn anew: their answers at once would take most of the bound, and more."""
    features, seen = two_findings(3000, 32)
    plain = replace(PLAIN, k=20, margin=False, resamples=0, memory_bytes=2**24, max_candidates=200)
    options = {f"seed {n}": replace(plain, seed=n) for n in range(40)}
    plans = {name: evaluation_plan(seen, one) for name, one in options.items()}
    rows = FeatureRows(features)
    portions = [Portion(one, plans[name], plans[name].groups) for name, one in options.items()]

    def peak(some: list[Portion]) -> int:
        with Allocations() as allocations:
            found = evaluation._sweep(rows, seen, some, Counts())
        assert len(found) == len(some)
        return allocations.peak

    alone, together = peak(portions[:1]), peak(portions)
    assert together < alone + plain.memory_bytes
