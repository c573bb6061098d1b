from __future__ import annotations

from candor_monai.visualize.report_rows import FULL_ROWS, encoder_order, task_matrix, task_tables

from . import synthetic


def test_overview_by_hand():
    document = synthetic.three_encoders()
    tables = task_tables(document, "chest")
    assert [(row.rank, row.title, row.best) for row in tables.overview] == [
        ("1", "RAD-DINO", True),
        ("2", "DINOv3-S", False),
        ("3", "Random ViT-L", False),
    ]
    assert tables.pooled
    assert tables.findings == ("Infiltration", "Edema", "Pneumonia", "Effusion")


def test_equal_values_share_a_rank():
    document = synthetic.three_encoders(compared=False)
    for row in document["discordance"]:
        if row["level"] == "task":
            row["D"] = 0.3 if row["encoder"] != "random_vit_l" else 0.4
    assert [row.rank for row in task_tables(document, "chest").overview] == ["1", "1", "3"]


def test_tied_encoders_have_no_rank():
    document = synthetic.three_encoders()
    for row in document["discordance"]:
        if (row["encoder"], row["level"]) == ("rad_dino", "task"):
            row |= {"status": "tied", "D": 0.0}
    last = task_tables(document, "chest").overview[-1]
    assert (last.title, last.rank, last.best, last.says.code) == ("RAD-DINO", "–", None, "tied")
    assert encoder_order(document)[-1] == "rad_dino"


def test_rows_hold_their_groups():
    tables = task_tables(synthetic.three_encoders(), "chest")
    assert len(tables.rows) == 12
    assert [group.group for group in tables.rows[0].groups] == ["view AP", "view PA"]
    assert sum(n for _, _, n in tables.verdicts) == 12
    assert task_tables(synthetic.three_encoders(), "chest", detail=False).rows[0].groups == ()


def test_matrix_shades():
    document = synthetic.three_encoders()
    tables = task_tables(document, "chest")
    assert [title for title, _ in tables.matrix] == ["RAD-DINO", "DINOv3-S", "Random ViT-L"]
    tied = tables.matrix[2][1][1]
    assert (tied.text, tied.shade) == ("tied", "x")
    infiltration = tables.matrix[0][1][0]
    assert (infiltration.text, infiltration.shade) == ("0.31", "b2")  # (0.5 − 0.311)·12 = 2.3


def test_many_classes_are_shown_as_numbers_only():
    document = synthetic.whole_study()
    tables = task_tables(document, "species")
    assert len(tables.compact) == 167
    assert len(tables.compact_encoders) == 22
    assert FULL_ROWS < 167 * 22
    assert not any(row.groups for row in tables.rows)
    assert task_tables(document, "chest").compact == ()
    heads, rows = task_matrix(document)
    assert len(heads) == 8
    assert len(rows) == 22


def test_one_task_has_no_glance():
    assert task_matrix(synthetic.three_encoders()) == ((), ())
