"""PatchCamelyon: 96 × 96 tiles in HDF5 files.

There are no image files: a record's ``image`` is ``<x file>/<row>``, read as PNG bytes. The label is ``y`` (tumour in
the central 32 × 32 pixels); ``tumor_patch`` of the meta table means something else. The checksums in the publisher's
README have valid and test swapped, and files get mixed up in practice: ``y`` is compared with the meta table's
``center_tumor_patch``, and no slide may be in two splits.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...utils import UserError
from ..label_policy import NEGATIVE, POSITIVE
from ..label_tables import check_columns
from .draft import Draft
from .source import Source

SPLITS = {"train": ("train",), "val": ("valid", "val"), "test": ("test",)}
TILES = 256  # read at once
TRUE = ("true", "1", "1.0")


def read(source: Source) -> Draft:
    """Read labels and slides of every split that is there.

    Args:
        source: the dataset.
    """
    root = source.locate("camelyonpatch_level_2_split_*")
    parts, codes, found = [], [], {}
    for split, names in SPLITS.items():
        found_name = next((n for n in names if _file(root, f"camelyonpatch_level_2_split_{n}_x.h5") is not None), None)
        if found_name is None:
            continue
        stem = f"camelyonpatch_level_2_split_{found_name}"
        images, labels = _file(root, f"{stem}_x.h5"), _file(root, f"{stem}_y.h5")
        if images is None or labels is None:
            raise UserError(f"{root}: {stem}_y.h5 is missing beside {stem}_x.h5. {source.card.obtain}")
        y = _labels(labels, _rows(images))
        # ids of equal length sort as the rows do, and rows side by side are read together
        part = pd.DataFrame({"image_id": [f"{found_name}/{i:06}" for i in range(len(y))]}, dtype=object)
        part["image"] = [f"{images.relative_to(root)}/{i}" for i in range(len(y))]
        part["split"], part["patient_id"] = split, _slides(source, root, stem, y)
        parts.append(part)
        codes.append(np.where(y, POSITIVE, NEGATIVE).astype(np.int8))
        found[f"{split} images"] = len(y)
    if not parts:
        packed = sorted(p.name for p in root.glob("*.h5.gz"))
        hint = f"Unpack {packed[0]} and the others (gunzip)." if packed else source.card.obtain
        raise UserError(f"{root}: no camelyonpatch_level_2_split_*_x.h5. {hint}")
    records = pd.concat(parts, ignore_index=True)
    slides = records.dropna(subset=["patient_id"]).groupby("patient_id")["split"].nunique()
    if (slides > 1).any():
        raise UserError(
            f"{root}: slide {slides.index[int((slides > 1).argmax())]} is in two splits; a meta table or a file of "
            f"valid and test has been mixed up (the publisher's checksums of the two are swapped)."
        )
    records["site"] = "pcam"
    draft = Draft(records, source.findings("tumor"), np.concatenate(codes), found=found)
    draft.open_image = TileReader(root)
    return draft


class TileReader:
    """Reads single tiles as PNG bytes; safe to use from threads and after a fork, as each process opens the files anew.

    Args:
        root: folder that the tiles' names start from.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._open: dict[tuple[int, str], Any] = {}
        self._block: tuple[str, int, np.ndarray] | None = None

    def __call__(self, image: str) -> bytes:
        """PNG bytes of ``<file>/<row>``."""
        from PIL import Image

        name, _, row = image.rpartition("/")
        stream = io.BytesIO()
        Image.fromarray(self._tile(name, int(row))).save(stream, "PNG", compress_level=1)
        return stream.getvalue()

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "_open": {}, "_block": None}

    def _tile(self, name: str, row: int) -> np.ndarray:
        """Tiles are packed many to a block on disk, so a block is read at once."""
        start = row - row % TILES
        block = self._block  # another thread may put its own in this place at any moment
        if block is None or block[:2] != (name, start):
            key = (os.getpid(), name)
            if key not in self._open:
                self._open[key] = _h5py().File(self.root / name, "r")["x"]
            self._block = block = (name, start, self._open[key][start : start + TILES])
        return block[2][row - start]


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise UserError("pcam is kept in HDF5 files: install h5py (pip install h5py).") from error
    return h5py


def _file(root: Path, name: str) -> Path | None:
    """A file, or the file of the same name inside a folder of that name, as some unpackers leave it."""
    path = root / name
    if path.is_dir():
        path = path / name
    return path if path.is_file() else None


def _rows(path: Path) -> int:
    try:
        with _h5py().File(path, "r") as file:
            shape, kind = file["x"].shape, file["x"].dtype
    except (OSError, KeyError, AttributeError) as error:  # a group has no shape
        raise UserError(
            f"{path}: not an HDF5 file with a dataset x ({error}); the download may be incomplete."
        ) from error
    if len(shape) != 4 or shape[3] != 3 or kind != np.uint8:
        raise UserError(f"{path}: x must be uint8 (N, 96, 96, 3), is {kind} {shape}.")
    return int(shape[0])


def _labels(path: Path, rows: int) -> np.ndarray:
    try:
        with _h5py().File(path, "r") as file:
            y = np.asarray(file["y"]).reshape(-1)
    except (OSError, KeyError) as error:
        raise UserError(
            f"{path}: not an HDF5 file with a dataset y ({error}); the download may be incomplete."
        ) from error
    if len(y) != rows or not np.isin(y, (0, 1)).all():
        raise UserError(f"{path}: must hold {rows:,} labels 0 or 1, as many as its x file has tiles; holds {len(y):,}.")
    return y.astype(bool)


def _slides(source: Source, root: Path, stem: str, y: np.ndarray) -> list[str | None]:
    """Slide of each tile from the meta table; None without one."""
    path = next((p for p in (root / f"{stem}_meta.csv", root / f"{stem}_meta.csv.gz") if p.is_file()), None)
    if path is None:
        return [None] * len(y)
    meta = source.read(path)
    check_columns(meta, ("wsi", "center_tumor_patch"), path)
    center = meta["center_tumor_patch"].str.strip().str.lower()
    if len(meta) != len(y) or not (center.isin(TRUE).to_numpy(dtype=bool) == y).all():
        raise UserError(
            f"{path.name}: does not fit {stem}_y.h5 ({len(meta):,} rows for {len(y):,} labels, or center_tumor_patch "
            f"differs); valid and test may have been mixed up (the publisher's checksums of the two are swapped)."
        )
    slides: list[str | None] = meta["wsi"].tolist()
    return slides
