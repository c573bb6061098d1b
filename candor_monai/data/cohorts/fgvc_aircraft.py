"""FGVC-Aircraft 2013b: each variant a finding among its manufacturer.

Label files hold an id of seven digits and a name that may hold spaces and ``/``. The images carry a copyright banner
of about 20 pixels at the bottom.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ...utils import UserError
from ..label_tables import check_unique, line_of, read_lines
from .class_groups import class_draft
from .draft import Draft, box_table
from .source import Source

SPLITS = ("train", "val", "test")


def read(source: Source) -> Draft:
    """Read variants, manufacturers, splits and boxes.

    Args:
        source: the dataset.
    """
    source.locate("images_variant_test.txt", "data")
    data = "" if "images_variant_test.txt" in source.files.listing("") else "data"
    if "images_variant_test.txt" not in source.files.listing(data):
        raise source.no_table("images_variant_test.txt", folder=data)
    assert source.root is not None
    folder = source.root / data
    variant = pd.concat([_pairs(source, folder, f"images_variant_{s}.txt").assign(split=s) for s in SPLITS])
    maker = pd.concat([_pairs(source, folder, f"images_manufacturer_{s}.txt") for s in SPLITS])
    variant = variant.reset_index(drop=True)
    check_unique(variant["id"], folder, of="variants")
    makers = maker.drop_duplicates("id").set_index("id")["name"].reindex(variant["id"]).reset_index(drop=True)
    if makers.isna().any():
        raise UserError(f"{folder}: image {variant['id'].iloc[int(makers.isna().argmax())]} has no manufacturer.")
    records = pd.DataFrame({"image_id": variant["id"]})
    records["image"] = (f"{data}/" if data else "") + "images/" + variant["id"] + ".jpg"
    records["site"], records["split"], records["manufacturer"] = "fgvc", variant["split"], makers
    draft = class_draft(records, variant["name"], makers, "variant alone at its manufacturer")
    path = folder / "images_box.txt"
    if path.is_file():
        boxes = source.read(path, header=["id", "x1", "y1", "x2", "y2"], delimiter="space")
        corner = boxes[["x1", "y1", "x2", "y2"]].apply(pd.to_numeric, errors="coerce")
        odd_box = corner.isna().any(axis=1).to_numpy(dtype=bool)
        if odd_box.any():
            raise UserError(f"{path}, {line_of(int(odd_box.argmax()))}: the corners of the box are no numbers.")
        of = variant.set_index("id")["name"].reindex(boxes["id"])
        # corners count pixels from 1 and both belong to the box
        size = corner["x2"] - corner["x1"] + 1, corner["y2"] - corner["y1"] + 1
        draft.boxes = box_table(boxes["id"], of, corner["x1"] - 1, corner["y1"] - 1, *size)
    draft.found = {
        "images of all variants": len(variant),
        "variants": int(variant["name"].nunique()),
        "variants that share a manufacturer": len(draft.findings),
        "images of variants that share a manufacturer": len(draft.records),
    }
    return draft


def _pairs(source: Source, folder: Path, name: str) -> pd.DataFrame:
    """Id and name of each line, split at the first space only."""
    path = folder / name
    lines = read_lines(path, "list of images")
    pairs = [line.split(" ", 1) for line in lines]
    odd = next((i for i, pair in enumerate(pairs) if len(pair) != 2), None)
    if odd is not None:
        raise UserError(f"{path}, {line_of(odd)}: {lines[odd][:60]!r} is not an id and a name.")
    source.tables[name] = len(pairs)
    return pd.DataFrame(pairs, columns=["id", "name"], dtype=object)
