"""CheXpert: the full release in its batch folders, and the small one.

``Path`` in the tables starts with a prefix that differs between releases; it is cut before ``train/`` or ``valid/``.
In the full release the train batches hold the patients' folders without a ``train/`` level. ``AP/PA`` gives the view
of frontal images; the 17 frontal images with ``LL`` or ``RL`` there are left out.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...utils import UserError
from ..label_tables import check_columns, line_of
from .chexpert_labels import chexpert_codes, columns_for
from .draft import Draft
from .source import Source

BATCH = "CheXpert-v1.0 batch"
TABLES = (("train.csv", "train"), ("valid.csv", "val"), ("test_labels.csv", "test"))
LATERAL = "Lateral"


def read(source: Source, *, labels: str | None = None) -> Draft:
    """Read ``train.csv``, ``valid.csv`` and, where CheXlocalize lies beside them, ``test_labels.csv``.

    Args:
        source: the dataset.
        labels: another table in place of ``train.csv``, e.g. ``train_cheXbert.csv``.
    """
    root = source.locate("train.csv", "valid.csv", f"{BATCH}*")
    if root.name.startswith(BATCH):
        raise UserError(
            f"{root}: this is one batch of chexpert. Set --dataset_dir to the folder of all: {root.parent}."
        )
    batches = [f for f in sorted(source.files.listing("")) if f.startswith(BATCH)]
    findings = columns_for(source.findings("chest"), source.name)
    records, codes, drafts = [], [], {}
    for name, split in TABLES:
        folder = next((b for b in ("", *batches) if name in source.files.listing(b)), None)
        if name == "train.csv" and labels is not None:
            path = source.table_path(chosen=labels, option="labels")
        elif folder is None:
            continue
        else:
            path = root / folder / name
        table = source.read(path)
        check_columns(table, ["Path"], path)
        part = _records(table, path.name)
        part["split"] = split
        records.append(part)
        codes.append(chexpert_codes(table, findings, path, {"Lung Opacity": "Airspace Opacity"}))
        drafts[split] = len(table)
    if not records:
        raise UserError(f"{root}: no train.csv or valid.csv here or in the batch folders. {source.card.obtain}")
    whole = pd.concat(records, ignore_index=True)
    whole["image"] = _images(source, whole["image_id"], batches)
    draft = Draft(whole, findings, np.concatenate(codes))
    draft.found = {
        "rows of train.csv": drafts.get("train", 0),
        "rows of valid.csv": drafts.get("val", 0),
        "AP and PA images of train.csv": int(
            (whole["view"].isin(["AP", "PA"]) & (whole["split"] == "train")).sum(),
        ),
        "patients of train.csv": int(whole.loc[whole["split"] == "train", "patient_id"].nunique()),
    }
    odd = whole["view"].isin(["LL", "RL"]).to_numpy(dtype=bool)
    draft.keep(~odd, "frontal image with AP/PA = LL or RL")
    return draft


def _records(table: pd.DataFrame, where: str) -> pd.DataFrame:
    """Ids, patients and covariates of one table."""
    parts = table["Path"].str.extract(r"(?:^|/)((?:train|valid|val|test)/(patient\d+)/(study\d+)/[^/]+)$")
    wrong = parts[0].isna().to_numpy()
    if wrong.any():
        row = int(wrong.argmax())
        raise UserError(
            f"{where}, {line_of(row)}: Path {str(table['Path'].iloc[row])[:80]!r} does not end like "
            f"train/patient00001/study1/view1_frontal.jpg."
        )
    records = pd.DataFrame({"image_id": parts[0], "image": parts[0], "patient_id": parts[1], "site": "chexpert"})
    records["view"] = None
    if "AP/PA" in table and "Frontal/Lateral" in table:
        records["view"] = table["AP/PA"].where(table["Frontal/Lateral"] != LATERAL, LATERAL)
    records["study"] = parts[2]
    for column, name in (("Sex", "sex"), ("Age", "age")):
        records[name] = table.get(column)
    return records


def _images(source: Source, ids: pd.Series, batches: list[str]) -> pd.Series:
    """Where the images lie: as named, or in the batch folders (train batches have no ``train/`` level)."""
    top = source.files.listing("")
    home: dict[str, str] = {}
    for batch in batches:
        inside = source.files.listing(batch)
        for split in ("train", "valid", "val", "test"):
            if split in inside:
                home.setdefault(split, f"{batch}/{split}")
        for patient in inside:
            if patient.startswith("patient"):
                home[f"train/{patient}"] = f"{batch}/{patient}"
    if "valid" not in top and "val" in top:
        home.setdefault("valid", "val")  # CheXlocalize's folder is val, its table says valid
    if not home:
        return ids

    def placed(image: str) -> str:
        split, patient, rest = image.split("/", 2)
        if split in top:
            return image
        if f"{split}/{patient}" in home:
            return f"{home[f'{split}/{patient}']}/{rest}"
        return f"{home[split]}/{patient}/{rest}" if split in home else image

    return pd.Series([placed(image) for image in ids], dtype=object)
