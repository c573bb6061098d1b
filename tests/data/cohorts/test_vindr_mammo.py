"""VinDr-Mammo: many rows an image, single quotes, a misspelt column."""

from __future__ import annotations

import pytest

from candor_monai.data import load_cohort
from candor_monai.utils import UserError

from .trees import labels_of, touch, write_rows


def breast(image, split="training", view="view_position"):
    return {
        "study_id": f"s{image[0]}",
        "series_id": "x",
        "image_id": image,
        "laterality": "L",
        view: "CC",
        "height": 3518,
        "width": 2800,
        "breast_birads": "BI-RADS 1",
        "breast_density": "DENSITY C",
        "split": split,
    }


def mark(image, categories, corner=("", "", "", "")):
    return {"image_id": image, "finding_categories": categories, "finding_birads": ""} | dict(
        zip(("xmin", "ymin", "xmax", "ymax"), corner, strict=True)
    )


@pytest.mark.parametrize("view", ["view_position", "view_positition"])
def test_three_images_by_hand(tmp_path, view):
    rows = [breast("1a", view=view), breast("1b", view=view), breast("2a", "test", view=view)]
    write_rows(tmp_path / "breast-level_annotations.csv", rows)
    marks = [
        mark("1a", "['Mass', 'Skin Retraction']", (10.5, 20, 40.5, 60)),
        mark("1a", "['Asymmetry']", (1, 2, 3, 4)),
        mark("1b", "['No Finding']"),
        mark("2a", "['Suspicious Calcification']", (1, 2, 3, 5)),
    ]
    write_rows(tmp_path / "finding_annotations.csv", marks)
    touch(tmp_path, ["images/s1/1a.dicom", "images/s1/1b.dicom", "images/s2/2a.png"])
    cohort = load_cohort("vindr_mammo", tmp_path)
    finding = "Mass or calcification"
    assert labels_of(cohort, finding) == {"1a": 1, "1b": 0, "2a": 1}
    assert cohort.boxes.values.tolist()[0][:6] == ["1a", finding, 10.5, 20.0, 30.0, 40.0]
    assert len(cohort.boxes) == 2
    assert cohort.records["patient_id"].tolist() == ["s1", "s1", "s2"]
    assert cohort.records["view"].tolist() == ["CC"] * 3
    assert cohort.records["image"].tolist()[2] == "images/s2/2a.png"
    assert labels_of(load_cohort("vindr_mammo", tmp_path, categories=["Asymmetry"]), finding)["2a"] == 0
    with pytest.raises(UserError, match="'Masses' is not a finding category"):
        load_cohort("vindr_mammo", tmp_path, categories=["Masses"])
