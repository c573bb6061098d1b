"""DDI, Diverse Dermatology Images: biopsy-proven, malignant or not, with skin tones.

Some patients have two images; which, is not published.
"""

from __future__ import annotations

import pandas as pd

from ..label_policy import label_codes
from ..label_tables import check_columns, check_unique, find_column
from .draft import Draft
from .source import Source


def read(source: Source) -> Draft:
    """Read ``ddi_metadata.csv``.

    Args:
        source: the dataset.
    """
    source.locate("ddi_metadata.csv")
    path = source.table_path("ddi_metadata.csv")
    table = source.read(path)
    check_columns(table, ("DDI_file", "skin_tone"), path)
    malignant = find_column(table, "malignant", path, ["malignancy(malig=1)"])
    check_unique(table["DDI_file"], path)
    codes = label_codes(table[malignant], malignant, path.name)
    records = pd.DataFrame({"image_id": table["DDI_file"]})
    folder = next((f"{f}/" for f in ("images", "ddidiversedermatologyimages") if source.files.listing(f)), "")
    records["image"] = folder + table["DDI_file"]
    records["site"], records["skin_tone"] = "ddi", table["skin_tone"]
    records["disease"] = table.get("disease")
    draft = Draft(records, source.findings("malignancy"), codes, suffixes=(".png", ".jpg"))
    draft.found = {"rows of ddi_metadata.csv": len(table), "malignant images": int((codes == 1).sum())}
    return draft
