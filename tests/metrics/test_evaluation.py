"""evaluate() against the slow reference, and what must not change a bit of it."""

from __future__ import annotations

from dataclasses import asdict, fields, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from candor_monai.metrics.evaluation import (
    Clock,
    Evaluation,
    Portion,
    evaluate,
    evaluation_plan,
    put_together,
    score_together,
)
from candor_monai.metrics.observations import Observations
from candor_monai.metrics.options import Options
from candor_monai.metrics.similarity import FeatureRows

from . import reference

PLAIN = Options(k=2, total_interval=False, permutation_test=False, resamples=50)


def cohort(seed: int, images: int = 70, dimension: int = 7, findings: int = 3, groups: int = 2) -> tuple:
    """Random features, with ties and copies, and observations with every optional column."""
    rng = np.random.default_rng(seed)
    labels = (rng.random((images, findings)) < rng.uniform(0.2, 0.6, findings)).astype(int)
    labels[rng.random(labels.shape) < 0.1] = -1
    uncertain = (labels == -1) & (rng.random(labels.shape) < 0.5)
    features = rng.standard_normal((images, dimension)) + labels @ rng.standard_normal((findings, dimension))
    features[rng.integers(images, size=5)] = features[rng.integers(images, size=5)]
    seen = Observations(
        [f"image {i}" for i in rng.permutation(images)],
        labels,
        [f"finding {j}" for j in range(findings)],
        group=rng.integers(groups, size=images),
        group_names=[f"group {j}" for j in range(groups)],
        patient=[f"patient {p}" for p in rng.integers(images // 3, size=images)],
        uncertain=uncertain,
        boxed=(labels == 1) & (rng.random(labels.shape) < 0.6),
        test=rng.random(images) < 0.4,
        task="a task",
    )
    return features.astype(np.float32), seen


def for_reference(features: np.ndarray, seen: Observations, options: Options):
    """The cohort and the options as the reference takes them."""
    plain = reference.Cohort(
        features.tolist(),
        seen.image_id.tolist(),
        seen.labels.tolist(),
        list(seen.findings),
        [seen.group_names[code] for code in seen.group],
        None if seen.patient is None else seen.patient.tolist(),
        None if seen.uncertain is None else seen.uncertain.tolist(),
        None if seen.boxed is None else seen.boxed.tolist(),
        None if seen.test is None else seen.test.tolist(),
        seen.task,
    )
    names = {item.name for item in fields(reference.Settings)}
    settings = reference.Settings(**{name: value for name, value in asdict(options).items() if name in names})
    return plain, settings


def slow(features: np.ndarray, seen: Observations, options: Options, column: int, group: str | None):
    plain, settings = for_reference(features, seen, options)
    return reference.cell(plain, column, group, settings)


def bits(evaluation: Evaluation) -> dict:
    """What must be the same to the bit, by image id rather than row."""
    return {"rows": evaluation.rows, "queries": plain(evaluation.queries), "candidates": plain(evaluation.candidates)}


def plain(columns: dict) -> dict:
    return {name: np.asarray(values).tolist() for name, values in columns.items()}


def test_worked_by_hand():
    """Four images on a line of angles: the positive at 0° is nearer the negative at 10° than the positive at 60°."""
    angles = np.deg2rad([0.0, 60.0, 10.0, 80.0])
    features = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    seen = Observations(["a", "b", "c", "d"], [[1], [1], [0], [0]], ["effusion"])
    result = evaluate(features, seen, replace(PLAIN, k=1, sets="image"))
    row = result.rows[0]
    assert (row["n_candidates"], row["n_queries"], row["status"]) == (2, 2, "ok")
    # a: nearest other positive cos 60°, nearest negative cos 10°; b: cos 60° and cos 20°. Both are discordant.
    np.testing.assert_allclose(result.queries["c_pos"], np.cos(np.deg2rad([60, 60])), atol=1e-7)
    np.testing.assert_allclose(result.queries["c_neg"], np.cos(np.deg2rad([10, 20])), atol=1e-7)
    assert row["D"] == row["D_all"] == 1.0
    assert row["chance"] == 0.5


OPTIONS = [
    {},
    {"sets": "image"},
    {"sets": "image", "balance_removed": True},
    {"sets": "image", "exclude_same_patient": True},
    {"sets": "image", "exclude_same_patient": True, "balance_removed": True, "roles": "negatives"},
    {"exclude_same_patient": True, "k": 3},
    {"queries": "image_sample", "max_queries": 15},
    {"queries": "boxed", "sets": "image"},
    {"queries": "test"},
    {"queries": "test", "sets": "image", "balance_removed": True},
    {"roles": "negatives"},
    {"isolated": True, "k": 1},
    {"isolated": True, "k": 1, "roles": "negatives", "sets": "image"},
    {"max_candidates": 4, "max_queries": 6},
    {"matched": False, "max_queries": 9},
    {"seed": 7, "k": 4, "sets": "image"},
]


@pytest.mark.parametrize("changes", OPTIONS, ids=str)
def test_equals_the_reference_to_the_bit(changes):
    features, seen = cohort(3)
    options = replace(PLAIN, **changes)
    assert compared_with_the_reference(evaluate(features, seen, options), features, seen, options) >= 2


def compared_with_the_reference(result: Evaluation, features: np.ndarray, seen: Observations, options: Options) -> int:
    """Assert that every cell is the reference's to the bit; how many cells can be estimated."""
    groups = list(seen.group_names) if options.matched else [None]
    cells = iter(result.cells)
    scored = 0
    for group in groups:
        for column in range(len(seen.findings)):
            cell, want = next(cells), slow(features, seen, options, column, group)
            if want.reason:
                assert cell.status == "insufficient"
                assert len(cell.queries) == 0
                continue
            scored += 1
            assert cell.cand_pos.tolist() == want.r_pos
            assert cell.cand_neg.tolist() == want.r_neg
            assert cell.queries.tolist() == sorted(want.c_pos)
            assert cell.dropped == want.dropped
            for name in ("c_pos", "c_neg", "c_pos_all", "c_neg_all", "removed"):
                got = getattr(cell, name)
                assert got.tolist() == [getattr(want, name)[q] for q in cell.queries.tolist()], name
            assert cell.dm.tolist() == [want.dm(q) for q in cell.queries.tolist()]
            margin, _, images = cell.scored
            every, _ = cell.labelled
            assert images.tolist() == [image for image in every.tolist() if image in want.margin]
            assert margin.tolist() == [want.margin[image] for image in images.tolist()]
    return scored


def test_rates_equal_the_reference():
    features, seen = cohort(11, images=90)
    options = replace(PLAIN, sets="image")
    result = evaluate(features, seen, options)
    for row in result.rows[:6]:
        column = seen.findings.index(row["finding"])
        want = slow(features, seen, options, column, row["group"])
        margins = [want.dm(q) for q in want.c_pos]
        assert row["D"] == sum(dm > 0 for dm in margins) / len(margins)
        assert row["tie_rate"] == sum(dm == 0 for dm in margins) / len(margins)
        assert row["D_mid"] == pytest.approx(row["D"] + row["tie_rate"] / 2, abs=1e-15)
        assert row["D_all"] == sum(want.c_neg_all[q] > want.c_pos_all[q] for q in want.c_pos) / len(margins)
        assert row["chance"] == (1 - row["tie_rate"]) / 2
        share = sum(want.removed.values()) / len(margins)
        assert row["chance_upper"] == pytest.approx(min(1, row["chance"] + 2 / row["n_candidates"] * share), abs=1e-15)
        scores = [want.margin[i] for i in want.margin]
        positive = [bool(seen.labels[i, column] == 1) for i in want.margin]
        assert row["margin_auroc"] == pytest.approx(reference.auroc(scores, positive), abs=1e-12)


def test_rows_may_come_in_any_order():
    features, seen = cohort(5)
    options = replace(PLAIN, redraws=2, ks=(1, 3), sizes=(6,))
    first = evaluate(features, seen, options)
    by = np.random.default_rng(0).permutation(len(seen))
    second = evaluate(features[by], taken(seen, by), options)
    assert bits(first) == bits(second)
    assert first.grid == second.grid


def taken(seen: Observations, rows: np.ndarray, columns: slice = slice(None)) -> Observations:
    per_image = ("image_id", "group", "patient", "test")
    values = {name: getattr(seen, name)[rows] for name in per_image}
    values |= {name: getattr(seen, name)[rows][:, columns] for name in ("labels", "uncertain", "boxed")}
    return replace(seen, findings=seen.findings[columns], **values)


@pytest.mark.parametrize("precision", ["int8", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("threads", [1, 2])
def test_precision_and_threads_change_no_bit(precision, threads, number_of_threads):
    features, seen = cohort(6, images=300)
    number_of_threads(threads)
    got = evaluate(features, seen, replace(PLAIN, precision=precision))
    number_of_threads(1)
    assert bits(got) == bits(evaluate(features, seen, PLAIN))


def test_a_memory_map_gives_the_same_bits(tmp_path):
    features, seen = cohort(6)
    np.save(tmp_path / "features.npy", features)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    assert bits(evaluate(mapped, seen, PLAIN)) == bits(evaluate(features, seen, PLAIN))


def test_other_findings_and_groups_change_nothing():
    features, seen = cohort(8)
    options = replace(PLAIN, common_candidates=5)
    both = evaluate(features, seen, options)
    one_finding = evaluate(
        features, taken(seen, np.arange(len(seen)), slice(1, 2)), replace(PLAIN, common_candidates=5)
    )
    assert one_finding.rows[0] == next(r for r in both.rows if (r["finding"], r["group"]) == ("finding 1", "group 0"))
    rows = np.flatnonzero(seen.group == 1)
    one_group = evaluate(features[rows], taken(seen, rows), options)
    assert [r for r in one_group.rows if r["group"] == "group 1"] == [r for r in both.rows if r["group"] == "group 1"]


@pytest.mark.parametrize("changes", [{}, {"matched": False}, {"redraws": 2, "ks": (1, 3), "sizes": (4,)}], ids=str)
def test_groups_scored_apart_are_those_scored_together(changes):
    features, seen = cohort(5, images=120, groups=4)
    options = replace(PLAIN, total_interval=True, permutation_test=True, permutations=40, **changes)
    whole = evaluate(features, seen, options)
    rows, plan = FeatureRows(features), evaluation_plan(seen, options)
    apart = [
        part for name in reversed(plan.groups) for part in score_together(rows, seen, [Portion(options, plan, [name])])
    ]
    found = put_together(seen, options, plan, apart, Clock())
    assert bits(found) == bits(whole)
    assert found.grid == whole.grid
    assert found.counts == whole.counts
    for one, other in zip(found.parts, whole.parts, strict=True):
        if other.companions.null is not None:
            for name in ("numerators", "denominators"):
                values = [getattr(part.companions.null.values, name).tolist() for part in (one, other)]
                assert values[0] == values[1]
    with pytest.raises(ValueError, match="each must be there once"):
        put_together(seen, options, plan, apart[1:] if len(apart) > 1 else [], Clock())
    with pytest.raises(ValueError, match="each must be there once"):
        put_together(seen, options, plan, [*apart, apart[0]], Clock())


@pytest.mark.parametrize("sets", ["image", "patient"])
def test_exchanging_labels_sends_dm_to_its_negative(sets):
    features, seen = cohort(9)
    options = replace(PLAIN, queries="test", sets=sets, balance_removed=sets == "image")
    first = evaluate(features, seen, options)
    labels = np.where(seen.labels < 0, -1, 1 - seen.labels)
    second = evaluate(features, replace(seen, labels=labels), options)
    for one, two in zip(first.cells, second.cells, strict=True):
        assert one.queries.tolist() == two.queries.tolist()
        assert one.dm.tolist() == (-two.dm).tolist()
        assert one.dm_all.tolist() == (-two.dm_all).tolist()
        assert one.discordant.tolist() == two.discordant.tolist()


def test_powers_of_two_change_no_bit():
    features, seen = cohort(10)
    scale = np.float32(2.0) ** np.random.default_rng(1).integers(-40, 40, (len(seen), 1))
    assert bits(evaluate(features * scale.astype(np.float32), seen, PLAIN)) == bits(evaluate(features, seen, PLAIN))


def test_other_scales_and_rotations_move_only_near_ties():
    features, seen = cohort(12, images=200, dimension=16)
    turn = np.linalg.qr(np.random.default_rng(2).standard_normal((16, 16)))[0]
    turned = (3.7 * features.astype(np.float64) @ turn).astype(np.float32)
    first, second = evaluate(features, seen, PLAIN), evaluate(turned, seen, PLAIN)
    for one, two in zip(first.cells, second.cells, strict=True):
        np.testing.assert_allclose(one.dm, two.dm, atol=1e-6)
        clear = np.abs(one.dm) > 1e-6
        assert (one.discordant[clear] == two.discordant[clear]).all()


def test_more_negatives_never_lower_c_neg():
    features, seen = cohort(13, images=120)
    few = evaluate(features, seen, replace(PLAIN, sets="image", max_candidates=8))
    many = evaluate(features, seen, replace(PLAIN, sets="image", max_candidates=16))
    for small, large in zip(few.cells, many.cells, strict=True):
        assert (large.c_neg >= small.c_neg).all()
        assert (large.c_neg_all >= large.c_neg).all()


def test_patient_identity_alone_is_at_chance_under_patient_sets():
    """Features that know the patient and nothing of the finding; labels follow the patient."""
    rng = np.random.default_rng(4)
    patients, images = 300, 6
    person = np.repeat(np.arange(patients), images)
    features = rng.standard_normal((patients, 24))[person] + 0.1 * rng.standard_normal((len(person), 24))
    labels = (rng.random(patients) < 0.5).astype(int)[person, None]
    seen = Observations([f"i{i}" for i in range(len(person))], labels, ["finding"], patient=[f"p{p}" for p in person])
    by_image = evaluate(features.astype(np.float32), seen, replace(PLAIN, k=5, sets="image", margin=False)).rows[0]
    by_patient = evaluate(features.astype(np.float32), seen, replace(PLAIN, k=5, margin=False)).rows[0]
    assert by_image["D"] < 0.05
    assert abs(by_patient["D"] - 0.5) < 0.08


def test_bfloat16_alone_gets_discordant_sets_wrong_and_the_exact_way_does_not():
    """A narrow cone: the margins are smaller than the rounding of bfloat16, not than that of float64."""
    import torch

    rng = np.random.default_rng(5)
    features = (rng.standard_normal((400, 64)) * 0.04 + rng.standard_normal(64)).astype(np.float32)
    cosine = reference.similarity(features[0].tolist(), features[1].tolist())
    assert 0.998 < cosine < 1
    labels = (np.arange(400) % 2)[:, None]
    seen = Observations([f"i{i:03d}" for i in range(400)], labels, ["finding"])
    options = replace(PLAIN, k=5, sets="image", margin=False, precision="bfloat16")
    cell = evaluate(features, seen, options).cells[0]
    z = torch.nn.functional.normalize(torch.from_numpy(features), dim=1).bfloat16()
    scores = (z[cell.queries] @ z.T).float()
    scores[torch.arange(len(cell.queries)), cell.queries] = -2
    naive = scores[:, cell.cand_neg].topk(5).values.mean(1) > scores[:, cell.cand_pos].topk(5).values.mean(1)
    wide = features.astype(np.float64)
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    truth = wide[cell.queries] @ wide.T
    truth[np.arange(len(cell.queries)), cell.queries] = -2
    nearest = [np.sort(truth[:, side], axis=1)[:, -5:].mean(1) for side in (cell.cand_neg, cell.cand_pos)]
    assert np.abs(nearest[0] - nearest[1]).min() > 1e-12
    right = nearest[0] > nearest[1]
    assert (naive.numpy() != right).sum() > 10
    assert (cell.discordant == right).all()


@pytest.mark.parametrize("sets", ["image", "patient"])
def test_constant_features_are_tied(sets):
    _, seen = cohort(1)
    features = np.full((len(seen), 5), 0.3, np.float32)
    for row in evaluate(features, seen, replace(PLAIN, sets=sets)).rows[:-1]:
        assert row["status"] == "tied"
        assert (row["D"], row["D_mid"], row["tie_rate"], row["chance"]) == (0, 0.5, 1, 0)
        assert row["margin_auroc"] == 0.5


def test_copies_of_an_image_are_one_cluster():
    """One image under two ids and two patients: under patient sets it is never its own neighbour."""
    features, seen = cohort(14)
    features[1] = features[0]
    cluster = [""] * len(seen)
    cluster[0] = cluster[1] = "same pixels"
    joined = replace(seen, cluster=cluster)
    assert joined.units[0] == joined.units[1]
    for cell in evaluate(features, joined, PLAIN).cells:
        for side in (cell.cand_pos, cell.cand_neg):
            assert len(np.unique(joined.units[side])) == len(side)
            assert len(np.intersect1d(side, [0, 1])) < 2


@pytest.mark.parametrize(
    ("positives", "status"), [(0, "insufficient"), (1, "insufficient"), (2, "insufficient"), (3, "ok"), (27, "ok")]
)
def test_few_positives_give_a_reason_and_never_a_number(positives, status):
    rng = np.random.default_rng(0)
    labels = (np.arange(30) < positives).astype(int)[:, None]
    seen = Observations([f"i{i}" for i in range(30)], labels, ["finding"])
    row = evaluate(rng.standard_normal((30, 4)).astype(np.float32), seen, PLAIN).rows[0]
    assert row["status"] == status
    numbers = [row[name] for name in ("D", "D_all", "D_mid", "tie_rate", "chance", "margin_auroc", "D_lo")]
    if status == "insufficient":
        assert numbers == [None] * 7
        assert "k + 1 = 3" in row["reason"]
    else:
        assert row["D"] is not None


def test_all_positive_and_all_unlabelled():
    features = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    seen = Observations([f"i{i}" for i in range(20)], np.tile([1, -1], (20, 1)), ["every", "none"])
    every, none = evaluate(features, seen, PLAIN).rows[:2]
    assert every["reason"] == "n = 0 images a side, k + 1 = 3 are needed (20 positive and 0 negative images)"
    assert none["reason"] == "no labelled image"


def test_a_group_without_labels_of_a_finding_has_no_row_for_it():
    features, seen = cohort(22)
    labels = seen.labels.copy()
    labels[seen.group == 1, 0] = -1
    rows = evaluate(features, replace(seen, labels=labels), PLAIN).rows
    assert [row["group"] for row in rows if (row["finding"], row["level"]) == ("finding 0", "group")] == ["group 0"]
    finding = next(row for row in rows if (row["finding"], row["level"]) == ("finding 0", "finding"))
    assert (finding["status"], finding["parts"]) == ("ok", "group 0")


def test_shuffled_labels_of_a_rare_finding_give_chance_and_a_d_all_near_one():
    """40 positives of 1,600: with every image as candidate, the nearest are negatives whatever the features."""
    rng = np.random.default_rng(23)
    labels = (np.arange(1600) < 40).astype(int)[:, None]
    features = (rng.standard_normal((1600, 16)) + 2 * labels).astype(np.float32)
    seen = Observations([f"i{i}" for i in range(1600)], labels, ["rare"])
    options = replace(PLAIN, k=5, margin=False, resamples=0)
    assert evaluate(features, seen, options).rows[0]["D"] < 0.2
    shuffled = [
        evaluate(features, seen, replace(options, shuffle_labels="image", seed=seed)).rows[0] for seed in range(20)
    ]
    assert abs(np.median([row["D"] for row in shuffled]) - 0.5) < 0.08
    assert np.median([row["D_all"] for row in shuffled]) > 0.97


@pytest.mark.parametrize(("n", "expected"), [(6, 0.67), (10, 0.56), (20, 0.525)])
def test_under_the_null_removal_lifts_d_as_stated(n, expected):
    """Independent features, every positive a query that leaves its own set: D is above 1/2, and below chance_upper."""
    rates, upper = [], []
    for seed in range(150):
        rng = np.random.default_rng(seed)
        seen = Observations([f"i{i}" for i in range(2 * n)], (np.arange(2 * n) % 2)[:, None], ["finding"])
        options = replace(PLAIN, k=5, sets="image", margin=False, resamples=0, seed=seed)
        row = evaluate(rng.standard_normal((2 * n, 8)).astype(np.float32), seen, options).rows[0]
        rates.append(row["D"])
        upper.append(row["chance_upper"])
    assert abs(np.mean(rates) - expected) < 0.06
    assert np.mean(rates) < np.mean(upper)


def test_pooled_rows_are_not_given_over_missing_parts():
    features, seen = cohort(15)
    labels = seen.labels.copy()
    labels[seen.group == 1, 0] = -1
    labels[np.flatnonzero(seen.group == 1)[:3], 0] = [1, 0, 0]
    seen = replace(seen, labels=labels)
    rows = evaluate(features, seen, PLAIN).rows
    finding, task = rows[6], rows[-1]
    assert (finding["status"], finding["D"], finding["parts"], finding["missing"]) == (
        "incomplete",
        None,
        "group 0",
        "group 1",
    )
    assert (task["status"], task["D"], task["missing"]) == ("incomplete", None, "finding 0")
    asked = evaluate(features, seen, replace(PLAIN, pool_missing=True)).rows
    assert asked[6]["D"] == asked[0]["D"]
    assert asked[-1]["status"] == "ok"
    assert asked[-1]["D"] == pytest.approx(np.mean([row["D"] for row in asked[6:9]]), abs=1e-15)


def test_task_level_is_severity_weighted_and_its_auroc_is_not():
    features, seen = cohort(16)
    weights = {"finding 0": 3, "finding 1": 2, "finding 2": 1}
    rows = evaluate(features, seen, replace(PLAIN, weights=weights)).rows
    findings, task = rows[6:9], rows[9]
    assert task["D"] == pytest.approx(sum(w * row["D"] for w, row in zip((3, 2, 1), findings, strict=True)) / 6)
    assert task["margin_auroc"] == pytest.approx(np.mean([row["margin_auroc"] for row in findings]))
    for name, row in zip(seen.findings, findings, strict=True):
        parts = [r for r in rows[:6] if r["finding"] == name]
        total = sum(r["n_queries"] for r in parts)
        assert row["D"] == pytest.approx(sum(r["D"] * r["n_queries"] for r in parts) / total)
        assert row["margin_auroc"] == pytest.approx(sum(r["margin_auroc"] * r["n_queries"] for r in parts) / total)


def test_common_size_is_the_smallest_and_redraws_and_grid_agree_with_their_own_runs():
    features, seen = cohort(17)
    options = replace(PLAIN, sets="image", redraws=3, ks=(1, 4), sizes=(7, 9))
    result = evaluate(features, seen, options)
    smallest = min(cell.n for cell in result.cells)
    at_smallest = evaluate(features, seen, replace(PLAIN, sets="image", max_candidates=smallest))
    for row, other in zip(result.rows, at_smallest.rows, strict=True):
        assert row["n_common"] == smallest
        assert row["D_common"] == other["D"]
    for point in result.grid:
        if point["n_candidates"] <= point["k"]:
            assert point["D"] is None
        elif point["redraw"] == 0:
            alone = evaluate(
                features,
                seen,
                replace(PLAIN, sets="image", k=point["k"], max_candidates=point["n_candidates"], margin=False),
            )
            row = next(r for r in alone.rows if (r["finding"], r["group"]) == (point["finding"], point["group"]))
            assert point["D"] == row["D"]
    spread = [p["D"] for p in result.grid if (p["finding"], p["group"], p["k"]) == ("finding 0", "group 0", 2)]
    full = [p for p in result.grid if (p["finding"], p["group"], p["k"]) == ("finding 0", "group 0", 2)]
    largest = max(p["n_candidates"] for p in full)
    rates = [p["D"] for p in full if p["n_candidates"] == largest]
    assert len(rates) == 3
    assert len(spread) == 9
    assert result.rows[0]["D_redraw_mean"] == pytest.approx(np.mean(rates))
    assert result.rows[0]["D_redraw_sd"] == pytest.approx(np.std(rates, ddof=1))
    # Pooled levels draw by draw: over groups by queries, over findings by their weights.
    drawn = {}
    for finding in seen.findings:
        cells = [p for p in result.grid if (p["finding"], p["k"]) == (finding, options.k)]
        sizes = {group: max(p["n_candidates"] for p in cells if p["group"] == group) for group in seen.group_names}
        drawn[finding] = [
            np.average([p["D"] for p in some], weights=[p["n_queries"] for p in some])
            for redraw in range(3)
            for some in [[p for p in cells if p["redraw"] == redraw and p["n_candidates"] == sizes[p["group"]]]]
        ]
    pooled = {row["finding"]: row for row in result.rows if row["level"] == "finding"}
    (task,) = (row for row in result.rows if row["level"] == "task")
    for row, rates in [
        *((pooled[finding], rates) for finding, rates in drawn.items()),
        (task, np.mean(list(drawn.values()), axis=0)),
    ]:
        assert row["D_redraw_mean"] == pytest.approx(np.mean(rates))
        assert row["D_redraw_sd"] == pytest.approx(np.std(rates, ddof=1))


@pytest.mark.parametrize("how", ["image", "patient"])
def test_shuffled_labels_stay_in_their_groups_and_are_reproducible(how):
    features, seen = cohort(18)
    options = replace(PLAIN, shuffle_labels=how)
    first, second = evaluate(features, seen, options), evaluate(features, seen, options)
    assert bits(first) == bits(second)
    plainly = evaluate(features, seen, PLAIN)
    assert [c.dm.tolist() for c in first.cells] != [c.dm.tolist() for c in plainly.cells]
    for one, two in zip(first.cells, plainly.cells, strict=True):
        assert len(one.rows_pos) == len(two.rows_pos)
        assert len(one.rows_neg) == len(two.rows_neg)


def test_without_patients_the_result_says_so():
    features, seen = cohort(19)
    result = evaluate(features, replace(seen, patient=None), PLAIN)
    assert result.rows[0]["unit"] == "image"
    assert "No patient ids" in result.notes[0]
    some = np.where(np.arange(len(seen)) < 4, "", seen.patient)
    assert evaluate(features, replace(seen, patient=some), PLAIN).notes == [
        "4 images have no patient id: each counts as a patient of its own."
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[:-1], r"features has 69 rows, observations 70"),
        (lambda x: x.astype(np.float64), r"features has dtype float64"),
        (lambda x: x[0], r"features has shape \(7,\)"),
        (lambda x: x.tolist(), r"features is list"),
        (lambda x: np.where(np.arange(70)[:, None] >= 31, np.float32(np.nan), x), r"features\[31\] holds a NaN"),
        (lambda x: np.where(np.arange(70)[:, None] == 5, np.float32(np.inf), x), r"features\[5\] holds a NaN"),
        (lambda x: np.where(np.arange(70)[:, None] == 9, np.float32(0), x), r"features\[9\] is all zero"),
    ],
)
def test_bad_features_are_named(change, message):
    features, seen = cohort(20)
    with pytest.raises(ValueError, match=message):
        evaluate(change(features), seen, PLAIN)


def test_options_that_need_what_is_not_there():
    features, seen = cohort(20)
    with pytest.raises(ValueError, match="boxed"):
        evaluate(features, replace(seen, boxed=None), replace(PLAIN, queries="boxed"))
    with pytest.raises(ValueError, match=r"observations\.test"):
        evaluate(features, replace(seen, test=None), replace(PLAIN, queries="test"))
    with pytest.raises(ValueError, match="weights has no 'finding 1'"):
        evaluate(features, seen, replace(PLAIN, weights={"finding 0": 1.0}))


def test_huge_and_tiny_rows_are_scored():
    """Norms far beyond float32's squares: the float64 sums hold them."""
    features, seen = cohort(21)
    scale = np.where(np.arange(len(seen)) % 2, 1e33, 1e-36)[:, None]
    result = evaluate((features * scale).astype(np.float32), seen, PLAIN)
    for one, two in zip(result.cells, evaluate(features, seen, PLAIN).cells, strict=True):
        np.testing.assert_allclose(one.dm, two.dm, atol=1e-6)


@settings(max_examples=40, deadline=None)
@example(
    66, 7, 1, 1, {"sets": "image", "queries": "test", "max_queries": 2, "matched": False, "exclude_same_patient": True}
)
@given(
    st.integers(0, 10**6),
    st.integers(6, 26),
    st.integers(1, 3),
    st.integers(1, 3),
    st.fixed_dictionaries(
        {
            "sets": st.sampled_from(["image", "patient"]),
            "queries": st.sampled_from(["all", "image_sample", "test", "boxed"]),
            "max_candidates": st.integers(4, 12),
            "max_queries": st.integers(2, 12),
            "matched": st.booleans(),
            "roles": st.sampled_from(["positives", "negatives"]),
            "isolated": st.booleans(),
            "balance_removed": st.booleans(),
            "exclude_same_patient": st.booleans(),
        }
    ),
)
def test_any_small_cohort_equals_the_reference(seed, images, dimension, k, changes):
    """Whole-number features: ties, copies and groups too small for anything, under any options."""
    rng = np.random.default_rng(seed)
    _, seen = cohort(seed, images=images, findings=2)
    features = rng.integers(-2, 3, (images, dimension)).astype(np.float32)
    features[(features == 0).all(axis=1), 0] = 1
    options = replace(PLAIN, k=k, resamples=0, **changes)
    plain, known = for_reference(features, seen, options)
    for cell in evaluate(features, seen, options).cells:
        column = seen.findings.index(cell.finding)
        want = reference.cell(plain, column, cell.group if options.matched else None, known)
        # among test images negatives are asked about as well; D needs a positive one
        positive = any(reference.label_of(plain, query, column, known) == 1 for query in want.c_pos)
        assert (want.reason is not None or not positive) == (cell.status == "insufficient")
        if cell.status != "insufficient":
            queries = cell.queries.tolist()
            assert queries == sorted(want.c_pos)
            assert cell.dm.tolist() == [want.dm(q) for q in queries]
            assert cell.c_neg_all.tolist() == [want.c_neg_all[q] for q in queries]
            assert cell.removed.tolist() == [want.removed[q] for q in queries]
