"""Items and batches of stored features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from monai.data import DataLoader

from candor_monai.data.feature_store import FeatureStore
from candor_monai.data.store_dataset import StoreDataset, StoreLoader, prepare_store_batch
from candor_monai.data.store_rows import Sources

IDS = ["a", "b", "c", "d"]


@pytest.fixture
def store(tmp_path):
    store = FeatureStore(tmp_path / "store", {"encoder": "test"})
    store.write(["a", "c", "d"], np.array([[1, 1], [3, 3], [4, 4]], dtype=np.float32))
    return store


def test_three_of_four_images_have_a_feature(store):
    dataset = StoreDataset(store, IDS)
    assert len(dataset) == 3
    item = dataset[1]
    assert (item["image_id"], item["index"], item["pred"].tolist()) == ("c", 2, [3, 3])
    batches = list(StoreLoader(dataset, 2))
    assert [batch["index"].tolist() for batch in batches] == [[0, 2], [3]]
    assert [batch["pred"].tolist() for batch in batches] == [[[1, 1], [3, 3]], [[4, 4]]]


def test_it_is_a_monai_dataset(store):
    dataset = StoreDataset(store, IDS, transform=lambda item: {**item, "pred": item["pred"] * 2})
    (batch,) = DataLoader(dataset, batch_size=3)
    assert batch["pred"].tolist() == [[2, 2], [6, 6], [8, 8]]
    assert batch["image_id"] == ["a", "c", "d"]


def test_a_changed_file_is_not_in_it(store):
    now = np.array([-1, -1, 5, -1])
    assert [item["image_id"] for item in StoreDataset(store, IDS, Sources(now, now))] == ["a", "d"]


def test_refresh_sees_what_others_wrote(store):
    dataset = StoreDataset(store, IDS)
    assert len(dataset) == 3
    FeatureStore(store.folder, {"encoder": "test"}).write(["b"], np.array([[2, 2]], dtype=np.float32))
    assert len(dataset) == 3
    dataset.refresh()
    assert len(dataset) == 4


def test_batches_of_a_mapped_matrix_are_plain_and_own(store):
    dataset = StoreDataset(store, IDS, memory_bytes=1)
    (batch,) = StoreLoader(dataset)
    batch["pred"][:] = 0
    assert dataset[0]["pred"].tolist() == [1, 1]


def test_prepare_store_batch(store):
    (batch,) = StoreLoader(StoreDataset(store, IDS))
    features, label = prepare_store_batch(batch, torch.device("cpu"), dtype=torch.float64)
    assert label is None
    assert features.dtype == torch.float64


def test_an_empty_store_still_gives_one_batch(tmp_path):
    store = FeatureStore(tmp_path / "none", {})
    dataset = StoreDataset(store, ["a"])
    assert len(dataset) == 0
    (batch,) = list(StoreLoader(dataset))
    assert batch["pred"].shape == (0, 0)
    with pytest.raises(ValueError, match="at least 1"):
        StoreLoader(dataset, 0)
