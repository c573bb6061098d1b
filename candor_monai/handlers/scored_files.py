"""Groups of an evaluation that are scored already, on disk until the results are written.

A folder ``scored/`` beside the results holds a file for every portion of groups that a process has finished. Its name
begins with a digest of all that the numbers depend on, so that a run that died, or a process of several, leaves what
it has done to the next. Plain arrays and JSON: nothing is unpickled, and there are no ids in it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ..metrics.cells import Cell
from ..metrics.engine import GridPoint
from ..metrics.evaluation import Scored
from ..metrics.neighbours import Counts
from ..metrics.observations import Observations
from ..metrics.options import Options
from ..utils.plain_values import plain
from .companion_files import get_companions, get_fields, put_companions, put_fields, read_arrays, write_arrays
from .run_context import versions

FOLDER = "scored"
SCHEMA_VERSION = 5
# Options that change the time that scoring takes and no bit of a result.
_FREE = ("memory_bytes", "precision")
_ROWS = 8192

logger = logging.getLogger(__name__)


def images_digest(features: np.ndarray, observations: Observations) -> str:
    """A digest of what evaluations of the same images have in common: features, labels and all that is known.

    Args:
        features: shape (N, d), float32; read in blocks.
        observations: the N images.
    """
    digest = hashlib.sha256()
    for field in dataclasses.fields(observations):
        value = getattr(observations, field.name)
        if isinstance(value, np.ndarray):
            digest.update(json.dumps([field.name, value.dtype.str, value.shape]).encode())
            digest.update(np.ascontiguousarray(value).data.cast("B") if value.size else b"")
        else:
            digest.update(json.dumps([field.name, value], default=str).encode())
    digest.update(json.dumps(list(features.shape)).encode())
    for start in range(0, len(features), _ROWS):
        digest.update(np.ascontiguousarray(features[start : start + _ROWS]).data.cast("B"))
    return digest.hexdigest()


def evaluation_digest(images: str, options: Options) -> str:
    """A digest of all that an evaluation depends on: images, options, versions of what computes it.

    Args:
        images: their :func:`images_digest`.
        options: of the measure.
    """
    kept = {name: value for name, value in plain(options).items() if name not in _FREE}
    told = json.dumps([SCHEMA_VERSION, versions(), kept, images], sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def write_scored(folder: Path, digest: str, groups: Sequence[str], scored: Scored) -> Path:
    """Write some groups, whole or not at all.

    Args:
        folder: ``scored/`` of the run.
        digest: of the evaluation.
        groups: their names.
        scored: what :func:`~candor_monai.metrics.evaluation.score_together` gave for them.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    arrays: dict[str, np.ndarray] = {}
    header = {
        "groups": list(groups),
        "cells": [put_fields(arrays, f"cell/{n}", cell) for n, cell in enumerate(scored.cells)],
        "companions": [put_companions(arrays, f"beside/{n}", found) for n, found in enumerate(scored.companions)],
        "points": [put_fields(arrays, f"point/{n}", point) for n, point in enumerate(scored.points)],
        "counts": {name: int(value) for name, value in vars(scored.counts).items()},
        "seconds": scored.seconds,
        "together": scored.together,
    }
    name = hashlib.sha256("\n".join(groups).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    path = folder / f"{digest}-{name}.npz"
    write_arrays(path, header, arrays)
    return path


def read_scored(folder: Path, digest: str) -> tuple[list[Scored], set[str]]:
    """What is scored of an evaluation, and the names of its groups; damaged files are named and removed.

    Args:
        folder: ``scored/`` of the run.
        digest: of the evaluation.
    """
    parts: list[Scored] = []
    groups: set[str] = set()
    for path in sorted(folder.glob(f"{digest}-*.npz")):
        try:
            header, arrays = read_arrays(path)
            named, part = header["groups"], _scored(header, arrays)
        except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
            logger.warning("%s is damaged (%s); what it held is scored again", path.name, type(error).__name__)
            path.unlink(missing_ok=True)
            continue
        if groups.isdisjoint(named):
            groups.update(named)
            parts.append(part)
    return parts, groups


def forget_scored(folder: Path, but: str | None = None) -> None:
    """Remove the files of a folder, and the folder when nothing is left in it.

    Args:
        folder: ``scored/`` of a run.
        but: the digest of an evaluation whose files stay.
    """
    for path in (*folder.glob("*.npz"), *folder.glob(".*.npz.*.tmp")):
        if but is None or but not in path.name:
            path.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _scored(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Scored:
    return Scored(
        [get_fields(Cell, arrays, kept) for kept in header["cells"]],
        [get_companions(arrays, kept) for kept in header["companions"]],
        [get_fields(GridPoint, arrays, kept) for kept in header["points"]],
        Counts(**header["counts"]),
        dict(header["seconds"]),
        int(header["together"]),
    )
