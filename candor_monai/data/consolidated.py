"""One memory-mapped matrix out of many shards, for features that do not fit in memory."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from candor_monai.utils.atomic import atomic_path

Fill = Callable[[np.ndarray], None]


def kept_matrix(
    folder: Path, key: str, shape: tuple[int, int], fill: Fill, refuse: Callable[[Path, str], None]
) -> np.ndarray:
    """The matrix of an earlier call with this key when its bytes are still those written, else a new one.

    Args:
        folder: where the files are kept; one matrix at a time.
        key: names the content: which rows of which shards.
        shape: (N, d).
        fill: writes the float32 values into the array that it is given.
        refuse: told of a file whose bytes have changed.

    Returns:
        shape (N, d), float32, memory-mapped, read-only.

    Raises:
        OSError: the folder cannot be written, or the disk is full (ENOSPC, before anything is written).
    """
    folder.mkdir(exist_ok=True)
    for path in folder.glob(f"{key}-*.f32"):
        if path.stem == f"{key}-{_digest(path)}" and path.stat().st_size == shape[0] * shape[1] * 4:
            return np.memmap(path, dtype="<f4", mode="r", shape=shape)
        refuse(path, "its bytes do not match its checksum; it is made again")
    for stale in folder.glob("*.f32"):
        stale.unlink(missing_ok=True)
    needed, free = shape[0] * shape[1] * 4, shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed} bytes needed, {free} free")
    building = folder / f"{key}.building"
    with atomic_path(building) as temporary:
        matrix = np.memmap(temporary, dtype="<f4", mode="w+", shape=shape)
        fill(matrix)
        matrix.flush()
        del matrix
    path = folder / f"{key}-{_digest(building)}.f32"
    os.replace(building, path)
    return np.memmap(path, dtype="<f4", mode="r", shape=shape)


def temporary_matrix(shape: tuple[int, int], fill: Fill) -> np.ndarray:
    """The same in a file without a name, gone when the array is: beside a store that cannot be written."""
    with tempfile.TemporaryFile(prefix="candor_features_") as file:
        file.truncate(shape[0] * shape[1] * 4)
        matrix = np.memmap(file, dtype="<f4", mode="r+", shape=shape)
        fill(matrix)
        matrix.flags.writeable = False
        return matrix


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]
