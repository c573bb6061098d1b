"""A hospital's own table and folder: joins, forms, policies, DICOM covariates, and everything that can be wrong."""

from __future__ import annotations

import os
import zipfile

import numpy as np
import pandas as pd
import pytest
from pydicom import dcmread

from candor_monai.data import load_cohort
from candor_monai.utils import UserError
from tests.data.test_header_index import dicom
from tests.support import SHARED, needs_shared

from .trees import labels_of, reasons, refuse_to_list, touch


def table(root, text, name="labels.csv"):
    (root / name).write_text(text)
    return root


@pytest.fixture
def folder(tmp_path):
    touch(tmp_path, ["x/a.png", "x/b.png", "y/c.png"])
    return tmp_path


def load(root, **options):
    return load_cohort("table", root, **{"labels": "labels.csv", "findings": ["Edema"], **options})


def test_wide_table_by_hand(folder):
    table(folder, "image,Edema,patient_id,view\nx/a.png,1,p1,AP\nx/b.png,0,p1,PA\ny/c.png,,p2,AP\n")
    cohort = load(folder)
    assert labels_of(cohort, "Edema") == {"x/a.png": 1, "x/b.png": 0}
    assert cohort.counts["left_out"] == {"no label": 1}
    assert cohort.records["patient_id"].tolist() == ["p1", "p1"]
    assert cohort.groups()[1] == ("site=table|view=AP", "site=table|view=PA")
    assert cohort.counts["join"] == "path"


@pytest.mark.parametrize(
    "keys, how", [("a.png,b.png,c.png", "file_name"), ("a,b,c", "stem"), ("x/a.png,x/b.png,y/c.png", "path")]
)
def test_joins_by_name(folder, keys, how):
    a, b, c = keys.split(",")
    table(folder, f"image,Edema\n{a},1\n{b},0\n{c},1\n")
    for join_on in ("auto", how):
        cohort = load(folder, join_on=join_on)
        assert cohort.counts["join"] == how
        assert cohort.records["image"].tolist() == ["x/a.png", "x/b.png", "y/c.png"]
        assert cohort.records["image_id"].tolist() == [a, b, c]


def test_unmatched_rows_and_files_are_listed(folder):
    touch(folder, ["z/notes.txt"])
    table(folder, "image,Edema\nx/a.png,1\nx/lost.png,0\n")
    cohort = load(folder)
    assert reasons(cohort) == {"x/lost.png": "no_image", "x/b.png": "no_label_row", "y/c.png": "no_label_row"}
    assert cohort.counts["unmatched"]["rows without an image"] == 1
    assert cohort.counts["other_files"] == 1


@pytest.mark.parametrize("keys", [("x/s.nii.gz", "x/t.nii"), ("s.nii.gz", "t.nii"), ("s", "t"), ("s.nii", "t.nii.gz")])
def test_packed_nifti_files_are_images(tmp_path, keys):
    touch(tmp_path, ["x/s.nii.gz", "x/t.nii", "x/labels.tar.gz"])
    cohort = load(table(tmp_path, f"image,Edema\n{keys[0]},1\n{keys[1]},0\n"), join_on="auto")
    assert labels_of(cohort, "Edema") == {keys[0]: 1, keys[1]: 0}
    assert cohort.counts["other_files"] == 1


def test_file_names_made_of_numbers_have_no_suffix(tmp_path):
    touch(tmp_path, ["1.2.3.4", "1.2.3.5", "1.2.4.6.png"])
    cohort = load(table(tmp_path, "image,Edema\n1.2.3.4,1\n1.2.3,0\n1.2.4.6,0\n"), join_on="stem")
    assert labels_of(cohort, "Edema") == {"1.2.4.6": 0}
    assert reasons(cohort) == {"1.2.3": "no_image", "1.2.3.5": "no_label_row", "1.2.3.4": "not_dicom"}


def test_rows_that_name_something_else_than_an_image(folder):
    touch(folder, ["x/notes.txt"])
    (folder / "link.png").symlink_to(folder / "gone.png")
    (folder / "link").symlink_to(folder / "x")
    rows = ["x", "link/b.png", "link.png", "x/notes.txt", "x/gone.png"]
    table(folder, "image,Edema\nx/a.png,1\n" + "".join(f"{row},0\n" for row in rows))
    rejected = load(folder, join_on="path").rejected.set_index("image_id")["message"]
    assert rejected[rows].tolist() == [
        "labels.csv names it; it is a folder",
        "labels.csv names it; it lies behind a link to a folder, which is not followed",
        "labels.csv names it; it is a link to nothing",
        "labels.csv names it; it is no image by its name",
        "labels.csv names it; no image matches",
    ]


def test_rows_that_agree_are_merged_and_rows_that_disagree_rejected(folder):
    rows = "image,Edema,view\nx/a.png,1,AP\nx/a.png,1.0,AP\nx/b.png,0,AP\nx/b.png,1,AP\ny/c.png,0,AP\ny/c.png,0,PA\n"
    cohort = load(table(folder, rows))
    assert labels_of(cohort, "Edema") == {"x/a.png": 1}
    assert reasons(cohort) == {"x/b.png": "contradictory_rows", "y/c.png": "contradictory_rows"}
    assert cohort.counts["rows_merged"] == 1


def test_long_form_without_values_lists_what_is_present(folder):
    table(folder, "image,finding\nx/a.png,Edema\nx/a.png,Mass\nx/b.png,normal\n")
    cohort = load(folder, finding_column="finding", findings=["Edema", "Mass"])
    assert labels_of(cohort, "Edema") == {"x/a.png": 1, "x/b.png": 0}
    assert labels_of(cohort, "Mass") == {"x/a.png": 1, "x/b.png": 0}


def test_long_form_with_values(folder):
    rows = "image,finding,value\nx/a.png,Edema,1\nx/a.png,Mass,0\nx/b.png,Edema,0\nx/b.png,Edema,1\ny/c.png,Mass,1\n"
    cohort = load(table(folder, rows), finding_column="finding", value_column="value", findings=["Edema", "Mass"])
    assert labels_of(cohort, "Edema") == {"x/a.png": 1, "y/c.png": -1}
    assert labels_of(cohort, "Mass") == {"x/a.png": 0, "y/c.png": 1}
    assert reasons(cohort)["x/b.png"] == "contradictory_rows"


def test_long_form_that_names_none_of_the_findings(folder):
    table(folder, "image,finding\nx/a.png,Oedema\n")
    with pytest.raises(UserError, match=r"no row names 'Edema'\. Did you mean 'Oedema'"):
        load(folder, finding_column="finding")


def test_long_form_with_one_mistyped_finding_and_with_other_names(folder):
    table(folder, "image,finding\nx/a.png,Edema\nx/b.png,PTX\n")
    with pytest.raises(UserError, match=r"no row names 'Pneumothorax'\. Named are Edema, PTX"):
        load(folder, finding_column="finding", findings=["Edema", "Pneumothorax"])
    cohort = load(folder, finding_column="finding", findings={"Edema": "Edema", "Pneumothorax": "PTX"})
    assert labels_of(cohort, "Pneumothorax") == {"x/a.png": 0, "x/b.png": 1}


def test_absolute_paths_below_the_folder_are_inside(folder):
    table(folder, f"image,Edema\n{folder}/x/a.png,1\nx/b.png,0\n")
    for allow_outside in (False, True):
        cohort = load(folder, allow_outside=allow_outside)
        assert cohort.records["image"].tolist() == ["x/a.png", "x/b.png"]
        assert reasons(cohort) == {"y/c.png": "no_label_row"}


def test_ages_as_dicom_writes_them_fall_into_bins(folder):
    table(folder, "image,Edema,age\nx/a.png,1,063Y\nx/b.png,0,018M\ny/c.png,0,old\n")
    cohort = load(folder, bins={"age": [10, 50]})
    assert cohort.records["age"].tolist() == ["50 and above", "below 10", None]


def test_list_form(folder):
    table(folder, "image,labels\nx/a.png,Edema| Mass\nx/b.png,No Finding\ny/c.png,nan\n")
    cohort = load(folder, list_column="labels", findings=["Edema", "Mass"])
    assert labels_of(cohort, "Mass") == {"x/a.png": 1, "x/b.png": 0}
    assert cohort.counts["left_out"] == {"no label": 1}
    with pytest.raises(UserError, match=r"no cell names 'Edma'\. Did you mean 'Edema'"):
        load(folder, list_column="labels", findings=["Edma"])


def test_chexpert_form_takes_blanks_as_negative(folder):
    table(folder, "image,Edema,Mass\nx/a.png,1.0,\nx/b.png,-1.0,0.0\ny/c.png,,1.0\n")
    cohort = load(folder, findings=["Edema", "Mass"])
    assert cohort.task.blank == "negative"
    assert labels_of(cohort, "Edema") == {"x/a.png": 1, "x/b.png": -1, "y/c.png": 0}
    assert cohort.uncertain[:, 0].tolist() == [False, True, False]
    assert labels_of(load(folder, findings=["Edema"], uncertain="positive", blank="exclude"), "Edema") == {
        "x/a.png": 1,
        "x/b.png": 1,
    }


def test_columns_by_name_bins_and_splits(folder):
    rows = "file;mrn;hosp;set;kv;Oed\nx/a.png;007;north;training;80;yes\n"
    rows += "x/b.png;008;south;Test;120;no\ny/c.png;9;;;n/a;no\n"
    cohort = load(
        table(folder, rows),
        image_column="file",
        patient_column="mrn",
        site_column="hosp",
        split_column="set",
        findings={"Edema": "Oed"},
        match_on=["site", "kv"],
        bins={"kv": [60, 90]},
    )
    assert cohort.records["patient_id"].tolist() == ["007", "008", "9"]
    assert cohort.records["split"].tolist() == ["train", "test", None]
    assert cohort.groups()[1] == (
        "site=(missing)|kv=(missing)",
        "site=north|kv=[60, 90)",
        "site=south|kv=90 and above",
    )
    assert cohort.observations().test is None


def test_parquet_table(folder):
    pd.DataFrame({"image": ["a", "b", "c"], "Edema": [1.0, np.nan, 0.0]}).to_parquet(folder / "labels.parquet")
    assert labels_of(load(folder, labels="labels.parquet"), "Edema") == {"a": 1, "c": 0}


@pytest.mark.parametrize(
    "text, options, message",
    [
        ("image,Edema\nx/a.png,1\n", {"findings": ["Edma"]}, "'Edma'. Did you mean 'Edema'"),
        ("image,Edema\nx/a.png,1\n", {"image_column": "imge"}, "no column 'imge'. Did you mean 'image'"),
        ("image,Edema\nx/a.png,1\n", {"match_on": ["KVP"]}, "'KVP' is a DICOM attribute"),
        ("image,Edema\nx/a.png,1\n", {"match_on": ["scaner"]}, "unknown column of labels.csv or DICOM attribute"),
        ("image,Edema\nx/a.png,severe\n", {}, r"labels.csv, column 'Edema', row 1: 'severe' is not a label"),
        ("image,Edema\nq.png,1\n", {}, r"none of its 1 rows matches an image by path or file_name or stem"),
        ("image,Edema\n../a.png,1\n", {}, "leaves the dataset's folder"),
        ("image,Edema\n/etc/passwd,1\n", {}, "leaves the dataset's folder"),
        ("image,Edema\nx/a.png,\n", {"blank": "exclude"}, "no image is left .1 no label"),
        ("image,Edema\nx/a.png,1\n", {"findings": None}, "needs --findings.*Edema"),
        ("image,Edema\nx/a.png,1\n", {"labels": None}, "needs --labels.*labels.csv"),
        ("image,Edema\nx/a.png,1\n", {"labels": "labls.csv"}, "no such table"),
        ("image,Edema\nx/a.png,1\n", {"labels": "x"}, "x: a folder, not a table"),
        ("image,Edema\nx/a.png,1\n", {"labels": "l" * 300 + ".csv"}, "File name too long"),
        ("image,Edema\nx/a.png,1\n", {"join_on": "name"}, "unknown value of join_on"),
        ("image,Edema\n,1\n", {}, "no row is left to join: 1 have nothing in column 'image'"),
        ("image,Edema\nx/a.png,1\nx/a.png,0\n", {}, "those of 1 images disagree"),
        ("image,Edema\nx/a.png,1\n./x/a.png,0\n", {}, "are about one file, x/a.png, .*; keep one of them"),
        ("image,Edema\nx/a.png,1\n", {"findings": []}, "needs --findings"),
        ("image,Edema\nx/a.png,1\n", {"delimiter": "é"}, "delimiter must be one ASCII character"),
        ("image,Edema\nx/a.png,1\n", {"delimiter": "\n"}, "delimiter must be one ASCII character"),
        ("image,Edema\nx/a.png,1\n", {"list_column": "Edema", "list_separator": ""}, "list_separator must be"),
        ("image,a,b\nx/a.png,1,1\n", {"list_column": "a", "finding_column": "b"}, "name one of them"),
        ("image,Edema,site\nx/a.png,1,1\n", {"bins": {"site": [1, 2]}}, "'site' is no number to be replaced"),
        ("image,Edema,age\nx/a.png,1,old\n", {"bins": {"age": [1, 2]}}, "none of its values is a number"),
        ("image,Edema\nx/a.png,1\n", {"value_column": "v"}, "belongs to the long form"),
        ("image,Edema,split\nx/a.png,1,later\n", {}, "row 1: 'later' is not a split"),
        ("image,Edema\nx/a.png,1\n", {"bins": {"Edema": [1]}}, "two or more rising numbers"),
        ("picture,Edema\nx/a.png,1\n", {}, "name the one that says which image"),
        ("image,Edema,Edema\nx/a.png,1,0\n", {}, "labels.csv: two columns are called 'Edema'"),
        ("image,Edema,image\nx/a.png,1,0\n", {}, "labels.csv: two columns are called 'image'"),
        ("image,Edema,site,site\nx/a.png,1,0,1\n", {}, "labels.csv: two columns are called 'site'"),
        ("image,Edema,age,age\nx/a.png,1,0,1\n", {"covariates": "age"}, "labels.csv: two columns are called 'age'"),
        ("image,Edema\na,1\na.png,1\n", {"join_on": "stem"}, "are about one file"),
        ("image,Edema\nx/a.png,1\n", {"join_on": "sop_instance_uid"}, "SOPInstanceUID of 0 files"),
    ],
)
def test_what_is_refused(folder, text, options, message):
    with pytest.raises(UserError, match=message):
        load(table(folder, text), **options)


def test_empty_folder(tmp_path):
    table(tmp_path, "image,Edema\na.png,1\n")
    with pytest.raises(UserError, match="holds no image"):
        load(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        load(tmp_path / "nowhere")


def test_unreadable_folder_is_told(folder, monkeypatch):
    refuse_to_list(monkeypatch, "/y")
    cohort = load(table(folder, "image,Edema\nx/a.png,1\nx/b.png,0\ny/c.png,0\n"))
    assert cohort.counts["unreadable_folders"] == ["y"]
    assert reasons(cohort) == {"y/c.png": "no_image"}


def test_links_and_names_that_cannot_be_written(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    touch(elsewhere, ["d.png"])
    (folder / "link").symlink_to(elsewhere)
    (folder / os.fsdecode(b"bad\xff.png")).write_bytes(b"x")
    cohort = load(table(folder, "image,Edema\nx/a.png,1\nx/b.png,0\n"))
    assert cohort.counts["links_not_followed"] == ["link"]
    assert cohort.counts["names_not_utf8"] == 1
    cohort.rejected.to_csv().encode()


def test_accession_numbers_stay_out_of_messages(hospital):
    table(hospital, "AccessionNumber,Edema\nX99,1\n")
    with pytest.raises(UserError, match="'A99'") as error:
        load(hospital, header_workers=1)
    assert "X99" not in str(error.value)


def test_names_that_several_files_bear(folder):
    touch(folder, ["y/a.png"])
    cohort = load(table(folder, "image,Edema\na.png,1\nb.png,0\n"), join_on="file_name")
    assert reasons(cohort)["a.png"] == "ambiguous_file"
    assert labels_of(cohort, "Edema") == {"b.png": 0}


@pytest.fixture
def hospital(tmp_path):
    """Two studies of DICOM files, one without suffix, one that is no image of ours, one broken."""
    dicom(
        tmp_path / "s1/IM1", SOPInstanceUID="1.2.1", AccessionNumber="A1", PatientID="p1", ViewPosition="PA", KVP="90"
    )
    dicom(tmp_path / "s1/IM2", SOPInstanceUID="1.2.2", AccessionNumber="A1", PatientID="p1", ViewPosition="LL")
    dicom(tmp_path / "s2/a.dcm", SOPInstanceUID="1.2.3", AccessionNumber="A2", PatientID="p2", SeriesDescription="AP")
    dicom(tmp_path / "s2/b.dcm", SOPInstanceUID="1.2.4", AccessionNumber="A2", PatientID="p2", Modality="CT")
    (tmp_path / "s2/broken.dcm").write_bytes(b"DICM")
    return tmp_path


def test_join_by_accession_gives_each_image_its_studys_labels(hospital):
    table(hospital, "AccessionNumber,Edema\nA1,1\nA2,0\nA3,1\n")
    cohort = load(hospital, header_workers=1)
    assert labels_of(cohort, "Edema") == {"1.2.1": 1, "1.2.2": 1, "1.2.3": 0, "1.2.4": 0}
    assert cohort.records["image"].tolist() == ["s1/IM1", "s1/IM2", "s2/a.dcm", "s2/b.dcm"]
    assert cohort.records["patient_id"].tolist() == ["p1", "p1", "p2", "p2"]
    assert cohort.records["view"].tolist() == ["PA", "LATERAL", "AP", None]
    assert cohort.counts["view_rules"] == {"description": 1, "missing": 1, "view position": 2}
    assert reasons(cohort) == {"labels.csv row 3": "no_image", "s2/broken.dcm": "no_label_row"}


def test_filters_name_what_ruled_a_file_out(hospital):
    table(hospital, "AccessionNumber,Edema\nA1,1\nA2,0\n")
    cohort = load(hospital, modalities=["CR", "DX"], views=["PA", "AP"], header_workers=1)
    assert cohort.records["image_id"].tolist() == ["1.2.1", "1.2.3"]
    row = cohort.rejected.set_index("file").loc["s2/b.dcm"]
    assert (row["reason"], row["message"]) == ("modality", "Modality is CT")
    assert cohort.counts["left_out"] == {"view LATERAL not chosen": 1}


def test_join_by_uid_with_dicom_covariates(hospital):
    table(hospital, "SOPInstanceUID,Edema\n1.2.1,1\n1.2.2,0\n1.2.3,0\n")
    cohort = load(hospital, match_on=["Modality", "KVP"], header_workers=1)
    assert cohort.groups()[1] == ("Modality=DX|KVP=(missing)", "Modality=DX|KVP=90")


def test_a_dicom_keyword_that_only_bins_name_is_read(hospital):
    table(hospital, "image,Edema,view\ns1/IM1,1,PA\ns1/IM2,0,PA\n")
    cohort = load(hospital, bins={"DistanceSourceToPatient": [1, 2]}, header_workers=1)
    assert cohort.records["DistanceSourceToPatient"].tolist() == [None, None]
    cohort = load(hospital, bins={"KVP": [60, 120]}, header_workers=1)
    assert cohort.records["KVP"].tolist() == ["[60, 120)", None]


def test_join_by_path_rejects_a_broken_file_with_its_reason(hospital):
    table(hospital, "image,Edema,patient_id\ns1/IM1,1,x\ns2/broken.dcm,0,y\n")
    cohort = load(hospital, header_workers=1)
    assert cohort.records["patient_id"].tolist() == ["x"]
    assert reasons(cohort)["s2/broken.dcm"] == "not_dicom"
    assert cohort.rejected.set_index("image_id").loc["s2/broken.dcm", "stage"] == "header"


@pytest.mark.parametrize(
    "options",
    [
        {"match_on": ["mrn"]},
        {"match_on": ["patient_id"]},
        {"covariates": ["mrn"]},
        {"bins": {"mrn": [1, 2]}},
        {"site_column": "mrn"},
        {"view_column": "mrn"},
    ],
)
def test_patient_ids_are_no_covariate(folder, options):
    table(folder, "image,mrn,Edema\nx/a.png,7,1\nx/b.png,8,0\n")
    with pytest.raises(UserError, match="holds patient ids"):
        load(folder, patient_column="mrn", **options)


def test_zipped_studies_are_read_where_they_lie(hospital):
    with zipfile.ZipFile(hospital / "s1.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("IM1", "IM2"):
            archive.write(hospital / "s1" / name, f"DICOM/{name}")
            (hospital / "s1" / name).unlink()
        archive.writestr("readme.txt", "x")
    (hospital / "bad.zip").write_bytes(b"PK not a zip")
    table(hospital, "AccessionNumber,Edema\nA1,1\nA2,0\n")
    cohort = load(hospital, header_workers=1)
    assert labels_of(cohort, "Edema") == {"1.2.1": 1, "1.2.2": 1, "1.2.3": 0, "1.2.4": 0}
    assert cohort.counts["unreadable_archives"] == ["bad.zip"]
    content = dict(zip(cohort.records["image"], map(cohort.source, range(len(cohort))), strict=True))
    assert content["s1.zip/DICOM/IM1"][128:132] == b"DICM"
    assert content["s2/a.dcm"] == hospital / "s2/a.dcm"


def test_dicomdir_says_what_a_medium_should_hold(hospital):
    from pydicom.fileset import FileSet

    medium = FileSet()
    for name in ("s1/IM1", "s2/a.dcm"):
        instance = dcmread(hospital / name)
        instance.PatientName, instance.StudyDate, instance.StudyTime = "x", "20200101", "120000"
        instance.StudyID, instance.SeriesNumber, instance.InstanceNumber = "1", 1, 1
        instance.StudyInstanceUID, instance.SeriesInstanceUID = "1.2", "1.2.3"
        medium.add(instance)
    medium.write(hospital / "cd")
    next(p for p in sorted((hospital / "cd").rglob("*")) if p.is_file() and p.name != "DICOMDIR").unlink()
    table(hospital, "AccessionNumber,Edema\nA1,1\nA2,0\n")
    cohort = load(hospital, header_workers=1)
    assert cohort.counts["dicomdir"] == {"files": 2, "files not there": 1, "unreadable": 0}
    assert sum(image.startswith("cd/") for image in cohort.records["image"]) == 1


@pytest.mark.parametrize("column, keys", [("SOPInstanceUID", ("1.2.1", "1.2.3")), ("AccessionNumber", ("A1", "A2"))])
def test_a_second_copy_of_an_instance_is_left_out(hospital, column, keys):
    dicom(hospital / "z/copy.dcm", SOPInstanceUID="1.2.1", AccessionNumber="A1")
    table(hospital, f"{column},Edema\n{keys[0]},1\n{keys[1]},0\n")
    cohort = load(hospital, header_workers=1)
    assert cohort.rejected.set_index("file").loc["z/copy.dcm", "reason"] == "duplicate_image"
    assert labels_of(cohort, "Edema")["1.2.1"] == 1


def test_no_patient_data_in_what_is_left_out(hospital):
    table(hospital, "AccessionNumber,Edema,name\nA1,1,Doe\nA2,0,Roe\nA3,1,Poe\n")
    cohort = load(hospital, modalities=["DX"], header_workers=1)
    told = cohort.rejected.to_csv() + repr(cohort.describe())
    assert not any(word in told for word in ("Doe", "Roe", "p1", "p2", "A1", "A2", "A3"))


@needs_shared
def test_real_wide_table():
    root = SHARED / "nih_cxr"
    findings = ["Edema", "Pneumonia", "Effusion"]
    cohort = load_cohort("table", root / "images", labels=str(root / "labels.csv"), findings=findings, site="nih_cxr")
    other = load_cohort("nih_cxr", root, findings=findings)
    assert len(cohort) == 611
    for finding in findings:
        assert labels_of(cohort, finding) == labels_of(other, finding)
    assert cohort.groups()[1] == other.groups()[1]


def test_files_of_a_study_whose_rows_disagree_are_listed_as_such(hospital):
    table(hospital, "AccessionNumber,Edema\nA1,1\nA1,0\nA2,0\n")
    cohort = load(hospital, header_workers=1)
    rejected = dict(zip(cohort.rejected["file"], cohort.rejected["reason"], strict=True))
    assert rejected["s1/IM1"] == rejected["s1/IM2"] == "contradictory_rows"
    assert reasons(cohort)["labels.csv row 1"] == "contradictory_rows"
    assert cohort.records["image"].tolist() == ["s2/a.dcm", "s2/b.dcm"]
