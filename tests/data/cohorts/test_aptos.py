"""APTOS: grades, suffixes added, mirrors."""

from __future__ import annotations

import pytest

from candor_monai.data import load_cohort
from candor_monai.utils import UserError

from .trees import labels_of, touch, write_rows

FINDING = "Referable retinopathy"


def test_grades_by_hand(tmp_path):
    write_rows(tmp_path / "train.csv", [{"id_code": f"a{g}", "diagnosis": g} for g in range(5)])
    write_rows(tmp_path / "test.csv", [{"id_code": "b"}])
    touch(tmp_path, [f"train_images/a{g}.png" for g in range(5)])
    cohort = load_cohort("aptos", tmp_path)
    assert labels_of(cohort, FINDING) == {"a0": 0, "a1": 0, "a2": 1, "a3": 1, "a4": 1}
    assert cohort.records["split"].isna().all()
    assert cohort.records["grade"].tolist() == list("01234")


def test_mirror(tmp_path):
    for table, folder in (("train_1.csv", "train_images"), ("valid.csv", "val_images"), ("test.csv", "test_images")):
        write_rows(tmp_path / table, [{"id_code": folder[:2], "diagnosis": 2}])
        touch(tmp_path, [f"{folder}/{folder}/{folder[:2]}.png"])
    cohort = load_cohort("aptos", tmp_path)
    assert cohort.records["split"].tolist() == ["train", "val", "test"]
    touch(tmp_path, ["train.csv"])
    with pytest.raises(UserError, match="lie side by side"):
        load_cohort("aptos", tmp_path)


def test_a_grade_that_is_none(tmp_path):
    write_rows(tmp_path / "train.csv", [{"id_code": "a", "diagnosis": 5}])
    with pytest.raises(UserError, match="column 'diagnosis', row 1: '5' is not a grade"):
        load_cohort("aptos", tmp_path)
