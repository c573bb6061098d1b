"""Messidor-2: letter case of suffixes, pairs of eyes, images that are not gradable."""

from __future__ import annotations

import pytest

from candor_monai.data import load_cohort
from candor_monai.utils import UserError

from .trees import labels_of, touch, write_rows

ROWS = [
    ("20051020_43808_0100_PP.png", "0", "1"),
    ("20051020_43832_0100_PP.png", "2", "1"),
    ("IM000012.jpg", "3", "1"),
    ("IM000013.jpg", "", "0"),
]


@pytest.fixture
def folder(tmp_path):
    rows = [
        {"image_id": i, "adjudicated_dr_grade": g, "adjudicated_dme": "0", "adjudicated_gradable": ok}
        for i, g, ok in ROWS
    ]
    write_rows(tmp_path / "messidor_data.csv", rows)
    (tmp_path / "messidor-2.csv").write_text(
        "left;right\n20051020_43808_0100_PP.png;20051020_43832_0100_PP.png\nIM000012.JPG;IM000013.JPG\n"
    )
    touch(tmp_path, ["IMAGES/20051020_43808_0100_PP.png", "IMAGES/20051020_43832_0100_PP.png", "IMAGES/IM000012.JPG"])
    return tmp_path


def test_four_images_by_hand(folder):
    cohort = load_cohort("messidor2", folder)
    assert labels_of(cohort, "Referable retinopathy") == {
        "20051020_43808_0100_PP.png": 0,
        "20051020_43832_0100_PP.png": 1,
        "IM000012.jpg": 1,
    }
    assert cohort.records["image"].tolist()[2] == "IMAGES/IM000012.JPG"
    assert cohort.counts["files_found_under_another_name"] == 1
    assert cohort.records["patient_id"].tolist() == ["pair 1", "pair 1", "pair 2"]
    assert cohort.counts["left_out"] == {"no label": 1}


def test_grades_of_another_dataset(folder):
    (folder / "messidor_data.csv").rename(folder / "trainLabels.csv")
    with pytest.raises(UserError, match=r"messidor_data\.csv.*is missing.*EyePACS"):
        load_cohort("messidor2", folder)


def test_mirrors_names_and_no_pairs(folder):
    (folder / "messidor-2.csv").unlink()
    write_rows(folder / "mirror.csv", [{"id_code": i, "diagnosis": g} for i, g, ok in ROWS if ok == "1"])
    cohort = load_cohort("messidor2", folder, table="mirror.csv")
    assert len(cohort) == 3
    assert cohort.records["patient_id"].isna().all()
