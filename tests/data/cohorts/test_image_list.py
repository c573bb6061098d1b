"""Images without labels: a folder, a list, a table."""

from __future__ import annotations

import os
import zipfile

import pytest
from PIL import Image

from candor_monai.data import load_cohort
from candor_monai.utils import DecodeError, UserError
from tests.data.test_header_index import dicom

from .trees import png, reasons, refuse_to_list, touch


def test_folder_list_and_table(tmp_path):
    touch(tmp_path, ["x/a.png", "x/b", "notes.txt.csv"])
    (tmp_path / "list.txt").write_text("x/a.png\nx/gone.png\nx/a.png\n")
    (tmp_path / "list.csv").write_text("image\nx/b\n")
    assert load_cohort("image_list", tmp_path).records["image_id"].tolist() == ["x/a.png", "x/b"]
    listed = load_cohort("image_list", tmp_path, images="list.txt")
    assert listed.records["image_id"].tolist() == ["x/a.png"]
    assert reasons(listed) == {"x/gone.png": "missing_file"}
    assert listed.counts["listed_twice"] == 1
    assert load_cohort("image_list", tmp_path, images="list.csv").records["image_id"].tolist() == ["x/b"]
    given = load_cohort("image_list", images=[str(tmp_path / "x/a.png")])
    assert given.path(0) == tmp_path / "x/a.png"
    assert given.findings == ()
    assert given.describe()["images"] == 1


def test_images_inside_archives(tmp_path):
    png(tmp_path / "b.png")
    with zipfile.ZipFile(tmp_path / "a.ZIP", "w") as archive:
        archive.write(tmp_path / "b.png", "x/a.png")
    cohort = load_cohort("image_list", tmp_path)
    assert cohort.records["image"].tolist() == ["b.png", "a.ZIP/x/a.png"]
    assert cohort.source(0) == tmp_path / "b.png"
    assert cohort.source(1) == (tmp_path / "b.png").read_bytes()
    (tmp_path / "list.txt").write_text("a.ZIP/x/a.png\na.ZIP/gone.png\n")
    cohort = load_cohort("image_list", tmp_path, images="list.txt")
    assert cohort.source(0) == (tmp_path / "b.png").read_bytes()
    with pytest.raises(DecodeError, match="no such member"):
        cohort.source(1)


def test_headers_of_images_inside_archives(tmp_path):
    dicom(tmp_path / "b.dcm", PatientID="p1", ViewPosition="PA")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "b.dcm", "x/a.dcm")
        archive.writestr("text", "no image")
    cohort = load_cohort("image_list", tmp_path, headers=True, header_workers=1)
    assert cohort.records[["image_id", "patient_id", "view"]].to_numpy().tolist() == [
        ["b.dcm", "p1", "PA"],
        ["a.zip/x/a.dcm", "p1", "PA"],
    ]
    assert cohort.source(1) == (tmp_path / "b.dcm").read_bytes()
    assert reasons(cohort) == {"a.zip/text": "not_dicom"}


@pytest.mark.parametrize("headers", [False, True])
def test_what_cannot_be_looked_into_is_a_row_with_a_reason(tmp_path, monkeypatch, headers):
    png(tmp_path / "b.png")
    (tmp_path / "bad.zip").write_bytes(b"PK no archive")
    (tmp_path / "secret").mkdir()
    (tmp_path / "notes.txt").write_text("text")
    refuse_to_list(monkeypatch, "secret")
    cohort = load_cohort("image_list", tmp_path, headers=headers)
    assert cohort.records["image_id"].tolist() == ["b.png"]
    assert reasons(cohort) == {"bad.zip": "bad_archive", "secret": "unreadable"}
    assert (cohort.counts["other_files"], cohort.counts["listed_twice"]) == (2, 0)


def test_a_name_that_is_not_utf8_is_a_row_with_a_reason(tmp_path):
    png(tmp_path / "b.png")
    try:
        with open(os.fsencode(tmp_path) + b"/a\xff.png", "wb") as file:
            file.write((tmp_path / "b.png").read_bytes())
    except OSError:
        pytest.skip("this file system takes names of UTF-8 alone")
    cohort = load_cohort("image_list", tmp_path)
    assert cohort.records["image_id"].tolist() == ["b.png"]
    assert reasons(cohort) == {"a\\udcff.png": "bad_name"}
    cohort.rejected.to_csv(tmp_path / "rejected.csv")


def test_what_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no image"):
        load_cohort("image_list", tmp_path)
    with pytest.raises(UserError, match="there is no such list"):
        load_cohort("image_list", tmp_path, images="list.txt")
    (tmp_path / "list.txt").write_text("../a.png\n")
    with pytest.raises(UserError, match="leaves the dataset's folder"):
        load_cohort("image_list", tmp_path, images="list.txt")


def test_headers_give_patient_view_and_covariates(tmp_path):
    def write(name, patient, view, **more):
        dicom(tmp_path / name, PatientID=patient, ViewPosition=view, SOPInstanceUID=f"1.2.{len(name)}", **more)

    (tmp_path / "deep/er").mkdir(parents=True)
    write("a.DCM", "p1", "AP", ManufacturerModelName="X")
    write("deep/er/IM00001", "p2", "PA", ManufacturerModelName="Y")
    Image.new("L", (8, 8)).save(tmp_path / "deep/b.PNG", "PNG")
    Image.new("L", (8, 8)).save(tmp_path / "deep/plain", "PNG")
    (tmp_path / "deep/c.nii.gz").write_bytes(b"any")
    (tmp_path / "README").write_text("no image")
    cohort = load_cohort("image_list", tmp_path, headers=True, site="ward", covariates=["ManufacturerModelName"])
    rows = cohort.records.set_index("image_id")
    assert sorted(rows.index) == ["a.DCM", "deep/b.PNG", "deep/c.nii.gz", "deep/er/IM00001", "deep/plain"]
    assert reasons(cohort) == {"README": "not_dicom"}
    assert rows.loc["a.DCM", ["patient_id", "view", "ManufacturerModelName"]].tolist() == ["p1", "AP", "X"]
    assert rows.loc["deep/b.PNG", ["patient_id", "view"]].isna().all()
    assert sorted(cohort.groups()[1]) == ["site=ward|view=(missing)", "site=ward|view=AP", "site=ward|view=PA"]
    matched = load_cohort("image_list", tmp_path, headers=True, match_on=["ManufacturerModelName"])
    assert len(matched.groups()[1]) == 3
    with pytest.raises(UserError, match="name, id, date or free text"):
        load_cohort("image_list", tmp_path, headers=True, match_on=["PatientID"])
