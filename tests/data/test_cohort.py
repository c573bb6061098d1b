"""Cohort: the table of images, its groups, its view for the measures, its fingerprint."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from candor_monai.data import Cohort, Task
from candor_monai.utils import UserError


@pytest.fixture
def cohort() -> Cohort:
    boxes = pd.DataFrame([["b", "Edema", 1.0, 2.0, 3.0, 4.0, 10.0, 10.0]])
    boxes.columns = ["image_id", "finding", "x", "y", "width", "height", "frame_width", "frame_height"]
    return Cohort.of(
        ["a", "b", "c"],
        {"Edema": [1, 0, -1], "Mass": [0, 1, 1]},
        name="three",
        root="/data",
        images=["x/a.png", "x/b.png", "x/c.png"],
        patients=["p1", None, "p1"],
        site="here",
        splits=["train", "test", "train"],
        covariates={"view": ["AP", None, "AP"]},
        task=Task("pair", ("Edema", "Mass"), match_on=("site", "view")),
        boxes=boxes,
    )


def test_three_images_by_hand(cohort):
    codes, names = cohort.groups()
    assert names == ("site=here|view=(missing)", "site=here|view=AP")
    assert codes.tolist() == [1, 0, 1]
    assert str(cohort.path(0)) == "/data/x/a.png"
    assert cohort.boxed().tolist() == [[False, False], [True, False], [False, False]]


def test_observations_are_what_the_measures_need(cohort):
    seen = cohort.observations()
    assert seen.labels.tolist() == [[1, 0], [0, 1], [-1, 1]]
    assert seen.patient.tolist() == ["p1", "", "p1"]
    assert seen.test.tolist() == [False, True, False]
    assert seen.group_names == ("site=here|view=(missing)", "site=here|view=AP")
    assert seen.task == "pair"
    one = cohort.observations(match_on=[], findings=["Mass"])
    assert one.findings == ("Mass",)
    assert one.group_names == ("all",)


def test_clusters_join_patients(cohort):
    seen = cohort.with_clusters(["", "same", "same"]).observations()
    assert len(set(seen.units.tolist())) == 1


def test_no_patient_ids_and_no_splits_are_none():
    seen = Cohort.of(["a", "b"], {"F": [1, 0]}).observations()
    assert seen.patient is None
    assert seen.test is None


def test_selection_keeps_rows_together(cohort):
    part = cohort.select(np.array([False, True, True]))
    assert part.records["image_id"].tolist() == ["b", "c"]
    assert part.labels.tolist() == [[0, 1], [-1, 1]]
    assert len(part.boxes) == 1
    assert len(cohort.select(np.array([2])).boxes) == 0


def test_fingerprint_ignores_the_order_of_rows_and_sees_every_change(cohort):
    base = cohort.fingerprint()
    assert cohort.select(np.array([2, 0, 1])).fingerprint() == base
    relabelled = cohort.labels.copy()
    relabelled[0, 0] = 0
    moved = cohort.records.assign(patient_id=["p2", None, "p1"])
    changes = [
        Cohort(**{**vars(cohort), "labels": relabelled}),
        Cohort(**{**vars(cohort), "records": moved}),
        Cohort(**{**vars(cohort), "boxes": cohort.boxes.assign(x=2.0)}),
        cohort.with_clusters(["", "1", "1"]),
    ]
    prints = {c.fingerprint() for c in changes}
    assert len(prints) == 4
    assert base not in prints


def test_describe_counts_each_cell(cohort):
    told = cohort.describe()
    assert told["groups"] == {"site=here|view=(missing)": 1, "site=here|view=AP": 2}
    cell = next(c for c in told["cells"] if c["group"].endswith("AP") and c["finding"] == "Edema")
    assert cell == {
        "group": "site=here|view=AP",
        "finding": "Edema",
        "split": "train",
        "positive": 1,
        "negative": 0,
        "unlabelled": 1,
        "uncertain": 0,
        "boxed": 0,
    }


@pytest.mark.parametrize(
    "change, message",
    [
        ({"labels": np.zeros((3, 2), np.int64)}, "labels must be int8"),
        ({"labels": np.full((3, 2), 2, np.int8)}, "1, 0 or -1"),
        ({"uncertain": np.zeros((2, 2), bool)}, "uncertain must be bool"),
        ({"clusters": np.array(["a"])}, "clusters must have 3 rows"),
    ],
)
def test_parts_that_do_not_fit(cohort, change, message):
    with pytest.raises(ValueError, match=message):
        Cohort(**{**vars(cohort), **change})


def test_repeated_id():
    with pytest.raises(ValueError, match="'a' occurs twice"):
        Cohort.of(["a", "a"], {"F": [1, 0]})


def test_unknown_names_are_told(cohort):
    with pytest.raises(UserError, match=r"'veiw'\. Did you mean 'view'"):
        cohort.groups(["veiw"])
    with pytest.raises(UserError, match=r"'Edma'\. Did you mean 'Edema'"):
        cohort.observations(findings=["Edma"])


def test_a_cohort_of_features_has_no_image():
    with pytest.raises(UserError, match="features only"):
        Cohort.of(["a"], {"F": [1]}).path(0)


def test_import_is_light():
    code = "import sys, candor_monai.data as d; d.Cohort; d.load_cohort;"
    code += "print('torch' in sys.modules, 'monai' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert out.stdout.split() == ["False", "False"]
