from __future__ import annotations

import pandas as pd
import pytest

from candor_monai.visualize.report_facts import controls, label_rows, leakage, rejections, trained_on

from . import synthetic


def test_rejections_by_reason():
    table = pd.DataFrame(
        [("a", "a.dcm", "decode", "truncated", "short"), ("b", "b.dcm", "decode", "truncated", "short")],
        columns=["image_id", "file", "stage", "reason", "message"],
    )
    (one,) = rejections(table, {"truncated": 2}, {"truncated": "the file ends early"}, limit=1)
    assert (one.reason, one.number, one.means, one.stages) == ("truncated", 2, "the file ends early", ("decode",))
    assert one.files == (("a.dcm", "short"),)


def test_reasons_that_only_one_side_knows_are_shown():
    table = pd.DataFrame(
        [("a", None, "encode", "not_finite", None)], columns=["image_id", "file", "stage", "reason", "message"]
    )
    shown = rejections(table, {"truncated": 3}, {})
    assert [(r.reason, r.number) for r in shown] == [("truncated", 3), ("not_finite", 1)]
    assert shown[1].files == (("a", ""),)


@pytest.mark.parametrize(
    ("card", "said"),
    [
        ({"trained_on": ["MIMIC-CXR", "NIH ChestX-ray14"]}, "yes: NIH ChestX-ray14"),
        ({"trained_on": "LAION"}, "not named"),
        ({"trained_on": []}, "not known: the card does not say"),
        ({}, "not known: the card does not say"),
        ({"trained": False, "trained_on": None}, "no: not trained"),
    ],
)
def test_leakage(card, said):
    assert leakage(card, [{"name": "nih_cxr", "title": "NIH ChestX-ray14"}]) == said


def test_trained_on_is_a_list():
    assert trained_on({"trained_on": "LAION"}) == ["LAION"]
    assert trained_on({}) == []


def test_labels_are_counted_from_the_rows_when_the_cohort_does_not_say():
    document = synthetic.one_encoder()
    assert label_rows(document["cohort"], document)[0] == ("Edema", "55", "281", "4", "0")
    rows = label_rows({"name": "x", "findings": []}, document)
    assert rows[0][0] == "Infiltration"
    assert rows[0][3] == "–"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"shuffle_labels": "patient"}, "shuffled over patients"),
        ({"roles": "negatives"}, "exchanged"),
        ({"matched": False}, "across groups"),
        ({"isolated": True}, "no other finding"),
        ({"queries": "boxed"}, "expert"),
    ],
)
def test_other_questions_are_told_first(options, word):
    (told,) = controls(options)
    assert word in told
