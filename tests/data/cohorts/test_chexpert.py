"""CheXpert: prefixes, batch folders, views, blanks."""

from __future__ import annotations

import pytest

from candor_monai.data import load_cohort
from candor_monai.data.cohorts.chexpert_labels import COLUMNS
from candor_monai.utils import UserError

from .trees import labels_of, reasons, touch, write_rows


def row(path, view="AP", frontal="Frontal", **labels):
    base = {"Path": path, "Sex": "Male", "Age": "60", "Frontal/Lateral": frontal, "AP/PA": view}
    return base | dict.fromkeys(COLUMNS, "") | {k.replace("_", " "): v for k, v in labels.items()}


def rows(prefix="CheXpert-v1.0-small"):
    return [
        row(f"{prefix}/train/patient00001/study1/view1_frontal.jpg", Edema="1.0"),
        row(f"{prefix}/train/patient00001/study1/view2_lateral.jpg", "", "Lateral", Edema="1.0"),
        row(f"{prefix}/train/patient00002/study1/view1_frontal.jpg", "PA", Edema="-1.0", Pneumothorax="0.0"),
        row(f"{prefix}/train/patient00003/study1/view1_frontal.jpg", "LL", Edema="1.0"),
    ]


def valid(prefix="CheXpert-v1.0-small"):
    return [row(f"{prefix}/valid/patient64541/study1/view1_frontal.jpg", Edema="0.0")]


AP = "train/patient00001/study1/view1_frontal.jpg"
PA = "train/patient00002/study1/view1_frontal.jpg"
VALID = "valid/patient64541/study1/view1_frontal.jpg"


def test_small_release_by_hand(tmp_path):
    write_rows(tmp_path / "train.csv", rows())
    write_rows(tmp_path / "valid.csv", valid())
    touch(tmp_path, [AP, PA, VALID])
    cohort = load_cohort("chexpert", tmp_path)
    assert labels_of(cohort, "Edema") == {AP: 1, PA: -1, VALID: 0}
    assert labels_of(cohort, "Pneumothorax") == {AP: 0, PA: 0, VALID: 0}
    assert cohort.records["split"].tolist() == ["train", "train", "val"]
    assert cohort.records["patient_id"].tolist() == ["patient00001", "patient00002", "patient64541"]
    assert cohort.counts["left_out"] == {
        "frontal image with AP/PA = LL or RL": 1,
        "view Lateral not chosen": 1,
    }
    assert cohort.counts["policy"]["labels"]["Edema"]["uncertain"] == 1
    assert "expected 223,414, found 4" in cohort.describe()["expected"][0]["sentence"]


def test_lateral_images_are_a_group_when_asked_for(tmp_path):
    write_rows(tmp_path / "train.csv", rows())
    cohort = load_cohort("chexpert", tmp_path, views=["AP", "Lateral"], check_files=False)
    assert cohort.groups()[1] == ("site=chexpert|view=AP", "site=chexpert|view=Lateral")


def test_full_release_in_batch_folders(tmp_path):
    batch = "CheXpert-v1.0 batch"
    write_rows(tmp_path / f"{batch} 1 (validate & csv)" / "train.csv", rows("CheXpert-v1.0"))
    write_rows(tmp_path / f"{batch} 1 (validate & csv)" / "valid.csv", valid("CheXpert-v1.0"))
    touch(
        tmp_path,
        [
            f"{batch} 1 (validate & csv)/{VALID}",
            f"{batch} 2 (train 1)/{AP.removeprefix('train/')}",
            f"{batch} 3 (train 2)/{PA.removeprefix('train/')}",
        ],
    )
    cohort = load_cohort("chexpert", tmp_path)
    assert cohort.records["image_id"].tolist() == [AP, PA, VALID]
    assert cohort.path(1).is_file()
    with pytest.raises(UserError, match="one batch of chexpert"):
        load_cohort("chexpert", tmp_path / f"{batch} 1 (validate & csv)")


def test_chexlocalize_says_valid_and_means_val(tmp_path):
    write_rows(tmp_path / "valid.csv", valid("CheXpert-v1.0"))
    touch(tmp_path, ["val/patient64541/study1/view1_frontal.jpg"])
    assert load_cohort("chexpert", tmp_path).path(0).is_file()


def test_test_labels_have_no_view(tmp_path):
    columns = [c for c in COLUMNS if c != "No Finding"]
    labels = dict.fromkeys(columns, "0.0") | {"Edema": "1.0"}
    write_rows(tmp_path / "train.csv", rows())
    write_rows(tmp_path / "test_labels.csv", [{"Path": "test/patient64741/study1/view1_frontal.jpg"} | labels])
    cohort = load_cohort("chexpert", tmp_path, views=None, check_files=False, splits=["test"])
    assert cohort.groups()[1] == ("site=chexpert|view=(missing)",)


def test_other_labels(tmp_path):
    write_rows(tmp_path / "train.csv", rows())
    other = rows()
    other[0]["Edema"] = "0.0"
    write_rows(tmp_path / "train_cheXbert.csv", other)
    cohort = load_cohort("chexpert", tmp_path, labels="train_cheXbert.csv", check_files=False)
    assert labels_of(cohort, "Edema")[AP] == 0


def test_partial_download_and_wrong_roots(tmp_path):
    write_rows(tmp_path / "train.csv", rows())
    touch(tmp_path, [AP])
    assert reasons(load_cohort("chexpert", tmp_path)) == {PA: "missing_file"}
    with pytest.raises(UserError, match="lies inside chexpert"):
        load_cohort("chexpert", tmp_path / "train")
    (tmp_path / AP).unlink()
    with pytest.raises(UserError, match="none of the 2 images"):
        load_cohort("chexpert", tmp_path)


def test_paths_and_labels_that_are_none(tmp_path):
    write_rows(tmp_path / "train.csv", [row("patient1.jpg")])
    with pytest.raises(UserError, match=r"row 1: Path 'patient1\.jpg' does not end like"):
        load_cohort("chexpert", tmp_path, check_files=False)
    write_rows(tmp_path / "train.csv", [row("x/" + AP, Edema="maybe")])
    with pytest.raises(UserError, match="column 'Edema', row 1: 'maybe' is not a label"):
        load_cohort("chexpert", tmp_path, check_files=False)
    with pytest.raises(UserError, match="has none of Tumor"):
        load_cohort("chexpert", tmp_path, check_files=False, task="tumor")
