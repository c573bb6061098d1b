"""Columns that say how images came to be labelled: what each policy leaves out, takes, warns of and refuses."""

from __future__ import annotations

import pytest

from candor_monai.data import load_cohort
from candor_monai.utils import UserError

from .trees import labels_of, reasons, touch

HEADER = "image,Edema,Mass,selected_by,reread_by,first_reading:Edema,first_reading:Mass\n"
ROWS = {
    "a": "1,0,random,,,",
    "b": "0,1,candor_uncertain,,,",
    "c": "0,,random,candor_review,1,",
    "d": "1,1,imported,reread_random,1,1",
    "e": "1,0,candor_diverse,candor_review,0,0",
    "f": "0,0,chosen,chosen,1,0",
    "g": "1,1,,,,",
}


@pytest.fixture
def folder(tmp_path):
    touch(tmp_path, [f"{name}.png" for name in ROWS])
    return tmp_path


def load(root, rows=ROWS, header=HEADER, **options):
    lines = [f"{name}.png,{row}" for name, row in rows.items()]
    (root / "labels.csv").write_text(header + "\n".join(lines) + "\n")
    return load_cohort("table", root, labels="labels.csv", findings=["Edema", "Mass"], blank="exclude", **options)


def test_by_default_scores_select_nothing_and_first_readings_count(folder):
    cohort = load(folder)
    assert labels_of(cohort, "Edema") == {"a.png": 1, "c.png": 1, "d.png": 1, "f.png": 1, "g.png": 1}
    assert labels_of(cohort, "Mass") == {"a.png": 0, "c.png": -1, "d.png": 1, "f.png": 0, "g.png": 1}
    assert reasons(cohort) == {"b.png": "selected", "e.png": "selected"}
    told = cohort.counts["selection"]
    assert told["warnings"] == []
    assert (told["left_out"], told["first_readings"]) == (2, 4)
    assert (told["changed_by_review"], told["changed_by_random_reread"]) == (2, 0)
    assert told["selected_by"]["random"] == 2
    assert "selected_by" in cohort.records
    assert not [column for column in cohort.records if column.startswith("first_reading")]


def test_everything_kept_is_warned_of(folder):
    cohort = load(folder, selection="keep")
    assert len(cohort) == 7
    assert labels_of(cohort, "Edema")["c.png"] == 0
    first, second = cohort.counts["selection"]["warnings"]
    assert "2 images were labelled because of a score" in first
    assert "2 discordant images were reviewed, but only 1" in second


def test_kept_without_a_bias_is_not_warned_of(folder):
    rows = {"a": ROWS["a"], "c": ROWS["c"], "d": ROWS["d"]}
    assert load(folder, rows, selection="keep").counts["selection"]["warnings"] == []


def test_reviews_count_where_as_many_were_read_again_blindly(folder):
    with pytest.raises(UserError, match="1 more are needed for selection: reread"):
        load(folder, selection="reread")
    rows = {name: row for name, row in ROWS.items() if name != "e"}
    cohort = load(folder, rows, selection="reread")
    assert labels_of(cohort, "Edema") == {"a.png": 1, "c.png": 0, "d.png": 1, "f.png": 1, "g.png": 1}
    assert reasons(cohort)["b.png"] == "selected"
    assert cohort.counts["selection"]["warnings"] == []


def test_without_first_readings_the_reviewed_are_left_out_with_a_warning(folder):
    rows = {name: ",".join(row.split(",")[:4]) for name, row in ROWS.items()}
    cohort = load(folder, rows, "image,Edema,Mass,selected_by,reread_by\n")
    assert set(labels_of(cohort, "Edema")) == {"a.png", "g.png"}
    assert reasons(cohort) == dict.fromkeys(["b.png", "e.png"], "selected") | dict.fromkeys(
        ["c.png", "d.png", "f.png"], "reviewed"
    )
    (warning,) = cohort.counts["selection"]["warnings"]
    assert "4 images were read again and the table does not hold their first readings" in warning


def test_only_the_column_selected_by(folder):
    rows = {"a": "1,0,random", "b": "0,0,candor_review", "c": "0,1,"}
    cohort = load(folder, rows, "image,Edema,Mass,selected_by\n")
    assert set(labels_of(cohort, "Edema")) == {"a.png", "c.png"}


@pytest.mark.parametrize(
    "rows, options, message",
    [
        ({"a": "1,0,radnom,,,"}, {}, "Did you mean 'random'.*give one that means something else another name"),
        ({"a": "1,0,random,often,,"}, {}, "column reread_by of cohort 'table': 'often'"),
        ({"a": "1,0,random,candor_review,x,"}, {}, "'x' is not a label"),
        ({"a": "1,0,random,,,"}, {"selection": "none"}, "unknown value of selection"),
        ({"a": "1,0,candor_review,,,"}, {}, "no image is left .*1 selected"),
    ],
)
def test_errors(folder, rows, options, message):
    with pytest.raises(UserError, match=message):
        load(folder, rows, **options)


def test_a_table_without_these_columns_is_as_before(folder):
    rows = {"a": "1,0", "b": "0,0"}
    cohort = load(folder, rows, "image,Edema,Mass\n")
    assert "selection" not in cohort.counts
    assert "selected_by" not in cohort.records


def test_features_computed_elsewhere(folder):
    import numpy as np

    names = [f"{name}.png" for name in ROWS]
    np.savez(folder / "f.npz", features=np.ones((7, 2), np.float32), image_id=np.array(names))
    lines = [f"{name}.png,{row}" for name, row in ROWS.items()]
    (folder / "labels.csv").write_text(HEADER + "\n".join(lines) + "\n")
    cohort = load_cohort("features", folder, labels="labels.csv", features="f.npz", findings=["Edema", "Mass"])
    assert labels_of(cohort, "Edema") == {"a.png": 1, "c.png": 1, "d.png": 1, "f.png": 1, "g.png": 1}
    assert len(cohort.features) == len(cohort)
