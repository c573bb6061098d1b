"""Shards of the feature store: Arrow IPC files that are whole, checksummed and never changed.

A shard's name holds its kind, its place in the order of writing and the first 128 bits of the SHA-256 of its bytes:
``features-000012-<32 hex>.arrow``. A file whose bytes do not give its name, or that belongs to another encoder, is
never read.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from candor_monai.utils.atomic import atomic_path

SCHEMA_VERSION = 1
FEATURES, REJECTED = "features", "rejected"
_HEADER = b"candor_monai"
_NAME = re.compile(r"(features|rejected)-(\d{6,})-([0-9a-f]{32})\.arrow")

# Who a row is about and which state of its source file it was made from: the same in both kinds of shard.
KEY_FIELDS = [
    pa.field("image_id", pa.string(), nullable=False),
    pa.field("source_size", pa.int64(), nullable=False),
    pa.field("source_mtime_ns", pa.int64(), nullable=False),
]
PROVENANCE_FIELDS = [
    pa.field("pixels_sha256", pa.binary(32)),
    pa.field("format", pa.string()),
    pa.field("codec", pa.string()),
    pa.field("transfer_syntax", pa.string()),
    pa.field("photometric", pa.string()),
    pa.field("inverted", pa.bool_()),
    pa.field("modality", pa.string()),
    pa.field("voi", pa.string()),
    pa.field("bits_stored", pa.int32()),
    pa.field("rows", pa.int32()),
    pa.field("columns", pa.int32()),
    pa.field("frames", pa.int32()),
    pa.field("notes", pa.string()),
]
REJECTION_FIELDS = [
    pa.field("file", pa.string()),
    pa.field("stage", pa.string(), nullable=False),
    pa.field("reason", pa.string(), nullable=False),
    pa.field("message", pa.string(), nullable=False),
    pa.field("retry", pa.bool_(), nullable=False),
]


class ShardError(Exception):
    """A file that is not, or no longer, a shard of this store; the message says why."""


@dataclass(frozen=True)
class Shard:
    """A verified shard: who its rows are about; features and provenance stay in the file.

    Args:
        path: the file.
        kind: ``"features"`` or ``"rejected"``.
        sequence: its place in the order of writing.
        table: the columns kept in memory: who each row is about; of rejections, everything.
        dimension: length d of a feature, 0 for rejections.
        offset: where in the file the (n, d) float32 matrix begins, in bytes.
    """

    path: Path
    kind: str
    sequence: int
    table: pa.RecordBatch
    dimension: int = 0
    offset: int = 0

    @property
    def order(self) -> tuple[int, str, str]:
        """Sorts shards from the oldest to the newest statement, without a clock."""
        return self.sequence, {REJECTED: "0", FEATURES: "1"}[self.kind], self.path.name

    def columns(self, names: list[str]) -> pa.RecordBatch:
        """Columns, read from the file again where they are not kept in memory.

        Raises:
            OSError: the file has gone.
        """
        if all(name in self.table.schema.names for name in names):
            return self.table.select(names)
        with pa.memory_map(str(self.path)) as file:
            return _copy(pa.ipc.open_file(file).get_batch(0).select(names))

    def features(self) -> np.ndarray:
        """The features, memory-mapped, shape (n, d), float32."""
        shape = (self.table.num_rows, self.dimension)
        return np.memmap(self.path, dtype="<f4", mode="r", offset=self.offset, shape=shape)


def schema_of(kind: str, dimension: int = 0) -> pa.Schema:
    """The Arrow schema of a kind of shard."""
    if kind == REJECTED:
        return pa.schema(KEY_FIELDS + REJECTION_FIELDS)
    feature = pa.field("feature", pa.list_(pa.field("item", pa.float32(), nullable=False), dimension), nullable=False)
    return pa.schema([KEY_FIELDS[0], feature, *KEY_FIELDS[1:], *PROVENANCE_FIELDS])


def parse_name(name: str) -> tuple[str, int, str] | None:
    """Kind, sequence and checksum that a shard's file name states; None for any other file.

    >>> parse_name("features-000012-" + "0a" * 16 + ".arrow")
    ('features', 12, '0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a')
    >>> parse_name("notes.txt") is None
    True
    """
    found = _NAME.fullmatch(name)
    return (found[1], int(found[2]), found[3]) if found else None


def write_shard(folder: Path, kind: str, sequence: int, columns: dict[str, Any], fingerprint: str) -> Path:
    """Write one shard, whole or not at all.

    Args:
        folder: the store's folder.
        kind: ``"features"`` or ``"rejected"``.
        sequence: its place in the order of writing.
        columns: a column each of :func:`schema_of`; ``feature`` an (n, d) float32 array.
        fingerprint: SHA-256 of the store's fingerprint, hexadecimal.

    Returns:
        the file.

    Raises:
        OSError: the folder cannot be written or the disk is full; nothing is left behind.
    """
    dimension = columns["feature"].shape[1] if kind == FEATURES else 0
    schema = schema_of(kind, dimension)
    header = {"schema_version": SCHEMA_VERSION, "kind": kind, "dimension": dimension, "fingerprint": fingerprint}
    arrays = [_array(field, columns.get(field.name), len(columns["image_id"])) for field in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema.with_metadata({_HEADER: json.dumps(header).encode()}))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content = sink.getvalue()
    path = folder / f"{kind}-{sequence:06d}-{hashlib.sha256(content).hexdigest()[:32]}.arrow"
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.write(content)
    return path


def open_shard(path: Path, fingerprint: str) -> Shard:
    """Verify a shard's bytes and read who its rows are about.

    Args:
        path: the file.
        fingerprint: SHA-256 of the store's fingerprint, hexadecimal.

    Raises:
        ShardError: the bytes do not match the checksum, or the shard is another store's.
        OSError: the file cannot be read.
    """
    named = parse_name(path.name)
    if named is None:
        raise ShardError("not named as a shard")
    kind, sequence, checksum = named
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise ShardError("empty")
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if hashlib.sha256(content).hexdigest()[:32] != checksum:
        raise ShardError("its bytes do not match its checksum: truncated or altered")
    try:
        buffer = pa.py_buffer(content)
        reader = pa.ipc.open_file(buffer)
        header = json.loads((reader.schema.metadata or {}).get(_HEADER, b"{}"))
        if header.get("fingerprint") != fingerprint or header.get("schema_version") != SCHEMA_VERSION:
            raise ShardError("it was written for another fingerprint or by another version")
        dimension = int(header["dimension"])
        if header["kind"] != kind or not reader.schema.equals(schema_of(kind, dimension)):
            raise ShardError("its columns are not those of a shard")
        if reader.num_record_batches != 1:
            raise ShardError("it holds more than one record batch")
        batch = reader.get_batch(0)
        batch.validate(full=True)
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise ShardError(f"not a shard: {type(error).__name__}") from error
    offset = 0
    if kind == FEATURES:
        values = batch.column("feature").values.buffers()[1]
        offset = values.address - buffer.address
    kept = [f.name for f in KEY_FIELDS + (REJECTION_FIELDS if kind == REJECTED else [])]
    return Shard(path, kind, sequence, _copy(batch.select(kept)), dimension, offset)


def _copy(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A copy in memory, so that the mapped file can be let go."""
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)


def _array(field: pa.Field, values: Any, rows: int) -> pa.Array:
    if values is None:
        return pa.nulls(rows, field.type)
    if field.name == "feature":
        flat = pa.array(np.ascontiguousarray(values, dtype=np.float32).reshape(-1), pa.float32())
        return pa.FixedSizeListArray.from_arrays(flat, type=field.type)
    return pa.array(values, field.type)
