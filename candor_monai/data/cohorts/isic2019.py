"""ISIC 2019 (BCN20000, HAM10000, MSK): dermoscopy, malignant or not.

Several images can show one lesion: ``lesion_id`` stands in for the patient, the image itself where it is blank. The
source inside the training set is the prefix of ``lesion_id``. ``_downsampled`` is part of some file names. The test
truth holds ``UNK`` (unlabelled) and weight columns, and its metadata has no ``lesion_id``.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...utils import UserError, unknown
from ..label_policy import NEGATIVE, POSITIVE, UNLABELLED, label_codes
from ..label_tables import check_columns, check_unique, find_column, line_of
from .draft import Draft
from .source import Source

CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
MALIGNANT = ("MEL", "BCC", "SCC")
SETS = (("Training", "train"), ("Test", "test"))


def read(source: Source, *, actinic_keratosis: str = "positive", test: bool = True) -> Draft:
    """Read truth and metadata of both sets.

    Args:
        source: the dataset.
        actinic_keratosis: what AK is: ``positive``, ``negative`` or ``exclude``.
        test: whether to read the test set when its truth is there.
    """
    if actinic_keratosis not in ("positive", "negative", "exclude"):
        raise unknown("value of actinic_keratosis:", actinic_keratosis, ("positive", "negative", "exclude"))
    source.locate("ISIC_2019_Training_GroundTruth.csv", "ISIC_2019_Test_GroundTruth.csv")
    becomes = dict.fromkeys(CLASSES, NEGATIVE) | dict.fromkeys(MALIGNANT, POSITIVE)
    becomes["AK"] = {"positive": POSITIVE, "negative": NEGATIVE, "exclude": UNLABELLED}[actinic_keratosis]
    parts, codes, found = [], [], {}
    for name, split in SETS if test else SETS[:1]:
        path = source.find_table(f"ISIC_2019_{name}_GroundTruth.csv")
        if path is None:
            continue
        truth = source.read(path)
        check_columns(truth, ("image", *CLASSES), path)
        diagnosis = _diagnosis(truth, path.name)
        part = pd.DataFrame({"image_id": truth["image"], "split": split, "diagnosis": diagnosis})
        part["image"] = _folder(source, name) + truth["image"] + ".jpg"
        _metadata(source, name, part)
        parts.append(part)
        codes.append(np.array([becomes.get(d, UNLABELLED) for d in diagnosis], dtype=np.int8))
        found[f"{split} images"] = len(truth)
    if not parts:
        raise source.no_table("ISIC_2019_Training_GroundTruth.csv")
    records = pd.concat(parts, ignore_index=True)
    records["site"] = "isic2019"
    draft = Draft(
        records, source.findings("malignancy"), np.concatenate(codes), found=found, suffixes=(".jpg", ".jpeg", ".png")
    )
    draft.notes["actinic_keratosis"] = actinic_keratosis
    return draft


def _diagnosis(truth: pd.DataFrame, where: str) -> list[str]:
    """The one class of each image; ``UNK`` where no known class holds."""
    known = [c for c in (*CLASSES, "UNK") if c in truth]
    marks = np.stack([label_codes(truth[c], c, where) == POSITIVE for c in known], axis=1)
    several = marks.sum(axis=1) != 1
    if several.any():
        row = int(several.argmax())
        raise UserError(
            f"{where}, {line_of(row)}: image {truth['image'].iloc[row]} has {int(marks[row].sum())} classes."
        )
    return [known[i] for i in marks.argmax(axis=1)]


def _metadata(source: Source, name: str, part: pd.DataFrame) -> None:
    """Lesion (as patient), source, age, site of the body and sex; joined by image."""
    path = source.find_table(f"ISIC_2019_{name}_Metadata.csv")
    part["patient_id"] = None
    if path is None:
        return
    table = source.read(path)
    check_columns(table, ["image"], path)
    check_unique(table["image"], path)
    rows = table.set_index("image").reindex(part["image_id"]).reset_index(drop=True)
    part["age"] = rows.get("age_approx")
    part["body_site"] = rows.get("anatom_site_general")
    part["sex"] = rows[find_column(rows, "sex", path, ["gender"])] if {"sex", "gender"} & set(rows.columns) else None
    if "lesion_id" in rows:
        lesion = rows["lesion_id"].fillna("")
        part["patient_id"] = lesion.where(lesion != "", None)
        part["source"] = lesion.str.extract(r"^([A-Za-z]+\d?)_", expand=False)


def _folder(source: Source, name: str) -> str:
    folder = f"ISIC_2019_{name}_Input"
    return f"{folder}/{folder}/" if folder in source.files.listing(folder) else f"{folder}/"
