"""VinDr-Mammo: an image is positive when any of its findings is a mass or a suspicious calcification.

An image has several rows in ``finding_annotations.csv``; ``finding_categories`` is a printed list with single quotes.
``study_id`` stands in for the patient (one exam a patient).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...utils import UserError
from ..label_policy import NEGATIVE, POSITIVE
from ..label_tables import check_columns, check_unique, find_column
from .draft import Draft, box_table
from .label_lists import literal_lists
from .source import Source
from .splits import normal_splits

CATEGORIES = (
    "Mass",
    "Suspicious Calcification",
    "Asymmetry",
    "Focal Asymmetry",
    "Global Asymmetry",
    "Architectural Distortion",
    "Suspicious Lymph Node",
    "Skin Thickening",
    "Skin Retraction",
    "Nipple Retraction",
    "No Finding",
)
POSITIVE_CATEGORIES = ("Mass", "Suspicious Calcification")
SUFFIXES = (".dicom", ".dcm", ".png", ".jpg")


def read(source: Source, *, categories: str | list[str] | tuple[str, ...] = POSITIVE_CATEGORIES) -> Draft:
    """Read breast-level annotations and findings.

    Args:
        source: the dataset.
        categories: finding categories that make an image positive.
    """
    wanted = (categories,) if isinstance(categories, str) else tuple(categories)
    source.locate("breast-level_annotations.csv")
    path = source.table_path("breast-level_annotations.csv")
    breasts = source.read(path)
    view = find_column(breasts, "view_position", path, ["view_positition"])  # some copies spell it so
    check_columns(breasts, ("study_id", "image_id", "laterality", "split"), path)
    check_unique(breasts["image_id"], path)
    marks_path = source.table_path("finding_annotations.csv")
    marks = source.read(marks_path)
    check_columns(marks, ("image_id", "finding_categories", "xmin", "ymin", "xmax", "ymax"), marks_path)
    own, lists = literal_lists(marks["finding_categories"], marks_path.name)
    known = {name for names in lists for name in names}
    odd = sorted((known | set(wanted)) - set(CATEGORIES))
    if odd:
        raise UserError(f"{odd[0]!r} is not a finding category of vindr_mammo: {', '.join(CATEGORIES)}.")
    hit = np.array([not set(names).isdisjoint(wanted) for names in lists], dtype=bool)[own]

    positive = breasts["image_id"].isin(marks.loc[hit, "image_id"]).to_numpy(dtype=bool)
    findings = source.findings("mammography")
    codes = np.where(positive, POSITIVE, NEGATIVE).astype(np.int8)
    records = pd.DataFrame({"image_id": breasts["image_id"]})
    records["image"] = "images/" + breasts["study_id"] + "/" + breasts["image_id"] + ".dicom"
    records["patient_id"], records["site"] = breasts["study_id"], "vindr_mammo"
    records["split"] = normal_splits(breasts["split"], path.name)
    records["view"], records["laterality"] = breasts[view], breasts["laterality"]
    for column, name in (("breast_birads", "birads"), ("breast_density", "density")):
        if column in breasts:
            records[name] = breasts[column]
    draft = Draft(records, findings, codes, suffixes=SUFFIXES)
    boxed = marks[hit]
    corner = boxed[["xmin", "ymin", "xmax", "ymax"]].apply(pd.to_numeric, errors="coerce")
    size = corner["xmax"] - corner["xmin"], corner["ymax"] - corner["ymin"]
    parts = [box_table(boxed["image_id"], f, corner["xmin"], corner["ymin"], *size) for f in findings]
    draft.boxes = (
        pd.concat(parts, ignore_index=True).dropna(subset=["x", "y", "width", "height"]).reset_index(drop=True)
    )
    draft.found = {
        "rows of breast-level_annotations.csv": len(breasts),
        "rows of finding_annotations.csv": len(marks),
        "train images": int((records["split"] == "train").sum()),
        "test images": int((records["split"] == "test").sum()),
    }
    draft.notes["positive_categories"] = list(wanted)
    return draft
