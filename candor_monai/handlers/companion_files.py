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
SCHEMA_VERSION = 1
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
                "patients": int(found.patients),
                "replicates": {n: _put(arrays, f"{number}/r/{n}", r) for n, r in found.replicates.items()},
                "splits": {n: _put(arrays, f"{number}/s/{n}", s) for n, s in found.splits.items()},
                "null": None if found.null is None else _put_null(arrays, f"{number}/n", found.null),
            }
        )
    header = json.dumps({"schema_version": SCHEMA_VERSION, "entries": entries})
    arrays["header"] = np.frombuffer(header.encode(), dtype=np.uint8)
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_companions_file(path: str | Path) -> dict[tuple[str, str, str], Companions]:
    """Companions by (level, finding, group) of their row.

    Raises:
        UserError: the file is missing, damaged, or of a later version.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        header = json.loads(bytes(arrays["header"]))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path}: cannot be read as an evaluation's companions: run `score` again.") from error
    if header["schema_version"] > SCHEMA_VERSION:
        raise UserError(f"{path}: was written by a later version of candor_monai.")
    return {
        tuple(entry["row"][name] for name in NAMES): Companions(
            {n: _get(Replicates, arrays, value) for n, value in entry["replicates"].items()},
            {n: _get(SplitReplicates, arrays, value) for n, value in entry["splits"].items()},
            None if entry["null"] is None else _get_null(arrays, entry["null"]),
            entry["patients"],
        )
        for entry in header["entries"]
    }


def _put(arrays: dict[str, np.ndarray], key: str, value: Any) -> dict[str, Any]:
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


def _get(kind: Any, arrays: dict[str, np.ndarray], kept: dict[str, Any]) -> Any:
    return kind(**{n: arrays[v["array"]] if isinstance(v, dict) else v for n, v in kept.items()})


def _put_null(arrays: dict[str, np.ndarray], key: str, null: NullReplicates) -> dict[str, Any]:
    counts = {"positives": int(null.positives), "movable": int(null.movable), "reason": null.reason}
    return {**counts, "values": _put(arrays, f"{key}/values", null.values)}


def _get_null(arrays: dict[str, np.ndarray], kept: dict[str, Any]) -> NullReplicates:
    return NullReplicates(**{**kept, "values": _get(Replicates, arrays, kept["values"])})
