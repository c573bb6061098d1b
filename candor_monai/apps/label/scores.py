"""Images, margins and rankings in one file, written in one go and read again when it has changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from ...utils import UserError, atomic_path
from .images import FIXED, LabelImages

SCHEMA_VERSION = 1
_KEY = b"candor_monai.label_scores"
_COVARIATE = "covariate:"
NUMBERS = ("c_pos", "c_neg", "dm", "impurity")


@dataclass(frozen=True)
class Scores:
    """What was computed of N images and F findings.

    Args:
        images: the images.
        findings: F names.
        labels: those that the margins belong to, shape (N, F), int8.
        c_pos, c_neg, dm, impurity: shape (N, F), float64; NaN where there is none.
        present: which images have a feature, shape (N,), bool.
        diverse: rows in the order of covering, int64.
        options: of the measure, as plain values.
    """

    images: LabelImages
    findings: tuple[str, ...]
    labels: np.ndarray
    c_pos: np.ndarray
    c_neg: np.ndarray
    dm: np.ndarray
    impurity: np.ndarray
    present: np.ndarray
    diverse: np.ndarray
    options: Mapping[str, Any]


def write_scores(path: Path, scores: Scores) -> None:
    """Write the file, whole or not at all.

    Raises:
        UserError: it cannot be written.
    """
    width = len(scores.findings)
    columns: dict[str, Any] = {}
    for name in scores.images.table.columns:
        texts = [None if value is None else str(value) for value in scores.images.table[name]]
        columns[name if name in FIXED else f"{_COVARIATE}{name}"] = pa.array(texts, pa.string())
    flat = pa.array(np.ascontiguousarray(scores.labels).reshape(-1), pa.int8())
    columns["label"] = pa.FixedSizeListArray.from_arrays(flat, width)
    for name in NUMBERS:
        flat = pa.array(np.ascontiguousarray(getattr(scores, name)).reshape(-1), pa.float64(), from_pandas=True)
        columns[name] = pa.FixedSizeListArray.from_arrays(flat, width)
    rank = np.full(len(scores.images), -1, np.int64)
    rank[scores.diverse] = np.arange(len(scores.diverse))
    columns["has_feature"] = pa.array(scores.present, pa.bool_())
    columns["diverse_rank"] = pa.array(rank, pa.int64())
    about = {
        "schema_version": SCHEMA_VERSION,
        "name": scores.images.name,
        "match_on": list(scores.images.match_on),
        "findings": list(scores.findings),
        "options": dict(scores.options),
    }
    table = pa.table(columns).replace_schema_metadata({_KEY: json.dumps(about).encode()})
    try:
        with (
            atomic_path(path) as temporary,
            pa.OSFile(str(temporary), "wb") as file,
            pa.ipc.new_file(file, table.schema) as writer,
        ):
            writer.write_table(table)
    except OSError as error:
        raise UserError(f"{path}: scores cannot be written ({error.strerror or error}).") from error


def read_scores(path: Path) -> Scores | None:
    """The file's scores; None: there is no file.

    Raises:
        UserError: it is not a file of scores, or of a newer schema.
    """
    try:
        with pa.OSFile(str(path), "rb") as file:
            table = pa.ipc.open_file(file).read_all()
        about = json.loads((table.schema.metadata or {})[_KEY])
        if about["schema_version"] != SCHEMA_VERSION:
            raise UserError(f"{path}: schema_version {about['schema_version']}; this version reads {SCHEMA_VERSION}.")
        findings = tuple(str(finding) for finding in about["findings"])
        names = [name for name in table.column_names if name in FIXED or name.startswith(_COVARIATE)]
        texts = {name.removeprefix(_COVARIATE): table.column(name).to_pylist() for name in names}
        images = LabelImages(pd.DataFrame(texts, dtype=object), tuple(about["match_on"]), str(about["name"]))
        shape = (len(images), len(findings))
        numbers = {name: _flat(table, name).astype(np.float64).reshape(shape) for name in NUMBERS}
        rank = table.column("diverse_rank").to_numpy()
        order = np.argsort(rank, kind="stable")
        return Scores(
            images,
            findings,
            _flat(table, "label").astype(np.int8).reshape(shape),
            present=table.column("has_feature").to_numpy(zero_copy_only=False).astype(np.bool_),
            diverse=order[rank[order] >= 0].astype(np.int64),
            options=about["options"],
            **numbers,
        )
    except FileNotFoundError:
        return None
    except UserError:
        raise
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: not a readable file of scores ({type(error).__name__}); score again.") from error


def _flat(table: pa.Table, name: str) -> np.ndarray:
    values: np.ndarray = table.column(name).combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return values
