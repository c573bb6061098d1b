"""NCT-CRC: the label is the folder; NORM is a tissue."""

from __future__ import annotations

import pytest

from candor_monai.data import load_cohort
from candor_monai.utils import UserError

from .trees import labels_of, touch


def test_folders_by_hand(tmp_path):
    touch(
        tmp_path, ["NCT-CRC-HE-100K/TUM/TUM-A.tif", "NCT-CRC-HE-100K/NORM/NORM-A.tif", "NCT-CRC-HE-100K/TUM/Thumbs.db"]
    )
    touch(tmp_path, ["CRC-VAL-HE-7K/ADI/ADI-TCGA-A.tif", "NCT-CRC-HE-100K-NONORM/TUM/TUM-B.tif"])
    cohort = load_cohort("nct_crc", tmp_path)
    assert labels_of(cohort, "Tumor") == {
        "NCT-CRC-HE-100K/NORM/NORM-A.tif": 0,
        "NCT-CRC-HE-100K/TUM/TUM-A.tif": 1,
        "CRC-VAL-HE-7K/ADI/ADI-TCGA-A.tif": 0,
    }
    assert cohort.records["split"].tolist() == ["train", "train", "test"]
    assert cohort.records["patient_id"].isna().all()
    raw = load_cohort("nct_crc", tmp_path, variant="nonorm", splits=["train"])
    assert raw.records["image_id"].tolist() == ["NCT-CRC-HE-100K-NONORM/TUM/TUM-B.tif"]


def test_nested_copy_and_wrong_folders(tmp_path):
    touch(tmp_path, ["CRC-VAL-HE-7K/CRC-VAL-HE-7K/TUM/a.png"])
    assert len(load_cohort("nct_crc", tmp_path)) == 1
    with pytest.raises(UserError, match="unknown value of variant"):
        load_cohort("nct_crc", tmp_path, variant="raw")
    touch(tmp_path, ["NCT-CRC-HE-100K/tumour/a.tif"])
    with pytest.raises(UserError, match="none of the folders ADI"):
        load_cohort("nct_crc", tmp_path)
