"""ISIC 2019: one-hot classes, lesions, `_downsampled`, the test set's extra columns."""

from __future__ import annotations

import pytest

from candor_monai.data import load_cohort
from candor_monai.utils import UserError

from .trees import labels_of, touch, write_rows

CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK")


def truth(image, name, **extra):
    return {"image": image} | {c: f"{float(c == name):.1f}" for c in CLASSES} | extra


@pytest.fixture
def folder(tmp_path):
    rows = [truth("ISIC_0000000", "NV"), truth("ISIC_0000002_downsampled", "MEL"), truth("ISIC_0024306", "AK")]
    write_rows(tmp_path / "ISIC_2019_Training_GroundTruth.csv", rows)
    known = (("ISIC_0000000", "", "female"), ("ISIC_0000002_downsampled", "MSK4_0011169", ""))
    known += (("ISIC_0024306", "HAM_0000550", "male"),)
    meta = [
        {"image": i, "age_approx": "55.0", "anatom_site_general": "", "lesion_id": lesion, "sex": sex}
        for i, lesion, sex in known
    ]
    write_rows(tmp_path / "ISIC_2019_Training_Metadata.csv", meta)
    rows = [truth("ISIC_0034321", "UNK", score_weight="0"), truth("ISIC_0034322", "SCC", score_weight="1")]
    write_rows(tmp_path / "ISIC_2019_Test_GroundTruth.csv", rows)
    write_rows(tmp_path / "ISIC_2019_Test_Metadata.csv", [{"image": "ISIC_0034322", "age_approx": "1", "sex": "male"}])
    touch(tmp_path, [f"ISIC_2019_Training_Input/{i}.jpg" for i in ("ISIC_0000000", "ISIC_0000002_downsampled")])
    touch(tmp_path, ["ISIC_2019_Training_Input/ISIC_0024306.jpg", "ISIC_2019_Training_Input/LICENSE.txt"])
    touch(tmp_path, ["ISIC_2019_Test_Input/ISIC_0034321.jpg", "ISIC_2019_Test_Input/ISIC_0034322.jpg"])
    return tmp_path


def test_five_images_by_hand(folder):
    cohort = load_cohort("isic2019", folder)
    assert labels_of(cohort, "Malignancy") == {
        "ISIC_0000000": 0,
        "ISIC_0000002_downsampled": 1,
        "ISIC_0024306": 1,
        "ISIC_0034322": 1,
    }
    assert cohort.records["patient_id"].tolist()[1:3] == ["MSK4_0011169", "HAM_0000550"]
    assert cohort.records["patient_id"].isna().tolist() == [True, False, False, True]
    assert cohort.records["source"].tolist()[1:3] == ["MSK4", "HAM"]
    assert cohort.counts["left_out"] == {"no label": 1}
    assert cohort.records["split"].tolist() == ["train"] * 3 + ["test"]


def test_actinic_keratosis_and_no_test(folder):
    assert labels_of(load_cohort("isic2019", folder, actinic_keratosis="negative"), "Malignancy")["ISIC_0024306"] == 0
    excluded = load_cohort("isic2019", folder, actinic_keratosis="exclude", test=False)
    assert set(labels_of(excluded, "Malignancy")) == {"ISIC_0000000", "ISIC_0000002_downsampled"}


def test_two_classes_or_none(folder):
    row = truth("ISIC_1", "NV") | {"MEL": "1.0"}
    write_rows(folder / "ISIC_2019_Training_GroundTruth.csv", [row])
    with pytest.raises(UserError, match="row 1: image ISIC_1 has 2 classes"):
        load_cohort("isic2019", folder)


def test_no_training_set_and_no_test_set_wanted(folder):
    (folder / "ISIC_2019_Training_GroundTruth.csv").unlink()
    with pytest.raises(UserError, match=r"isic2019 needs ISIC_2019_Training_GroundTruth\.csv; found ISIC_2019"):
        load_cohort("isic2019", folder, test=False)


def test_metadata_without_its_key_or_with_two_rows(folder):
    path = folder / "ISIC_2019_Training_Metadata.csv"
    write_rows(path, [{"image": "ISIC_0000000", "sex": "male"}, {"image": "ISIC_0000000", "sex": "female"}])
    with pytest.raises(UserError, match=r"Training_Metadata\.csv: image 'ISIC_0000000' has two rows"):
        load_cohort("isic2019", folder)
    write_rows(path, [{"IMAGE": "ISIC_0000000", "sex": "male"}])
    with pytest.raises(UserError, match=r"unknown column of ISIC_2019_Training_Metadata\.csv: 'image'"):
        load_cohort("isic2019", folder)
