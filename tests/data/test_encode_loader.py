"""From files to batches to a store, with the real decoding processes and a real encoder."""

from __future__ import annotations

import os
import zipfile

import numpy as np
import pytest
import torch
from monai.engines import SupervisedEvaluator
from PIL import Image

from candor_monai.data.cohort import Cohort
from candor_monai.data.decode_pool import DecodePool
from candor_monai.data.encode_loader import EncodeLoader, EncodeRecords, cohort_sources, pixels_digest
from candor_monai.data.feature_store import FeatureStore
from candor_monai.handlers.feature_saver import FeatureSaver
from candor_monai.inferers.encoder_inferer import EncoderInferer
from candor_monai.networks.encoders import load_encoder
from candor_monai.utils import DecodeError, UserError

BATCH = 4


@pytest.fixture(scope="module")
def pool():
    with DecodePool(workers=1, seconds=20) as shared:
        yield shared


@pytest.fixture
def cohort(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for n in range(10):
        pixels = np.random.default_rng(n).integers(0, 256, (40, 50), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{n}.png")
    (folder / "3.png").write_bytes(b"")
    ids = [f"id{n}" for n in range(10)]
    labels = {"finding": [n % 2 for n in range(10)]}
    return Cohort.of(ids, labels, root=tmp_path, images=[f"images/{n}.png" for n in range(10)])


def encode(cohort, store, pool, records=None, batches=None):
    """One run; ``batches`` ends it early."""
    records = records or EncodeRecords.of(cohort, store)
    loader = EncodeLoader(records, pool, BATCH)
    saver = FeatureSaver(store, loader)
    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=loader,
        epoch_length=batches,
        network=load_encoder("marker"),
        inferer=EncoderInferer(BATCH),
        decollate=False,
        val_handlers=[saver],
    )
    evaluator.run()
    return saver


def read(cohort, store):
    ids = cohort.records["image_id"].tolist()
    return store.read(ids, cohort_sources(cohort))


def test_ten_files_one_of_them_empty(cohort, pool, tmp_path):
    store = FeatureStore(tmp_path / "store", {"encoder": "marker"})
    saver = encode(cohort, store, pool)
    assert (saver.saved, saver.rejected) == (9, 1)
    features, present = read(cohort, store)
    assert present.tolist() == [n != 3 for n in range(10)]
    assert features.shape == (10, 34)
    rejected = store.rejections(cohort.records["image_id"].tolist())
    assert rejected[["image_id", "file", "stage", "reason"]].values.tolist() == [
        ["id3", "images/3.png", "decode", "empty_file"]
    ]
    assert store.provenance(["id0"])[["format", "rows", "columns"]].values.tolist() == [["png", 40, 50]]
    assert encode(cohort, store, pool).saved == 0


def test_an_interrupted_run_ends_with_the_same_bits(cohort, pool, tmp_path):
    whole, parts = (FeatureStore(tmp_path / name, {"encoder": "marker"}) for name in ("whole", "parts"))
    encode(cohort, whole, pool)
    assert encode(cohort, parts, pool, batches=2).saved == 7
    assert encode(cohort, parts, pool).saved == 2
    assert np.array_equal(read(cohort, whole)[0], read(cohort, parts)[0])


def test_a_file_that_changes_after_it_was_indexed_is_encoded_by_the_next_run(cohort, pool, tmp_path):
    store = FeatureStore(tmp_path / "store", {"encoder": "marker"})
    records = EncodeRecords.of(cohort, store)
    Image.fromarray(np.arange(2000, dtype=np.uint8).reshape(40, 50)).save(cohort.path(5))
    os.unlink(cohort.path(6))
    encode(cohort, store, pool, records)
    reasons = store.rejections(cohort.records["image_id"].tolist()).set_index("image_id")["reason"].to_dict()
    assert reasons == {"id3": "empty_file", "id5": "changed", "id6": "vanished"}
    Image.fromarray(np.full((40, 50), 7, dtype=np.uint8)).save(cohort.path(6))
    saver = encode(cohort, store, pool)
    assert (saver.saved, saver.rejected) == (1, 1)  # 5 as it is now; 6 is of one grey
    assert read(cohort, store)[1].tolist() == [n not in (3, 6) for n in range(10)]


def test_files_touched_between_runs_are_encoded_again(cohort, pool, tmp_path):
    store = FeatureStore(tmp_path / "store", {"encoder": "marker"})
    encode(cohort, store, pool)
    before = read(cohort, store)[0]
    os.utime(cohort.path(2), ns=(1, 1))
    assert not read(cohort, store)[1][2]
    assert encode(cohort, store, pool).saved == 1
    assert np.array_equal(read(cohort, store)[0], before)


def test_members_of_an_archive_carry_the_archives_state(tmp_path):
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        archive.writestr("a.png", b"x")
    (tmp_path / "b.png").write_bytes(b"12345")
    names = ["images.zip/a.png", "images.zip/deep/er.png", "b.png", "none.png", str(tmp_path / "b.png"), None]
    ids = [f"id{n}" for n in range(6)]
    cohort = Cohort.of(ids, {"f": [0] * 6}, root=tmp_path, images=names, open_image=lambda name: b"")
    archive, alone = (tmp_path / "images.zip").stat(), (tmp_path / "b.png").stat()
    found = cohort_sources(cohort)
    assert found.size.tolist() == [archive.st_size, archive.st_size, 5, -1, 5, -1]
    assert found.mtime_ns.tolist() == [archive.st_mtime_ns] * 2 + [alone.st_mtime_ns, -1, alone.st_mtime_ns, -1]


@pytest.mark.parametrize(
    "error, reason",
    [
        (DecodeError("corrupt", "no member"), "corrupt"),
        (PermissionError(13, "denied"), "unreadable"),
        (KeyError("gone"), "failed"),
    ],
)
def test_an_image_that_cannot_be_opened_is_one_rejection(tmp_path, pool, error, reason):
    def opened(name):
        raise error

    cohort = Cohort.of(["a"], {"f": [1]}, root=tmp_path, images=["archive/a"], open_image=opened)
    loader = EncodeLoader(EncodeRecords.of(cohort, FeatureStore(tmp_path / "store", {})), pool, 2)
    (batch,) = loader
    assert batch["ok"].tolist() == [False, False]
    assert loader.outcome(0).error.reason == reason


def test_a_mistake_of_the_user_while_opening_stops_the_run(tmp_path, pool):
    def opened(name):
        raise UserError("install h5py")

    cohort = Cohort.of(["a"], {"f": [1]}, root=tmp_path, images=["archive/a"], open_image=opened)
    loader = EncodeLoader(EncodeRecords.of(cohort, FeatureStore(tmp_path / "store", {})), pool, 2)
    with pytest.raises(UserError, match="install h5py"):
        list(loader)


def test_a_digest_tells_shapes_apart():
    image = np.zeros((3, 2, 8), dtype=np.uint8)
    assert pixels_digest(image) != pixels_digest(image.reshape(3, 4, 4))
    assert pixels_digest(image) == pixels_digest(np.broadcast_to(np.zeros((1, 2, 8), dtype=np.uint8), (3, 2, 8)))
