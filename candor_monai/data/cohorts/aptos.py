"""APTOS 2019 Blindness Detection: only the training images have grades.

Kaggle mirrors split them anew into ``train_1.csv``, ``valid.csv`` and ``test.csv``; the competition's own ``test.csv``
has no grades and is not used.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...utils import UserError
from ..label_tables import check_columns, check_unique
from .draft import Draft
from .grades import grade_codes
from .source import Source

MIRROR = (
    ("train_1.csv", "train_images", "train"),
    ("valid.csv", "val_images", "val"),
    ("test.csv", "test_images", "test"),
)


def read(source: Source) -> Draft:
    """Read ``train.csv``, or the three tables of a mirror.

    Args:
        source: the dataset.
    """
    root = source.locate("train.csv", "train_1.csv")
    top = source.files.listing("")
    if "train.csv" in top and "train_1.csv" in top:
        raise UserError(f"{root}: train.csv (the competition) and train_1.csv (a mirror) lie side by side; keep one.")
    tables = MIRROR if "train_1.csv" in top else (("train.csv", "train_images", None),)
    parts, codes = [], []
    for name, folder, split in tables:
        if name not in top:
            continue
        table = source.read(root / name)
        check_columns(table, ("id_code", "diagnosis"), name)
        check_unique(table["id_code"], name)
        part = pd.DataFrame({"image_id": table["id_code"], "split": split})
        part["image"] = _folder(source, folder, table["id_code"].iloc[0]) + table["id_code"] + ".png"
        part["grade"] = table["diagnosis"]
        parts.append(part)
        codes.append(grade_codes(table["diagnosis"], name))
    records = pd.concat(parts, ignore_index=True)
    records["site"] = "aptos"
    draft = Draft(
        records, source.findings("referable_retinopathy"), np.concatenate(codes), suffixes=(".png", ".jpg", ".jpeg")
    )
    draft.found = {"graded images": len(records)}
    return draft


def _folder(source: Source, folder: str, example: str) -> str:
    """``train_images/``, or twice nested as some mirrors have it."""
    inner = f"{folder}/{folder}"
    return f"{inner}/" if source.files.resolve(f"{inner}/{example}.png", (".jpg", ".jpeg")) else f"{folder}/"
