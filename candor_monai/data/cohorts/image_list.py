"""Images without labels: a folder, or the images that a list names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ...utils import UserError
from ..archives import ArchiveReader
from ..file_index import inside
from ..header_index import header_index
from ..label_tables import read_lines, read_table
from .draft import Draft
from .drawing import whole
from .label_reading import image_column_of
from .source import Source
from .table_files import ImageFiles, may_be_dicom
from .unlabelled import header_keywords, unlabelled_draft


def read(
    source: Source,
    *,
    images: str | Path | Sequence[str] | None = None,
    image_column: str | None = None,
    headers: bool = False,
    covariates: Sequence[str] = (),
    site: str | None = None,
    index_dir: str | None = None,
    header_workers: int = 2,
) -> Draft:
    """List images.

    Args:
        source: the dataset; its folder is what the paths start from (None: the working directory).
        images: a table (.csv, .tsv, .parquet) or text file that names images, or the paths themselves; None takes
            every file of the folder that may be an image.
        image_column: the column of a table that names the image.
        headers: read the DICOM headers: they give patient, view and covariates, and a file whose header cannot be read
            is left out.
        covariates: DICOM keywords to keep.
        site: name of the site; None takes the cohort's name.
        index_dir: folder in which the index of DICOM headers is kept.
        header_workers: processes that read headers.
    """
    source.at(source.dataset_dir or Path.cwd())
    assert source.root is not None
    if not os.path.isdir(source.root):
        raise UserError(f"{source.root}: there is no such folder.")
    folder = None
    if images is None:
        source.need_dataset_dir()
        folder = ImageFiles(source.files, Path())
        paths = pd.Series(folder.all, dtype=object)
    else:
        paths = _listed(source, images, image_column)
    if not len(paths):
        raise UserError("the list of images is empty.")
    named = isinstance(images, str | Path)
    where = str(images) if named else "the list of images"
    # paths that the user writes out may lie anywhere, those of a file may not
    paths = inside(paths.astype(object), where, source.allow_outside or not named, source.root)
    unique = paths.drop_duplicates().reset_index(drop=True)
    archived = unique.str.contains(r"\.zip/", case=False).to_numpy(dtype=np.bool_)
    if headers:
        workers = whole(header_workers, "header_workers", 1)
        draft = _with_headers(source, unique.tolist(), archived, covariates, site, index_dir, workers)
    else:
        records = pd.DataFrame({"image_id": unique, "image": unique}, dtype=object)
        draft = Draft(records, (), np.empty((len(records), 0), dtype=np.int8), paths_checked=True)
        draft.match_on = ()
    draft.notes["listed_twice"] = len(paths) - len(unique)
    if archived.any():
        draft.open_image = ArchiveReader(source.root)
    if folder is not None:
        draft.notes |= folder.notes
        # no list names these images, so nothing else would tell of them
        for names, reason, message in (
            (folder.bad_archives, "bad_archive", "the archive cannot be read"),
            (folder.unreadable, "unreadable", "the folder cannot be listed, or the link leads nowhere"),
            (folder.unwritable, "bad_name", "its name is not UTF-8 and cannot be written into a result; rename it"),
        ):
            draft.add_rejected(names, names, reason, message)
    return draft


def _with_headers(
    source: Source,
    images: list[str],
    archived: np.ndarray,
    covariates: Sequence[str],
    site: str | None,
    index_dir: str | None,
    workers: int,
) -> Draft:
    assert source.root is not None
    there = source.files.present(pd.Series(images, dtype=object)) | archived
    dicom = [name for name, found in zip(images, there, strict=True) if found and may_be_dicom(name)]
    keywords = header_keywords(source, covariates)
    table = header_index(source.root, dicom, keywords=keywords, index_dir=index_dir, workers=workers)
    return unlabelled_draft(source, images, images, table, covariates=covariates, site=site)


def _listed(source: Source, images: str | Path | Sequence[str], image_column: str | None) -> pd.Series:
    if not isinstance(images, str | Path):
        return pd.Series([str(p) for p in images], dtype=object)
    path = source.named(images)
    if path.suffix.lower() in (".txt", ".lst", ""):
        return pd.Series(read_lines(path, "list of images"), dtype=object)
    table = read_table(path)
    return table[image_column_of(image_column, table, path)].str.strip()
