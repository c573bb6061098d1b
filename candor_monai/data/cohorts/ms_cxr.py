"""MS-CXR: expert boxes for images of MIMIC-CXR-JPG.

Not a site of its own: the cohort is that of mimic_cxr, with boxes. The table's own split is not used, as it differs
from MIMIC-CXR's. Boxes are in pixels of the original JPG (image_width × image_height).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from ...utils import UserError
from ..label_tables import check_columns
from . import mimic_cxr
from .draft import Draft, box_table
from .source import Source, user_path

COLUMNS = ("dicom_id", "category_name", "x", "y", "w", "h", "image_width", "image_height")


def read(
    source: Source,
    *,
    mimic_dir: str | None = None,
    table: str | None = None,
    only_boxed: bool = False,
    labeler: str = "chexpert",
    radiologist_test: bool = False,
    release: str = "auto",
    tables_dir: str | None = None,
) -> Draft:
    """Read MIMIC-CXR and add the boxes.

    Args:
        source: the folder of MS-CXR.
        mimic_dir: the folder of MIMIC-CXR-JPG.
        table: name of the table (.csv) or COCO file (.json) when several versions lie side by side.
        only_boxed: keep images with a box only (for retention; there are then no negatives of their own).
        labeler, radiologist_test, release, tables_dir: as for mimic_cxr.
    """
    source.locate("MS_CXR_Local_Alignment*")
    patterns = ("MS_CXR_Local_Alignment*.csv", "MS_CXR_Local_Alignment*.json")
    path = source.table_path(*patterns, chosen=table, option="table")
    rows = _coco(path) if path.suffix == ".json" else source.read(path)
    source.tables[path.name] = len(rows)
    check_columns(rows, COLUMNS, path)
    if mimic_dir is None:
        raise UserError(
            "ms_cxr holds boxes only: name the folder of MIMIC-CXR-JPG, its images and tables, with "
            "--cohort_options \"{'mimic_dir': '<folder>'}\"."
        )
    mimic = replace(source, dataset_dir=user_path(mimic_dir), root=None, _files=None)
    draft = mimic_cxr.read(
        mimic, labeler=labeler, radiologist_test=radiologist_test, release=release, tables_dir=tables_dir
    )
    assert mimic.root is not None
    source.at(mimic.root)
    draft.boxes = box_table(
        rows["dicom_id"], rows["category_name"], rows["x"], rows["y"], rows["w"], rows["h"],
        rows["image_width"], rows["image_height"],
    )  # fmt: skip
    draft.found |= {"boxes": len(rows), "boxed images": int(rows["dicom_id"].nunique())}
    if only_boxed:
        draft.keep(draft.records["image_id"].isin(rows["dicom_id"]).to_numpy(dtype=bool), "no box")
    return draft


def _coco(path: Path) -> pd.DataFrame:
    """Rows of the COCO form: one an annotation."""
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8-sig"))
        images = {image["id"]: image for image in data["images"]}
        names = {category["id"]: category["name"] for category in data["categories"]}
        rows = [
            {
                "dicom_id": Path(images[a["image_id"]]["file_name"]).stem,
                "category_name": names[a["category_id"]],
                **dict(zip("xywh", map(str, a["bbox"]), strict=True)),
                "image_width": str(images[a["image_id"]]["width"]),
                "image_height": str(images[a["image_id"]]["height"]),
            }
            for a in data["annotations"]
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: not a COCO file with images, annotations and categories ({error}).") from error
    return pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)
