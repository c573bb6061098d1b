"""RSNA Pneumonia Detection Challenge (stage 2).

One image has a row a box; rows are brought together by ``patientId``, which is an image id. The view is in the DICOM
headers only. Several images can be of one NIH patient: the publisher's mapping file says which. The test images have
no labels and are not used.
"""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from ...utils import UserError
from ..header_index import header_index
from ..label_policy import NEGATIVE, POSITIVE, label_codes
from ..label_tables import check_columns, check_unique, find_column, line_of
from .draft import Draft, box_table
from .drawing import whole
from .source import Source, user_path

FRAME = 1024
FOLDER = "stage_2_train_images"
OPACITY = "Lung Opacity"


def read(
    source: Source,
    *,
    views_table: str | None = None,
    mapping: str | None = None,
    index_dir: str | None = None,
    header_workers: int = 2,
) -> Draft:
    """Read labels, classes, and the views from the DICOM headers.

    Args:
        source: the dataset.
        views_table: a table with ``PatientID`` (or ``patientId``) and ``ViewPosition`` in place of the headers.
        mapping: the publisher's JSON that maps images to NIH ChestX-ray14, for patient ids; None takes each image as
            a patient of its own.
        index_dir, header_workers: as for a ``table`` cohort.
    """
    source.locate("stage_2_train_labels.csv*", "stage_1_train_labels.csv*")
    path = source.find_table("stage_2_train_labels.csv*")
    if path is None:
        raise UserError(
            f"{source.root}: holds stage 1 of the challenge; rsna is read from stage 2. {source.card.obtain}"
        )
    rows = source.read(path)
    check_columns(rows, ("patientId", "x", "y", "width", "height", "Target"), path)
    target = label_codes(rows["Target"], "Target", path.name) == POSITIVE
    own, ids = pd.factorize(rows["patientId"])
    positive = np.bincount(own[target], minlength=len(ids)) > 0
    if (positive[own] != target).any():
        row = int((positive[own] != target).argmax())
        raise UserError(f"{path.name}, {line_of(row)}: image {ids[own[row]]} has rows with Target 0 and 1.")
    classes = _classes(source, ids)
    known = {
        "Pneumonia": positive,
        "Lung Opacity": positive if classes is None else (classes == OPACITY).to_numpy(dtype=bool),
    }
    findings = tuple(source.vocabulary.of("rsna", source.findings("chest")))
    unknown = [f for f in findings if f not in known]
    if unknown:
        raise UserError(f"rsna labels {' and '.join(known)} only, not {unknown[0]}; mend the chest vocabulary.")
    codes = np.stack([np.where(known[f], POSITIVE, NEGATIVE) for f in findings], axis=1).astype(np.int8)

    records = pd.DataFrame({"image_id": pd.Series(ids)})
    records["image"] = f"{FOLDER}/" + records["image_id"] + ".dcm"
    records["patient_id"] = _patients(records["image_id"], mapping)
    records["site"], records["split"] = "rsna", "train"
    if classes is not None:
        records["class"] = classes
    draft = Draft(records, findings, codes, suffixes=(".dcm", ".png"))
    _views(source, draft, views_table, index_dir, whole(header_workers, "header_workers", 1))
    boxed = rows[target]
    boxes = [
        box_table(boxed["patientId"], f, boxed["x"], boxed["y"], boxed["width"], boxed["height"], FRAME, FRAME)
        for f in findings
    ]
    draft.boxes = pd.concat(boxes, ignore_index=True)
    draft.found = {
        "rows of stage_2_train_labels.csv": len(rows),
        "labelled images": len(ids),
        "positive images": int(positive.sum()),
        "boxes": int(target.sum()),
    }
    return draft


def _classes(source: Source, ids: pd.Index) -> pd.Series | None:
    """Class of each image; the table repeats it for every box."""
    path = source.find_table("stage_2_detailed_class_info.csv*")
    if path is None:
        return None
    table = source.read(path)
    check_columns(table, ("patientId", "class"), path)
    table = table.drop_duplicates(["patientId", "class"])
    check_unique(table["patientId"], path, of="classes")
    return table.set_index("patientId")["class"].reindex(ids).reset_index(drop=True)


def _patients(ids: pd.Series, mapping: str | None) -> pd.Series:
    """Patient of each image: the NIH patient, else the image itself."""
    if mapping is None:
        return ids
    path = user_path(mapping)
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        known = {entry["subset_img_id"]: "nih:" + entry["img_id"].split("_")[0] for entry in entries}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path}: not the publisher's mapping (entries with subset_img_id and img_id): {error}."
        ) from error
    return ids.map(known).where(ids.isin(known), ids)


def _views(source: Source, draft: Draft, table: str | None, index_dir: str | None, workers: int) -> None:
    """View, age and sex of each image: from a table, else from the DICOM headers of the files that are there."""
    records = draft.records
    if table is not None:
        path = source.table_path(chosen=table, option="views_table")
        rows = source.read(path)
        key = find_column(rows, "PatientID", path, ["patientId"])
        check_columns(rows, ["ViewPosition"], path)
        rows = rows.drop_duplicates([key, "ViewPosition"])
        check_unique(rows[key], path, of="views")
        records["view"] = rows.set_index(key)["ViewPosition"].reindex(records["image_id"]).to_numpy(dtype=object)
        return
    assert source.root is not None
    there = source.files.present(records["image"])
    files = records.loc[there, "image"].tolist()
    headers = header_index(source.root, files, index_dir=index_dir, workers=workers).set_index("file")
    for column, keyword in (("view", "ViewPosition"), ("sex", "PatientSex"), ("age", "PatientAge")):
        records[column] = headers[keyword].reindex(records["image"]).to_numpy(dtype=object)
    reason = headers["reason"].reindex(records["image"]).fillna("").to_numpy(dtype=object)
    for code in sorted(set(reason) - {""}):
        draft.reject(reason == code, code, "the DICOM header cannot be read", stage="header")
        reason = reason[reason != code]
