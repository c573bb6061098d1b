"""IDRiD: ``part: grading`` (B, grades) or ``part: segmentation`` (A, lesion masks).

Ids start again at 1 in the test set of B, so the split is part of the id. No file says which image of A is which of
B. A missing mask means that the lesion was not marked; the image is unlabelled for it.
"""

from __future__ import annotations

from urllib.parse import unquote

import numpy as np
import pandas as pd

from ...utils import UserError, unknown
from ..label_policy import POSITIVE, UNLABELLED
from ..label_tables import check_columns
from .draft import Draft
from .grades import grade_codes
from .source import Source

PARTS = ("grading", "segmentation")
SETS = (("a. Training Set", "train", "Training"), ("b. Testing Set", "test", "Testing"))
LESIONS = {
    "Microaneurysms": ("1. Microaneurysms", "MA"),
    "Haemorrhages": ("2. Haemorrhages", "HE"),
    "Hard exudates": ("3. Hard Exudates", "EX"),
    "Soft exudates": ("4. Soft Exudates", "SE"),
}
IMAGES = "1. Original Images"


def read(source: Source, *, part: str = "grading") -> Draft:
    """Read one part.

    Args:
        source: the dataset.
        part: ``grading`` or ``segmentation``.
    """
    if part not in PARTS:
        raise unknown("value of part:", part, PARTS)
    source.locate("A. Segmentation*", "B. Disease Grading*", "A.%20Segmentation*", "B.%20Disease%20Grading*", IMAGES)
    return _grading(source) if part == "grading" else _segmentation(source)


def _grading(source: Source) -> Draft:
    base = _base(source, "B. Disease Grading")
    groundtruths = f"{base}2. Groundtruths"
    parts, codes, found = [], [], {}
    for folder, split, word in SETS:
        path = source.table_path(f"{folder[0]}. IDRiD_Disease Grading_{word} Labels.csv", folder=groundtruths)
        table = source.read(path)
        check_columns(table, ("Image name", "Retinopathy grade"), path)
        part = pd.DataFrame({"image_id": f"{split}/" + table["Image name"], "split": split})
        part["image"] = f"{base}{IMAGES}/{folder}/" + table["Image name"] + ".jpg"
        part["grade"] = table["Retinopathy grade"]
        part["macular_edema"] = table.get("Risk of macular edema")
        parts.append(part)
        codes.append(grade_codes(table["Retinopathy grade"], path.name))
        found[f"{split} images graded"] = len(table)
    records = pd.concat(parts, ignore_index=True)
    records["site"] = "idrid"
    return Draft(
        records,
        source.findings("referable_retinopathy"),
        np.concatenate(codes),
        found=found,
        suffixes=(".jpg", ".jpeg", ".png"),
    )


def _segmentation(source: Source) -> Draft:
    base = _base(source, "A. Segmentation")
    chosen = source.task.findings if source.task is not None else ()
    findings = tuple(f for f in chosen if f in LESIONS) or tuple(LESIONS)
    rows, masks, codes, found = [], [], [], {}
    for folder, split, _ in SETS:
        images = sorted(n for n in source.files.listing(f"{base}{IMAGES}/{folder}") if n.lower().endswith(".jpg"))
        found[f"{split} images with masks"] = len(images)
        for name in images:
            image_id = f"segmentation/{split}/{name.rpartition('.')[0]}"
            code = [UNLABELLED] * len(findings)
            for f, finding in enumerate(findings):
                lesion, short = LESIONS[finding]
                where = f"{base}2. All Segmentation Groundtruths/{folder}/{lesion}"
                mask = source.files.resolve(f"{where}/{name.rpartition('.')[0]}_{short}.tif")
                if mask is not None:
                    masks.append((image_id, finding, mask))
                    code[f] = POSITIVE
            rows.append((image_id, f"{base}{IMAGES}/{folder}/{name}", split))
            codes.append(code)
    if not rows:
        raise UserError(f"{source.root}: no image in {base}{IMAGES}/. {source.card.obtain}")
    records = pd.DataFrame(rows, columns=["image_id", "image", "split"], dtype=object)
    records["site"] = "idrid"
    draft = Draft(records, findings, np.array(codes, dtype=np.int8), found=found)
    draft.masks = pd.DataFrame(masks, columns=["image_id", "finding", "path"], dtype=object)
    draft.found["masks"] = len(masks)
    return draft


def _base(source: Source, part: str) -> str:
    """Prefix of a part's folders: the part is often nested in itself, with or without ``%20`` for spaces."""
    base = ""
    for _ in range(3):
        listed = source.files.listing(base.rstrip("/"))
        if IMAGES in listed:
            return base
        inner = next((n for n in sorted(listed) if unquote(n) == part), None)
        if inner is None:
            break
        base += f"{inner}/"
    raise UserError(
        f"{source.root}: the part {part!r} of idrid, with a folder {IMAGES!r}, is missing. {source.card.obtain}"
    )
