"""The feature store: the features of one encoder over one cohort, on disk.

A folder of shards (``shards.py``) and a manifest. Each statement about an image, a feature or a rejection, carries its
source file's size and modification time; what was computed from another state of the file, by another encoder, or
whose bytes have changed is never served. See docs/feature_store.md for the layout.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from candor_monai.utils.atomic import atomic_write
from candor_monai.utils.errors import UserError

from .consolidated import kept_matrix, temporary_matrix
from .folder_lock import folder_lock
from .shard_index import ShardIndex
from .shards import (
    FEATURES,
    KEY_FIELDS,
    PROVENANCE_FIELDS,
    REJECTED,
    REJECTION_FIELDS,
    SCHEMA_VERSION,
    Shard,
    ShardError,
    open_shard,
    parse_name,
    write_shard,
)
from .store_rows import ABSENT, Rejection, Sources, pixel_clusters, unusable_features

MANIFEST = "manifest.json"
SET_ASIDE = "set_aside"
CONSOLIDATED = "consolidated"

logger = logging.getLogger(__name__)


@dataclass
class Verification:
    """What :meth:`FeatureStore.verify` found.

    Args:
        shards, rows, bytes: what is whole.
        seconds: time taken.
        set_aside: file name -> what was wrong with it.
    """

    shards: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    set_aside: dict[str, str] = field(default_factory=dict)


def fingerprint_digest(fingerprint: Mapping[str, Any]) -> str:
    """SHA-256 of a fingerprint, whatever the order of its keys.

    >>> fingerprint_digest({"a": 1, "b": 2}) == fingerprint_digest({"b": 2, "a": 1})
    True
    """
    text = json.dumps(fingerprint, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def store_folder(feature_dir: str | Path, encoder: str, cohort: str, fingerprint: Mapping[str, Any]) -> Path:
    """The folder of an encoder's features over a cohort.

    >>> store_folder("features", "blind", "my/cohort", {"weights": "00"}).name
    'my_cohort--blind--6a1fbf362b0e'
    """
    safe = [re.sub(r"[^A-Za-z0-9._-]", "_", name) or "_" for name in (cohort, encoder)]
    return Path(feature_dir) / "--".join([*safe, fingerprint_digest(fingerprint)[:12]])


class FeatureStore:
    """Features and rejections of one encoder over one cohort.

    Nothing is read or written before the first call that needs it. Every method may be called from any thread.

    Args:
        folder: the store's own folder (see :func:`store_folder`).
        fingerprint: everything a feature depends on besides the source file: weights, processor, feature point,
            precision, decoding options, code version. JSON values only.

    Example::

        store = FeatureStore(store_folder("features", "blind", "mine", fingerprint), fingerprint)
        sources = stat_sources(paths)
        todo = store.missing(image_ids, sources)
        store.write(todo, features, {"source_size": ..., "source_mtime_ns": ...})
        features, present = store.read(image_ids, sources)
    """

    def __init__(self, folder: str | Path, fingerprint: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.fingerprint = dict(fingerprint)
        self.digest = fingerprint_digest(fingerprint)
        self.warnings: list[str] = []
        self._known: dict[str, Shard] = {}
        self._refused: set[str] = set()
        self._index_cache: ShardIndex | None = None
        self._listed = False
        self._manifest_written = False
        self._guard = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_guard"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _guard=threading.RLock())

    # ---- asking

    def missing(self, image_ids: Sequence[str], sources: Sources | None = None) -> list[str]:
        """Ids that have neither a feature nor a lasting rejection for the present state of their file.

        Args:
            image_ids: ids, in the order of ``sources``.
            sources: states of the files; None: any state will do (features without files).
        """
        index = self._index()
        chosen = index.resolve(image_ids, sources)
        settled = chosen >= 0
        settled[settled] = ~index.retry[chosen[settled]]
        return [image_ids[row] for row in np.flatnonzero(~settled).tolist()]

    def read(self, image_ids: Sequence[str], sources: Sources | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Features aligned with ``image_ids``, in memory.

        Returns:
            features, shape (N, d), float32, zeros where absent; present, shape (N,), bool.
        """
        index, chosen = self._features(image_ids, sources)
        features = np.zeros((len(chosen), index.dimension), dtype=np.float32)
        index.gather(chosen, features)
        return features, chosen >= 0

    def present(self, image_ids: Sequence[str], sources: Sources | None = None) -> np.ndarray:
        """Which ids have a feature, shape (N,), bool; no feature is read."""
        return self._features(image_ids, sources)[1] >= 0

    def matrix(
        self, image_ids: Sequence[str], sources: Sources | None = None, memory_bytes: int = 1 << 30
    ) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`read`, but memory-mapped when the features would take more than ``memory_bytes``.

        The map lies in the store (``consolidated/``), checksummed and used again while the store is unchanged; beside a
        store that cannot be written it is a temporary file that is gone when the array is.
        """
        if len(image_ids) * self.dimension * 4 <= memory_bytes:
            return self.read(image_ids, sources)
        index, chosen = self._features(image_ids, sources)
        return self._consolidated(index, chosen), chosen >= 0

    def rejections(self, image_ids: Sequence[str], sources: Sources | None = None) -> pd.DataFrame:
        """The rejections that hold for these ids: image_id, file, stage, reason, message, retry."""
        index = self._index()
        chosen = index.resolve(image_ids, sources)
        chosen = chosen[(chosen >= 0) & (index.features_only(chosen) < 0)]
        return index.columns(pd.unique(chosen), KEY_FIELDS[:1] + REJECTION_FIELDS)

    def provenance(self, image_ids: Sequence[str], sources: Sources | None = None) -> pd.DataFrame:
        """A row for each id: present, and how its pixels came to be (nulls where it has no feature)."""
        index, chosen = self._features(image_ids, sources)
        table = index.columns(chosen, PROVENANCE_FIELDS)
        table.insert(0, "image_id", list(image_ids))
        table.insert(1, "present", chosen >= 0)
        return table

    def clusters(self, image_ids: Sequence[str], sources: Sources | None = None) -> np.ndarray:
        """Codes that are equal for images with identical canonical pixels, shape (N,), int64.

        An image without a feature, or whose pixels were not hashed, is alone in its cluster.
        """
        return pixel_clusters(self.pixels(image_ids, sources))

    def pixels(self, image_ids: Sequence[str], sources: Sources | None = None) -> list[bytes | None]:
        """SHA-256 of each image's canonical pixels; None without a feature, or where they were not hashed."""
        index, chosen = self._features(image_ids, sources)
        return index.columns(chosen, PROVENANCE_FIELDS[:1])["pixels_sha256"].tolist()

    @property
    def dimension(self) -> int:
        """Length d of a feature; 0 while the store holds none."""
        with self._guard:
            return next((shard.dimension for shard in self._shards().values() if shard.kind == FEATURES), 0)

    def __len__(self) -> int:
        """Number of distinct images whose newest statement is a feature."""
        index = self._index()
        return int((index.features_only(index.resolve(pc.unique(index.ids), None)) >= 0).sum())

    # ---- telling

    def write(
        self, image_ids: Sequence[str], features: np.ndarray, provenance: Mapping[str, Any] | None = None
    ) -> Path:
        """Write one shard.

        Args:
            image_ids: distinct ids.
            features: shape (n, d), float32, n >= 1, d >= 1, finite, no row of zeros.
            provenance: column -> n values: ``source_size`` and ``source_mtime_ns`` (-1 when left out) and the columns
                of docs/feature_store.md.

        Raises:
            ValueError: shapes differ, an id is repeated, a row is unusable, a column is unknown.
            UserError: the disk is full or the folder cannot be written; earlier shards are untouched.
        """
        features = np.asarray(features)
        if features.ndim != 2 or features.dtype != np.float32 or 0 in features.shape:
            raise ValueError(f"features must be float32 of shape (n, d), got {features.dtype} {features.shape}")
        if len(image_ids) != len(features) or len(set(image_ids)) != len(image_ids):
            raise ValueError("image_ids must be distinct, one for each row of features")
        if self.dimension not in (0, features.shape[1]):
            raise ValueError(f"this store's features have length {self.dimension}, got {features.shape[1]}")
        bad = unusable_features(features)
        if bad:
            row, (reason, _) = next(iter(bad.items()))
            raise ValueError(f"the feature of {image_ids[row]!r} is unusable: {reason}")
        columns = self._columns(image_ids, provenance or {}, [f.name for f in KEY_FIELDS[1:] + PROVENANCE_FIELDS])
        return self._add(FEATURES, {**columns, "feature": features})

    def reject(self, rows: Sequence[Rejection]) -> Path | None:
        """Write down why images have no feature.

        Raises:
            UserError: the disk is full or the folder cannot be written.
        """
        if not rows:
            return None
        names = [f.name for f in KEY_FIELDS + REJECTION_FIELDS]
        return self._add(REJECTED, {name: [getattr(row, name) for row in rows] for name in names})

    def lock(self) -> AbstractContextManager[None]:
        """Hold the store for this process (see :func:`candor_monai.data.folder_lock.folder_lock`)."""
        return folder_lock(self.folder)

    # ---- keeping

    def refresh(self) -> None:
        """Look for shards that other processes have written since."""
        with self._guard:
            self._index_cache = None
            self._listed = False

    def verify(self) -> Verification:
        """Read every shard again and check its bytes; what is torn or altered is set aside and named."""
        before = time.perf_counter()
        report = Verification()
        with self._guard:
            self._known.clear()
            self._refused.clear()
            self.refresh()
            index = self._index(report)
        report.seconds = time.perf_counter() - before
        report.shards = len(index.shards)
        report.rows = len(index.ids)
        report.bytes = sum(shard.path.stat().st_size for shard in index.shards)
        return report

    # ---- below: how

    def _columns(self, image_ids: Sequence[str], given: Mapping[str, Any], known: list[str]) -> dict[str, Any]:
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise ValueError(f"unknown provenance column {unknown[0]!r}; known: {', '.join(known)}")
        for name, values in given.items():
            if len(values) != len(image_ids):
                raise ValueError(f"provenance column {name!r} has {len(values)} values for {len(image_ids)} images")
        absent = [ABSENT] * len(image_ids)
        return {"image_id": list(image_ids), "source_size": absent, "source_mtime_ns": absent, **given}

    def _add(self, kind: str, columns: dict[str, Any]) -> Path:
        with self._guard:
            sequence = 1 + max((shard.sequence for shard in self._shards().values()), default=0)
            with _writing(self.folder):
                self._write_manifest()
                path = write_shard(self.folder, kind, sequence, columns, self.digest)
            self._known[path.name] = open_shard(path, self.digest)
            self._index_cache = None
        return path

    def _write_manifest(self) -> None:
        if self._manifest_written:
            return
        self._check_manifest()
        path = self.folder / MANIFEST
        if not path.exists():
            document = {"schema_version": SCHEMA_VERSION, "digest": self.digest, "fingerprint": self.fingerprint}
            atomic_write(path, json.dumps(document, indent=2, sort_keys=True) + "\n")
        self._manifest_written = True

    def _check_manifest(self) -> None:
        """Set a manifest aside that is torn or another encoder's; the shards are judged one by one."""
        path = self.folder / MANIFEST
        try:
            document = json.loads(path.read_bytes())
            found = document["fingerprint"]
            whole = document["schema_version"] == SCHEMA_VERSION and document["digest"] == fingerprint_digest(found)
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError, RecursionError):
            whole, found = False, {}
        if not whole:
            self._put_aside(path, "it is torn or altered; it is written anew")
        elif found != json.loads(json.dumps(self.fingerprint)):
            keys = sorted(k for k in {*found, *self.fingerprint} if found.get(k) != self.fingerprint.get(k))
            self._put_aside(path, f"the folder held features of another fingerprint ({', '.join(keys)} differ)")

    def _index(self, report: Verification | None = None) -> ShardIndex:
        with self._guard:
            shards = self._shards(report)
            if self._index_cache is None:
                self._index_cache = ShardIndex.of(list(shards.values()))
            return self._index_cache

    def _shards(self, report: Verification | None = None) -> dict[str, Shard]:
        if not self._listed:
            self._list(report)
            self._listed = True
        return self._known

    def _list(self, report: Verification | None) -> None:
        """Verify the shards not yet known; hashing lets go of the interpreter lock, so threads help."""
        try:
            names = {name for name in os.listdir(self.folder) if parse_name(name)}
        except FileNotFoundError:
            names = set()
        except OSError as error:
            raise UserError(f"feature store {self.folder} cannot be read: {error.strerror}.") from error
        if names:
            self._check_manifest()
        for gone in set(self._known) - names:
            del self._known[gone]
        new = sorted(names - set(self._known) - self._refused)
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            for name, result in zip(new, pool.map(self._open, new), strict=True):
                if isinstance(result, Shard):
                    self._known[name] = result
                    continue
                if report is not None:
                    report.set_aside[name] = result
                self._put_aside(self.folder / name, f"{result}; what it held is computed again")
        dimensions = [shard.dimension for shard in self._known.values() if shard.kind == FEATURES]
        usual = max(set(dimensions), key=dimensions.count) if dimensions else 0
        for name, shard in list(self._known.items()):
            if shard.kind == FEATURES and shard.dimension != usual:
                del self._known[name]
                self._put_aside(shard.path, f"its features have length {shard.dimension}, the others {usual}")

    def _open(self, name: str) -> Shard | str:
        try:
            return open_shard(self.folder / name, self.digest)
        except ShardError as error:
            return str(error)
        except OSError as error:
            return f"cannot be read: {error.strerror}"

    def _put_aside(self, path: Path, why: str) -> None:
        """Move a file out of the way, or, where the store cannot be written, just leave it unread."""
        self._refused.add(path.name)
        try:
            aside = self.folder / SET_ASIDE
            aside.mkdir(exist_ok=True)
            os.replace(path, aside / path.name)
            done = f"set aside in {SET_ASIDE}/"
        except OSError:
            done = "ignored"
        message = f"feature store {self.folder.name}: {path.name} is {done}: {why}."
        self.warnings.append(message)
        logger.warning(message)

    def _features(self, image_ids: Sequence[str], sources: Sources | None) -> tuple[ShardIndex, np.ndarray]:
        """The index and the rows in it: rows of one index mean nothing in another, made since by a refresh."""
        index = self._index()
        return index, index.features_only(index.resolve(image_ids, sources))

    def _consolidated(self, index: ShardIndex, chosen: np.ndarray) -> np.ndarray:
        shape = (len(chosen), index.dimension)
        key = hashlib.sha256(json.dumps([self.digest, shape, [s.path.name for s in index.shards]]).encode())
        key.update(chosen.tobytes())

        def fill(matrix: np.ndarray) -> None:
            index.gather(chosen, matrix)

        try:
            return kept_matrix(self.folder / CONSOLIDATED, key.hexdigest()[:16], shape, fill, self._put_aside)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _disk_full(self.folder, error) from error
            return temporary_matrix(shape, fill)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn the operating system's refusals into something the user can act on."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(folder, error) from error
        raise UserError(
            f"feature store {folder} cannot be written: {error.strerror}. Choose another folder."
        ) from error


def _disk_full(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"feature store {folder}: no space left on the disk ({error.strerror}). What was finished is kept: free some "
        "space or choose another folder, then run again."
    )
