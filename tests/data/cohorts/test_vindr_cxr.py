"""VinDr-CXR: votes of three radiologists, two releases."""

from __future__ import annotations

import pytest

from candor_monai.data import load_cohort
from candor_monai.utils import UserError

from .trees import labels_of, touch, write_rows

LOCAL = [
    "Aortic enlargement", "Atelectasis", "Calcification", "Cardiomegaly", "Clavicle fracture",
    "Consolidation", "Edema", "Emphysema", "Enlarged PA", "ILD", "Infiltration", "Lung Opacity",
    "Lung cavity", "Lung cyst", "Mediastinal shift", "Nodule/Mass", "Pleural effusion", "Pleural thickening",
    "Pneumothorax", "Pulmonary fibrosis", "Rib fracture", "Other lesion",
]  # fmt: skip
GLOBAL = ["COPD", "Lung tumor", "Pneumonia", "Tuberculosis"]


def row(image, marked=(), rad=None, last="Other diseases"):
    labels = {c: int(c in marked) for c in (*LOCAL, *GLOBAL, last, "No finding")}
    return {"image_id": image} | ({"rad_id": rad} if rad else {}) | labels


def physionet(root):
    train = [
        row("a", ["Clavicle fracture"], "R1"),
        row("a", ["Rib fracture"], "R2"),
        row("a", [], "R3"),
        row("b", ["Pneumonia"], "R1"),
        row("b", [], "R2"),
        row("b", [], "R3"),
    ]
    write_rows(root / "annotations/image_labels_train.csv", train)
    write_rows(root / "annotations/image_labels_test.csv", [row("c", ["Pneumonia"], last="Other disease")])
    box = {"image_id": "a", "rad_id": "R1", "class_name": "Clavicle fracture"}
    none = dict.fromkeys(("x_min", "y_min", "x_max", "y_max"), "")
    write_rows(
        root / "annotations/annotations_train.csv",
        [
            box | {"x_min": 10.5, "y_min": 20, "x_max": 40.5, "y_max": 60},
            {"image_id": "b", "rad_id": "R2", "class_name": "No finding"} | none,
        ],
    )
    touch(root, ["train/a.dicom", "train/b.dicom", "test/c.dicom"])
    return root


def test_votes_by_hand(tmp_path):
    cohort = load_cohort("vindr_cxr", physionet(tmp_path))
    assert labels_of(cohort, "Fracture") == {"a": 1, "b": 0, "c": 0}
    assert labels_of(cohort, "Pneumonia") == {"a": 0, "b": 0, "c": 1}
    assert labels_of(load_cohort("vindr_cxr", tmp_path, votes=1), "Pneumonia")["b"] == 1
    assert labels_of(load_cohort("vindr_cxr", tmp_path, votes=3), "Fracture")["a"] == 0
    assert cohort.boxes.iloc[0].tolist()[:6] == ["a", "Fracture", 10.5, 20.0, 30.0, 40.0]
    assert cohort.boxes["frame_width"].isna().all()
    assert cohort.records["split"].tolist() == ["train", "train", "test"]
    assert "Enlarged Cardiomediastinum" not in cohort.findings
    assert cohort.counts["votes"] == 2
    assert cohort.groups()[1] == ("site=vindr_cxr",)


def test_kaggle_twin(tmp_path):
    corner = {"x_min": 1, "y_min": 2, "x_max": 5, "y_max": 7}
    rows = [
        {"image_id": "a", "class_name": "Cardiomegaly", "class_id": 3, "rad_id": r} | corner for r in ("R1", "R1", "R2")
    ]
    none = dict.fromkeys(corner, "")
    rows += [{"image_id": "b", "class_name": "No finding", "class_id": 14, "rad_id": "R1"} | none]
    write_rows(tmp_path / "train.csv", rows)
    touch(tmp_path, ["train/a.dicom", "train/b.png"])
    cohort = load_cohort("vindr_cxr", tmp_path)
    assert cohort.findings == ("Cardiomegaly",)
    assert labels_of(cohort, "Cardiomegaly") == {"a": 1, "b": 0}
    assert labels_of(load_cohort("vindr_cxr", tmp_path, votes=3), "Cardiomegaly")["a"] == 0
    assert len(cohort.boxes) == 3
    assert cohort.records["image"].tolist()[1] == "train/b.png"


def test_what_is_refused(tmp_path):
    with pytest.raises(UserError, match="votes must be 1, 2 or 3"):
        load_cohort("vindr_cxr", physionet(tmp_path), votes=4)
    with pytest.raises(UserError, match="lies inside vindr_cxr"):
        load_cohort("vindr_cxr", tmp_path / "train")
    (tmp_path / "annotations/image_labels_train.csv").unlink()
    (tmp_path / "annotations/image_labels_test.csv").unlink()
    with pytest.raises(UserError, match=r"needs image_labels_train\.csv"):
        load_cohort("vindr_cxr", tmp_path)


def test_a_radiologist_votes_once(tmp_path):
    physionet(tmp_path)
    rows = [row("a", ["Pneumonia"], "R1"), row("a", ["Pneumonia"], "R1"), row("b", ["Pneumonia"], "R1")]
    write_rows(tmp_path / "annotations/image_labels_train.csv", [*rows, row("b", ["Pneumonia"], "R2")])
    assert labels_of(load_cohort("vindr_cxr", tmp_path), "Pneumonia") == {"a": 0, "b": 1, "c": 1}


def test_an_image_in_both_sets(tmp_path):
    physionet(tmp_path)
    write_rows(tmp_path / "annotations/image_labels_test.csv", [row("a", ["Pneumonia"], last="Other disease")])
    with pytest.raises(UserError, match="vindr_cxr: image 'a' has two entries"):
        load_cohort("vindr_cxr", tmp_path)


def test_rows_without_an_image_id_are_counted(tmp_path):
    physionet(tmp_path)
    write_rows(tmp_path / "annotations/image_labels_test.csv", [row("", ["Pneumonia"], last="Other disease")])
    cohort = load_cohort("vindr_cxr", tmp_path)
    assert cohort.counts["left_out"] == {"no image id": 1}
    assert cohort.records["image_id"].tolist() == ["a", "b"]
