"""Harvard-FairVision, glaucoma: SLO fundus photographs.

Layouts: ``Glaucoma/{Training,Validation,Test}/`` with ``data_summary_glaucoma.csv`` above, the same folders beside a
``ReadMe/`` and below ``Dataset/``, or ``train``, ``val``, ``test``. Only the JPGs are read; the .npz files hold the
OCT volumes too. One subject a file: the number in its name.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from ...utils import UserError
from ..label_policy import label_codes
from ..label_tables import check_columns, check_unique, line_of
from .draft import Draft
from .source import Source
from .splits import normal_splits

FOLDERS = {"train": ("Training", "train"), "val": ("Validation", "val"), "test": ("Test", "test")}
SUMMARY = "data_summary_glaucoma.csv"


def read(source: Source) -> Draft:
    """Read the summary table and find each subject's JPG.

    Args:
        source: the dataset.
    """
    root = source.locate(SUMMARY, "Glaucoma", "ReadMe")
    path = _summary(source, root)
    table = source.read(path)
    check_columns(table, ("filename", "glaucoma", "use"), path)
    number = table["filename"].str.extract(r"(\d+)\.npz$", expand=False)
    if number.isna().any():
        row = int(number.isna().argmax())
        raise UserError(
            f"{path.name}, {line_of(row)}: filename {table['filename'].iloc[row]!r} is not data_<number>.npz."
        )
    split = normal_splits(table["use"], path.name)
    codes = label_codes(table["glaucoma"], "glaucoma", path.name)
    records = pd.DataFrame({"image_id": split.fillna("none") + "/" + number})
    records["image"] = _images(source, root, split, number)
    records["patient_id"], records["site"], records["split"] = number, "fairvision", split
    for column in ("age", "gender", "race", "ethnicity", "language", "maritalstatus", "md"):
        if column in table:
            records["marital_status" if column == "maritalstatus" else column] = table[column]
    check_unique(records["image_id"], path)
    draft = Draft(records, source.findings("glaucoma"), codes)
    draft.found = {
        "subjects": len(table),
        **{f"{name} subjects": int((split == name).sum()) for name in ("train", "val", "test")},
        "test positives": int(((split == "test").to_numpy(dtype=bool) & (codes == 1)).sum()),
    }
    return draft


def _summary(source: Source, root: Path) -> Path:
    for folder in ("", "ReadMe", "Glaucoma", "Glaucoma/ReadMe"):
        if SUMMARY in source.files.listing(folder):
            return root / folder / SUMMARY
    raise source.no_table(SUMMARY)


def _images(source: Source, root: Path, split: pd.Series, number: pd.Series) -> list[str]:
    """``slo*_<number>.jpg`` in the folder of its split; the prefix differs between copies."""
    where: dict[tuple[str, str], str] = {}
    for name, folders in FOLDERS.items():
        for base in ("", "Glaucoma", "Dataset", "Glaucoma/Dataset", "Glaucoma/Dataset/dataset"):
            for folder in folders:
                inner = f"{base}/{folder}" if base else folder
                for file in sorted(source.files.listing(inner)):
                    told = re.fullmatch(r"slo.*?_?(\d+)\.jpe?g", file, re.IGNORECASE)
                    if told:
                        where.setdefault((name, told.group(1)), f"{inner}/{file}")
    if not where:
        packed = [p for p in ("Dataset/dataset.zip", "Glaucoma/Dataset/dataset.zip") if (root / p).is_file()]
        if packed:
            raise UserError(f"{root / packed[0]}: unpack it; its JPGs (slo…jpg) are all that is read.")
    return [
        where.get((s or "", n), f"{FOLDERS.get(s or '', ('unknown',))[0]}/slo_fundus_{n}.jpg")
        for s, n in zip(split, number, strict=True)
    ]
