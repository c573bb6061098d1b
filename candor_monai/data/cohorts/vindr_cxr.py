"""VinDr-CXR: the PhysioNet release and the Kaggle twin (VinBigData).

Three radiologists read each training image; an image is positive when at least ``votes`` of them marked the finding
(any of the vocabulary's names). The test set of PhysioNet holds one consensus row an image; that of Kaggle has no
labels and is not used. No view, no patient id and no date survive in the release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ...utils import UserError
from ..label_policy import NEGATIVE, POSITIVE, label_codes
from ..label_tables import check_columns, find_column
from .draft import Draft, box_table
from .source import Source

SUFFIXES = (".dicom", ".dcm", ".png", ".jpg", ".jpeg")
CORNERS = ("x_min", "y_min", "x_max", "y_max")


def read(source: Source, *, votes: int = 2) -> Draft:
    """Read whichever release the folder holds.

    Args:
        source: the dataset.
        votes: radiologists, of three, who must have marked a finding in a training image.
    """
    if str(votes) not in ("1", "2", "3"):
        raise UserError(f"votes must be 1, 2 or 3, is {votes!r}.")
    root = source.locate("annotations", "image_labels_train.csv*", "train.csv*")
    findings = source.vocabulary.of("vindr_cxr", source.findings("chest"))
    if "annotations" in source.files.listing("") or any(root.glob("image_labels_train.csv*")):
        draft = _physionet(source, findings, int(votes))
    else:
        draft = _kaggle(source, findings, int(votes))
    draft.notes["votes"] = int(votes)
    return draft


def _physionet(source: Source, findings: Mapping[str, Sequence[str]], votes: int) -> Draft:
    folder = "annotations" if "annotations" in source.files.listing("") else ""
    ids, codes, boxes, split, found = [], [], [], [], {}
    for name, needed in (("train", votes), ("test", 1)):
        path = source.find_table(f"image_labels_{name}.csv*", folder=folder)
        if path is None:
            continue
        table = source.read(path)
        check_columns(table, ["image_id"], path)
        image, counts = reader_votes(table, column_marks(table, findings, path))
        ids.append(image)
        codes.append(np.where(counts >= needed, POSITIVE, NEGATIVE).astype(np.int8))
        split += [name] * len(image)
        found[f"{name} images"] = len(image)
        found[f"rows of image_labels_{name}.csv"] = len(table)
        path = source.find_table(f"annotations_{name}.csv*", folder=folder)
        if path is not None:
            boxes.append(corner_boxes(source.read(path), findings, path))
    if not ids:
        raise source.no_table("image_labels_train.csv", folder=folder)
    image_ids = pd.concat(ids, ignore_index=True)
    draft = vindr_draft("vindr_cxr", image_ids, split, tuple(findings), np.concatenate(codes))
    draft.boxes = pd.concat(boxes, ignore_index=True) if boxes else draft.boxes
    draft.found = found
    return draft


def column_marks(table: pd.DataFrame, findings: Mapping[str, Sequence[str]], path: Path) -> np.ndarray:
    """Whether each row is positive in one of the columns of each finding, shape (N, F), bool."""
    marks = np.zeros((len(table), len(findings)), dtype=np.bool_)
    for f, names in enumerate(findings.values()):
        for name in names:
            marks[:, f] |= label_codes(table[find_column(table, name, path)], name, path.name) == POSITIVE
    return marks


def reader_votes(table: pd.DataFrame, marks: np.ndarray) -> tuple[pd.Series, np.ndarray]:
    """Images in the order of their first row, and how many radiologists mark each finding in each.

    Args:
        table: ``image_id`` and, where several rows may be of one radiologist, ``rad_id``.
        marks: shape (N, F), bool: the row marks the finding.

    Returns:
        I images, and shape (I, F), int64.
    """
    own, image = pd.factorize(table["image_id"])
    reader, readers = pd.factorize(table.get("rad_id", table.index))
    counts = np.zeros((len(image), marks.shape[1]), dtype=np.int64)
    for f in range(marks.shape[1]):
        pairs = np.unique(own[marks[:, f]] * len(readers) + reader[marks[:, f]])
        counts[:, f] = np.bincount(pairs // len(readers), minlength=len(image))
    return pd.Series(image), counts


def _kaggle(source: Source, findings: Mapping[str, Sequence[str]], votes: int) -> Draft:
    path = source.table_path("train.csv*")
    table = source.read(path)
    check_columns(table, ("image_id", "class_name", "rad_id", *CORNERS), path)
    known = set(table["class_name"])
    findings = {finding: names for finding, names in findings.items() if known & set(names)}
    marks = [table["class_name"].isin(list(names)).to_numpy(dtype=bool) for names in findings.values()]
    image, counts = reader_votes(table, np.array(marks, dtype=np.bool_).reshape(len(findings), len(table)).T)
    codes = np.where(counts >= votes, POSITIVE, NEGATIVE).astype(np.int8)
    draft = vindr_draft("vindr_cxr", image, ["train"] * len(image), tuple(findings), codes)
    draft.boxes = corner_boxes(table, findings, path)
    draft.found = {"rows of train.csv (Kaggle)": len(table), "train images": len(image)}
    return draft


def vindr_draft(site: str, ids: pd.Series, split: list[str], findings: tuple[str, ...], codes: np.ndarray) -> Draft:
    """Images of a release of VinDr, ``<split>/<id>.dicom``, as a draft."""
    records = pd.DataFrame({"image_id": ids})
    records["image"] = pd.Series(split, dtype=object) + "/" + ids + ".dicom"
    records["site"], records["split"] = site, split
    return Draft(records, findings, codes, suffixes=SUFFIXES)


def corner_boxes(table: pd.DataFrame, findings: Mapping[str, Sequence[str]], path: Path) -> pd.DataFrame:
    """Boxes of rows with ``x_min, y_min, x_max, y_max`` in pixels of the image; rows without a box are passed over."""
    check_columns(table, ("image_id", "class_name", *CORNERS), path)
    corner = table[list(CORNERS)].apply(pd.to_numeric, errors="coerce")
    whole = corner.notna().all(axis=1)
    parts = []
    for finding, names in findings.items():
        rows = whole & table["class_name"].isin(list(names))
        c = corner[rows]
        size = c["x_max"] - c["x_min"], c["y_max"] - c["y_min"]
        parts.append(box_table(table.loc[rows, "image_id"], finding, c["x_min"], c["y_min"], *size))
    boxes = pd.concat(parts, ignore_index=True)
    return boxes[(boxes["width"] > 0) & (boxes["height"] > 0)].reset_index(drop=True)
