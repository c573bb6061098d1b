"""Encoders of a cohort compared: ranking, differences, overlap, agreement, on features whose order is known."""

import copy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from candor_monai.apps.comparison import CellResults, comparable, compare
from candor_monai.metrics import Observations, Options, evaluate
from candor_monai.metrics.multiplicity import benjamini_hochberg
from candor_monai.utils import UserError

IMAGES = 240
OPTIONS = Options(permutations=499, resamples=200, margin=True)


def observed():
    rng = np.random.default_rng(1)
    labels = np.stack([rng.permutation(IMAGES) < 90, rng.permutation(IMAGES) < 80], axis=1).astype(int)
    ids = [f"i{i:03d}" for i in range(IMAGES)]
    return Observations(ids, labels, ["Edema", "Mass"], patient=[f"p{i}" for i in range(IMAGES)], task="chest")


def features(signal, labels, seed):
    noise = np.random.default_rng(seed).standard_normal((IMAGES, 12)).astype(np.float32)
    noise[:, :2] += signal * (2 * labels - 1)
    return noise


def cell(name, seen, matrix):
    found = evaluate(matrix, seen, OPTIONS)
    rows = [{"encoder": name, "task": "chest", **row} for row in found.rows]
    results = {
        "discordance": rows,
        "cohort": {"fingerprint": "f", "findings": ["Edema", "Mass"]},
        "accounting": {"scored": IMAGES},
        "options": {"k": 5},
    }
    companions = {(p.row["level"], p.row["finding"], p.row["group"]): p.companions for p in found.parts}
    return CellResults(name, results, companions, pd.DataFrame(found.queries).assign(encoder=name), Path(name))


@pytest.fixture(scope="module")
def cells():
    seen = observed()
    labels = np.asarray(seen.labels)
    return [
        cell("noise", seen, features(0.0, labels, 1)),
        cell("good", seen, features(2.0, labels, 2)),
        cell("constant", seen, np.ones((IMAGES, 12), dtype=np.float32)),
        cell("twin", seen, features(2.0, labels, 2)),
        cell("weak", seen, features(0.4, labels, 3)),
    ]


@pytest.fixture(scope="module")
def compared(cells):
    return compare(cells)


def test_encoders_rank_by_D_and_tied_ones_have_no_place(compared):
    whole = {row["encoder"]: row for row in compared["ranking"] if row["finding"] is None}
    assert [whole[name]["rank"] for name in ("good", "twin", "weak", "noise", "constant")] == [1, 1, 3, 4, None]
    assert whole["constant"]["reason"].startswith("tied")
    assert [whole[name]["not_worse_than_best"] for name in ("good", "twin", "noise", "constant")] == [
        *(True, True, False, None)
    ]
    assert {name for name, row in whole.items() if row["p_best"] is not None} == {"good"}
    assert whole["good"]["p_best"] < 0.01


def test_differences_are_total_and_paired_with_p_and_q(cells, compared):
    rows = compared["comparisons"]
    assert len(rows) == 3 * 10  # two findings and the task, every pair
    by = {(r["finding"], r["encoder_a"], r["encoder_b"]): r for r in rows}
    whole = by[None, "noise", "good"]
    values = [c.row("task", "")["D"] for c in cells[:2]]
    assert whole["difference"] == values[0] - values[1] > 0
    assert whole["lo"] > 0
    assert whole["p"] < 0.01
    same = by["Edema", "good", "twin"]
    assert (same["difference"], same["lo"], same["hi"]) == (0, 0, 0)
    known = [r for r in rows if r["p"] is not None]
    assert [r["q"] for r in known] == pytest.approx(benjamini_hochberg([r["p"] for r in known]))


def test_overlap_of_every_pair_and_finding(compared):
    rows = compared["overlap"]
    assert len(rows) == 2 * 10
    by = {(r["finding"], r["encoder_a"], r["encoder_b"]): r for r in rows}
    twins = by["Edema", "good", "twin"]
    assert (twins["jaccard"], twins["n_a"]) == (1.0, twins["n_both"])
    assert twins["delta_jaccard"] > 0
    assert all(r["q"] is None or r["q"] >= r["p"] for r in rows)


def test_agreement_of_measures_has_one_sign(compared):
    whole = {(r["measure_a"], r["measure_b"]): r for r in compared["agreement"] if r["finding"] is None}
    assert whole["D", "margin_auroc"]["spearman"] > 0.9  # small D and large AUROC are both good
    assert whole["D", "margin_auroc"]["n_encoders"] == 4  # the tied one is in no ranking


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda r: r["cohort"].update(fingerprint="g"), "its cohort is not that of"),
        (lambda r: r["accounting"].update(scored=239), "239 images scored"),
        (lambda r: r["options"].update(k=3), "option k differs"),
    ],
)
def test_cells_that_cannot_be_compared_are_refused(cells, change, told):
    other = CellResults("other", copy.deepcopy(cells[0].results), {}, cells[0].queries, Path("other"))
    change(other.results)
    with pytest.raises(UserError, match=told):
        comparable([cells[1], other])
