"""NCT-CRC-HE-100K and CRC-VAL-HE-7K: tissue tiles, the label is the folder.

``NORM`` is a tissue (normal mucosa), not the colour-normalised variant. No patient id is published.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...utils import UserError, unknown
from ..label_policy import NEGATIVE, POSITIVE
from .draft import Draft
from .source import Source

CLASSES = ("ADI", "BACK", "DEB", "LYM", "MUC", "MUS", "NORM", "STR", "TUM")
TUMOR = "TUM"
TRAIN = {"norm": "NCT-CRC-HE-100K", "nonorm": "NCT-CRC-HE-100K-NONORM"}
TEST = "CRC-VAL-HE-7K"
SUFFIXES = (".tif", ".tiff", ".png", ".jpg", ".jpeg")


def read(source: Source, *, variant: str = "norm") -> Draft:
    """List the tiles of both sets.

    Args:
        source: the dataset.
        variant: ``norm`` (colour-normalised training tiles) or ``nonorm``.
    """
    if variant not in TRAIN:
        raise unknown("value of variant:", variant, TRAIN)
    source.locate(*TRAIN.values(), TEST)
    rows, found = [], {}
    for folder, split in ((TRAIN[variant], "train"), (TEST, "test")):
        base = folder if folder not in source.files.listing(folder) else f"{folder}/{folder}"
        present = [c for c in CLASSES if c in source.files.listing(base)]
        if source.files.listing(base) and not present:
            raise UserError(f"{source.root}/{base}: none of the folders {', '.join(CLASSES)} is there.")
        count = 0
        for tissue in present:
            for name in sorted(source.files.listing(f"{base}/{tissue}")):
                if name.lower().endswith(SUFFIXES):
                    rows.append((f"{folder}/{tissue}/{name}", f"{base}/{tissue}/{name}", tissue, split))
                    count += 1
        found[f"images of {folder}"] = count
    if not rows:
        raise UserError(f"{source.root}: no tile in {TRAIN[variant]}/ or {TEST}/. {source.card.obtain}")
    records = pd.DataFrame(rows, columns=["image_id", "image", "tissue", "split"], dtype=object)
    records["site"] = "nct_crc"
    codes = np.where(records["tissue"] == TUMOR, POSITIVE, NEGATIVE).astype(np.int8)
    draft = Draft(records, source.findings("tumor"), codes)
    draft.found = found
    return draft
