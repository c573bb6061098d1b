"""The calibration cohort: phantoms with known markers, written as DICOM files when they are not there yet."""

from __future__ import annotations

from ..label_policy import NEGATIVE, POSITIVE
from ..phantom_files import BOXES, FINDINGS, LABELS, phantom_folder
from .draft import Draft, box_table
from .source import Source


def read(source: Source, *, phantom_seed: int = 0) -> Draft:
    """Read the cohort, after writing it into the dataset folder if that is empty or absent.

    Args:
        source: the dataset; its folder must be named.
        phantom_seed: seed of the images.
    """
    source.at(phantom_folder(source.need_dataset_dir(), int(phantom_seed)))
    table = source.read(source.table_path(LABELS))
    records = table[["image_id", "image", "patient_id", "site", "view"]].copy()
    codes = (table[list(FINDINGS)] == "1").to_numpy()
    draft = Draft(records, tuple(FINDINGS), (codes * (POSITIVE - NEGATIVE) + NEGATIVE).astype("int8"))
    boxes = source.read(source.table_path(BOXES))
    geometry = [boxes[name] for name in ("x", "y", "width", "height", "frame_width", "frame_height")]
    draft.boxes = box_table(boxes["image_id"], boxes["finding"], *geometry)
    draft.found = {
        "images": len(records),
        "patients": int(records["patient_id"].nunique()),
        "boxes": len(boxes),
    }
    return draft
