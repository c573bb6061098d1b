"""Which file each row of a label table is about: by path, file name, file stem, SOPInstanceUID or AccessionNumber."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ...utils import UserError, unknown
from ..file_index import inside
from .table_rows import describe_keys

BY_NAME = ("path", "file_name", "stem")
BY_HEADER = {"sop_instance_uid": "SOPInstanceUID", "accession_number": "AccessionNumber"}
JOINS = ("auto", *BY_NAME, *BY_HEADER)

NOT_IMAGES = frozenset(
    {
        *(".csv", ".tsv", ".txt", ".json", ".xml", ".yaml", ".yml", ".parquet", ".arrow", ".feather", ".md", ".html"),
        *(".pdf", ".xlsx", ".xls", ".docx", ".gz", ".tgz", ".tar", ".log", ".npy", ".npz", ".h5", ".hdf5", ".pkl"),
        *(".db", ".zip", ".py", ".ini", ".cfg", ".sha256", ".md5"),
    }
)


@dataclass
class Join:
    """Files matched to rows.

    Args:
        row: row of the table for each match, shape (M,), int64.
        file: relative path for each match.
        how: the join used.
        ambiguous: keys that more than one file answers to, where one is wanted.
    """

    row: np.ndarray
    file: list[str]
    how: str
    ambiguous: list[str] = field(default_factory=list)


def may_be_image(name: str) -> bool:
    """Whether a file may be an image by its name: any suffix but those of tables, texts and archives, or none.

    >>> may_be_image("a.dcm"), may_be_image("IM00001"), may_be_image("labels.csv"), may_be_image("DICOMDIR")
    (True, True, False, False)
    >>> may_be_image("scan.NII.gz"), may_be_image("labels.csv.gz")
    (True, False)
    """
    base = os.path.basename(name).lower()
    if base.endswith(".nii.gz"):
        return True
    return os.path.splitext(base)[1] not in NOT_IMAGES and base != "dicomdir"


def choose_join(join_on: str, column: str) -> str:
    """The join asked for; ``auto`` follows a column named for a DICOM attribute, else stays ``auto``.

    Raises:
        UserError: an unknown join.
    """
    if join_on not in JOINS:
        raise unknown("value of join_on:", join_on, JOINS)
    if join_on == "auto":
        plain = column.lower().replace("_", "").replace(" ", "")
        for name, keyword in BY_HEADER.items():
            if plain in (keyword.lower(), keyword.lower().removesuffix("number"), name.replace("_", "")):
                return name
    return join_on


def join_by_name(keys: pd.Series, files: Sequence[str], how: str, where: str, allow_outside: bool) -> Join:
    """Match keys with files by path, name or stem; ``auto`` takes the first of these with the most matches.

    Raises:
        UserError: no key matches a file, or a path leaves the dataset's folder.
    """
    tried = {}
    for kind in BY_NAME if how == "auto" else (how,):
        tried[kind] = _by_name(keys, files, kind, where, allow_outside)
        if len(tried[kind].row) == len(keys):
            break
    best = max(tried.values(), key=lambda join: len(join.row))
    if not len(best.row) and not best.ambiguous:
        raise nothing_matches(keys, files, where, " or ".join(tried))
    return best


def _by_name(keys: pd.Series, files: Sequence[str], how: str, where: str, allow_outside: bool) -> Join:
    if how == "path":
        wanted = inside(keys, where, allow_outside)
        row = pd.Index(files).get_indexer(pd.Index(wanted))
        paths: list[str] = wanted.tolist()
        there = [i for i, path in enumerate(paths) if path.startswith("/") and os.path.isfile(path)]
        matched = np.flatnonzero(row >= 0).tolist()
        file = [files[row[i]] for i in matched] + [paths[i] for i in there]
        return Join(np.array(matched + there, dtype=np.int64), file, how)
    last = keys.str.replace("\\", "/", regex=False).str.rpartition("/")[2]
    base = [os.path.basename(f) for f in files]
    if how == "stem":
        base = [os.path.splitext(b)[0] for b in base]
        # a key that ends in a known suffix is compared without it; a dot in an id is part of the id
        last = last.str.replace(r"(?i)\.(png|jpe?g|tiff?|dcm|dicom|nii(\.gz)?|bmp)$", "", regex=True)
    where_is: dict[str, list[int]] = {}
    for i, name in enumerate(base):
        where_is.setdefault(name, []).append(i)
    rows, found, ambiguous = [], [], []
    for i, name in enumerate(last):
        hits = where_is.get(name, [])
        if len(hits) == 1:
            rows.append(i)
            found.append(files[hits[0]])
        elif hits:
            ambiguous.append(str(keys.iat[i]))
    return Join(np.array(rows, dtype=np.int64), found, how, ambiguous)


def join_by_header(keys: pd.Series, headers: pd.DataFrame, how: str, where: str) -> Join:
    """Match keys with a header attribute. All images of an accession, and all copies of an instance, match its row.

    Raises:
        UserError: no key matches a header.
    """
    attribute = headers[BY_HEADER[how]]
    given = (attribute != "").to_numpy(dtype=bool)
    row = pd.Index(keys).get_indexer(pd.Index(attribute))
    matched = (row >= 0) & given
    files: list[str] = headers["file"].tolist()
    if not matched.any():
        # accession numbers are told by their shape only
        shapes = keys.map(shape_of) if how == "accession_number" else keys
        raise nothing_matches(shapes, [], where, f"the DICOM attribute {BY_HEADER[how]} of {len(headers):,} files")
    rows = np.flatnonzero(matched)
    return Join(row[rows].astype(np.int64), [files[i] for i in rows.tolist()], how)


def nothing_matches(keys: pd.Series, files: Sequence[str], where: str, how: str) -> UserError:
    """The error when not one row has an image."""
    there = f"; the folder holds {len(files):,} files, e.g. {describe_keys(files)}" if len(files) else ""
    return UserError(
        f"{where}: none of its {len(keys):,} rows matches an image by {how}. Its keys are like "
        f"{describe_keys(list(keys))}{there}. Name the column with image_column and the way to join with join_on "
        f"({', '.join(JOINS[1:])})."
    )


def shape_of(text: str) -> str:
    """An identifier's shape: digits become 9, letters A.

    >>> shape_of("AC-0412b")
    'AA-9999A'
    """
    return re.sub("[A-Za-z]", "A", re.sub("[0-9]", "9", text))
