"""Images without labels: a folder, or the images that a list names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ...utils import UserError
from ..archives import ArchiveReader
from ..file_index import inside
from ..label_tables import read_lines, read_table
from .draft import Draft
from .label_reading import image_column_of
from .source import Source
from .table_files import ImageFiles


def read(source: Source, *, images: str | Path | Sequence[str] | None = None, image_column: str | None = None) -> Draft:
    """List images.

    Args:
        source: the dataset; its folder is what the paths start from (None: the working directory).
        images: a table (.csv, .tsv, .parquet) or text file that names images, or the paths themselves; None takes
            every file of the folder that may be an image.
        image_column: the column of a table that names the image.
    """
    source.at(source.dataset_dir or Path.cwd())
    assert source.root is not None
    if not source.root.is_dir():
        raise UserError(f"{source.root}: there is no such folder.")
    if images is None:
        source.need_dataset_dir()
        paths = pd.Series(ImageFiles(source.files, Path()).all, dtype=object)
    else:
        paths = _listed(source, images, image_column)
    if not len(paths):
        raise UserError("the list of images is empty.")
    named = isinstance(images, str | Path)
    where = str(images) if named else "the list of images"
    # paths that the user writes out may lie anywhere, those of a file may not
    paths = inside(paths.astype(object), where, source.allow_outside or not named, source.root)
    unique = paths.drop_duplicates().reset_index(drop=True)
    records = pd.DataFrame({"image_id": unique, "image": unique}, dtype=object)
    draft = Draft(records, (), np.empty((len(records), 0), dtype=np.int8), paths_checked=True)
    draft.notes["listed_twice"] = len(paths) - len(unique)
    draft.match_on = ()
    if unique.str.contains(r"\.zip/", case=False).any():
        draft.open_image = ArchiveReader(source.root)
    return draft


def _listed(source: Source, images: str | Path | Sequence[str], image_column: str | None) -> pd.Series:
    if not isinstance(images, str | Path):
        return pd.Series([str(p) for p in images], dtype=object)
    path = source.named(images)
    if path.suffix.lower() in (".txt", ".lst", ""):
        return pd.Series(read_lines(path, "list of images"), dtype=object)
    table = read_table(path)
    return table[image_column_of(image_column, table, path)].str.strip()
