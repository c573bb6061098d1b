"""Features computed elsewhere and a table of labels: no images.

Features: .npy (N, d) with its ids in a second file or in the label table's order; .npz with arrays ``features`` and
``image_id``; Parquet or Arrow IPC with columns ``image_id`` and ``feature`` (a list), or one numbered column
of floating-point numbers a dimension. Nothing is unpickled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...utils import UserError, unknown
from ..label_tables import check_file, find_column, read_arrow, read_lines, read_table
from .covariates import Covariates
from .draft import Draft
from .label_reading import LabelTable, read_labels
from .registry import passes_on
from .source import Source
from .table_rows import describe_keys

KINDS = (".npy", ".npz", ".parquet", ".arrow", ".feather")
FEATURE_COLUMNS = ("feature", "features", "embedding", "pred")
ID_COLUMNS = ("image_id", "image", "id", "path", "file", "filename")


@passes_on(read_labels)
def read(
    source: Source,
    *,
    features: str | None = None,
    feature_ids: str | None = None,
    id_column: str | None = None,
    **label_options: Any,
) -> Draft:
    """Join features with a table of labels by image id.

    Args:
        source: the dataset.
        features: the file of features.
        feature_ids: for .npy: a text file or table with the id of each row; None takes the label table's order,
            which must then have as many rows.
        id_column: the id column of a Parquet or Arrow file of features, or of ``feature_ids``.
        label_options: as for ``read_labels``.
    """
    root = source.need_dataset_dir()
    if not os.path.isdir(root):
        raise UserError(f"{root}: there is no such folder. Set --dataset_dir to the folder that holds the features.")
    source.at(root)
    if features is None:
        there = [n for n in sorted(source.files.listing("")) if n.lower().endswith(KINDS)]
        raise UserError(
            f"cohort {source.name!r} needs --features, the file of features ({', '.join(KINDS)}). The folder holds "
            f"{', '.join(there[:6]) or 'none'}."
        )
    labels = read_labels(source, **label_options)
    rows = labels.rows
    file = source.named(features)
    ids, matrix = read_features(
        file, labels.order, None if feature_ids is None else source.named(feature_ids), id_column
    )
    place = pd.Index(rows.keys).get_indexer(pd.Index(ids))
    hit = np.flatnonzero(place >= 0)
    if not len(hit):
        raise UserError(
            f"{labels.name}: none of its {len(rows.keys):,} ids is among the {len(ids):,} of {file.name}. Ids are like "
            f"{describe_keys(list(rows.keys))} there and {describe_keys(ids)} here."
        )
    records = pd.DataFrame({"image_id": [ids[i] for i in hit]}, dtype=object)
    records["image"] = None
    kept = matrix[hit]
    draft = Draft(records, rows.findings, rows.codes[place[hit]], features=kept)
    _reject_unmatched(draft, labels, ids, place)
    lookup = Covariates(rows.table.iloc[place[hit]].reset_index(drop=True), None, records["image"], labels.name)
    labels.fill(draft, source, lookup)
    bad = ~np.isfinite(kept).all(axis=1) | ~kept.any(axis=1)
    draft.reject(bad, "bad_feature", "the feature is not finite or all zero", stage="feature")
    return draft


def read_features(
    path: Path, order: pd.Series | None = None, ids: Path | None = None, id_column: str | None = None
) -> tuple[list[str], np.ndarray]:
    """Ids and features of a file.

    Args:
        path: .npy, .npz, .parquet, .arrow or .feather.
        order: ids of the rows of a .npy file when ``ids`` is None.
        ids: file with the id of each row of a .npy file.
        id_column: name of the id column; None takes the first usual name.

    Returns:
        N ids, and features of shape (N, d), float32 (mapped from disk for a float32 .npy).

    Raises:
        UserError: the file is not readable, has another shape, holds Python objects, or an id occurs twice.
    """
    suffix = path.suffix.lower()
    check_file(path, "file of features")
    if suffix == ".npy":
        matrix = _load(path)
        if ids is not None:
            names = _ids_of(ids, id_column)
        elif order is not None:
            names = order.tolist()
        else:
            raise UserError(f"{path}: a .npy file holds no ids; name a file of ids with feature_ids.")
        if len(names) != len(matrix):
            holds = f"{path}: holds {len(matrix):,} features"
            if ids is not None:
                raise UserError(f"{holds}, {ids.name} names {len(names):,} ids: one id a feature is needed.")
            raise UserError(f"{holds}, the label table has {len(names):,} rows. Name the ids with feature_ids.")
    elif suffix == ".npz":
        names, matrix = _npz(path)
    elif suffix in (".parquet", ".arrow", ".feather", ".ipc"):
        names, matrix = _columnar(path, id_column)
    else:
        raise UserError(f"{path}: features are read from .npy, .npz, .parquet, .arrow or .feather.")
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu" or matrix.shape[1] == 0:
        raise UserError(
            f"{path}: features must be numbers of shape (images, dimensions), are {matrix.dtype} {matrix.shape}."
        )
    repeated = np.flatnonzero(pd.Index(names).duplicated())
    if len(repeated):
        again = int(repeated[0])
        where = ids if suffix == ".npy" and ids is not None else path
        rows = f"rows {names.index(names[again]) + 1:,} and {again + 1:,}"
        raise UserError(f"{where}: id {names[again]!r} occurs twice ({rows}): every id is of one image.")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is rejected as such
        return names, matrix if matrix.dtype == np.float32 else matrix.astype(np.float32)


def _load(path: Path) -> np.ndarray:
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path}: not a plain NumPy array: {error}") from error
    return array


def _npz(path: Path) -> tuple[list[str], np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = next((n for n in ("image_id", "ids", "id") if n in archive.files), None)
            rows = next((n for n in ("features", "feature", "embeddings", "x") if n in archive.files), None)
            if names is None or rows is None:
                raise UserError(f"{path}: needs arrays 'features' and 'image_id'; holds {', '.join(archive.files)}.")
            ids, matrix = _plain(path, archive, names, "str"), _plain(path, archive, rows, "np.float32")
    except UserError:
        raise
    except (ValueError, OSError, EOFError) as error:
        raise UserError(
            f"{path}: cannot be read: no NumPy archive of plain arrays (ids as text, features as numbers)."
        ) from error
    if ids.ndim != 1 or matrix.ndim == 0 or len(ids) != len(matrix):
        raise UserError(f"{path}: ids of shape {ids.shape} for features of shape {matrix.shape}; one id a feature.")
    try:
        texts = [i.decode("utf-8") if isinstance(i, bytes) else str(i) for i in ids.tolist()]
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: the ids are not UTF-8.") from error
    return [text.strip() for text in texts], matrix


def _plain(path: Path, archive: Any, name: str, kind: str) -> np.ndarray:
    """An array of an archive, of a kind; those of Python objects could run code when they are read."""
    try:
        array: np.ndarray = archive[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise UserError(
            f"{path}: the array {name!r} holds Python objects, which are not read: save {name}.astype({kind})."
        ) from error
    return array


def _columnar(path: Path, id_column: str | None) -> tuple[list[str], np.ndarray]:
    import pyarrow as pa

    table = read_arrow(path)
    if not len(table):
        raise UserError(f"{path}: the file holds no features.")
    name = _id_column(list(table.column_names), id_column, path)
    listed = next((n for n in FEATURE_COLUMNS if n in table.column_names), None)
    for used in (name, listed):
        if table.column_names.count(used) > 1:
            raise UserError(f"{path}: two columns are called {used!r}; rename the one that is not meant.")
    ids = ["" if i is None else str(i).strip() for i in table.column(name).to_pylist()]
    if listed is not None:
        kind = table.schema.field(listed).type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
            raise UserError(f"{path}, column {listed!r}: holds no lists of numbers but {kind}.")
        column = table.column(listed).combine_chunks()
        lengths = set(pa.compute.list_value_length(column).to_pylist())
        if len(lengths) != 1 or None in lengths:
            raise UserError(f"{path}, column {listed!r}: features differ in length.")
        flat = column.flatten().to_numpy(zero_copy_only=False)
        return ids, flat.reshape(len(ids), -1)
    numeric = [f.name for f in table.schema if pa.types.is_floating(f.type)]
    _check_one_series(numeric, path)
    if not numeric:
        raise UserError(f"{path}: needs a column 'feature' (a list) or one numeric column a dimension.")
    return ids, np.column_stack([table.column(n).to_numpy() for n in numeric])


def _check_one_series(names: Sequence[str], path: Path) -> None:
    """Several columns of numbers are features only when they are numbered alike, as f0, f1, …"""
    stems = [re.sub(r"\d+$", "", name) for name in names]
    for name, stem in zip(names, stems, strict=True):
        if len(names) > 1 and (stem != stems[0] or stem == name):
            raise UserError(
                f"{path}: its columns of numbers are no numbered series ({names[0]!r}, {name!r}): labels or covariates "
                "may be among them. Put the features into one list column 'feature', or number their columns."
            )


def _id_column(columns: list[str], given: str | None, path: Path) -> str:
    if given is not None:
        if given not in columns:
            raise unknown(f"column of {path.name}:", given, columns)
        return given
    for name in ID_COLUMNS:
        if name in columns:
            return name
    raise UserError(f"{path}: no column of ids; name it with id_column. It has {', '.join(columns[:12])}.")


def _ids_of(path: Path, id_column: str | None) -> list[str]:
    if path.suffix.lower() == ".txt":
        return read_lines(path, "file of ids")
    table = read_table(path)
    name = _id_column(list(table.columns), id_column, path)
    return table[find_column(table, name, path)].str.strip().tolist()


def _reject_unmatched(draft: Draft, labels: LabelTable, ids: list[str], place: np.ndarray) -> None:
    draft.add_rejected(
        sorted(labels.rows.contradictory), None, "contradictory_rows", f"its rows in {labels.name} disagree"
    )
    known = set(ids)
    lost = [k for k in labels.rows.keys if k not in known]
    draft.add_rejected(lost, None, "no_feature", f"{labels.name} names it; it has no feature")
    idle = [ids[i] for i in np.flatnonzero(place < 0).tolist() if ids[i] not in labels.rows.contradictory]
    draft.add_rejected(idle, None, "no_label_row", f"no row of {labels.name} is about it")
