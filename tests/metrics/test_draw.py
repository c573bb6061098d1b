"""The keyed nested draw, queries, exclusions, and the options that change labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from candor_monai.metrics.draw import candidate_sets, draws, effective_labels, excluded_candidates, shuffled_rows
from candor_monai.metrics.keyed_hash import keyed_rank
from candor_monai.metrics.observations import Observations
from candor_monai.metrics.options import Options


def cohort(images: int = 60, seed: int = 0, **changes) -> Observations:
    rng = np.random.default_rng(seed)
    values = {
        "image_id": [f"i{i:03d}" for i in range(images)],
        "labels": rng.integers(-1, 2, (images, 2)),
        "findings": ["edema", "mass"],
        "group": rng.integers(2, size=images),
        "group_names": ["AP", "PA"],
        "patient": [f"p{p}" for p in rng.integers(images // 2, size=images)],
    }
    return Observations(**{**values, **changes})


def first(seen: Observations, options: Options, finding: str = "edema", group: str = "AP"):
    return next(d for d in draws(seen, options) if (d.finding, d.group) == (finding, group))


def ids(seen: Observations, rows: np.ndarray) -> list[str]:
    return seen.image_id[rows].tolist()


def test_five_images_by_hand():
    """R⁺ and R⁻ are the first n of each label in one keyed order of all labelled images."""
    seen = Observations(list("abcde"), [[1], [1], [0], [0], [1]], ["edema"])
    draw = next(draws(seen, Options(k=1, sets="image", max_candidates=2)))
    order = keyed_rank(list("abcde"), "draw", 42, "task", "edema", "all", 0)
    assert draw.sets[0][0].tolist() == [row for row in order if row in (0, 1, 4)][:2]
    assert draw.sets[0][1].tolist() == [row for row in order if row in (2, 3)]
    assert draw.queries.tolist() == [0, 1, 4]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["image", "patient"]), st.integers(3, 12))
def test_sets_are_nested_and_do_not_depend_on_rows_or_other_images(seed, sets, size):
    seen = cohort(seed=seed % 100)
    options = Options(k=1, seed=seed, sets=sets, max_candidates=size)
    draw = first(seen, options)
    larger = first(seen, replace(options, max_candidates=size + 1))
    for one, two in zip(draw.sets[0], larger.sets[0], strict=True):
        assert two[: len(one)].tolist() == one.tolist()
    by = np.random.default_rng(seed).permutation(len(seen))
    turned = replace(
        seen,
        image_id=seen.image_id[by],
        labels=seen.labels[by],
        group=seen.group[by],
        patient=seen.patient[by],
    )
    again = first(turned, options)
    assert [ids(turned, side) for side in again.sets[0]] == [ids(seen, side) for side in draw.sets[0]]
    assert sorted(ids(turned, again.queries)) == sorted(ids(seen, draw.queries))


def test_exchanging_labels_exchanges_the_sets():
    seen = cohort()
    swapped = replace(seen, labels=np.where(seen.labels < 0, -1, 1 - seen.labels))
    for sets in ("image", "patient"):
        one, two = (first(o, Options(k=1, sets=sets)) for o in (seen, swapped))
        assert one.sets[0][0].tolist() == two.sets[0][1].tolist()
        assert one.sets[0][1].tolist() == two.sets[0][0].tolist()


def test_other_findings_groups_and_redraws_have_draws_of_their_own():
    seen = cohort(labels=np.tile(np.arange(60)[:, None] % 2, (1, 2)), group=np.zeros(60, int))
    options = Options(k=1, sets="image", max_candidates=10, redraws=2)
    edema, mass = (first(seen, options, finding) for finding in ("edema", "mass"))
    assert edema.sets[0][0].tolist() != mass.sets[0][0].tolist()
    assert edema.sets[0][0].tolist() != edema.sets[1][0].tolist()
    alone = first(seen, replace(options, redraws=1))
    assert alone.sets[0][0].tolist() == edema.sets[0][0].tolist()


def test_draws_are_uniform():
    """Each of 40 positives is drawn about as often as any other over 400 seeds."""
    seen = Observations([f"i{i}" for i in range(80)], np.arange(80)[:, None] % 2, ["edema"])
    counts = np.zeros(80)
    for seed in range(400):
        counts[next(draws(seen, Options(k=1, seed=seed, max_candidates=10))).sets[0][0]] += 1
    drawn = counts[1::2]
    assert counts[::2].sum() == 0
    assert np.sum((drawn - 100) ** 2 / 100) < 90


def test_patient_sets_hold_one_image_a_patient_a_side():
    seen = cohort(images=200, seed=3)
    for draw in draws(seen, Options(k=1)):
        for side, rows in zip(draw.sets[0], (draw.rows_pos, draw.rows_neg), strict=True):
            assert len(np.unique(seen.units[side])) == len(side) == draw.n
            assert np.isin(side, rows).all()
        assert draw.n == min(len(np.unique(seen.units[rows])) for rows in (draw.rows_pos, draw.rows_neg))


@pytest.mark.parametrize("sets", ["image", "patient"])
@pytest.mark.parametrize("balance", [False, True])
@pytest.mark.parametrize("same", [False, True])
def test_exclusions_follow_the_rules(sets, balance, same):
    seen = cohort(images=120, seed=4)
    options = Options(k=1, sets=sets, balance_removed=balance, exclude_same_patient=same)
    draw = first(seen, options)
    members = np.concatenate([draw.rows_pos, draw.rows_neg])
    labels = np.repeat([1, 0], [len(draw.rows_pos), len(draw.rows_neg)])
    pos, neg = draw.sets[0]
    out = excluded_candidates(seen, options, ("key",), members, labels, pos, neg)
    for place, row in enumerate(members):
        gone = [set(side[pairs[1][pairs[0] == place]].tolist()) for side, pairs in ((pos, out.pos), (neg, out.neg))]
        unit = seen.units[row]
        patient = [set(side[seen.units[side] == unit].tolist()) for side in (pos, neg)]
        itself = [{int(row)} & set(side.tolist()) for side in (pos, neg)]
        left = len(pos) - len(gone[0]), len(neg) - len(gone[1])
        assert left == (out.left_pos[place], out.left_neg[place])
        if sets == "patient":
            assert left[0] == left[1]
            assert all(a <= b for a, b in zip(patient, gone, strict=True))
            extra = [b - a for a, b in zip(patient, gone, strict=True)]
            assert extra in ([set(), set()], [{int(pos[-1])}, set()], [set(), {int(neg[-1])}])
        else:
            must = patient if same else itself
            assert all(a <= b for a, b in zip(must, gone, strict=True))
            extra = sum(len(b - a) for a, b in zip(must, gone, strict=True))
            assert extra <= (1 if balance and any(itself) else 0)
            if balance and not same:
                assert left[0] == left[1]
        own = patient if sets == "patient" or same else itself
        assert out.removed[place] == bool(own[0] if labels[place] else own[1])


def test_queries_of_each_kind():
    rng = np.random.default_rng(5)
    seen = cohort(images=150, seed=5, boxed=rng.random((150, 2)) < 0.3, test=rng.random(150) < 0.4)
    draw = first(seen, Options(k=1))
    assert draw.queries.tolist() == draw.rows_pos.tolist()
    few = first(seen, Options(k=1, max_queries=5))
    assert len(few.queries) == 5
    sample = first(seen, Options(k=1, queries="image_sample", max_queries=20))
    assert np.isin(few.queries[:1], draw.rows_pos).all()
    order = np.flatnonzero(seen.group == 0)
    order = order[keyed_rank(seen.image_id[order].tolist(), "queries", 42, "task", "AP")]
    assert sorted(sample.queries) == sorted(row for row in order[:20] if seen.labels[row, 0] == 1)
    boxed = first(seen, Options(k=1, queries="boxed"))
    assert boxed.queries.tolist() == [row for row in draw.rows_pos if seen.boxed[row, 0]]
    test = first(seen, Options(k=1, queries="test"))
    both = np.sort(np.concatenate([draw.rows_pos, draw.rows_neg]))
    assert test.queries.tolist() == [row for row in both if seen.test[row]]
    assert test.query_label.tolist() == seen.labels[test.queries, 0].tolist()


def test_pooled_group_has_the_same_queries():
    seen = cohort(images=150, seed=6)
    options = Options(k=1, queries="image_sample", max_queries=20)
    matched = [d for d in draws(seen, options) if d.finding == "mass"]
    pooled = next(d for d in draws(seen, replace(options, matched=False)) if d.finding == "mass")
    assert pooled.queries.tolist() == sorted(np.concatenate([d.queries for d in matched]).tolist())
    assert len(pooled.rows_pos) == sum(len(d.rows_pos) for d in matched)
    assert pooled.group == "pooled"


def test_isolated_and_roles():
    labels = [[1, 0], [1, 1], [0, 0], [0, 1], [1, -1], [-1, 0], [0, -1]]
    uncertain = np.zeros((7, 2), bool)
    seen = Observations([f"i{i}" for i in range(7)], labels, ["edema", "mass"], uncertain=uncertain)
    alone = effective_labels(seen, Options(isolated=True))
    assert alone.tolist() == [[1, 0 - 1], [-1, -1], [0, 0], [-1, 1], [1, -1], [-1, 0], [0, -1]]
    uncertain[4, 1] = uncertain[6, 1] = True
    doubtful = effective_labels(replace(seen, uncertain=uncertain), Options(isolated=True))
    assert doubtful[4].tolist() == [-1, -1]
    assert doubtful[6].tolist() == [-1, -1]
    swapped = effective_labels(seen, Options(roles="negatives"))
    assert swapped[:, 0].tolist() == [0, 0, 1, 1, 0, -1, 1]


def test_shuffles_stay_where_they_may():
    site = np.random.default_rng(7).choice(["a", "b"], 40)[np.random.default_rng(8).integers(40, size=200)]
    patient = np.array([f"{s} {p}" for s, p in zip(site, np.random.default_rng(9).integers(40, size=200), strict=True)])
    seen = cohort(images=200, seed=7, site=site, patient=patient)
    for how in ("image", "patient"):
        source = shuffled_rows(seen, how, 1)
        assert sorted(source.tolist()) == list(range(200))
        assert (seen.group[source] == seen.group).all()
        assert (source != np.arange(200)).sum() > (100 if how == "image" else 20)
    source = shuffled_rows(seen, "patient", 1)
    assert (site[source] == site).all()
    for unit in np.unique(seen.units):
        assert len(np.unique(seen.units[source[seen.units == unit]])) == 1
    with pytest.raises(ValueError, match="how is 'label'"):
        shuffled_rows(seen, "label", 1)


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ([-1] * 8, "no labelled image"),
        ([1] * 8, "n = 0 images a side, k + 1 = 2 are needed (8 positive and 0 negative images)"),
        ([0] * 8, "n = 0 images a side, k + 1 = 2 are needed (0 positive and 8 negative images)"),
        ([1] + [0] * 7, "n = 1 images a side, k + 1 = 2 are needed (1 positive and 7 negative images)"),
        ([1, 1] + [0] * 6, None),
    ],
)
def test_reasons(labels, reason):
    seen = Observations([f"i{i}" for i in range(8)], np.array(labels)[:, None], ["edema"])
    draw = next(draws(seen, Options(k=1)))
    assert draw.reason == reason
    assert (len(draw.queries) > 0) == (reason is None)


def test_no_query_is_a_reason():
    seen = Observations([f"i{i}" for i in range(8)], np.arange(8)[:, None] % 2, ["edema"], test=np.arange(8) % 2 == 0)
    assert next(draws(seen, Options(k=1, queries="test"))).reason == "no query (test)"


@pytest.mark.parametrize("sets", ["image", "patient"])
@pytest.mark.parametrize("most", [2, 5, 4000])
def test_candidate_sets_are_those_of_the_draw(sets, most):
    seen, options = cohort(images=30), Options(k=1, sets=sets, max_candidates=most)
    for draw in draws(seen, options):
        pos, neg, reason = candidate_sets(seen, options, draw.finding, draw.group, draw.rows_pos, draw.rows_neg)
        assert reason == draw.reason
        assert [pos.tolist(), neg.tolist()] == [side.tolist() for side in draw.sets[0]]
    assert candidate_sets(seen, options, "edema", "AP", pos[:0], pos[:0])[2] == "no labelled image"
