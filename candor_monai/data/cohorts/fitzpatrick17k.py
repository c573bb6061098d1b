"""Fitzpatrick17k: malignant against benign; non-neoplastic images are left out unless asked for.

The table is the authors'; the images are fetched from its links, many of which are dead, and are named by ``md5hash``
(older copies by ``url_alphanum``).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...utils import UserError, unknown
from ..label_policy import NEGATIVE, POSITIVE, UNLABELLED
from ..label_tables import check_columns, check_unique, line_of
from .draft import Draft
from .source import Source

SUFFIXES = (".jpg", ".jpeg", ".png")
FOLDERS = ("images", "data/finalfitz17k", "finalfitz17k", "")


def read(source: Source, *, non_neoplastic: str = "exclude") -> Draft:
    """Read the table and find the images.

    Args:
        source: the dataset.
        non_neoplastic: what non-neoplastic images are: ``exclude`` or ``negative``.
    """
    if non_neoplastic not in ("exclude", "negative"):
        raise unknown("value of non_neoplastic:", non_neoplastic, ("exclude", "negative"))
    source.locate("fitzpatrick17k*.csv")
    path = source.table_path("fitzpatrick17k.csv", "fitzpatrick17k*.csv")
    table = source.read(path)
    check_columns(table, ("md5hash", "three_partition_label", "fitzpatrick_scale"), path)
    check_unique(table["md5hash"], path)
    meaning = {"malignant": POSITIVE, "benign": NEGATIVE}
    meaning["non-neoplastic"] = NEGATIVE if non_neoplastic == "negative" else UNLABELLED
    partition = table["three_partition_label"].str.strip().str.lower()
    odd = ~partition.isin(meaning)
    if odd.any():
        row = int(odd.to_numpy().argmax())
        raise UserError(f"{path.name}, {line_of(row)}: three_partition_label {partition.iloc[row]!r} is not known.")
    codes = partition.map(meaning).to_numpy(dtype=np.int8)
    records = pd.DataFrame({"image_id": table["md5hash"]})
    records["image"] = _images(source, table)
    records["site"] = "fitz17k"
    records["skin_type"] = table["fitzpatrick_scale"].where(table["fitzpatrick_scale"] != "-1", None)
    for column in ("label", "nine_partition_label", "qc"):
        if column in table:
            records["diagnosis" if column == "label" else column] = table[column]
    draft = Draft(records, source.findings("malignancy"), codes, suffixes=SUFFIXES)
    counts = {f"{value} images": int((partition == value).sum()) for value in meaning}
    draft.found = {"rows of fitzpatrick17k.csv": len(table), **counts}
    if "url" in table:
        draft.notes["rows_without_url"] = int((table["url"].str.strip() == "").sum())
    draft.notes["non_neoplastic"] = non_neoplastic
    return draft


def _images(source: Source, table: pd.DataFrame) -> list[str]:
    """File of each image by md5, else by the name that its link was saved under."""
    where: dict[str, str] = {}
    for folder in FOLDERS:
        for name in sorted(source.files.listing(folder)):
            if name.lower().endswith(SUFFIXES):
                where.setdefault(name.rpartition(".")[0].lower(), f"{folder}/{name}" if folder else name)
    other = table["url_alphanum"] if "url_alphanum" in table else pd.Series([""] * len(table))
    files = []
    for md5, alphanum in zip(table["md5hash"], other, strict=True):
        stem = alphanum.rpartition(".")[0].lower() if alphanum else ""
        files.append(where.get(md5.lower()) or where.get(stem) or f"images/{md5}.jpg")
    return files
