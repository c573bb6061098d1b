"""CUB-200-2011: birds, each species a finding among its family.

The publisher gives no family. ``families: name`` takes the last word of the class name (70 groups; this reproduces
the 167 species of the paper); a table maps classes to other families.
"""

from __future__ import annotations

import pandas as pd

from ...utils import UserError
from ..label_tables import check_unique, find_column
from .class_groups import class_draft
from .draft import Draft, box_table
from .source import Source


def read(source: Source, *, families: str = "name") -> Draft:
    """Read the publisher's text files.

    Args:
        source: the dataset.
        families: ``name``, or a table with columns ``class`` (e.g. ``001.Black_footed_Albatross``) and ``family``.
    """
    root = source.locate("image_class_labels.txt")
    images = _listed(source, "images.txt", ["id", "path"], key="id")
    labels = _listed(source, "image_class_labels.txt", ["id", "class_id"], key="id").set_index("id")
    classes = _listed(source, "classes.txt", ["class_id", "class"], key="class_id").set_index("class_id")
    split = _listed(source, "train_test_split.txt", ["id", "train"], key="id").set_index("id")
    boxes = _listed(source, "bounding_boxes.txt", ["id", "x", "y", "width", "height"], key="id")
    name = classes["class"].reindex(labels["class_id"].reindex(images["id"])).reset_index(drop=True)
    if name.isna().any():
        raise UserError(f"{root / 'images.txt'}: image {images['id'].iloc[int(name.isna().argmax())]} has no class.")
    family = name.str.rpartition("_")[2] if families == "name" else _mapped(source, name, families)
    family = family.where(family != "", name)
    records = pd.DataFrame({"image_id": images["path"], "image": "images/" + images["path"]})
    records["site"] = "cub"
    records["split"] = split["train"].reindex(images["id"]).map({"1": "train", "0": "test"}).to_numpy()
    records["family"] = family
    draft = class_draft(records, name, family, "species alone in its family")
    ids = images.set_index("id")["path"].reindex(boxes["id"])
    of = pd.Series(name.to_numpy(), index=images["path"]).reindex(ids)
    draft.boxes = box_table(ids, of, boxes["x"], boxes["y"], boxes["width"], boxes["height"])
    draft.found = {
        "rows of images.txt": len(images),
        "species": len(classes),
        "species that share a family": len(draft.findings),
        "images of species that share a family": len(draft.records),
    }
    return draft


def _listed(source: Source, name: str, columns: list[str], key: str) -> pd.DataFrame:
    """One of the publisher's lists; ``key`` is the column in which each entry occurs once."""
    assert source.root is not None
    table = source.read(source.root / name, header=columns, delimiter="space")
    check_unique(table[key], name, "entry")
    return table


def _mapped(source: Source, name: pd.Series, families: str) -> pd.Series:
    path = source.table_path(chosen=families, option="families")
    table = source.read(path)
    key = find_column(table, "class", path)
    check_unique(table[key], path, "class")
    mapping = dict(zip(table[key], table[find_column(table, "family", path)], strict=True))
    lost = sorted(set(name) - set(mapping))
    if lost:
        raise UserError(f"{path.name}: {len(lost)} classes have no family, e.g. {lost[0]!r}.")
    return name.map(mapping)
