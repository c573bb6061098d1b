"""What intervals and tests are made from, kept beside the results so that encoders can be compared in pairs later.

One ``.npz`` of plain arrays (nothing is unpickled): for each row of discordance.csv its resamples, its splits of the
patients and its exchanges of labels. It holds no ids.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..metrics.companions import Companions
from ..metrics.permutation import NullReplicates
from ..metrics.resampling import Replicates
from ..metrics.table import Part
from ..metrics.total_interval import SplitReplicates
from ..utils.atomic import atomic_path
from ..utils.errors import UserError

FILE = "companions.npz"
SCHEMA_VERSION = 3
NAMES = ("level", "finding", "group")


def write_companions_file(path: str | Path, parts: Sequence[Part]) -> None:
    """Write the companions of an evaluation's rows, whole or not at all."""
    arrays: dict[str, np.ndarray] = {}
    entries = []
    for number, part in enumerate(parts):
        found = part.companions
        entries.append(
            {
                "row": {name: part.row[name] for name in NAMES},
                **put_companions(arrays, str(number), found),
            }
        )
    write_arrays(path, {"schema_version": SCHEMA_VERSION, "entries": entries}, arrays, compressed=True)


def read_companions_file(path: str | Path) -> dict[tuple[str, str, str], Companions]:
    """Companions by (level, finding, group) of their row.

    Raises:
        UserError: the file is missing, damaged, or of another version.
    """
    try:
        header, arrays = read_arrays(path)
        version = int(header["schema_version"])
    except Exception as error:  # NumPy, zip and JSON raise many kinds for a damaged file
        raise UserError(f"{path}: cannot be read as an evaluation's companions: run `score` again.") from error
    if version > SCHEMA_VERSION:
        raise UserError(f"{path}: was written by a later version of candor_monai.")
    if version < SCHEMA_VERSION:
        raise UserError(f"{path}: was written by an earlier version of candor_monai: run `score` again.")
    return {tuple(entry["row"][name] for name in NAMES): get_companions(arrays, entry) for entry in header["entries"]}


def write_arrays(path: str | Path, header: Any, arrays: dict[str, np.ndarray], compressed: bool = False) -> None:
    """Write plain arrays and a JSON header as one ``.npz``, whole or not at all."""
    save = np.savez_compressed if compressed else np.savez
    named = {**arrays, "header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)}
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        save(file, **named)  # type: ignore[arg-type]


def read_arrays(path: str | Path) -> tuple[Any, dict[str, np.ndarray]]:
    """The header and the arrays of such a file; the checksum of every byte is looked at.

    Raises:
        OSError, ValueError, KeyError, BadZipFile: it is missing or damaged.
    """
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    return json.loads(bytes(arrays.pop("header"))), arrays


def put_companions(arrays: dict[str, np.ndarray], key: str, found: Companions) -> dict[str, Any]:
    """Companions as JSON's own types; their arrays go to ``arrays`` under keys that begin with ``key``."""
    return {
        "patients": int(found.patients),
        "replicates": {n: put_fields(arrays, f"{key}/r/{n}", r) for n, r in found.replicates.items()},
        "splits": {n: put_fields(arrays, f"{key}/s/{n}", s) for n, s in found.splits.items()},
        "null": None if found.null is None else _put_null(arrays, f"{key}/n", found.null),
    }


def get_companions(arrays: dict[str, np.ndarray], kept: dict[str, Any]) -> Companions:
    """What :func:`put_companions` kept."""
    return Companions(
        {n: get_fields(Replicates, arrays, value) for n, value in kept["replicates"].items()},
        {n: get_fields(SplitReplicates, arrays, value) for n, value in kept["splits"].items()},
        None if kept["null"] is None else _get_null(arrays, kept["null"]),
        kept["patients"],
    )


def put_fields(arrays: dict[str, np.ndarray], key: str, value: Any) -> dict[str, Any]:
    """Fields of a dataclass: arrays go to ``arrays``, where the text that stands for them points."""
    kept: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if isinstance(item, np.ndarray):
            arrays[f"{key}/{field.name}"] = item
            kept[field.name] = {"array": f"{key}/{field.name}"}
        elif isinstance(item, np.generic):
            kept[field.name] = item.item()
        else:
            kept[field.name] = item
    return kept


def get_fields(kind: Any, arrays: dict[str, np.ndarray], kept: dict[str, Any]) -> Any:
    """The dataclass ``kind`` that :func:`put_fields` kept."""
    return kind(**{n: arrays[v["array"]] if isinstance(v, dict) else v for n, v in kept.items()})


def _put_null(arrays: dict[str, np.ndarray], key: str, null: NullReplicates) -> dict[str, Any]:
    counts = {"positives": int(null.positives), "movable": int(null.movable), "asked": int(null.asked)}
    return {**counts, "reason": null.reason, "values": put_fields(arrays, f"{key}/values", null.values)}


def _get_null(arrays: dict[str, np.ndarray], kept: dict[str, Any]) -> NullReplicates:
    return NullReplicates(**{**kept, "values": get_fields(Replicates, arrays, kept["values"])})
