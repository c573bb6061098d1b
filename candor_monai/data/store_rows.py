"""What the feature store is told about an image: the state of its file, its rejection, its pixels' hash."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ABSENT = -1
_STAT_THREADS = 16  # files asked for at once, for network file systems


@dataclass(frozen=True)
class Sources:
    """The state of the source files, aligned with a list of image ids; -1 where a file is not there.

    Args:
        size: bytes, shape (N,), int64.
        mtime_ns: modification time in ns, shape (N,), int64; only ever compared for equality.
    """

    size: np.ndarray
    mtime_ns: np.ndarray

    def take(self, rows: np.ndarray) -> Sources:
        """The states at ``rows``."""
        return Sources(self.size[rows], self.mtime_ns[rows])


@dataclass(frozen=True)
class Rejection:
    """Why one image has no feature.

    Args:
        image_id: the image.
        file: its file, relative to the dataset folder.
        stage: ``decode`` or ``encode``.
        reason: stable code (docs/outputs.md).
        message: what is wrong; no patient data.
        source_size, source_mtime_ns: state of the file when it was tried.
        retry: the next run tries again although the file is unchanged (a timeout, a killed worker).
    """

    image_id: str
    file: str | None
    stage: str
    reason: str
    message: str
    source_size: int = ABSENT
    source_mtime_ns: int = ABSENT
    retry: bool = False


def stat_sources(paths: Sequence[str | Path | None]) -> Sources:
    """Size and modification time of every file; -1 where there is none or it cannot be reached.

    Args:
        paths: the files, in the order of the image ids.
    """

    def state(path: str | Path | None) -> tuple[int, int]:
        try:
            found = os.stat(path) if path is not None else None
        except (OSError, ValueError):
            found = None
        return (found.st_size, found.st_mtime_ns) if found is not None else (ABSENT, ABSENT)

    if len(paths) > 1000:
        with ThreadPoolExecutor(_STAT_THREADS) as pool:
            states = list(pool.map(state, paths, chunksize=256))
    else:
        states = [state(path) for path in paths]
    table = np.array(states, dtype=np.int64).reshape(-1, 2)
    return Sources(table[:, 0].copy(), table[:, 1].copy())


def file_states(paths: Sequence[str | Path | None]) -> Sources:
    """As :func:`stat_sources`; of an image inside an archive, ``<archive>/<member>``, the state of the archive."""
    states = stat_sources(paths)
    holders: dict[Path, Path] = {}
    absent = [row for row in np.flatnonzero(states.size == ABSENT).tolist() if paths[row] is not None]
    held = stat_sources([_holder(Path(str(paths[row])), holders) for row in absent])
    states.size[absent], states.mtime_ns[absent] = held.size, held.mtime_ns
    return states


def _holder(path: Path, known: dict[Path, Path]) -> Path:
    """The file that a path leads into; the path itself when there is none."""
    if path.parent not in known:
        known[path.parent] = next((parent for parent in path.parents if os.path.isfile(parent)), path)
    return known[path.parent]


def unusable_features(features: np.ndarray) -> dict[int, tuple[str, str]]:
    """Rows that must not be stored, with reason code and message.

    Args:
        features: shape (n, d), float32.

    Returns:
        row -> (reason, message), for rows with a NaN, an infinity, or nothing but zeros.

    >>> unusable_features(np.array([[1, 2], [0, 0], [np.nan, 1]], dtype=np.float32))
    {1: ('feature_zero', 'the feature has zero norm'), 2: ('feature_not_finite', 'the feature is not finite')}
    """
    finite = np.isfinite(features).all(axis=1)
    zero = ~features.any(axis=1)
    bad = {int(row): ("feature_zero", "the feature has zero norm") for row in np.flatnonzero(zero)}
    bad.update({int(row): ("feature_not_finite", "the feature is not finite") for row in np.flatnonzero(~finite)})
    return dict(sorted(bad.items()))


def pixel_clusters(pixels_sha256: Sequence[bytes | None]) -> np.ndarray:
    """Codes that are equal for images with identical canonical pixels.

    Args:
        pixels_sha256: hash of each image's canonical pixels; None: unknown, alone in its cluster.

    Returns:
        shape (N,), int64, in order of first appearance.

    >>> pixel_clusters([b"a", b"b", b"a", None, None]).tolist()
    [0, 1, 0, 2, 3]
    """
    seen: dict[Any, int] = {}
    keys = (digest if isinstance(digest, bytes) else row for row, digest in enumerate(pixels_sha256))
    return np.fromiter((seen.setdefault(key, len(seen)) for key in keys), np.int64, len(pixels_sha256))
