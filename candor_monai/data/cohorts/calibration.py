"""The calibration cohort: phantoms with known markers, written as DICOM files when they are not there yet."""

from __future__ import annotations

import pandas as pd

from ..label_policy import NEGATIVE, POSITIVE
from ..phantom_files import (
    BOX_COLUMNS,
    BOXES,
    FINDINGS,
    LABEL_COLUMNS,
    LABELS,
    SEED,
    phantom_complete,
    phantom_folder,
    phantom_tables,
    plan_phantoms,
)
from .draft import Draft, box_table
from .source import Source


def read(source: Source, *, phantom_seed: int = SEED, write: bool = True) -> Draft:
    """Read the cohort, after writing it into the dataset folder if that is empty or absent.

    Args:
        source: the dataset; its folder must be named.
        phantom_seed: seed of the images.
        write: False does not write: while the folder is not there, the cohort is the plan of it.
    """
    folder = source.need_dataset_dir()
    if write or phantom_complete(folder):
        source.at(phantom_folder(folder, int(phantom_seed)))
        table, boxes = source.read(source.table_path(LABELS)), source.read(source.table_path(BOXES))
    else:
        source.at(folder)
        rows = zip((LABEL_COLUMNS, BOX_COLUMNS), phantom_tables(plan_phantoms(int(phantom_seed))), strict=True)
        table, boxes = (pd.DataFrame(part, columns=list(columns)).astype(str) for columns, part in rows)
    records = table[["image_id", "image", "patient_id", "site", "view"]].copy()
    codes = (table[list(FINDINGS)] == "1").to_numpy()
    draft = Draft(records, tuple(FINDINGS), (codes * (POSITIVE - NEGATIVE) + NEGATIVE).astype("int8"))
    geometry = [boxes[name] for name in ("x", "y", "width", "height", "frame_width", "frame_height")]
    draft.boxes = box_table(boxes["image_id"], boxes["finding"], *geometry)
    draft.found = {
        "images": len(records),
        "patients": int(records["patient_id"].nunique()),
        "boxes": len(boxes),
    }
    return draft
