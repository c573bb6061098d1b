"""RSNA: a row a box, views from headers or a table, classes repeated."""

from __future__ import annotations

import json

import pytest

from candor_monai.data import load_cohort
from candor_monai.utils import UserError
from tests.data.test_header_index import dicom

from .trees import labels_of, reasons, touch, write_rows


def row(image, target, x="", y="", w="", h=""):
    return {"patientId": image, "x": x, "y": y, "width": w, "height": h, "Target": target}


@pytest.fixture
def folder(tmp_path):
    rows = [row("a", 1, 264.0, 152.0, 213.0, 379.0), row("a", 1, 562.0, 152.0, 256.0, 453.0), row("b", 0), row("c", 0)]
    write_rows(tmp_path / "stage_2_train_labels.csv", rows)
    classes = ["Lung Opacity", "Lung Opacity", "Normal", "No Lung Opacity / Not Normal"]
    write_rows(
        tmp_path / "stage_2_detailed_class_info.csv",
        [{"patientId": r["patientId"], "class": c} for r, c in zip(rows, classes, strict=True)],
    )
    for name, view in (("a", "AP"), ("b", "PA"), ("c", "AP")):
        dicom(tmp_path / f"stage_2_train_images/{name}.dcm", ViewPosition=view, PatientAge="060Y", PatientSex="F")
    return tmp_path


def test_three_images_by_hand(folder):
    cohort = load_cohort("rsna", folder, header_workers=1)
    assert labels_of(cohort, "Pneumonia") == {"a": 1, "b": 0, "c": 0}
    assert labels_of(cohort, "Lung Opacity") == {"a": 1, "b": 0, "c": 0}
    assert cohort.groups()[1] == ("site=rsna|view=AP", "site=rsna|view=PA")
    boxes = cohort.boxes[cohort.boxes["finding"] == "Pneumonia"]
    assert boxes.iloc[0].tolist() == ["a", "Pneumonia", 264.0, 152.0, 213.0, 379.0, 1024.0, 1024.0]
    assert len(boxes) == 2
    assert cohort.counts["found"]["labelled images"] == 3
    assert cohort.counts["found"]["boxes"] == 2


def test_views_from_a_table_and_patients_from_the_mapping(folder):
    write_rows(folder / "views.csv", [{"PatientID": i, "ViewPosition": "PA"} for i in "abc"])
    mapping = [{"subset_img_id": i, "img_id": f"00013659_{n:03}.png"} for n, i in enumerate("ab")]
    (folder / "mapping.json").write_text(json.dumps(mapping))
    cohort = load_cohort("rsna", folder, views_table="views.csv", mapping=str(folder / "mapping.json"))
    assert cohort.groups()[1] == ("site=rsna|view=PA",)
    assert cohort.records["patient_id"].tolist() == ["nih:00013659", "nih:00013659", "c"]


def test_a_broken_file_and_a_missing_one(folder):
    (folder / "stage_2_train_images/b.dcm").write_bytes(b"broken")
    (folder / "stage_2_train_images/c.dcm").unlink()
    cohort = load_cohort("rsna", folder, header_workers=1)
    assert reasons(cohort) == {"b": "not_dicom", "c": "missing_file"}


def test_what_is_refused(folder, tmp_path_factory):
    write_rows(folder / "stage_2_train_labels.csv", [row("a", 1, 1, 1, 1, 1), row("a", 0)])
    with pytest.raises(UserError, match="image a has rows with Target 0 and 1"):
        load_cohort("rsna", folder)
    old = tmp_path_factory.mktemp("old")
    touch(old, ["stage_1_train_labels.csv"])
    with pytest.raises(UserError, match="stage 1 of the challenge"):
        load_cohort("rsna", old)


def test_mappings_that_are_none_and_views_that_disagree(folder):
    for text in ("[" * 100_000, "null", '[{"subset_img_id": 1}]'):
        (folder / "mapping.json").write_text(text)
        with pytest.raises(UserError, match=r"mapping\.json: not the publisher's mapping"):
            load_cohort("rsna", folder, mapping=str(folder / "mapping.json"), views_table="views.csv")
    write_rows(folder / "views.csv", [{"PatientID": "a", "ViewPosition": view} for view in ("PA", "PA", "AP")])
    with pytest.raises(UserError, match=r"views\.csv: image 'a' has two views"):
        load_cohort("rsna", folder, views_table="views.csv")
