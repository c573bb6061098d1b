"""VinDr-PCXR: findings in two tables, the publisher's spellings."""

from __future__ import annotations

import pytest

from candor_monai.data import load_cohort
from candor_monai.utils import UserError

from .trees import labels_of, touch, write_rows

COLUMNS = [
    "No finding", "Bronchitis", "Brocho-pneumonia", "Other disease", "Bronchiolitis", "Situs inversus", "Pneumonia",
    "Pleuro-pneumonia", "Diagphramatic hernia", "Tuberculosis", "Congenital emphysema", "CPAM",
    "Hyaline membrane disease", "Mediastinal tumor", "Lung tumor",
]  # fmt: skip


def row(image, *marked):
    return {"image_id": image, "rad_ID": "R1"} | {c: float(c in marked) for c in COLUMNS}


def mark(image, name, corner=(1, 2, 5, 7)):
    return {"image_id": image, "rad_ID": "R1", "class_name": name} | dict(
        zip(("x_min", "y_min", "x_max", "y_max"), corner, strict=True)
    )


@pytest.fixture
def folder(tmp_path):
    write_rows(tmp_path / "image_labels_train.csv", [row("a", "Brocho-pneumonia"), row("b", "No finding")])
    write_rows(tmp_path / "image_labels_test.csv", [row("c", "Lung tumor")])
    write_rows(
        tmp_path / "annotations_train.csv",
        [mark("a", "Diffuse aveolar opacity"), mark("b", "No finding", ("", "", "", ""))],
    )
    write_rows(tmp_path / "annotations_test.csv", [mark("c", "Pleural effusion")])
    touch(tmp_path, ["train/a.dicom", "train/b.dicom", "test/c.dicom"])
    return tmp_path


def test_three_images_by_hand(folder):
    cohort = load_cohort("vindr_pcxr", folder)
    assert labels_of(cohort, "Pneumonia") == {"a": 1, "b": 0, "c": 0}
    assert labels_of(cohort, "Lung Opacity") == {"a": 1, "b": 0, "c": 0}
    assert labels_of(cohort, "Lung Lesion") == {"a": 0, "b": 0, "c": 1}
    assert labels_of(cohort, "Pleural Effusion") == {"a": 0, "b": 0, "c": 1}
    assert sorted(cohort.boxes["finding"]) == ["Lung Opacity", "Pleural Effusion"]
    assert cohort.records["split"].tolist() == ["train", "train", "test"]


def test_missing_annotations_are_not_no_findings(folder):
    (folder / "annotations_test.csv").unlink()
    with pytest.raises(UserError, match=r"needs annotations_test\.csv"):
        load_cohort("vindr_pcxr", folder)
