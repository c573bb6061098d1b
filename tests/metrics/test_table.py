"""Rows of discordance.csv: the columns, their types, and None for what is not defined."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from candor_monai.metrics.evaluation import evaluate
from candor_monai.metrics.observations import Observations
from candor_monai.metrics.table import COLUMNS

from .test_evaluation import PLAIN, cohort

DESIGNED = """
n_images n_positive n_negative n_candidates n_queries clusters D D_sd D_lo D_hi D_total_lo D_total_hi D_mid D_common
n_common tie_rate chance chance_null chance_null_sd chance_upper p_chance q_chance sets queries n_pos_patients
max_patient_share D_all
"""


def test_counts_by_hand():
    """Six images of five patients: patient p has two positives."""
    labels = np.array([1, 1, 1, 0, 0, 0])[:, None]
    seen = Observations(list("abcdef"), labels, ["edema"], patient=list("ppqrst"))
    features = np.float32([[1, 0], [1, 0.1], [0.9, 0], [0, 1], [0.1, 1], [0, 0.9]])
    row = evaluate(features, seen, replace(PLAIN, k=1)).rows[0]
    counts = [row[name] for name in ("n_images", "n_positive", "n_negative", "n_candidates", "n_queries", "clusters")]
    assert counts == [6, 3, 3, 2, 3, 2]
    assert row["n_pos_patients"] == 2
    assert row["max_patient_share"] == 2 / 3
    assert (row["D"], row["D_all"], row["margin_auroc"]) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("pool_missing", [False, True])
def test_patients_of_groups_that_cannot_be_estimated_count_in_the_task_too(pool_missing):
    """Mass cannot be estimated in group 1, where its only positive patient has no Edema."""
    group = np.arange(80) // 40
    edema, mass = np.arange(80) % 2, (np.arange(80) % 4 < 2) & (group == 0)
    mass[40] = True
    seen = Observations(
        [f"i{i}" for i in range(80)],
        np.stack([edema, mass], axis=1).astype(int),
        ["Edema", "Mass"],
        group=group,
        patient=[f"p{i}" for i in range(80)],
    )
    features = np.random.default_rng(0).standard_normal((80, 4)).astype(np.float32)
    rows = evaluate(features, seen, replace(PLAIN, pool_missing=pool_missing)).rows
    task = rows[-1]
    assert (task["level"], task["status"]) == ("task", "ok" if pool_missing else "incomplete")
    assert task["n_pos_patients"] == int(((edema == 1) | mass).sum())
    asked = (edema == 1) | (mass & (group == 0))
    assert task["clusters"] == int(asked.sum())


def test_every_row_has_the_columns_in_order_and_plain_values():
    features, seen = cohort(1)
    labels = seen.labels.copy()
    labels[np.flatnonzero(seen.group == 1)[1:], 2] = 0
    labels[np.flatnonzero(seen.group == 1)[0], 2] = 1
    rows = evaluate(features, replace(seen, labels=labels), PLAIN).rows
    assert [row["level"] for row in rows] == ["group"] * 6 + ["finding"] * 3 + ["task"]
    assert {row["status"] for row in rows} == {"ok", "insufficient", "incomplete"}
    for row in rows:
        assert tuple(row) == COLUMNS
        for name, value in row.items():
            assert value is None or isinstance(value, (str, int, float)), name
            assert not (isinstance(value, float) and not math.isfinite(value)), name
        if row["status"] != "ok":
            assert row["reason"]
            assert row["D"] is None
    assert json.loads(json.dumps(rows)) == rows


def test_the_designed_columns_are_there_in_their_order():
    designed = DESIGNED.split()
    assert [name for name in COLUMNS if name in designed] == designed


def test_queries_and_candidates_let_anyone_recompute():
    """D and c from the two tables and the features alone."""
    features, seen = cohort(2)
    result = evaluate(features, seen, replace(PLAIN, sets="image"))
    place = {name: row for row, name in enumerate(seen.image_id.tolist())}
    unit = features.astype(np.float64) / np.linalg.norm(features.astype(np.float64), axis=1, keepdims=True)
    candidates = {name: np.asarray(values) for name, values in result.candidates.items()}
    for query, _ in enumerate(result.queries["image_id"]):
        item = {name: values[query] for name, values in result.queries.items()}
        own = (candidates["finding"] == item["finding"]) & (candidates["group"] == item["group"])
        for label, name in ((1, "c_pos"), (0, "c_neg")):
            members = [
                place[image]
                for image in candidates["image_id"][own & (candidates["label"] == label)]
                if image != item["image_id"]
            ]
            nearest = np.sort(unit[members] @ unit[place[item["image_id"]]])[-PLAIN.k :]
            assert abs(nearest.mean() - item[name]) < 1e-12
        assert item["discordant"] == (item["dm"] > 0)
        assert abs(item["margin_bound"] - 0.5 * np.sqrt(2 - 2 * item["c_neg"])) < 1e-12


def test_a_finding_without_a_value_says_why():
    labels = np.zeros((40, 3), dtype=np.int8)
    labels[:4, 1] = 1
    labels[20:, 2] = 1
    seen = Observations([f"i{i}" for i in range(40)], labels, ["none", "four", "one-sided"], group=np.arange(40) // 20)
    features = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    rows = {
        r["finding"]: r["reason"] for r in evaluate(features, seen, replace(PLAIN, k=5)).rows if r["level"] == "finding"
    }
    assert rows["none"] == "no image is positive"
    assert rows["four"].startswith("no group is estimable; ")
    assert "(4 positive and 16 negative images)" in rows["four"]
    assert "(20 positive and 0 negative images)" in rows["one-sided"]
