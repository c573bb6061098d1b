"""Intervals and tests reach the rows as their own modules give them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from candor_monai.metrics.evaluation import evaluate
from candor_monai.metrics.multiplicity import benjamini_hochberg
from candor_monai.metrics.options import Options
from candor_monai.metrics.permutation import chance_test, permutation_replicates
from candor_monai.metrics.total_interval import split_bits, total_interval, total_replicates

from .test_evaluation import cohort

FULL = Options(k=2, permutations=99, resamples=100)


@pytest.fixture(scope="module")
def scored():
    features, seen = cohort(1, images=260)
    return features, seen, evaluate(features, seen, FULL)


def test_rows_hold_what_the_modules_give(scored):
    features, seen, result = scored
    bits = split_bits(seen.unit_names.tolist(), FULL.seed)
    nulls = permutation_replicates(result.cells, features, seen, FULL)
    for row, cell, null in zip(result.rows, result.cells, nulls, strict=False):
        total = total_interval(total_replicates(cell, features, seen.units, bits, FULL.k))
        assert (row["D_total_lo"], row["D_total_hi"]) == (total.lo, total.hi)
        assert row["D_total_lo"] <= row["D"] <= row["D_total_hi"]
        assert row["D_lo"] <= row["D"] <= row["D_hi"]
        test = chance_test(null)
        assert (row["p_chance"], row["chance_null"], row["chance_null_sd"]) == (test.p, test.mean, test.sd)
        assert row["margin_auroc_total_lo"] <= row["margin_auroc"] <= row["margin_auroc_total_hi"]


def test_each_level_is_a_family(scored):
    rows = scored[2].rows
    for level, count in (("group", 6), ("finding", 3), ("task", 1)):
        family = [row for row in rows if row["level"] == level]
        assert len(family) == count
        assert [row["q_chance"] for row in family] == benjamini_hochberg([row["p_chance"] for row in family])


def test_pooled_rows_have_their_own(scored):
    features, seen, _ = scored
    for row in evaluate(features, replace(seen, patient=None), FULL).rows[6:]:
        assert row["D_total_lo"] <= row["D"] <= row["D_total_hi"]
        assert row["D_lo"] <= row["D"] <= row["D_hi"]
        assert row["p_chance"] < 0.05
        assert row["permutations"] == 99


def test_a_pooled_test_needs_the_test_of_every_part(scored):
    rows = scored[2].rows
    for finding in rows[6:9]:
        parts = [row for row in rows[:6] if row["finding"] == finding["finding"]]
        assert (finding["p_chance"] is None) == any(row["p_chance"] is None for row in parts)


def test_what_is_not_asked_for_is_not_made(scored):
    features, seen, _ = scored
    bare = replace(FULL, total_interval=False, permutation_test=False, resamples=0, margin=False)
    result = evaluate(features, seen, bare)
    for row in result.rows:
        assert row["D"] is not None
        for name in ("D_lo", "D_total_lo", "p_chance", "q_chance", "chance_null", "margin_auroc"):
            assert row[name] is None
    assert "permutation test" not in result.seconds


def test_few_patients_get_no_interval_and_the_reason():
    features, seen = cohort(2, images=120)
    few = [f"patient {i % 8}" for i in range(120)]
    for row in evaluate(features, replace(seen, patient=few), replace(FULL, sets="image")).rows:
        assert row["D"] is not None
        assert (row["D_lo"], row["D_total_lo"], row["margin_auroc_lo"], row["p_chance"]) == (None,) * 4
        assert "fewer than 10" in row["interval_reason"]
        assert row["chance_reason"] is not None
