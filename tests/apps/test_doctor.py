"""What is told before a run: groups, folders and patients."""

import zipfile

import pandas as pd
import pytest

from candor_monai.utils import UserError
from candor_monai.visualize import read_results

from ..bundles.small_cohort import IMAGES, run_bundle, table_options, write_small_cohort


def lines(capsys, name):
    return [line for line in capsys.readouterr().out.splitlines() if line[7:].startswith(name)]


@pytest.fixture
def cohort(tmp_path):
    return write_small_cohort(tmp_path / "data")


def test_groups_are_told_as_the_options_make_them(cohort, tmp_path, capsys):
    run_bundle("doctor", **table_options(cohort, tmp_path / "eval", matched=False))
    (told,) = lines(capsys, "Edema")
    assert told.startswith("[note] Edema, pooled: 16 positive, 32 negative, 16 candidates a side")
    run_bundle("doctor", **table_options(cohort, tmp_path / "eval", isolated=True, match_on=["site"]))
    (told,) = lines(capsys, "Edema")
    assert told.startswith("[note] Edema, site=table: 12 positive, 24 negative")
    run_bundle("doctor", **table_options(cohort, tmp_path / "eval", roles="negatives", match_on=["site"]))
    (told,) = lines(capsys, "Edema")
    assert "Edema, site=table: 32 positive, 16 negative" in told


def test_images_without_a_patient_are_told(cohort, tmp_path, capsys):
    table = pd.read_csv(cohort / "labels.csv", dtype=str)
    table.loc[:9, "patient_id"] = ""
    table.to_csv(cohort / "labels.csv", index=False)
    run_bundle("candor_eval", **table_options(cohort, tmp_path / "eval", probe=False))
    (told,) = lines(capsys, "patients")
    assert told.startswith(f"[note] patients: 10 of {IMAGES} images have no patient id: each counts as a patient")
    assert told[7:] in read_results(tmp_path / "eval/results.json")["warnings"]
    table.drop(columns="patient_id").to_csv(cohort / "labels.csv", index=False)
    run_bundle("doctor", **table_options(cohort, tmp_path / "eval", probe=False))
    (told,) = lines(capsys, "patients")
    assert told.startswith("[note] patients: no image has a patient id")


def test_what_cannot_be_looked_into_is_told(cohort, tmp_path, capsys):
    (cohort / "bad.zip").write_bytes(b"PK\x03\x04 no archive")
    with zipfile.ZipFile(cohort / "good.zip", "w") as archive:
        archive.writestr("readme.txt", "x")
    run_bundle("candor_eval", **table_options(cohort, tmp_path / "eval", probe=False))
    (told,) = lines(capsys, "folder")
    assert told == "[note] folder: 1 archive cannot be read, the images inside are not seen: bad.zip."
    assert told[7:] in read_results(tmp_path / "eval/results.json")["warnings"]


@pytest.mark.parametrize("name", ["patient_id", "image_id", "image"])
def test_images_and_patients_make_no_groups(cohort, tmp_path, name):
    with pytest.raises((UserError, SystemExit), match=f"'{name}'"):
        run_bundle("doctor", **table_options(cohort, tmp_path / "eval", match_on=[name]))
