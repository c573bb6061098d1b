"""NIH ChestX-ray14: the publisher's layout, and the real cut of it."""

from __future__ import annotations

import pytest

from candor_monai.data import load_cohort
from candor_monai.utils import UserError
from tests.support import SHARED, needs_shared

from .trees import labels_of, reasons, touch

HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y]\n"
)
ROWS = [
    "00000001_000.png,Cardiomegaly|Effusion,0,1,58,M,PA,2682,2749,0.143,0.143",
    "00000001_001.png,No Finding,1,1,58,M,PA,2894,2729,0.143,0.143",
    "00000002_000.png,Infiltration,0,2,81,M,AP,2500,2048,0.171,0.171",
]
BOXES = "Image Index,Finding Label,Bbox [x,y,w,h],,,\n00000002_000.png,Infiltrate,10.5,20,30,40,,,\n"


def tree(root, name="Data_Entry_2017_v2020.csv", rows=ROWS):
    (root / name).write_text(HEADER + "\n".join(rows) + "\n")
    (root / "BBox_List_2017.csv").write_text(BOXES)
    (root / "train_val_list.txt").write_text("00000001_000.png\n00000001_001.png\n")
    (root / "test_list.txt").write_text("00000002_000.png\n")
    touch(
        root,
        ["images_001/images/00000001_000.png", "images_001/images/00000001_001.png", "images_002/00000002_000.png"],
    )
    return root


def test_three_images_by_hand(tmp_path):
    cohort = load_cohort("nih_cxr", tree(tmp_path))
    assert labels_of(cohort, "Effusion") == {"00000001_000.png": 1, "00000001_001.png": 0, "00000002_000.png": 0}
    assert cohort.records["image"].tolist()[2] == "images_002/00000002_000.png"
    assert cohort.records["split"].tolist() == ["train", "train", "test"]
    assert cohort.records["patient_id"].tolist() == ["1", "1", "2"]
    box = cohort.boxes.iloc[0].tolist()
    assert box == ["00000002_000.png", "Infiltration", 10.5, 20.0, 30.0, 40.0, 1024.0, 1024.0]
    assert cohort.groups()[1] == ("site=nih_cxr|view=AP", "site=nih_cxr|view=PA")


def test_twelve_findings_by_the_vocabulary(tmp_path):
    cohort = load_cohort("nih_cxr", tree(tmp_path), task="chest")
    assert labels_of(cohort, "Lung Opacity")["00000002_000.png"] == 1
    assert cohort.boxes["finding"].tolist() == ["Lung Opacity"]
    assert "Fracture" not in cohort.findings
    assert cohort.task.weight("Pneumothorax") == 3


def test_boxes_of_images_that_are_not_there_are_counted(tmp_path):
    tree(tmp_path)
    boxes = BOXES + "00000009_000.png,Mass,1,2,3,4,,,\n"
    (tmp_path / "BBox_List_2017.csv").write_text(boxes)
    cohort = load_cohort("nih_cxr", tmp_path)
    assert len(cohort.boxes) == 1
    assert cohort.counts["annotations_without_image"] == {"boxes": 1}


def test_two_versions_of_the_table(tmp_path):
    tree(tmp_path)
    tree(tmp_path, "Data_Entry_2017.csv")
    cohort = load_cohort("nih_cxr", tmp_path)
    assert "Data_Entry_2017_v2020.csv" in cohort.counts["tables"]
    tree(tmp_path, "Data_Entry_2017_mine.csv")
    (tmp_path / "Data_Entry_2017_v2020.csv").unlink()
    with pytest.raises(UserError, match=r"2 versions.*--cohort_options .*'table'"):
        load_cohort("nih_cxr", tmp_path)
    assert len(load_cohort("nih_cxr", tmp_path, table="Data_Entry_2017.csv")) == 3


def test_partial_download(tmp_path):
    tree(tmp_path)
    (tmp_path / "images_002/00000002_000.png").unlink()
    cohort = load_cohort("nih_cxr", tmp_path)
    assert reasons(cohort) == {"00000002_000.png": "missing_file"}
    assert len(cohort) == 2


def test_unknown_label_and_repeated_image(tmp_path):
    tree(tmp_path, rows=[*ROWS, ROWS[0].replace("00000001_000", "00000003_000").replace("Effusion", "Efusion")])
    with pytest.raises(UserError, match="row 4: 'Efusion' is not a label"):
        load_cohort("nih_cxr", tmp_path)
    tree(tmp_path, rows=[*ROWS, ROWS[0]])
    with pytest.raises(UserError, match=r"'00000001_000\.png' has two rows: row 1 and row 4"):
        load_cohort("nih_cxr", tmp_path)


@needs_shared
def test_real_cut():
    cohort = load_cohort("nih_cxr", SHARED / "nih_cxr")
    assert len(cohort) == 611
    codes, names = cohort.groups()
    column = cohort.findings.index
    cells = {
        ("AP", "Pneumonia"): (133, 203),
        ("AP", "Infiltration"): (56, 280),
        ("AP", "Edema"): (55, 281),
        ("PA", "Pneumonia"): (179, 96),
        ("PA", "Infiltration"): (68, 207),
    }
    for (view, finding), expected in cells.items():
        labels = cohort.labels[codes == names.index(f"site=nih_cxr|view={view}"), column(finding)]
        assert ((labels == 1).sum(), (labels == 0).sum()) == expected
    assert len(cohort.boxes) == 28
    assert cohort.boxes["image_id"].nunique() == 24
    assert len(cohort.groups(["site", "view", "orig_width"])[1]) > 10


@needs_shared
def test_one_level_too_deep():
    with pytest.raises(UserError, match="lies inside nih_cxr; the dataset's root is"):
        load_cohort("nih_cxr", SHARED / "nih_cxr" / "images")
