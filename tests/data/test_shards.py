"""Shards: plain Arrow files whose name vouches for their bytes."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest

from candor_monai.data.shards import FEATURES, REJECTED, ShardError, open_shard, parse_name, write_shard

FINGERPRINT = "ab" * 32
COLUMNS = {"image_id": ["a", "b"], "source_size": [1, 2], "source_mtime_ns": [3, 4]}
FEATURE = np.array([[1, 2, 3], [4, 5, 6]], dtype=np.float32)
WHY = {"stage": ["decode"] * 2, "reason": ["corrupt"] * 2, "message": ["x"] * 2, "retry": [False, True]}


def write(folder, **columns):
    return write_shard(folder, FEATURES, 7, {**COLUMNS, "feature": FEATURE, **columns}, FINGERPRINT)


def named(folder, content, kind=FEATURES):
    """A file that keeps the rule of names, whatever it holds."""
    path = folder / f"{kind}-000001-{hashlib.sha256(content).hexdigest()[:32]}.arrow"
    path.write_bytes(content)
    return path


def test_two_rows_written_and_opened(tmp_path):
    path = write(tmp_path)
    assert parse_name(path.name)[:2] == (FEATURES, 7)
    shard = open_shard(path, FINGERPRINT)
    assert (shard.kind, shard.sequence, shard.dimension) == (FEATURES, 7, 3)
    assert shard.table.to_pydict() == COLUMNS
    assert shard.features().tolist() == FEATURE.tolist()
    assert not shard.features().flags.writeable
    assert shard.columns(["codec"]).to_pydict() == {"codec": [None, None]}


def test_a_shard_of_rejections(tmp_path):
    path = write_shard(tmp_path, REJECTED, 1, {**COLUMNS, **WHY}, FINGERPRINT)
    shard = open_shard(path, FINGERPRINT)
    assert (shard.kind, shard.dimension) == (REJECTED, 0)
    assert shard.table.column("retry").to_pylist() == [False, True]
    assert shard.columns(["reason"]).to_pydict() == {"reason": ["corrupt"] * 2}


def test_the_same_content_gives_the_same_file(tmp_path):
    first = write(tmp_path / "a")
    assert write(tmp_path / "b").read_bytes() == first.read_bytes()
    assert write(tmp_path / "a", source_size=[1, 3]).name != first.name


def test_older_statements_come_first(tmp_path):
    shards = [
        open_shard(
            write_shard(tmp_path, FEATURES, 1_000_000, {**COLUMNS, "feature": FEATURE}, FINGERPRINT), FINGERPRINT
        ),
        open_shard(write_shard(tmp_path, FEATURES, 9, {**COLUMNS, "feature": FEATURE}, FINGERPRINT), FINGERPRINT),
        open_shard(write_shard(tmp_path, REJECTED, 9, {**COLUMNS, **WHY}, FINGERPRINT), FINGERPRINT),
    ]
    assert sorted(shards, key=lambda shard: shard.order) == shards[::-1]


@pytest.mark.parametrize("name", ["x", "features-1-ab.arrow", "features-000001-" + "g" * 32 + ".arrow", ".tmp"])
def test_other_names(tmp_path, name):
    assert parse_name(name) is None
    with pytest.raises(ShardError, match="not named"):
        open_shard(tmp_path / name, FINGERPRINT)


def test_another_fingerprint(tmp_path):
    with pytest.raises(ShardError, match="another fingerprint"):
        open_shard(write(tmp_path), "cd" * 32)


@pytest.mark.parametrize("content", [b"x", b"ARROW1" + b"\0" * 100, b"\xff" * 1000])
def test_bytes_that_are_no_arrow_file_although_their_name_vouches_for_them(tmp_path, content):
    with pytest.raises(ShardError, match="not a shard"):
        open_shard(named(tmp_path, content), FINGERPRINT)


def arrow(table, metadata=None):
    sink = pa.BufferOutputStream()
    table = table.replace_schema_metadata(metadata)
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_an_arrow_file_of_another_kind(tmp_path):
    table = pa.table({"image_id": ["a"]})
    with pytest.raises(ShardError, match="another fingerprint"):
        open_shard(named(tmp_path, arrow(table)), FINGERPRINT)
    header = f'{{"fingerprint": "{FINGERPRINT}", "schema_version": 1, "kind": "features", "dimension": 3}}'
    with pytest.raises(ShardError, match="columns"):
        open_shard(named(tmp_path, arrow(table, {"candor_monai": header})), FINGERPRINT)
    with pytest.raises(ShardError, match="not a shard"):
        open_shard(named(tmp_path, arrow(table, {"candor_monai": "{"})), FINGERPRINT)


def test_rejections_under_the_name_of_features(tmp_path):
    content = write_shard(tmp_path, REJECTED, 1, {**COLUMNS, **WHY}, FINGERPRINT).read_bytes()
    with pytest.raises(ShardError, match="columns"):
        open_shard(named(tmp_path, content), FINGERPRINT)


def test_an_empty_file(tmp_path):
    path = write(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(ShardError, match="empty"):
        open_shard(path, FINGERPRINT)
