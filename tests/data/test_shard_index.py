"""Which statement about an image counts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from candor_monai.data.shard_index import ShardIndex
from candor_monai.data.shards import FEATURES, KEY_FIELDS, REJECTED, open_shard, write_shard
from candor_monai.data.store_rows import Sources

FINGERPRINT = "ab" * 32


def shard(folder, sequence, ids, states, kind=FEATURES, retry=False):
    columns = {"image_id": ids, "source_size": states, "source_mtime_ns": states}
    if kind == FEATURES:
        columns["feature"] = np.array([[sequence, row] for row in range(len(ids))], dtype=np.float32) + 1
    else:
        n = len(ids)
        columns |= {"stage": ["decode"] * n, "reason": ["x"] * n, "message": ["x"] * n, "retry": [retry] * n}
    return open_shard(write_shard(folder, kind, sequence, columns, FINGERPRINT), FINGERPRINT)


def states(*values):
    return Sources(np.array(values, dtype=np.int64), np.array(values, dtype=np.int64))


def test_the_newest_of_two_statements_counts_whatever_their_order(tmp_path):
    old, new = shard(tmp_path, 1, ["a", "b"], [5, 5]), shard(tmp_path, 2, ["a"], [6])
    index = ShardIndex.of([new, old])
    assert index.resolve(["a", "b", "c"], None).tolist() == [2, 1, -1]
    assert index.resolve(["a", "b"], states(5, 5)).tolist() == [0, 1]
    assert index.resolve(["a", "b"], states(6, 6)).tolist() == [2, -1]


def test_an_id_asked_for_twice_is_answered_twice(tmp_path):
    index = ShardIndex.of([shard(tmp_path, 1, ["a", "b"], [5, 5])])
    assert index.resolve(["b", "b", "a"], None).tolist() == [1, 1, 0]


def test_gather_leaves_the_others_as_they_are(tmp_path):
    index = ShardIndex.of([shard(tmp_path, 1, ["a", "b"], [5, 5]), shard(tmp_path, 2, ["c"], [5])])
    out = np.full((4, 2), 9, dtype=np.float32)
    index.gather(index.resolve(["c", "x", "b", "a"], None), out)
    assert out.tolist() == [[3, 1], [9, 9], [2, 2], [2, 1]]


def test_a_rejection_is_no_feature(tmp_path):
    index = ShardIndex.of(
        [shard(tmp_path, 1, ["a"], [5]), shard(tmp_path, 2, ["a", "b"], [6, 6], REJECTED, retry=True)]
    )
    chosen = index.resolve(["a", "b"], None)
    assert index.features_only(chosen).tolist() == [-1, -1]
    assert index.retry[chosen].tolist() == [True, True]
    assert index.features_only(index.resolve(["a"], states(5))).tolist() == [0]


def test_columns_come_in_the_order_asked(tmp_path):
    index = ShardIndex.of([shard(tmp_path, 1, ["a", "b"], [5, 7]), shard(tmp_path, 2, ["c"], [8])])
    table = index.columns(index.resolve(["c", "x", "b", "c"], None), KEY_FIELDS)
    assert table["image_id"].where(table["image_id"].notna(), "-").tolist() == ["c", "-", "b", "c"]
    assert table["source_size"].fillna(-1).astype(int).tolist() == [8, -1, 7, 8]


@pytest.mark.parametrize("ids", [[], ["a"]])
def test_nothing_stored(ids):
    index = ShardIndex.of([])
    assert index.resolve(ids, None).tolist() == [-1] * len(ids)
    assert index.resolve(pa.array(ids, pa.string()), states(*[0] * len(ids))).tolist() == [-1] * len(ids)
    assert len(index.columns(index.resolve(ids, None), KEY_FIELDS)) == len(ids)


def test_random_histories_equal_a_dictionary(tmp_path):
    rng = np.random.default_rng(0)
    names = [f"i{n}" for n in range(30)]
    shards, newest, by_state = [], {}, {}
    for sequence in range(1, 13):
        kind = FEATURES if rng.random() < 0.7 else REJECTED
        ids = rng.choice(names, size=8, replace=False).tolist()
        state = rng.integers(0, 3, 8).tolist()
        shards.append(shard(tmp_path, sequence, ids, state, kind))
        for row, (image_id, value) in enumerate(zip(ids, state, strict=True)):
            newest[image_id] = by_state[image_id, value] = (sequence, row)
    index = ShardIndex.of(list(rng.permutation(np.array(shards, dtype=object))))

    def told(rows):
        return [None if r < 0 else (index.shards[index.shard[r]].sequence, int(index.row[r])) for r in rows]

    assert told(index.resolve(names, None)) == [newest.get(name) for name in names]
    for value in range(3):
        found = told(index.resolve(names, states(*[value] * len(names))))
        assert found == [by_state.get((name, value)) for name in names]
