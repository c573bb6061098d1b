"""What the first batches choose, and that what was asked for is left alone."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from candor_monai.data.encode_loader import EncodeLoader, EncodeRecords
from candor_monai.data.store_rows import Sources
from candor_monai.data.warm_up import BATCHES, MOST_PREFETCH, batches_ahead, pinning_pays, workers_needed

SIZE, BATCH, COUNT = 8, 4, 48
CPU = torch.device("cpu")


class Pool:
    """Decodes nothing and says that an image took so long."""

    def __init__(self, seconds, workers=1):
        self.seconds, self.workers, self.grown = seconds, workers, []

    def grow(self, workers):
        self.grown.append(workers)

    def map(self, items):
        for index, _, _ in items:
            yield index, np.full((3, SIZE, SIZE), 1, np.uint8), SimpleNamespace(), self.seconds


def loaded(pool, pause=0.02, **options):
    ids = [f"i{n:02d}" for n in range(COUNT)]
    state = np.zeros(COUNT, np.int64)
    records = EncodeRecords(ids, ids, Sources(state, state), np.ones(COUNT, bool), lambda index: ids[index])
    loader = EncodeLoader(records, pool, BATCH, SIZE, **options)
    for _ in loader:
        time.sleep(pause)
    return loader


@pytest.mark.parametrize("seconds, expected", [(0.1, 6), (0.0001, 2)])
def test_workers_are_added_where_decoding_is_slow_and_never_taken_away(seconds, expected):
    pool = Pool(seconds, workers=2)
    loader = loaded(pool, workers=6)
    assert pool.grown == [expected]
    assert loader.chosen["decode_workers"] == expected


def test_what_is_given_is_left_alone(caplog):
    pool = Pool(0.1)
    loader = loaded(pool, prefetch=3, workers=None, pin_memory=False)
    assert (pool.grown, loader.chosen, loader.prefetch) == ([], {}, 3)
    assert "chosen" not in caplog.text


def test_slow_images_make_more_batches_ahead():
    assert loaded(Pool(10.0), pause=0, prefetch=None).chosen == {"prefetch": MOST_PREFETCH}
    assert loaded(Pool(0.0), prefetch=None).chosen == {"prefetch": 2}


def test_all_batches_come_once_when_the_queue_grows():
    loader = loaded(Pool(10.0), pause=0, prefetch=None, workers=4, pin_memory=None)
    assert loader.chosen == {"decode_workers": 4, "prefetch": MOST_PREFETCH, "pin_memory": False}
    assert len(loader) * BATCH == COUNT


def test_a_run_shorter_than_the_warm_up_chooses_nothing():
    ids = [f"i{n}" for n in range(BATCHES - 1)]
    state = np.zeros(len(ids), np.int64)
    records = EncodeRecords(ids, ids, Sources(state, state), np.ones(len(ids), bool), lambda index: ids[index])
    loader = EncodeLoader(records, Pool(0.1), 1, SIZE, prefetch=None, workers=4)
    assert len(list(loader)) == BATCHES - 1
    assert loader.chosen == {}


@pytest.mark.parametrize("decode, encode, most, workers", [(1, 1, 8, 2), (0.1, 1, 8, 1), (100, 1, 8, 8), (1, 0, 8, 8)])
def test_workers_needed(decode, encode, most, workers):
    assert workers_needed(decode, encode, most) == workers


@pytest.mark.parametrize("slowest, batch, ahead", [(0, 1, 2), (3, 1, 4), (1, 0, MOST_PREFETCH)])
def test_batches_ahead(slowest, batch, ahead):
    assert batches_ahead(slowest, batch) == ahead


class Paged:
    """A batch that can be page-locked, without a GPU to do it for."""

    def __init__(self, locked=False):
        self.locked = locked

    def pin_memory(self):
        return Paged(True)


@pytest.mark.parametrize("plain, locked, pays", [(2.0, 1.0, True), (1.0, 2.0, False), (1.0, 1.0, False)])
def test_page_locked_memory_where_it_is_faster(plain, locked, pays):
    cuda = torch.device("cuda:0")
    assert pinning_pays(Paged(), cuda, lambda batch, _: locked if batch.locked else plain) is pays
    assert pinning_pays(torch.ones(1), CPU) is False
    assert pinning_pays(None, cuda) is False
