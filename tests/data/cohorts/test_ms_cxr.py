"""MS-CXR: boxes on MIMIC's images, from the table and from COCO."""

from __future__ import annotations

import json

import pytest

from candor_monai.data import load_cohort
from candor_monai.utils import UserError

from .test_mimic_cxr import tree
from .trees import write_rows

BOXES = [
    {
        "dicom_id": d,
        "category_name": "Edema",
        "label_text": "some text",
        "path": f"files/p10/p10000032/s50414267/{d}.jpg",
        "x": x,
        "y": 20,
        "w": 30,
        "h": 40,
        "image_width": 2544,
        "image_height": 3056,
        "split": "train",
    }
    for d, x in (("d1", 10), ("d1", 100), ("gone", 5))
]


def test_boxes_join_mimic(tmp_path):
    tree(tmp_path / "mimic")
    write_rows(tmp_path / "ms" / "MS_CXR_Local_Alignment_v1.1.0.csv", BOXES)
    cohort = load_cohort("ms_cxr", tmp_path / "ms", mimic_dir=str(tmp_path / "mimic"))
    assert cohort.boxes.iloc[0].tolist() == ["d1", "Edema", 10.0, 20.0, 30.0, 40.0, 2544.0, 3056.0]
    assert len(cohort.boxes) == 2
    assert cohort.boxed().sum() == 1
    assert cohort.records["site"].unique().tolist() == ["mimic"]
    assert cohort.records["split"].tolist() == ["train", "test"]
    assert cohort.path(0).is_file()
    only = load_cohort("ms_cxr", tmp_path / "ms", mimic_dir=str(tmp_path / "mimic"), only_boxed=True)
    assert only.records["image_id"].tolist() == ["d1"]


def test_coco_says_the_same(tmp_path):
    tree(tmp_path / "mimic")
    coco = {
        "images": [{"id": 1, "file_name": "d1.jpg", "path": "", "width": 2544, "height": 3056}],
        "annotations": [{"image_id": 1, "category_id": 7, "bbox": [10, 20, 30, 40], "label_text": ""}],
        "categories": [{"id": 7, "name": "Edema"}],
    }
    (tmp_path / "ms").mkdir()
    path = tmp_path / "ms" / "MS_CXR_Local_Alignment_v1.0.0.json"
    path.write_text(json.dumps(coco))
    cohort = load_cohort("ms_cxr", tmp_path / "ms", mimic_dir=str(tmp_path / "mimic"))
    assert cohort.boxes.iloc[0].tolist() == ["d1", "Edema", 10.0, 20.0, 30.0, 40.0, 2544.0, 3056.0]
    for text in ('{"images": []}', "[" * 100_000, "null"):
        path.write_text(text)
        with pytest.raises(UserError, match="not a COCO file"):
            load_cohort("ms_cxr", tmp_path / "ms", mimic_dir=str(tmp_path / "mimic"))


def test_without_mimic(tmp_path):
    write_rows(tmp_path / "MS_CXR_Local_Alignment_v1.1.0.csv", BOXES)
    with pytest.raises(UserError, match=r"--cohort_options .*'mimic_dir'"):
        load_cohort("ms_cxr", tmp_path)
