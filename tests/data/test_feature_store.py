"""The feature store on disk: what is written is read back, and nothing else ever is."""

from __future__ import annotations

import copy
import json
import os

import numpy as np
import pytest

from candor_monai.data.feature_store import FeatureStore, fingerprint_digest, store_folder
from candor_monai.data.shard_index import ShardIndex
from candor_monai.data.store_rows import Rejection, Sources, pixel_clusters
from candor_monai.utils import UserError
from tests.support import failures_in_threads

FINGERPRINT = {"weights_sha256": "00", "precision": "float32", "code": 1}


def rows(n: int, d: int = 3, start: int = 1) -> np.ndarray:
    return np.arange(start, start + n * d, dtype=np.float32).reshape(n, d)


def states(*pairs: tuple[int, int]) -> Sources:
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Sources(table[:, 0], table[:, 1])


def given(sources: Sources) -> dict:
    return {"source_size": sources.size, "source_mtime_ns": sources.mtime_ns}


@pytest.fixture
def store(tmp_path):
    return FeatureStore(tmp_path / "store", FINGERPRINT)


def test_two_rows_written_are_read_back_in_the_order_asked(store):
    store.write(["a", "b"], np.array([[1, 2], [3, 4]], dtype=np.float32))
    features, present = store.read(["b", "x", "a"])
    assert features.tolist() == [[3, 4], [0, 0], [1, 2]]
    assert present.tolist() == [True, False, True]
    assert store.missing(["b", "x", "a"]) == ["x"]
    assert (len(store), store.dimension) == (2, 2)


def test_a_new_process_reads_the_same(store):
    store.write(["a", "b"], rows(2))
    again = FeatureStore(store.folder, FINGERPRINT)
    assert again.read(["a", "b"])[0].tolist() == rows(2).tolist()
    assert again.warnings == []


def test_making_a_store_touches_nothing(tmp_path):
    store = FeatureStore(tmp_path / "none" / "store", FINGERPRINT)
    assert store.missing(["a"]) == ["a"]
    assert store.read(["a"])[0].shape == (1, 0)
    assert len(store) == 0
    assert store.rejections(["a"]).empty
    assert store.provenance(["a"])["present"].tolist() == [False]
    assert not (tmp_path / "none").exists()


def test_the_shard_is_plain_arrow_with_the_documented_columns(store):
    pa = pytest.importorskip("pyarrow")
    path = store.write(["a"], rows(1, 4), {"codec": ["gdcm"], "pixels_sha256": [b"\x01" * 32], "inverted": [True]})
    with pa.OSFile(str(path)) as file:
        table = pa.ipc.open_file(file).read_all()
    assert table.schema.field("image_id").type == pa.string()
    assert table.schema.field("feature").type == pa.list_(pa.field("item", pa.float32(), nullable=False), 4)
    assert table.to_pylist()[0]["feature"] == [1, 2, 3, 4]
    assert table.to_pylist()[0]["codec"] == "gdcm"
    assert json.loads((store.folder / "manifest.json").read_text())["fingerprint"] == FINGERPRINT


def test_a_changed_file_is_missing_and_its_new_feature_wins(store):
    first, second = states((10, 100), (20, 200)), states((10, 101), (20, 200))
    store.write(["a", "b"], rows(2), given(first))
    assert store.missing(["a", "b"], first) == []
    assert store.missing(["a", "b"], second) == ["a"]
    assert store.read(["a", "b"], second)[1].tolist() == [False, True]
    store.write(["a"], rows(1, start=50), given(second.take(np.array([0]))))
    assert store.read(["a"], second.take(np.array([0])))[0].tolist() == rows(1, start=50).tolist()
    # without the files at hand the newest statement counts, whatever the clock said
    assert store.read(["a"])[0].tolist() == rows(1, start=50).tolist()
    # and the file put back as it was is known still
    assert store.read(["a"], first.take(np.array([0])))[0].tolist() == rows(1).tolist()


@pytest.mark.parametrize("change", [(11, 100), (10, 99), (-1, -1)], ids=["size", "clock set back", "gone"])
def test_any_change_of_size_or_time_is_a_change(store, change):
    store.write(["a"], rows(1), given(states((10, 100))))
    assert store.missing(["a"], states(change)) == ["a"]


def test_another_fingerprint_is_never_served(store, caplog):
    store.write(["a"], rows(1))
    other = FeatureStore(store.folder, {**FINGERPRINT, "weights_sha256": "ff"})
    assert other.missing(["a"]) == ["a"]
    assert "weights_sha256 differ" in caplog.text
    other.write(["a"], rows(1, start=7))
    assert other.read(["a"])[0].tolist() == rows(1, start=7).tolist()
    assert json.loads((store.folder / "manifest.json").read_text())["digest"] == other.digest


def test_folder_names_hold_encoder_cohort_and_fingerprint(tmp_path):
    a = store_folder(tmp_path, "blind", "mine", FINGERPRINT)
    assert a == store_folder(tmp_path, "blind", "mine", dict(reversed(FINGERPRINT.items())))
    assert a != store_folder(tmp_path, "blind", "mine", {**FINGERPRINT, "code": 2})
    assert a != store_folder(tmp_path, "blind", "other", FINGERPRINT)
    assert store_folder(tmp_path, "../../x", "/etc", FINGERPRINT).parent == tmp_path
    with pytest.raises(ValueError):
        fingerprint_digest({"a": float("nan")})


def damage_truncate(path):
    os.truncate(path, path.stat().st_size - 1)


def damage_flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [damage_truncate, damage_flip, damage_empty])
def test_a_damaged_shard_is_named_set_aside_and_only_it_is_lost(store, damage, caplog):
    bad = store.write(["a", "b"], rows(2))
    store.write(["c"], rows(1, start=9))
    damage(bad)
    again = FeatureStore(store.folder, FINGERPRINT)
    assert again.missing(["a", "b", "c"]) == ["a", "b"]
    assert bad.name in caplog.text
    assert bad.name in again.warnings[0]
    assert (store.folder / "set_aside" / bad.name).exists()
    again.write(["a", "b"], rows(2))
    assert FeatureStore(store.folder, FINGERPRINT).missing(["a", "b", "c"]) == []


def test_every_single_flipped_byte_is_found(store):
    path = store.write(["a"], rows(1))
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        content = bytearray(whole)
        content[position] ^= 0x10
        path.write_bytes(content)
        assert FeatureStore(store.folder, FINGERPRINT).missing(["a"]) == ["a"], position


def test_verify_reads_every_byte_again(store):
    store.write(["a"], rows(1))
    bad = store.write(["b"], rows(1))
    assert store.verify().set_aside == {}
    damage_flip(bad)
    report = store.verify()
    assert (report.shards, report.rows, list(report.set_aside)) == (1, 1, [bad.name])


def test_unknown_files_and_unfinished_ones_are_ignored(store):
    store.write(["a"], rows(1))
    for name in ("notes.txt", ".features-000002-x.arrow.tmp", "features-1.arrow", "features.arrow"):
        (store.folder / name).write_bytes(b"x")
    again = FeatureStore(store.folder, FINGERPRINT)
    assert again.missing(["a", "b"]) == ["b"]
    assert again.warnings == []


@pytest.mark.parametrize("content", [b"", b"[]", bytes(99), b"[" * 100_000])
def test_a_manifest_that_is_none_is_written_anew(store, content):
    store.folder.mkdir()
    (store.folder / "manifest.json").write_bytes(content)
    store.write(["a"], rows(1))
    assert json.loads((store.folder / "manifest.json").read_text())["fingerprint"] == FINGERPRINT


def test_a_torn_manifest_costs_nothing(store):
    store.write(["a"], rows(1))
    (store.folder / "manifest.json").write_text("{")
    again = FeatureStore(store.folder, FINGERPRINT)
    assert again.missing(["a"]) == []
    again.write(["b"], rows(1))
    assert json.loads((store.folder / "manifest.json").read_text())["fingerprint"] == FINGERPRINT


def test_the_same_rows_written_by_two_processes_count_once(store):
    store.write(["a", "b"], rows(2))
    other = FeatureStore(store.folder, FINGERPRINT)
    other.write(["b", "c"], rows(2))
    store.refresh()
    assert len(store) == 3
    assert store.missing(["a", "b", "c"]) == []


@pytest.mark.parametrize("memory_bytes", [1 << 30, 1])
def test_shards_that_come_while_features_are_read_move_no_row(store, monkeypatch, memory_bytes):
    other = FeatureStore(store.folder, FINGERPRINT)
    assert other.missing(["a"]) == ["a"]  # it has looked, and numbers its shards from 1 as well
    store.write(["a", "b"], rows(2))
    store.write(["c"], rows(1, start=50), {"codec": ["gdcm"], "pixels_sha256": [b"\x01" * 32]})
    resolve = ShardIndex.resolve

    def resolved(index, *asked):
        chosen = resolve(index, *asked)
        with monkeypatch.context() as once:
            once.setattr(ShardIndex, "resolve", resolve)
            if not other.warnings:  # another process rejects an image, and another thread of this one looks
                other.warnings.append("done")
                other.reject([Rejection("x", None, "decode", "corrupt", "broken")])
                store.refresh()
                assert store.missing(["x"]) == []
        return chosen

    monkeypatch.setattr(ShardIndex, "resolve", resolved)
    assert store.matrix(["c", "a"], memory_bytes=memory_bytes)[0].tolist() == [[50, 51, 52], [1, 2, 3]]
    other.warnings.clear()
    assert store.provenance(["a", "c"])["codec"].iat[1] == "gdcm"


def test_reading_and_writing_in_several_threads(store):
    expected = rows(1, start=7)
    store.write(["first"], expected)

    def work(number):
        for i in range(15):
            if number % 2:
                store.write([f"{number}-{i}"], rows(1, start=number))
                store.refresh()
            else:
                features, present = store.read(["first", f"1-{i}"])
                assert features[0].tolist() == expected[0].tolist()
                assert not present[1] or features[1].tolist() == [1, 2, 3]

    assert failures_in_threads(work, 4) == []
    assert len(store) == 31
    assert copy.deepcopy(store).read(["first"])[0].tolist() == expected.tolist()


def test_a_shard_copied_under_another_place_in_the_order_is_refused(store):
    path = store.write(["a"], rows(1))
    renamed = path.with_name(path.name.replace(path.name[-38:-6], "0" * 32))
    renamed.write_bytes(path.read_bytes())
    again = FeatureStore(store.folder, FINGERPRINT)
    assert again.missing(["a"]) == []
    assert renamed.name in again.warnings[0]


def test_rejections_are_kept_until_the_file_changes(store):
    bad = Rejection("a", "x/a.dcm", "decode", "truncated", "40 of 48 bytes", 10, 100)
    store.reject([bad])
    store.reject([Rejection("b", "x/b.dcm", "decode", "timeout", "took over 60 s", 10, 100, retry=True)])
    again = FeatureStore(store.folder, FINGERPRINT)
    ids, now = ["a", "b"], states((10, 100), (10, 100))
    assert again.missing(ids, now) == ["b"]
    table = again.rejections(ids, now)
    assert table["reason"].tolist() == ["truncated", "timeout"]
    assert again.missing(ids, states((11, 100), (10, 100))) == ["a", "b"]
    assert again.rejections(ids, states((11, 100), (10, 100)))["image_id"].tolist() == ["b"]
    assert again.read(ids)[1].tolist() == [False, False]
    assert store.reject([]) is None


def test_a_rejection_newer_than_a_feature_hides_it(store):
    store.write(["a"], rows(1), given(states((10, 100))))
    store.reject([Rejection("a", "a.png", "decode", "truncated", "short", 9, 101)])
    assert store.read(["a"])[1].tolist() == [False]
    assert store.read(["a"], states((10, 100)))[1].tolist() == [True]
    assert store.read(["a"], states((9, 101)))[1].tolist() == [False]


@pytest.mark.parametrize(
    "features, message",
    [
        (np.array([[1.0, np.nan]], dtype=np.float32), "feature_not_finite"),
        (np.array([[np.inf, 1.0]], dtype=np.float32), "feature_not_finite"),
        (np.zeros((1, 2), dtype=np.float32), "feature_zero"),
        (np.ones((1, 2)), "float32"),
        (np.ones(2, dtype=np.float32), "shape"),
        (np.ones((2, 2), dtype=np.float32), "one for each row"),
        (np.ones((1, 0), dtype=np.float32), "shape"),
    ],
)
def test_what_cannot_be_scored_is_never_stored(store, features, message):
    with pytest.raises(ValueError, match=message):
        store.write(["a"], features)
    assert not store.folder.exists()


def test_more_refusals(store):
    store.write(["a"], rows(1))
    with pytest.raises(ValueError, match="length 3, got 4"):
        store.write(["b"], rows(1, 4))
    with pytest.raises(ValueError, match="distinct"):
        store.write(["b", "b"], rows(2))
    with pytest.raises(ValueError, match="unknown provenance column 'patient'"):
        store.write(["b"], rows(1), {"patient": ["x"]})
    with pytest.raises(ValueError, match="2 values for 1 images"):
        store.write(["b"], rows(1), {"codec": ["x", "y"]})
    with pytest.raises(ValueError, match="sources has 1 rows for 2"):
        store.missing(["a", "b"], states((1, 1)))


def test_provenance_and_clusters_follow_the_ids(store):
    same, other = b"\x01" * 32, b"\x02" * 32
    store.write(
        ["a", "b"], rows(2), {"pixels_sha256": [same, other], "codec": ["gdcm", None], "inverted": [True, False]}
    )
    store.write(["c"], rows(1), {"pixels_sha256": [same], "codec": ["rle"]})
    table = store.provenance(["c", "x", "a", "b"])
    assert table["present"].tolist() == [True, False, True, True]
    assert [codec if isinstance(codec, str) else None for codec in table["codec"]] == ["rle", None, "gdcm", None]
    assert pixel_clusters(table["pixels_sha256"].tolist()).tolist() == [0, 1, 0, 2]
    assert store.clusters(["c", "x", "a", "b"]).tolist() == [0, 1, 0, 2]


def test_a_large_matrix_is_mapped_checked_and_used_again(store, caplog):
    ids = [f"i{n}" for n in range(100)]
    store.write(ids[:50], rows(50, 8))
    store.write(ids[50:], rows(50, 8, start=1000))
    asked = [*reversed(ids), "none"]
    plain, present = store.read(asked)
    mapped, mapped_present = store.matrix(asked, memory_bytes=100)
    assert isinstance(mapped, np.memmap)
    assert not mapped.flags.writeable
    assert np.array_equal(mapped, plain)
    assert np.array_equal(mapped_present, present)
    (file,) = (store.folder / "consolidated").iterdir()
    made = file.stat().st_mtime_ns
    store.matrix(asked, memory_bytes=100)
    assert file.stat().st_mtime_ns == made
    damage_flip(file)
    again, _ = store.matrix(asked, memory_bytes=100)
    assert np.array_equal(again, plain)
    assert file.name in caplog.text
    assert isinstance(store.matrix(asked)[0], np.ndarray)
    assert not isinstance(store.matrix(asked)[0], np.memmap)


def test_a_folder_that_cannot_be_made_is_the_users_to_mend(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    store = FeatureStore(tmp_path / "file" / "store", FINGERPRINT)
    with pytest.raises(UserError, match="cannot be"):
        store.write(["a"], rows(1))


@pytest.mark.slow
def test_a_million_rows_within_the_memory_bound(tmp_path):
    """Opened, asked, mapped and streamed, each with less than 400 MB beside the ids themselves."""
    from tests.benchmarks.bench_store import measure

    found = measure(1_000_000, 64, tmp_path / "store")
    assert found["open_extra_MB"] < 150
    assert found["missing_extra_MB"] < 400
    assert found["matrix_extra_MB"] < 400
    assert found["open_ratio_to_bare_sha256"] > 0.2
