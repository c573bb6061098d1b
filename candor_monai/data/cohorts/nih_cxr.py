"""NIH ChestX-ray14 in its publisher's layout.

Labels are 0/1 for every image (``No Finding`` is the absence of all). Boxes are in pixels of the publisher's 1024 ×
1024 images, whatever size the images at hand have. Source: datasets.md, Wang et al. 2017.
"""

from __future__ import annotations

import pandas as pd

from ..label_policy import NEGATIVE
from ..label_tables import check_columns, check_unique
from ..tasks import load_task
from .draft import Draft, box_table
from .label_lists import list_codes, split_lists
from .source import Source

FRAME = 1024
BOX_NAMES = {"Infiltrate": "Infiltration"}  # the box table's own spelling
COVARIATES = {
    "View Position": "view",
    "Patient Age": "age",
    "Patient Gender": "sex",
    "Follow-up #": "follow_up",
    "OriginalImage[Width": "orig_width",
    "Height]": "orig_height",
    "OriginalImagePixelSpacing[x": "orig_spacing",
}


def read(source: Source, *, table: str | None = None) -> Draft:
    """Read the publisher's tables.

    Args:
        source: the dataset.
        table: name of the label table when several versions lie side by side.
    """
    source.locate("Data_Entry_2017*.csv*")
    patterns = ("Data_Entry_2017_v2020.csv*", "Data_Entry_2017*.csv*")
    path = source.table_path(*patterns, chosen=table, option="table")
    entries = source.read(path)
    check_columns(entries, ("Image Index", "Finding Labels", "Patient ID", "View Position"), path)
    check_unique(entries["Image Index"], path)
    findings = _findings(source)
    labels = split_lists(entries["Finding Labels"], "|")
    known = {name for names in findings.values() for name in names}
    known |= {"No Finding", *load_task("chest14").findings}
    codes = list_codes(labels, findings, NEGATIVE, known=known, where=path.name)
    records = pd.DataFrame({"image_id": entries["Image Index"]})
    records["image"] = _images(source, entries["Image Index"])
    records["patient_id"] = entries["Patient ID"]
    records["site"] = "nih_cxr"
    records["split"] = _splits(source, entries["Image Index"])
    for column, name in COVARIATES.items():
        if column in entries:
            records[name] = entries[column]
    draft = Draft(records, tuple(findings), codes)
    draft.boxes = _boxes(source, findings)
    draft.found = {
        "rows of the label table": len(entries),
        "patients": int(entries["Patient ID"].nunique()),
        "boxes": source.tables.get(next((t for t in source.tables if t.startswith("BBox")), ""), 0),
    }
    return draft


def _findings(source: Source) -> dict[str, tuple[str, ...]]:
    """Finding -> the publisher's names: its own fourteen, or the twelve by the vocabulary."""
    task = source.task or load_task("chest14")
    own = set(load_task("chest14").findings)
    if set(task.findings) <= own:
        return {finding: (finding,) for finding in task.findings}
    return source.vocabulary.of("nih_cxr", task.findings)


def _images(source: Source, names: pd.Series) -> list[str]:
    """Where each image lies: ``images/``, ``images_001/images/`` …, ``images_001/`` … or the root."""
    where: dict[str, str] = {}
    folders = [f for f in sorted(source.files.listing("")) if f.lower().startswith("images")]
    for folder in ["", *folders]:
        for inner in (f"{folder}/images", folder) if folder else ("",):
            for name in source.files.listing(inner):
                where.setdefault(name, f"{inner}/{name}" if inner else name)
    return [where.get(name, f"images/{name}") for name in names]


def _splits(source: Source, names: pd.Series) -> pd.Series:
    """``test`` for the publisher's test list, ``train`` for the other; missing without lists."""
    split = pd.Series([None] * len(names), dtype=object)
    for pattern, value in (("train_val_list*.txt", "train"), ("test_list*.txt", "test")):
        path = source.find_table(pattern)
        if path is not None:
            listed = set(source.read(path, header=["image"])["image"].str.strip())
            split[names.isin(listed).to_numpy()] = value
    return split


def _boxes(source: Source, findings: dict[str, tuple[str, ...]]) -> pd.DataFrame:
    path = source.find_table("BBox_List_2017*.csv*")
    if path is None:
        return box_table([], "", [], [], [], [])
    rows = source.read(path)
    check_columns(rows, ("Image Index", "Finding Label", "Bbox [x", "y", "w", "h]"), path)
    names = rows["Finding Label"].replace(BOX_NAMES)
    tables = [
        box_table(part["Image Index"], finding, part["Bbox [x"], part["y"], part["w"], part["h]"], FRAME, FRAME)
        for finding, own in findings.items()
        if len(part := rows[names.isin(own)])
    ]
    return pd.concat(tables, ignore_index=True) if tables else box_table([], "", [], [], [], [])
