"""Messidor-2: images from ADCIS, adjudicated grades from Kaggle (google-brain/messidor2-dr-grades).

The grades say ``.jpg`` where the files end in ``.JPG``. ``messidor-2.csv`` (semicolons) pairs left and right eyes: a
pair is a patient. Images that are not gradable have no grade and are unlabelled.
"""

from __future__ import annotations

import pandas as pd

from ...utils import UserError
from ..label_policy import UNLABELLED
from ..label_tables import check_columns, check_unique, find_column
from .draft import Draft
from .grades import grade_codes
from .source import Source

GRADES = "messidor_data.csv"
PAIRS = "messidor-2.csv"


def read(source: Source, *, table: str | None = None) -> Draft:
    """Read grades and pairs.

    Args:
        source: the dataset.
        table: name of the table of grades, when it is not messidor_data.csv.
    """
    root = source.locate(GRADES, PAIRS, "IMAGES")
    path = source.find_table(GRADES, chosen=table, option="table")
    if path is None:
        near = [n for n in ("trainLabels.csv",) if n in source.files.listing("")]
        hint = " trainLabels.csv is EyePACS, another dataset." if near else ""
        raise UserError(f"{root}: {GRADES}, the grades of Messidor-2, is missing.{hint} {source.card.obtain}")
    rows = source.read(path)
    key = find_column(rows, "image_id", path, ["id_code"])  # mirrors rename the columns
    grade = find_column(rows, "adjudicated_dr_grade", path, ["diagnosis"])
    codes = grade_codes(rows[grade], path.name)
    if "adjudicated_gradable" in rows:
        codes[pd.to_numeric(rows["adjudicated_gradable"], errors="coerce").to_numpy() == 0] = UNLABELLED
    check_unique(rows[key], path)
    records = pd.DataFrame({"image_id": rows[key]})
    records["image"] = _folder(source) + rows[key]
    records["patient_id"] = _patients(source, rows[key])
    records["site"], records["grade"] = "messidor2", rows[grade]
    draft = Draft(records, source.findings("referable_retinopathy"), codes, suffixes=(".png", ".jpg", ".tif", ".jpeg"))
    draft.found = {"rows of messidor_data.csv": len(rows), "gradable images": int((codes != UNLABELLED).sum())}
    return draft


def _folder(source: Source) -> str:
    top = source.files.listing("")
    return next((f"{name}/" for name in ("IMAGES", "images", "preprocess") if name in top), "")


def _patients(source: Source, images: pd.Series) -> pd.Series:
    """A number a pair of eyes; an image without a pair is a patient of its own (missing).

    Names are compared without suffix and letter case, as the two tables spell them differently.
    """
    path = source.find_table(PAIRS)
    if path is None:
        return pd.Series([None] * len(images), dtype=object)
    pairs = source.read(path, delimiter="semicolon")
    if len(pairs.columns) < 2:
        raise UserError(f"{path.name}: must hold two columns, left and right eye, separated by a semicolon.")
    check_columns(pairs, pairs.columns[:2], path)
    patient: dict[str, str] = {}
    for number, pair in enumerate(pairs.iloc[:, :2].itertuples(index=False), start=1):
        for name in pair:
            if name.strip():
                patient[_stem(name)] = f"pair {number}"
    return images.map(_stem).map(patient)


def _stem(name: str) -> str:
    return name.strip().rpartition(".")[0].lower() if "." in name else name.strip().lower()
