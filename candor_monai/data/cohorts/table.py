"""A hospital's own: a folder of DICOM or image files and a table of labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ...utils import UserError
from ..archives import ArchiveReader
from ..header_index import header_index
from ..header_pool import read_dicomdirs
from .covariates import header_filters
from .draft import Draft
from .drawing import whole
from .label_joining import joined_draft
from .label_reading import read_labels
from .registry import passes_on
from .source import Source
from .table_files import ImageFiles
from .table_join import BY_HEADER, choose_join, join_by_header, join_by_name


@passes_on(read_labels)
def read(
    source: Source,
    *,
    join_on: str = "auto",
    modalities: Sequence[str] | None = None,
    sop_classes: Sequence[str] | None = None,
    body_parts: Sequence[str] | None = None,
    index_dir: str | None = None,
    header_workers: int = 2,
    **label_options: Any,
) -> Draft:
    """Join a table of labels with the files of a folder.

    Args:
        source: the dataset.
        join_on: ``path``, ``file_name``, ``stem``, ``sop_instance_uid``, ``accession_number``, or ``auto``.
        modalities, sop_classes, body_parts: keep DICOM files with these values only.
        index_dir: folder in which the index of DICOM headers is kept.
        header_workers: processes that read headers.
        label_options: as for ``read_labels``.
    """
    root = source.need_dataset_dir()
    if not os.path.isdir(root):
        raise UserError(f"{root}: there is no such folder. Set --dataset_dir to the folder that holds the images.")
    source.at(root)
    labels = read_labels(source, **label_options)
    if not len(labels.rows.keys):
        raise UserError(
            f"{labels.name}: no row is left to join: {labels.rows.blank_keys:,} have nothing in column {labels.key!r}, "
            f"those of {len(labels.rows.contradictory):,} images disagree."
        )
    files = ImageFiles(source.files, labels.path)
    how = choose_join(join_on, labels.key)
    workers = whole(header_workers, "header_workers", 1)
    keywords = labels.keywords
    filters = header_filters(modalities, sop_classes, body_parts)

    def read_headers(of: Sequence[str]) -> pd.DataFrame:
        return header_index(root, of, keywords=keywords, index_dir=index_dir, workers=workers)

    headers: pd.DataFrame | None = None
    if how in BY_HEADER:
        headers = read_headers(files.dicom)
        join = join_by_header(labels.rows.keys, headers, how, labels.name)
    else:
        join = join_by_name(labels.rows.keys, files.all, how, labels.name, source.allow_outside, root)
        joined = set(join.file)
        dicom = [file for file in files.dicom if file in joined]
        if dicom and (keywords or any(filters.values()) or "view" not in labels.roles):
            headers = read_headers(dicom)
    draft = joined_draft(source, labels, join, files.all, headers, filters)
    draft.notes |= files.notes
    if files.archived:
        draft.open_image = ArchiveReader(root)
    if headers is not None and files.dicomdirs:
        draft.notes["dicomdir"] = _dicomdir_counts(root, files)
    return draft


def _dicomdir_counts(root: Path, files: ImageFiles) -> dict[str, int]:
    """How many files the DICOMDIRs refer to, and how many of these are not there: a medium copied in part."""
    there = {name.lower() for name in files.all}
    named = absent = unreadable = 0
    answers = read_dicomdirs([str(root / name) for name in files.dicomdirs])
    for name, answer in zip(files.dicomdirs, answers, strict=True):
        folder = name.rpartition("/")[0]
        unreadable += bool(answer.reason)
        named += len(answer.files)
        absent += sum((f"{folder}/{file}" if folder else file).lower() not in there for file in answer.files)
    return {"files": named, "files not there": absent, "unreadable": unreadable}
