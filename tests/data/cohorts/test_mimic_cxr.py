"""MIMIC-CXR: joins by image and study, both releases, blank views."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from candor_monai.data import load_cohort
from candor_monai.data.cohorts.chexpert_labels import COLUMNS
from candor_monai.utils import UserError

from .trees import labels_of, reasons, touch, write_rows

IMAGES = [
    # dicom_id, subject, study, view, split
    ("d1", "10000032", "50414267", "AP", "train"),
    ("d2", "10000032", "50414267", "LATERAL", "train"),
    ("d3", "10000764", "57375967", "PA", "test"),
    ("d4", "11000001", "50000004", "", "validate"),
    ("d5", "11000001", "50000005", "AP", "train"),
]


def packed(path: Path) -> None:
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


def tree(root, suffix=".jpg"):
    meta = [
        {
            "dicom_id": d,
            "subject_id": p,
            "study_id": s,
            "PerformedProcedureStepDescription": "CHEST (PA AND LAT)",
            "ViewPosition": v,
            "Rows": "3056",
            "Columns": "2544",
            "StudyDate": "21800506",
            "StudyTime": "213014.531",
            "ProcedureCodeSequence_CodeMeaning": "",
            "ViewCodeSequence_CodeMeaning": "postero-anterior",
            "PatientOrientationCodeSequence_CodeMeaning": "Erect",
        }
        for d, p, s, v, _ in IMAGES
    ]
    split = [{"dicom_id": d, "study_id": s, "subject_id": p, "split": x} for d, p, s, _, x in IMAGES]
    blank = dict.fromkeys(sorted(COLUMNS), "")
    labels = [
        {"subject_id": "10000032", "study_id": "50414267"} | blank | {"Edema": "1.0"},
        {"subject_id": "10000764", "study_id": "57375967"} | blank | {"Edema": "0.0", "Pneumonia": "-1.0"},
        {"subject_id": "11000001", "study_id": "50000004"} | blank,
    ]
    for kind, rows in (("metadata", meta), ("split", split), ("chexpert", labels), ("negbio", labels)):
        packed(write_rows(root / f"mimic-cxr-2.0.0-{kind}.csv", rows))
    touch(root, [f"files/p{p[:2]}/p{p}/s{s}/{d}{suffix}" for d, p, s, _, _ in IMAGES])
    return root


def test_five_images_by_hand(tmp_path):
    cohort = load_cohort("mimic_cxr", tree(tmp_path))
    assert labels_of(cohort, "Edema") == {"d1": 1, "d3": 0}
    assert labels_of(cohort, "Pneumonia") == {"d1": 0, "d3": -1}
    assert cohort.records["image"].iloc[0] == "files/p10/p10000032/s50414267/d1.jpg"
    assert cohort.records["split"].tolist() == ["train", "test"]
    assert cohort.counts["left_out"] == {
        "view (missing) not chosen": 1,
        "view LATERAL not chosen": 1,
        "no label": 1,
    }
    assert cohort.groups()[1] == ("site=mimic|view=AP", "site=mimic|view=PA")


def test_a_blank_view_is_a_view_of_its_own(tmp_path):
    cohort = load_cohort("mimic_cxr", tree(tmp_path), views=None)
    assert "site=mimic|view=(missing)" in cohort.groups()[1]
    assert labels_of(cohort, "Edema")["d2"] == 1
    assert labels_of(cohort, "Edema")["d4"] == 0
    assert "d5" not in labels_of(cohort, "Edema")


def test_dicom_release_with_tables_elsewhere(tmp_path):
    tree(tmp_path / "jpg")
    dicom = tmp_path / "dicom"
    touch(dicom, [f"files/p{p[:2]}/p{p}/s{s}/{d}.dcm" for d, p, s, _, _ in IMAGES] + ["cxr-record-list.csv.gz"])
    cohort = load_cohort("mimic_cxr", dicom, tables_dir=str(tmp_path / "jpg"))
    assert cohort.records["image"].tolist()[0].endswith("d1.dcm")
    with pytest.raises(UserError, match=r"--cohort_options .*'tables_dir'"):
        load_cohort("mimic_cxr", dicom)


def test_radiologists_test_set_and_its_other_column(tmp_path):
    tree(tmp_path)
    labels = dict.fromkeys([c for c in sorted(COLUMNS) if c != "Lung Opacity"], "0.0") | {"Airspace Opacity": "1.0"}
    write_rows(tmp_path / "mimic-cxr-2.1.0-test-set-labeled.csv", [{"study_id": "57375967"} | labels])
    cohort = load_cohort("mimic_cxr", tmp_path, radiologist_test=True)
    assert labels_of(cohort, "Lung Opacity") == {"d1": 0, "d3": 1}
    assert labels_of(cohort, "Pneumonia") == {"d1": 0, "d3": 0}


def test_missing_table_and_versions_side_by_side(tmp_path):
    tree(tmp_path)
    (tmp_path / "mimic-cxr-2.1.0-metadata.csv.gz").write_bytes(b"")
    with pytest.raises(UserError, match="2 versions of mimic_cxr's table"):
        load_cohort("mimic_cxr", tmp_path)
    for path in tmp_path.glob("*metadata*"):
        path.unlink()
    with pytest.raises(UserError, match=r"needs mimic-cxr-\*-metadata\.csv\*; found"):
        load_cohort("mimic_cxr", tmp_path)


@pytest.mark.parametrize("kind, key", [("split", "image 'd1'"), ("chexpert", "study '50414267'"), ("metadata", "")])
def test_two_rows_of_one_key(tmp_path, kind, key):
    path = tree(tmp_path) / f"mimic-cxr-2.0.0-{kind}.csv.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    path.write_bytes(gzip.compress((text + text.splitlines()[1] + "\r\n").encode()))
    with pytest.raises(UserError, match=f"{key} has two rows" if key else "image 'd1' has two entries"):
        load_cohort("mimic_cxr", tmp_path)


def test_partial_download(tmp_path):
    tree(tmp_path)
    (tmp_path / "files/p10/p10000032/s50414267/d1.jpg").unlink()
    assert reasons(load_cohort("mimic_cxr", tmp_path)) == {"d1": "missing_file"}
    with pytest.raises(UserError, match="unknown value of labeler"):
        load_cohort("mimic_cxr", tmp_path, labeler="chexpret")
