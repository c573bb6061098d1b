"""MIMIC-CXR-JPG, and the DICOM release of MIMIC-CXR with the JPG release's tables beside it.

Labels are those of the study: every image of a study has them. The eight studies without a row of labels stay
unlabelled. A blank ViewPosition is a view of its own.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from ...utils import UserError, unknown
from ..file_index import find_table, missing_table
from ..label_policy import UNLABELLED
from ..label_tables import check_columns, check_unique
from .chexpert_labels import chexpert_codes, columns_for
from .draft import Draft
from .source import Source, user_path
from .splits import normal_splits

LABELERS = ("chexpert", "negbio")
RELEASES = {"jpg": ".jpg", "dicom": ".dcm"}


def read(
    source: Source,
    *,
    labeler: str = "chexpert",
    radiologist_test: bool = False,
    release: str = "auto",
    tables_dir: str | None = None,
) -> Draft:
    """Read metadata, split and labels, joined by image and study.

    Args:
        source: the dataset.
        labeler: ``chexpert`` or ``negbio``: which tool's labels.
        radiologist_test: labels of the 687 studies of mimic-cxr-2.1.0-test-set-labeled.csv in place of the tool's.
        release: ``jpg``, ``dicom``, or ``auto`` (DICOM when the folder holds cxr-record-list.csv.gz).
        tables_dir: folder of the JPG release's tables, when it is not the dataset's.
    """
    if labeler not in LABELERS:
        raise unknown("value of labeler:", labeler, LABELERS)
    if release not in ("auto", *RELEASES):
        raise unknown("value of release:", release, ("auto", *RELEASES))
    root = source.locate("mimic-cxr-*-metadata.csv*", "files", "cxr-record-list.csv*")
    tables = root if tables_dir is None else user_path(tables_dir).resolve()
    listed = {e.lower() for e in source.files.listing("")}
    dicom = release == "dicom" or (release == "auto" and any(e.startswith("cxr-record-list") for e in listed))
    findings = columns_for(source.findings("chest"), source.name)

    meta_path = _table(source, tables, "metadata")
    wanted = ("dicom_id", "subject_id", "study_id", "ViewPosition", "Rows", "Columns")
    meta = source.read(meta_path, (*wanted, "PerformedProcedureStepDescription", "ViewCodeSequence_CodeMeaning"))
    check_columns(meta, wanted, meta_path)
    study = meta["study_id"]
    codes, studies = _labels(source, tables, labeler, findings, study, radiologist_test)
    suffix = RELEASES["dicom" if dicom else "jpg"]
    subject = meta["subject_id"]
    records = pd.DataFrame({"image_id": meta["dicom_id"]})
    folder = "files/p" + subject.str[:2] + "/p" + subject + "/s" + study + "/"
    records["image"] = folder + meta["dicom_id"] + suffix
    records["patient_id"] = subject
    records["site"] = "mimic"
    records["split"] = _splits(source, tables, meta["dicom_id"])
    records["view"] = meta["ViewPosition"]
    records["study"] = study
    records["orig_width"], records["orig_height"] = meta["Columns"], meta["Rows"]
    for column, name in (
        ("PerformedProcedureStepDescription", "procedure"),
        ("ViewCodeSequence_CodeMeaning", "view_code"),
    ):
        if column in meta:
            records[name] = meta[column]
    draft = Draft(records, findings, codes, suffixes=(".jpg", ".dcm", ".dcm.gz"))
    split = records["split"]
    draft.found = {
        "rows of metadata": len(meta),
        "studies with labels": studies,
        "studies": int(study.nunique()),
        "patients": int(subject.nunique()),
        "train images": int((split == "train").sum()),
        "validate images": int((split == "val").sum()),
        "test images": int((split == "test").sum()),
    }
    return draft


def _table(source: Source, tables: Path, kind: str) -> Path:
    """``mimic-cxr-2.0.0-<kind>.csv[.gz]``; the name keeps 2.0.0 inside release 2.1.0."""
    pattern = f"mimic-cxr-*-{kind}.csv*"
    if not tables.is_dir():
        raise UserError(f"{tables}: there is no such folder of tables.")
    path = find_table(tables, [pattern], source.name, "tables_dir")
    if path is None:
        hint = (
            "The tables come with MIMIC-CXR-JPG; for the DICOM release name their folder with "
            "--cohort_options \"{'tables_dir': '<folder>'}\"."
        )
        raise missing_table(tables, [pattern], source.name, hint)
    return path


def _labels(
    source: Source, tables: Path, labeler: str, findings: tuple[str, ...], study: pd.Series, radiologist: bool
) -> tuple[np.ndarray, int]:
    """Codes of each image by its study, and the number of studies with labels."""
    path = _table(source, tables, labeler)
    table = source.read(path)
    check_columns(table, ["study_id"], path)
    check_unique(table["study_id"], path, "study")
    codes = np.full((len(study), len(findings)), UNLABELLED, dtype=np.int8)
    _assign(codes, study, table["study_id"], chexpert_codes(table, findings, path))
    if radiologist:
        path = _table(source, tables, "test-set-labeled")
        expert = source.read(path)
        check_columns(expert, ["study_id"], path)
        check_unique(expert["study_id"], path, "study")
        _assign(
            codes,
            study,
            expert["study_id"],
            chexpert_codes(expert, findings, path, {"Lung Opacity": "Airspace Opacity"}),
        )
    return codes, len(table)


def _assign(codes: np.ndarray, study: pd.Series, labelled: pd.Series, values: np.ndarray) -> None:
    row = pd.Index(labelled).get_indexer(pd.Index(study))
    codes[row >= 0] = values[row[row >= 0]]


def _splits(source: Source, tables: Path, images: pd.Series) -> pd.Series:
    path = _table(source, tables, "split")
    table = source.read(path, ("dicom_id", "split"))
    check_columns(table, ("dicom_id", "split"), path)
    check_unique(table["dicom_id"], path)
    row = pd.Index(table["dicom_id"]).get_indexer(pd.Index(images))
    split = normal_splits(table["split"], path.name).to_numpy(dtype=object)
    return pd.Series(np.where(row >= 0, split[row], None), dtype=object)
