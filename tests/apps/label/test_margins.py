"""Margins label by label are those of the measure, to the bit: against its own functions and against an evaluation."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from candor_monai.apps.label import side_lists
from candor_monai.apps.label.margins import MarginIndex, signed_margin
from candor_monai.metrics.discordance import discordance_margin, neighbour_mean
from candor_monai.metrics.draw import candidate_sets, draw_key, excluded_candidates
from candor_monai.metrics.evaluation import evaluate
from candor_monai.metrics.neighbours import Request, nearest
from candor_monai.metrics.observations import Observations
from candor_monai.metrics.options import Options
from candor_monai.metrics.similarity import FeatureRows
from candor_monai.utils import UserError

FINDINGS = ("Edema", "Mass")


def reference(features: np.ndarray, seen: Observations, options: Options, labels: np.ndarray) -> dict[str, np.ndarray]:
    """The obvious way: every cell searched whole by the functions of the measure."""
    rows = FeatureRows(features)
    out = {name: np.full(labels.shape, np.nan) for name in ("c_pos", "c_neg", "dm", "impurity")}
    k = options.k
    for code, group in enumerate(seen.group_names):
        members = np.flatnonzero(seen.group == code)
        for f, finding in enumerate(seen.findings):
            label = labels[members, f]
            sides = members[label == 1], members[label == 0]
            cand_pos, cand_neg, reason = candidate_sets(seen, options, finding, group, *sides)
            if reason:
                continue
            key = draw_key(seen, options, finding, group, 0)
            out_of = excluded_candidates(seen, options, key, members, label, cand_pos, cand_neg)
            kept = (out_of.left_pos >= k) & (out_of.left_neg >= k)
            pos = nearest(rows, Request(members, cand_pos, out_of.pos), k, order=seen.order)
            neg = nearest(rows, Request(members, cand_neg, out_of.neg), k, order=seen.order)
            for i in np.flatnonzero(kept):
                row = members[i]
                c_pos = neighbour_mean(pos.similarities[i : i + 1], k)
                c_neg = neighbour_mean(neg.similarities[i : i + 1], k)
                both = [(-s, seen.order[r], 1) for s, r in zip(pos.similarities[i], pos.rows[i], strict=True)]
                both += [(-s, seen.order[r], 0) for s, r in zip(neg.similarities[i], neg.rows[i], strict=True)]
                positives = sum(item[2] for item in sorted(both)[:k])
                out["c_pos"][row, f], out["c_neg"][row, f] = c_pos[0], c_neg[0]
                out["dm"][row, f] = discordance_margin(c_pos, c_neg)[0]
                out["impurity"][row, f] = 1 - abs(2 * positives - k) / k
    return out


def check(index: MarginIndex, features: np.ndarray) -> None:
    wanted = reference(features, index.observations, index.options, index.labels)
    for name, values in wanted.items():
        np.testing.assert_array_equal(getattr(index, name), values, err_msg=name)


def make(
    rng: np.random.Generator, count: int, patients: int | None = None, groups: int = 1, copies: bool = False
) -> tuple[np.ndarray, Observations]:
    features = (rng.standard_normal((count, 6)) + 2).astype(np.float32)
    if copies:  # many equal similarities
        features = features[rng.integers(0, max(2, count // 4), count)]
    patient = None if patients is None else [f"p{p}" for p in rng.integers(0, patients, count)]
    seen = Observations(
        [f"image {i}" for i in rng.permutation(count)],
        np.full((count, len(FINDINGS)), -1),
        FINDINGS,
        group=rng.integers(0, groups, count),
        group_names=[f"view={g}" for g in range(groups)],
        patient=patient,
        task="own",
    )
    return features, seen


def test_by_hand() -> None:
    """One finding, k = 1, images on a circle: positives at 0° and 30°, negatives at 90° and 100°, unlabelled at 45°."""
    angle = np.deg2rad([0, 30, 90, 100, 45])
    features = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    labels = np.array([[1], [1], [0], [0], [-1]])
    seen = Observations(list("abcde"), labels, ["Edema"])
    index = MarginIndex(features, seen, Options(k=1), labels)
    near = index.near(4, 0)
    assert [row for row, _ in near.positives] == [1]
    assert [row for row, _ in near.negatives] == [2]
    assert near.c_pos == pytest.approx(np.cos(np.deg2rad(15)))
    assert near.c_neg == pytest.approx(np.cos(np.deg2rad(45)))
    assert near.dm == near.c_neg - near.c_pos
    assert near.impurity == 0
    assert near.n == 2
    assert near.reason is None
    changed = index.update([1], np.array([[0]]))
    assert changed[0].tolist() == [0, 1, 2, 3, 4]
    assert index.near(4, 0).reason == "n = 1 images a side, k + 1 = 2 are needed (1 positive and 3 negative images)"
    assert [row for row, _ in index.near(4, 0).negatives] == [1]
    assert np.isnan(index.dm).all()


def test_the_margins_are_those_of_an_evaluation() -> None:
    rng = np.random.default_rng(3)
    features, seen = make(rng, 120, patients=70, groups=2)
    labels = rng.integers(-1, 2, (120, 2)).astype(np.int8)
    options = Options(total_interval=False, permutation_test=False, margin=False)
    index = MarginIndex(features, seen, options, np.full((120, 2), -1))
    for row in rng.permutation(120):
        index.update([row], labels[[row]])
    queries = evaluate(features, dataclasses.replace(seen, labels=labels), options).queries
    row_of = {name: row for row, name in enumerate(seen.image_id)}
    assert len(queries["dm"]) > 50
    for i, image_id in enumerate(queries["image_id"]):
        row, f = row_of[image_id], FINDINGS.index(queries["finding"][i])
        assert index.c_pos[row, f] == queries["c_pos"][i]
        assert index.c_neg[row, f] == queries["c_neg"][i]
        assert index.dm[row, f] == queries["dm"][i]
        assert index.near(row, f).dm == queries["dm"][i]


@given(
    seed=st.integers(0, 2**32 - 1),
    patients=st.sampled_from([None, 5, 14, 40]),
    groups=st.integers(1, 2),
    sets=st.sampled_from(["patient", "image"]),
    same=st.booleans(),
    copies=st.booleans(),
    k=st.integers(1, 3),
    most=st.sampled_from([4, 6, 4000]),
    batch=st.sampled_from([1, 1, 3, 40]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_label_by_label_is_all_at_once(
    seed: int,
    patients: int | None,
    groups: int,
    sets: str,
    same: bool,
    copies: bool,
    k: int,
    most: int,
    batch: int,
) -> None:
    rng = np.random.default_rng(seed)
    features, seen = make(rng, 40, patients, groups, copies)
    options = Options(k=k, max_candidates=most, sets=sets, exclude_same_patient=same, seed=int(rng.integers(100)))
    index = MarginIndex(features, seen, options, np.full((40, 2), -1))
    for step in range(45 // batch + 1):
        rows = rng.choice(40, batch, replace=False)
        before = [np.copy(getattr(index, name)) for name in ("c_pos", "c_neg", "dm", "impurity")]
        told = index.update(rows, rng.choice([-1, 0, 1], (batch, 2), p=[0.2, 0.5, 0.3]))
        after = [getattr(index, name) for name in ("c_pos", "c_neg", "dm", "impurity")]
        for f in range(2):
            moved = np.zeros(40, bool)
            for old, new in zip(before, after, strict=True):
                moved |= ~((old[:, f] == new[:, f]) | (np.isnan(old[:, f]) & np.isnan(new[:, f])))
            assert told.get(f, np.empty(0)).tolist() == np.flatnonzero(moved).tolist()
        if step % 9 == 8 or batch > 1:
            check(index, features)
    check(index, features)
    fresh = MarginIndex(features, seen, options, index.labels)
    for name in ("c_pos", "c_neg", "dm", "impurity", "n"):
        np.testing.assert_array_equal(getattr(fresh, name), getattr(index, name))
    for row in range(0, 40, 7):
        assert fresh.near(row, 0) == index.near(row, 0)


def test_few_lists_are_searched_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """One label among 300 touches the lists that it belongs to, and leaves the others as they are."""
    rng = np.random.default_rng(1)
    features, seen = make(rng, 400)
    labels = rng.integers(0, 2, (400, 2))
    labels[300:] = -1
    index = MarginIndex(features, seen, Options(), labels)
    searched: list[int] = []
    whole = side_lists.SideLists._search

    def counted(self: side_lists.SideLists, places: np.ndarray) -> None:
        searched.append(len(places))
        whole(self, places)

    monkeypatch.setattr(side_lists.SideLists, "_search", counted)
    told = index.update([350], np.array([[1, -1]]))
    assert set(told) == {0}
    assert 0 < len(told[0]) < 100
    assert sum(searched) < 20
    check(index, features)


def test_an_image_from_outside_is_seen_as_one_from_inside() -> None:
    rng = np.random.default_rng(5)
    features, seen = make(rng, 80, patients=50, groups=2)
    labels = rng.integers(-1, 2, (80, 2)).astype(np.int8)
    for sets in ("patient", "image"):
        index = MarginIndex(features, seen, Options(k=3, sets=sets), labels)
        # the same index without row 7, which is unlabelled there and so is no candidate
        labels[7] = -1
        index.update([7], labels[[7]])
        own = seen.units == seen.units[7] if sets == "patient" else np.arange(80) == 7
        for f in range(2):
            inside = index.near(7, f)
            outside = index.near_feature(features[7], int(seen.group[7]), own, f)
            assert inside == outside
            assert inside.reason is None


def test_too_few_candidates_still_show_neighbours() -> None:
    rng = np.random.default_rng(2)
    features, seen = make(rng, 12)
    labels = np.full((12, 2), -1)
    index = MarginIndex(features, seen, Options(), labels)
    assert index.near(0, 0).reason == "no labelled image"
    index.update([1, 2, 3], np.array([[1, -1], [0, -1], [0, -1]]))
    near = index.near(0, 0)
    assert near.dm is None
    assert near.impurity is None
    assert near.n == 0
    assert [row for row, _ in near.positives] == [1]
    assert {row for row, _ in near.negatives} == {2, 3}
    assert index.near(1, 0).positives == []  # an image is not its own neighbour
    outside = index.near_feature(features[0], 0, np.zeros(12, bool), 0)
    assert outside == near


def test_own_patient_leaves_too_few() -> None:
    """k + 1 patients a side, and the query's own is among each: k are left; with max_candidates the same."""
    features = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    labels = np.array([[1], [1], [1], [0], [0], [0], [-1], [-1]])
    seen = Observations(list("abcdefgh"), labels, ["Edema"], patient=["1", "2", "3", "1", "5", "6", "1", "9"])
    index = MarginIndex(features, seen, Options(k=2), labels)
    assert index.near(6, 0).reason is None
    joined = Observations(list("abcdefgh"), labels, ["Edema"], patient=["1", "2", "3", "4", "5", "6", "1", "9"])
    index = MarginIndex(features, joined, Options(k=2), labels)
    near = index.near(6, 0)  # loses a; the negatives lose their last-ranked
    assert near.reason is None
    assert len(near.positives) == len(near.negatives) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"matched": False},
        {"roles": "negatives"},
        {"isolated": True},
        {"balance_removed": True},
        {"shuffle_labels": "image"},
    ],
)
def test_options_that_labelling_does_not_have(change: dict) -> None:
    rng = np.random.default_rng(0)
    features, seen = make(rng, 10)
    with pytest.raises(UserError, match=next(iter(change))):
        MarginIndex(features, seen, Options(**change), np.full((10, 2), -1))


@pytest.mark.parametrize("labels", [np.full((1, 2), 2), np.full((1, 1), 0), np.full((1, 2), np.nan)])
def test_bad_labels(labels: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    features, seen = make(rng, 10)
    index = MarginIndex(features, seen, Options(), np.full((10, 2), -1))
    with pytest.raises(ValueError, match="labels must be"):
        index.update([0], labels)
    assert (index.labels == -1).all()


def test_signed_margin() -> None:
    assert signed_margin(np.array([0.5, 0.5]), np.array([1, 0])).tolist() == [0.5, -0.5]
