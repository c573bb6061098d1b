"""IDRiD: ids that start again, nested folders, empty columns, masks."""

from __future__ import annotations

import pytest

from candor_monai.data import load_cohort
from candor_monai.utils import UserError

from .trees import labels_of, touch


def grading(root, base="B. Disease Grading"):
    truths = root / base / "2. Groundtruths"
    truths.mkdir(parents=True)
    for letter, word, grades in (("a", "Training", (3, 0)), ("b", "Testing", (4,))):
        commas = "," * 9 if letter == "a" else ""
        lines = [f"Image name,Retinopathy grade,Risk of macular edema {commas}"]
        lines += [f"IDRiD_{i:03},{g},2{commas}" for i, g in enumerate(grades, 1)]
        (truths / f"{letter}. IDRiD_Disease Grading_{word} Labels.csv").write_bytes("\r\n".join(lines).encode())
        name = "a. Training Set" if letter == "a" else "b. Testing Set"
        touch(root / base / "1. Original Images" / name, [f"IDRiD_{i:03}.jpg" for i in range(1, len(grades) + 1)])
    return root


@pytest.mark.parametrize(
    "base", ["B. Disease Grading", "B. Disease Grading/B. Disease Grading", "B.%20Disease%20Grading/B. Disease Grading"]
)
def test_ids_start_again(tmp_path, base):
    cohort = load_cohort("idrid", grading(tmp_path, base))
    assert labels_of(cohort, "Referable retinopathy") == {
        "train/IDRiD_001": 1,
        "train/IDRiD_002": 0,
        "test/IDRiD_001": 1,
    }
    assert cohort.path(2).is_file()
    assert cohort.records["macular_edema"].tolist() == ["2", "2", "2"]


def test_masks(tmp_path):
    base = tmp_path / "A. Segmentation"
    touch(base / "1. Original Images" / "a. Training Set", ["IDRiD_01.jpg", "IDRiD_02.jpg"])
    truths = base / "2. All Segmentation Groundtruths" / "a. Training Set"
    touch(truths, ["1. Microaneurysms/IDRiD_01_MA.tif", "1. Microaneurysms/IDRiD_02_MA.tif"])
    touch(truths, ["4. Soft Exudates/IDRiD_02_SE.tif", "5. Optic Disc/IDRiD_01_OD.tif"])
    cohort = load_cohort("idrid", tmp_path, part="segmentation", task="retinal_lesions")
    assert labels_of(cohort, "Microaneurysms") == {"segmentation/train/IDRiD_01": 1, "segmentation/train/IDRiD_02": 1}
    assert labels_of(cohort, "Soft exudates") == {"segmentation/train/IDRiD_01": -1, "segmentation/train/IDRiD_02": 1}
    assert len(cohort.masks) == 3
    assert (cohort.root / cohort.masks["path"].iloc[0]).is_file()
    assert cohort.boxed().sum() == 3


def test_missing_part(tmp_path):
    with pytest.raises(UserError, match=r"'A\. Segmentation' of idrid, .* is missing"):
        load_cohort("idrid", grading(tmp_path), part="segmentation")
    with pytest.raises(UserError, match="unknown value of part"):
        load_cohort("idrid", tmp_path, part="localization")
