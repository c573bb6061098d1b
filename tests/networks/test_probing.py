"""The probe of one encoder, over features alone."""

import dataclasses

import numpy as np
import pytest
import torch

from candor_monai.metrics.auroc_tests import auroc
from candor_monai.metrics.observations import Observations
from candor_monai.networks import probing
from candor_monai.networks.head_files import load_heads, read_head_card, training_ids_digest
from candor_monai.networks.linear_heads import HeadOptions
from candor_monai.networks.probing import COLUMNS, ProbeOptions, probe_rows, run_probe

QUICK = ProbeOptions(heads=HeadOptions(members=2, epochs=40, learning_rate=0.02), resamples=100)


def _cohort(n: int = 600, seed: int = 0, **more) -> tuple[np.ndarray, Observations]:
    rng = np.random.default_rng(seed)
    labels = (rng.random((n, 2)) < [0.4, 0.2]).astype(np.int8)
    features = rng.normal(size=(n, 12)).astype(np.float32)
    features[:, :2] += 3 * labels
    labels[rng.random((n, 2)) < 0.05] = -1
    parts = {
        "image_id": [f"i{i}" for i in range(n)],
        "labels": labels,
        "findings": ["Edema", "Fracture"],
        "group": np.arange(n) // 3 % 2,
        "group_names": ("view=AP", "view=PA"),
        "patient": [f"p{i // 3}" for i in range(n)],
    }
    return features, Observations(**{**parts, **more})


def test_a_finding_that_is_one_feature_is_found() -> None:
    features, seen = _cohort()
    probe = run_probe(features, seen, options=QUICK)
    rows = {(row["finding"], row["group"], row["level"]): row for row in probe.table()}
    edema = rows["Edema", None, "finding"]
    assert edema["auroc"] > 0.9
    assert edema["auroc_lo"] < edema["auroc"] < edema["auroc_hi"]
    assert 0.05 < edema["miss_rate"] < 0.4
    assert edema["val_sensitivity"] >= 0.8
    assert edema["r_precision"] > edema["r_precision_chance"] + 0.1
    assert list(edema) == list(COLUMNS)


def test_no_patient_is_in_two_parts() -> None:
    _, seen = _cohort()
    rows = probe_rows(seen, None, QUICK)
    patients = [set(seen.patient[part].tolist()) for part in (rows.all_train, rows.val, rows.all_test)]
    assert not (patients[0] & patients[1] | patients[0] & patients[2] | patients[1] & patients[2])


def test_images_of_one_cluster_share_a_part() -> None:
    cluster = [""] * 600
    cluster[0] = cluster[599] = cluster[300] = "same pixels"
    _, seen = _cohort(cluster=cluster)
    part = probe_rows(seen, None, QUICK).part
    assert part[0] == part[599] == part[300]


def test_the_publishers_split_is_used_where_there_is_one() -> None:
    _, seen = _cohort()
    split = ["test" if i < 150 else "train" for i in range(600)]
    rows = probe_rows(seen, split, QUICK)
    assert set(rows.all_test.tolist()) == set(np.flatnonzero((seen.labels[:150] >= 0).any(axis=1)).tolist())
    assert len(rows.val)
    hashed = probe_rows(seen, split, dataclasses.replace(QUICK, split="hash"))
    assert (hashed.part == probe_rows(seen, None, QUICK).part).all()
    half = [*split[:300], *[None] * 150, *[float("nan")] * 150]
    mixed = probe_rows(seen, half, QUICK)
    assert (mixed.part[:150] == "test").all()
    assert (mixed.part[300:] == hashed.part[300:]).all()


def test_caps_take_the_same_images_whatever_the_order_of_rows() -> None:
    features, seen = _cohort()
    options = dataclasses.replace(QUICK, max_train=100, max_test=40)
    rows = probe_rows(seen, None, options)
    assert (len(rows.train), len(rows.test)) == (100, 40)
    assert (rows.all_test[:40] == rows.test).all()
    turned = np.arange(600)[::-1]
    other = Observations(
        image_id=seen.image_id[turned],
        labels=seen.labels[turned],
        findings=seen.findings,
        group=seen.group[turned],
        group_names=seen.group_names,
        patient=seen.patient[turned],
    )
    again = probe_rows(other, None, options)
    assert (other.image_id[again.train] == seen.image_id[rows.train]).all()
    first, second = run_probe(features, seen, options=options), run_probe(features[turned], other, options=options)
    assert first.table() == second.table()


def test_two_runs_are_identical() -> None:
    features, seen = _cohort()
    first, second = run_probe(features, seen, options=QUICK), run_probe(features, seen, options=QUICK)
    assert torch.equal(first.weights.weight, second.weights.weight)
    assert first.table() == second.table()


def test_memory_mapped_features_give_the_same(tmp_path) -> None:
    features, seen = _cohort()
    np.save(tmp_path / "features.npy", features)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    assert run_probe(mapped, seen, options=QUICK).table() == run_probe(features, seen, options=QUICK).table()


def test_pooling_is_by_test_positives() -> None:
    features, seen = _cohort()
    table = run_probe(features, seen, options=QUICK).table()
    groups = [row for row in table if row["level"] == "group" and row["finding"] == "Edema"]
    finding = next(row for row in table if row["level"] == "finding" and row["finding"] == "Edema")
    n = [row["n_test_positive"] for row in groups]
    assert finding["auroc"] == pytest.approx(np.average([row["auroc"] for row in groups], weights=n), abs=1e-12)
    probe = run_probe(features, seen, options=QUICK)
    assert finding["auroc_ungrouped"] == auroc(probe.test_logits[0, :, 0], seen.labels[probe.rows.test, 0])
    findings = [row["auroc"] for row in table if row["level"] == "finding"]
    assert table[-1]["auroc"] == pytest.approx(np.mean(findings), abs=1e-12)
    assert table[-1]["level"] == "task"


def test_the_table_is_computed_once(monkeypatch) -> None:
    calls = []
    original = probing.resample_auroc
    monkeypatch.setattr(probing, "resample_auroc", lambda *given: calls.append(1) or original(*given))
    probe = run_probe(*_cohort(), options=QUICK)
    first = probe.table()
    made = len(calls)
    first[0]["auroc"] = None
    assert probe.table()[0]["auroc"] is not None  # who changes a row changes a copy
    assert len(calls) == made == 4  # findings × groups


def test_the_table_says_what_the_logits_say() -> None:
    features, seen = _cohort()
    probe = run_probe(features, seen, options=QUICK)
    inside = seen.group[probe.rows.test] == 0
    row = next(r for r in probe.table() if r["group"] == "view=AP" and r["finding"] == "Edema")
    labels, scores = seen.labels[probe.rows.test, 0][inside], probe.test_logits[0, inside, 0]
    assert row["auroc"] == auroc(scores, labels)
    assert row["miss_rate"] == np.mean(scores[labels == 1] < row["threshold"])
    assert row["false_positive_rate"] == np.mean(scores[labels == 0] >= row["threshold"])


def test_saved_heads_give_the_same_logits_on_new_images(tmp_path) -> None:
    features, seen = _cohort()
    probe = run_probe(features, seen, options=QUICK, encoder="twelve")
    probe.save(tmp_path / "heads.safetensors", {"encoder": "twelve", "weights": "abc"})
    heads = load_heads(tmp_path / "heads.safetensors")
    found = heads.member_logits(torch.from_numpy(features[probe.rows.test])).permute(1, 0, 2).numpy()
    assert found == pytest.approx(probe.test_logits, abs=1e-6)
    card = read_head_card(tmp_path / "heads.safetensors")
    assert card["encoder"]["fingerprint"]["weights"] == "abc"
    assert card["training_ids_sha256"] == training_ids_digest(seen.image_id[probe.rows.train].tolist())
    assert "does not predict which images a head will miss" in card["warning"]


def _row(table: list, finding: str, level: str = "finding") -> dict:
    return next(row for row in table if row["finding"] == finding and row["level"] == level)


def test_a_finding_without_test_positives_says_so() -> None:
    features, seen = _cohort()
    test = np.isin(np.arange(600), probe_rows(seen, None, QUICK).all_test)
    labels = seen.labels.copy()
    labels[test, 1] = np.minimum(labels[test, 1], 0)
    table = run_probe(features, dataclasses.replace(seen, labels=labels), options=QUICK).table()
    row = _row(table, "Fracture")
    assert (row["auroc"], row["status"], row["reason"]) == (None, "insufficient", "no test positive")
    assert row["miss_rate"] is None
    assert row["false_positive_rate"] is not None
    assert table[-1]["status"] == "insufficient"
    assert "1 of 2 findings" in table[-1]["reason"]
    options = dataclasses.replace(QUICK, pool_missing=True)
    pooled = run_probe(features, dataclasses.replace(seen, labels=labels), options=options).table()[-1]
    assert pooled["auroc"] == _row(table, "Edema")["auroc"]
    assert (pooled["parts"], pooled["missing_parts"]) == (1, 1)


def test_validation_without_positives_has_no_operating_point() -> None:
    features, seen = _cohort()
    labels = seen.labels.copy()
    labels[probe_rows(seen, None, QUICK).val, 1] = 0
    probe = run_probe(features, dataclasses.replace(seen, labels=labels), options=QUICK)
    row = _row(probe.table(), "Fracture")
    assert (row["status"], row["threshold"], row["miss_rate"]) == ("no_operating_point", None, None)
    assert "validation" in row["reason"]
    assert row["auroc"] is not None
    assert not probe.decisions()[1][1]
    assert "Fracture" in probe.card()["no_operating_point"]


def test_a_group_without_negatives_is_a_missing_part() -> None:
    features, seen = _cohort()
    labels = seen.labels.copy()
    inside = seen.group == 1
    labels[inside, 0] = np.where(labels[inside, 0] >= 0, 1, -1)
    table = run_probe(features, dataclasses.replace(seen, labels=labels), options=QUICK).table()
    row = _row(table, "Edema")
    assert (row["auroc"], row["missing_parts"]) == (None, 1)
    assert row["reason"] == "no test negative in 1 of 2 groups with positives"
    assert 0 < row["auroc_ungrouped"] < 1


def test_a_finding_without_any_label_is_insufficient() -> None:
    features, seen = _cohort()
    labels = seen.labels.copy()
    labels[:, 1] = -1
    table = run_probe(features, dataclasses.replace(seen, labels=labels), options=QUICK).table()
    row = _row(table, "Fracture")
    assert (row["status"], row["reason"], row["logme_reason"]) == (
        "insufficient",
        "no labelled test image",
        "no labelled image",
    )


def test_features_that_are_all_equal_are_at_one_half() -> None:
    _, seen = _cohort()
    row = _row(run_probe(np.ones((600, 4), np.float32), seen, options=QUICK).table(), "Edema")
    assert (row["auroc"], row["miss_rate"], row["false_positive_rate"]) == (0.5, 0.0, 1.0)


def test_a_training_site_trains_alone() -> None:
    site = np.where(np.arange(600) % 6 < 3, "north", "south")
    _, seen = _cohort(site=site)
    rows = probe_rows(seen, None, dataclasses.replace(QUICK, train_site="north"))
    assert set(site[rows.train]) == set(site[rows.val]) == {"north"}
    assert set(site[rows.test]) == {"north", "south"}
    with pytest.raises(ValueError, match=r"train_site 'nort' is not a site of the cohort: \['north', 'south'\]"):
        probe_rows(seen, None, dataclasses.replace(QUICK, train_site="nort"))


def test_bad_input_is_named() -> None:
    features, seen = _cohort()
    rows = probe_rows(seen, None, QUICK)
    bad = features.copy()
    bad[rows.train[0]] = 0
    with pytest.raises(ValueError, match=rf"features\[{rows.train[0]}\] is zero or not finite"):
        run_probe(bad, seen, options=QUICK)
    bad[rows.train[0]] = 1
    beyond = rows.train[-1]  # labelled, and left out by the cap
    bad[beyond] = np.inf
    with pytest.raises(ValueError, match=rf"features\[{beyond}\]"):
        run_probe(bad, seen, options=dataclasses.replace(QUICK, max_train=100))
    bad[beyond] = 1
    bad[rows.test[3], 2] = np.nan
    with pytest.raises(ValueError, match=rf"features\[{rows.test[3]}\]"):
        run_probe(bad, seen, options=QUICK)
    with pytest.raises(ValueError, match="one row for each of 600"):
        run_probe(features[:-1], seen, options=QUICK)
    with pytest.raises(ValueError, match="no labelled test image"):
        probe_rows(seen, ["train"] * 600, QUICK)
    with pytest.raises(ValueError, match="split must be"):
        ProbeOptions(split="random")
    with pytest.raises(ValueError, match="max_train"):
        ProbeOptions(max_train=0)
    with pytest.raises(ValueError, match="resamples"):
        ProbeOptions(resamples=1)
