from __future__ import annotations

from candor_monai.visualize.answer import task_answer
from candor_monai.visualize.estimates import Estimate, not_estimable_rows, shown_rows
from candor_monai.visualize.report_rows import encoder_order, task_tables

from . import synthetic


def test_a_finding_without_a_pooled_number_is_shown_by_group():
    shown = shown_rows(synthetic.two_views(), "chest")
    assert [estimate for estimate, _ in shown] == [Estimate("Infiltration"), Estimate("Edema", "view=AP")]
    assert [row["D"] is not None for _, (row,) in shown] == [True, True]


def test_a_finding_without_any_number_is_shown_with_its_reason():
    document = synthetic.one_encoder()
    shown = dict((estimate.label, rows) for estimate, rows in shown_rows(document, "chest"))  # noqa: C402
    assert shown["Hernia"][0]["level"] == "finding"
    assert shown["Hernia"][0]["reason"].startswith("3 positive patients")


def test_pooled_where_one_encoder_alone_has_no_number():
    document = synthetic.three_encoders()
    for row in document["discordance"]:
        if (row["encoder"], row["finding"], row["level"]) == ("rad_dino", "Edema", "finding"):
            row |= {"D": None, "status": "incomplete"}
    assert [e.label for e, _ in shown_rows(document, "chest")] == ["Infiltration", "Edema", "Pneumonia", "Effusion"]


def test_what_is_not_estimable_is_named_once():
    document = synthetic.two_views()
    ((estimate, row),) = not_estimable_rows(document, "chest")
    assert estimate.label == "Edema (view PA)"
    assert row["reason"] == "2 positive patients: fewer than k + 1 = 6"
    row["n_positive"] = 0  # without a positive image the group is no gap, but the finding's row tells why it is missing
    ((estimate, row),) = not_estimable_rows(document, "chest")
    assert estimate.label == "Edema"


def test_the_answer_names_the_groups():
    said = task_answer(synthetic.two_views(), "chest")
    assert said.headline == "RAD-DINO is better than chance for Infiltration and Edema (view AP)."
    assert said.sentences == (
        "No single number is given for the 2 findings of task chest: findings without a value: Edema.",
    )
    said = task_answer(synthetic.two_views(3), "chest")
    assert said.headline == "Which encoder separates the 2 findings of task chest best cannot be told by one number."
    assert "RAD-DINO for" in said.sentences[1]


def test_tables_of_what_is_shown():
    tables = task_tables(synthetic.two_views(3), "chest")
    assert tables.overview == ()
    assert tables.matrix_heads == ("Infiltration", "Edema (view AP)")
    assert [title for title, _ in tables.matrix] == ["RAD-DINO", "DenseNet-121 XRV", "BiomedCLIP"]
    assert len(tables.rows) == 6
    assert {len(row.groups) for row in tables.rows if row.finding == "Edema"} == {1}
    assert {len(row.groups) for row in tables.rows if row.finding == "Infiltration"} == {2}


def test_encoders_are_ordered_by_what_is_shown():
    document = synthetic.two_views(3)
    assert encoder_order(document) == ["rad_dino", "densenet121_xrv", "biomedclip"]
    for row in document["discordance"]:
        if row["encoder"] == "rad_dino" and row["D"] is not None:
            row["D"] = 0.9
    assert encoder_order(document)[-1] == "rad_dino"
