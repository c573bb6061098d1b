"""A MONAI evaluator that fills a feature store, and one that runs over it."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ignite.engine import Events
from monai.engines import SupervisedEvaluator

from candor_monai.data.encode_loader import EncodeLoader, EncodeRecords
from candor_monai.data.feature_store import FeatureStore
from candor_monai.data.store_dataset import StoreDataset, StoreLoader, prepare_store_batch
from candor_monai.data.store_rows import Sources
from candor_monai.handlers.feature_saver import HALVED, FeatureSaver
from candor_monai.inferers import EncoderInferer
from candor_monai.utils import DecodeError, UserError

SIZE = 8


class Pool:
    """Decodes nothing: an image is its own path, or an error."""

    def __init__(self):
        self.decoded = []

    def map(self, items):
        for index, item, expected in items:
            assert expected == (index, index + 1000)  # the pool refuses a file that is not in this state any more
            self.decoded.append(index)
            error = isinstance(item, DecodeError)
            yield index, item, None if error else SimpleNamespace(codec="native", rows=SIZE), 0.001


class Encoder(torch.nn.Module):
    """The first pixels as features; 254 becomes NaN, a blank image a zero feature."""

    def forward(self, images):
        features = images[:, 0, 0, :4].float()
        return torch.where(features == 254, torch.nan, features)


def image(value):
    return np.full((3, SIZE, SIZE), value, dtype=np.uint8)


def records(store, items, ids=None):
    ids = ids or [f"i{n:03d}" for n in range(len(items))]
    state = np.arange(len(ids), dtype=np.int64)
    sources = Sources(state, state + 1000)
    lacking = set(store.missing(ids, sources))
    missing = np.array([i in lacking for i in ids], dtype=bool)
    return EncodeRecords(ids, [f"{i}.png" for i in ids], sources, missing, lambda index: items[index])


def run(store, items, *, batch_size=4, network=None, decollate=False, handlers=(), **options):
    loader = EncodeLoader(records(store, items), Pool(), batch_size, SIZE)
    saver = FeatureSaver(store, loader, **options)
    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=loader,
        network=network or Encoder(),
        val_handlers=[saver, *handlers],
        decollate=decollate,
    )
    evaluator.run()
    return saver, loader


@pytest.fixture
def store(tmp_path):
    return FeatureStore(tmp_path / "store", {"encoder": "test"})


@pytest.mark.parametrize("decollate", [False, True])
def test_five_images_in_batches_of_four(store, decollate):
    items = [image(n + 1) for n in range(5)]
    saver, loader = run(store, items, decollate=decollate)
    assert (saver.saved, saver.rejected, len(loader), loader.images) == (5, 0, 2, 5)
    features, present = store.read([f"i{n:03d}" for n in range(5)], loader.records.sources)
    assert present.all()
    assert features.tolist() == [[n + 1.0] * 4 for n in range(5)]
    table = store.provenance(["i000"])
    assert table["codec"].tolist() == ["native"]
    assert table["rows"].tolist() == [SIZE]


def test_what_cannot_be_used_is_rejected_with_its_reason(store):
    items = [image(1), DecodeError("truncated", "40 of 48 bytes"), image(254), image(0), DecodeError("timeout", "60 s")]
    saver, loader = run(store, items)
    assert (saver.saved, saver.rejected) == (1, 4)
    table = FeatureStore(store.folder, {"encoder": "test"}).rejections(loader.records.image_ids, loader.records.sources)
    assert table[["image_id", "file", "stage", "reason", "retry"]].values.tolist() == [
        ["i001", "i001.png", "decode", "truncated", False],
        ["i002", "i002.png", "encode", "feature_not_finite", False],
        ["i003", "i003.png", "encode", "feature_zero", False],
        ["i004", "i004.png", "decode", "timeout", True],
    ]


@pytest.mark.parametrize("reason", ["timeout", "killed", "unreadable", "gone", "malformed", "server_error"])
def test_a_second_run_decodes_only_what_may_succeed_now(store, reason):
    items = [image(1), DecodeError("truncated", "short"), DecodeError(reason, "why")]
    run(store, items)
    items[2] = image(9)
    saver, loader = run(store, items)
    assert loader.pool.decoded == [2]
    assert (saver.saved, saver.rejected) == (1, 0)
    assert len(run(store, items)[1]) == 0


def test_a_file_that_cannot_be_opened_does_not_reach_the_pool(store):
    items = [image(1), image(2), image(3)]

    def opened(index):
        if index == 1:
            raise PermissionError(13, "Permission denied")
        if index == 2:
            raise DecodeError("not_found", "no such member of the archive")
        return items[index]

    whole = records(store, items)
    loader = EncodeLoader(
        EncodeRecords(whole.image_ids, whole.files, whole.sources, whole.missing, opened), Pool(), 2, SIZE
    )
    batches = list(loader)
    assert [batch["index"].tolist() for batch in batches] == [[0, 1], [2, -1]]
    assert [batch["ok"].tolist() for batch in batches] == [[True, False], [False, False]]
    assert loader.outcome(1).error.reason == "unreadable"
    assert loader.outcome(2).error.reason == "not_found"
    with pytest.raises(KeyError):
        loader.outcome(7)


def test_an_error_in_the_network_stops_the_run_and_keeps_what_was_finished(store):
    class Breaks(Encoder):
        calls = 0

        def forward(self, images):
            self.calls += 1
            if self.calls == 3:
                raise RuntimeError("device lost")
            return super().forward(images)

    items = [image(n + 1) for n in range(10)]
    with pytest.raises(RuntimeError, match="device lost"):
        run(store, items, batch_size=2, network=Breaks())
    assert len(FeatureStore(store.folder, {"encoder": "test"})) == 4
    saver, _ = run(store, items, batch_size=2)
    assert saver.saved == 6


def test_an_error_of_the_pool_stops_the_run(store):
    class Broken(Pool):
        def map(self, items):
            yield next(iter(super().map(items)))
            raise RuntimeError("pool lost")

    loader = EncodeLoader(records(store, [image(1)] * 4), Broken(), 2, SIZE)
    with pytest.raises(RuntimeError, match="pool lost"):
        list(loader)


def test_leaving_the_loader_early_stops_its_thread(store):
    closed = []

    class Watched(Pool):
        def map(self, items):
            try:
                yield from super().map(items)
            finally:
                closed.append(True)

    loader = EncodeLoader(records(store, [image(1)] * 100), Watched(), 2, SIZE)
    for _ in loader:
        break
    assert closed == [True]


def test_shards_follow_rows_and_time(store):
    items = [image(n + 1) for n in range(12)]
    run(store, items, batch_size=2, shard_rows=4)
    assert len(list(store.folder.glob("features-*.arrow"))) == 3
    again = FeatureStore(store.folder.parent / "timed", {"encoder": "test"})
    run(again, items, batch_size=2, shard_seconds=0.0)
    assert len(list(again.folder.glob("features-*.arrow"))) == 6


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_any_number_of_processes_encodes_every_image_once_and_alike(tmp_path, ranks):
    items = [image(n % 250 + 1) for n in range(13)]
    seen, stores = [], []
    for rank in range(ranks):
        store = FeatureStore(tmp_path / "store", {"encoder": "test"})
        plan = records(FeatureStore(tmp_path / "none", {}), items)
        loader = EncodeLoader(plan, Pool(), 4, SIZE, rank, ranks)
        saver = FeatureSaver(store, loader)
        for batch in loader:
            assert batch["image"].shape == (4, 3, SIZE, SIZE)
            engine = SimpleNamespace(state=SimpleNamespace(batch=batch, output={"pred": Encoder()(batch["image"])}))
            saver(engine)
            seen += [i for i in batch["index"].tolist() if i >= 0]
        saver.flush()
        stores.append(store)
    assert sorted(seen) == list(range(13))
    stores[0].refresh()
    features, present = stores[0].read(plan.image_ids)
    assert present.all()
    assert features[:, 0].tolist() == [n + 1.0 for n in range(13)]


def test_images_of_their_own_size_come_one_by_one(store):
    items = [np.full((3, 4, 9), 5, dtype=np.uint8), DecodeError("truncated", "short"), image(2)]
    loader = EncodeLoader(records(store, items), Pool(), 1, image_size=None)
    assert [tuple(batch["image"].shape[2:]) for batch in loader][::2] == [(4, 9), (SIZE, SIZE)]
    with pytest.raises(ValueError, match="batch_size must be 1"):
        EncodeLoader(records(store, items), Pool(), 2, image_size=None)


def test_the_measuring_evaluator_runs_over_the_store(store):
    items = [image(1), DecodeError("truncated", "short"), image(3), image(4)]
    ids = [f"i{n:03d}" for n in range(4)]
    dataset = StoreDataset(store, ids)  # made before there is anything to read
    run(store, items)
    seen = []
    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=StoreLoader(dataset, 2),
        network=torch.nn.Identity(),
        prepare_batch=prepare_store_batch,
        decollate=False,
    )
    evaluator.add_event_handler(
        Events.ITERATION_COMPLETED,
        lambda e: seen.extend(zip(e.state.batch["index"].tolist(), e.state.output["pred"][:, 0].tolist(), strict=True)),
    )
    evaluator.run()
    assert seen == [(0, 1.0), (2, 3.0), (3, 4.0)]
    assert len(dataset) == 3
    item = dataset[1]
    assert (item["image_id"], item["index"], item["pred"].tolist()) == ("i002", 2, [3.0] * 4)


def test_outputs_of_the_wrong_shape_are_refused(store):
    with pytest.raises(ValueError, match="pred must be"):
        run(store, [image(1)] * 4, network=torch.nn.Identity())


def test_a_full_disk_is_told_and_nothing_is_lost_twice(store, monkeypatch):
    items = [image(n + 1) for n in range(8)]

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("candor_monai.utils.atomic.os.replace", full)
        with pytest.raises(UserError, match="no space left"):
            run(store, items, batch_size=2, shard_rows=4)
    assert list(store.folder.glob("*.arrow")) == []
    assert list(store.folder.glob(".*.tmp")) == []
    saver, _ = run(store, items, batch_size=2)
    assert saver.saved == 8


def test_saving_costs_little(store):
    d, batches = 768, 20
    loader = EncodeLoader(records(store, [image(n % 250 + 1) for n in range(64 * batches)]), Pool(), 64, SIZE)
    saver = FeatureSaver(store, loader)
    rng = np.random.default_rng(0)
    features = rng.standard_normal((64, d), dtype=np.float32)
    spent = 0.0
    for batch in loader:
        before = time.thread_time()
        saver.add(batch["index"].numpy(), batch["ok"].numpy(), features)
        spent += time.thread_time() - before
    before = time.thread_time()
    saver.flush()
    spent += time.thread_time() - before
    # 200 images a second is fast for an encoder on CPU; 5 % of that is 0.25 ms an image
    assert spent / (64 * batches) < 0.00025


class HalvedInferer(EncoderInferer):
    """Says of its second batch that it was forwarded in halves."""

    def __call__(self, inputs, network, *args, **kwargs):
        features = super().__call__(inputs, network, *args, **kwargs)
        self.halved = bool((inputs == 5).any())
        return features


def test_rows_of_a_halved_batch_say_so(store):
    items = [image(n + 1) for n in range(8)]
    loader = EncodeLoader(records(store, items), Pool(), 4, SIZE)
    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=loader,
        network=Encoder(),
        inferer=HalvedInferer(4),
        val_handlers=[FeatureSaver(store, loader)],
        decollate=False,
    )
    evaluator.run()
    table = store.provenance([f"i{n:03d}" for n in range(8)])
    assert table["notes"].fillna("").tolist() == [""] * 4 + [HALVED] * 4
    assert evaluator.state.stage_seconds["write"] > 0
