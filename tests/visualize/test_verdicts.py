from __future__ import annotations

import pytest

from candor_monai.visualize.verdicts import LABELS, corrected_p, reference, verdict

ROW = {
    "status": "ok",
    "D": 0.3,
    "D_total_lo": 0.2,
    "D_total_hi": 0.4,
    "p_chance": 0.001,
    "q_chance": 0.004,
    "chance": 0.5,
    "sets": "patient",
    "n_candidates": 20,
    "n_pos_patients": 10,
    "reason": None,
}


def test_by_hand():
    said = verdict(ROW)
    assert said.code == "better"
    assert said.label == "better than chance"
    assert said.why == "the whole interval lies below chance (0.500), q = 0.004"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"D": 0.7, "D_total_lo": 0.6, "D_total_hi": 0.8}, "worse"),
        ({"D_total_hi": 0.5}, "unclear"),
        ({"D_total_hi": 0.6}, "unclear"),
        ({"q_chance": 0.0501}, "unclear"),
        ({"q_chance": None, "p_chance": 0.05}, "better"),
        ({"q_chance": None, "p_chance": None}, "untested"),
        ({"D_total_lo": None}, "untested"),
        ({"D_total_hi": None}, "untested"),
        ({"chance": None}, "untested"),
        ({"sets": "image"}, "untested"),
        ({"sets": "image", "chance_null": 0.42}, "better"),
        ({"sets": "image", "chance_null": 0.39}, "unclear"),
        ({"n_candidates": 19}, "small"),
        ({"n_pos_patients": 9}, "small"),
        ({"n_candidates": None, "n_pos_patients": None}, "better"),
        ({"status": "tied"}, "tied"),
        ({"status": "insufficient"}, "insufficient"),
        ({"D": None}, "insufficient"),
    ],
)
def test_every_verdict(change, code):
    said = verdict(ROW | change)
    assert said.code == code
    assert said.code in LABELS
    assert said.why


def test_the_reason_of_the_run_is_told():
    assert verdict(ROW | {"status": "insufficient", "reason": "no query"}).why == "no query"
    why = verdict(ROW | {"p_chance": None, "q_chance": None, "reason": "61 % of the positives cannot move"}).why
    assert why == "no permutation test: 61 % of the positives cannot move"
    untested = ROW | {"D_total_lo": None, "interval_reason": "few patients", "q_chance": None, "p_chance": None}
    assert verdict(untested).why == "no total interval and no permutation test: few patients"
    told = verdict(untested | {"chance_reason": "40 % movable", "reason": "not this"}).why
    assert told == "no total interval and no permutation test: few patients; 40 % movable"


def test_image_sets_have_no_fixed_chance():
    assert reference({"sets": "image", "chance": 0.5, "chance_null": None}) is None
    assert reference({"sets": "image", "chance": 0.5, "chance_null": 0.41}) == 0.41
    assert reference({"sets": "patient", "chance": 0.48, "chance_null": 0.41}) == 0.48


def test_the_corrected_p_is_preferred():
    assert corrected_p({"p_chance": 0.01, "q_chance": 0.2}) == 0.2
    assert corrected_p({"p_chance": 0.01}) == 0.01
