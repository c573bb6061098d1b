"""Processes that share a run, played by threads over one key-value store."""

import threading

import numpy as np
import pytest
import torch.distributed as dist

from candor_monai.apps import distributed
from candor_monai.apps.distributed import Processes
from candor_monai.utils import UserError


def play(world_size, part):
    """What ``part(processes)`` gives in each of some processes, or the error that it raises."""
    store, results = dist.HashStore(), [None] * world_size

    def run(rank):
        try:
            results[rank] = part(Processes(rank, world_size, store))
        except UserError as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in reversed(range(world_size))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    return results


def test_one_process_talks_to_itself():
    alone = Processes()
    assert alone.first
    assert alone.share("a", b"x") == b"x"
    assert alone.collect("b", b"y") == [b"y"]


def test_the_first_one_s_value_reaches_all_and_turns_are_kept_apart():
    given = play(3, lambda p: [p.share("a", bytes([p.rank, turn])) for turn in range(2)])
    assert given == [[b"\x00\x00", b"\x00\x01"]] * 3


def test_the_first_one_collects_and_the_others_do_not_wait():
    store = dist.HashStore()
    assert Processes(1, 2, store).collect("a", b"1") == []
    assert Processes(0, 2, store).collect("a", b"0") == [b"0", b"1"]


def test_the_first_one_goes_before_the_others():
    order = []

    def part(here):
        with here.first_before_others("a"):
            order.append(here.rank)

    play(3, part)
    assert order[0] == 0
    assert sorted(order) == [0, 1, 2]


def test_what_is_dealt_goes_to_one_process_each():
    dealt = play(3, lambda p: [list(p.deal("a", 20)), list(p.deal("a", 5))])
    for turn, count in ((0, 20), (1, 5)):
        assert sorted(number for numbers in dealt for number in numbers[turn]) == list(range(count))
    assert list(Processes().deal("a", 3)) == [0, 1, 2]
    assert list(Processes().deal("a", 0)) == []


@pytest.mark.parametrize(
    "devices, beside, asked, backend",
    [
        *((4, 4, None, "nccl"), (8, 4, None, "nccl"), (1, 1, None, "nccl")),
        *((2, 4, None, "gloo"), (0, 1, None, "gloo"), (4, 4, "gloo", "gloo")),
    ],
)
def test_nccl_is_for_processes_with_a_gpu_each(devices, beside, asked, backend):
    assert distributed.chosen_backend(asked, devices, beside) == backend


@pytest.mark.parametrize("devices, local, name", [(4, 3, "cuda:3"), (2, 3, "cuda:1"), (0, 3, "cpu")])
def test_the_device_of_a_process(devices, local, name, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: devices)
    monkeypatch.setenv("LOCAL_RANK", str(local))
    assert str(distributed.rank_device()) == name


def test_nccl_without_a_gpu_each_is_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="process_backend nccl: 2 processes of this machine, 1 GPU"):
        distributed.start_processes("nccl")
    assert not dist.is_initialized()


def test_what_is_missing_is_what_the_first_one_found(monkeypatch):
    local = threading.local()
    monkeypatch.setattr(distributed, "processes", lambda: local.here)
    ids = ["a", "b", "c"]

    def part(here):
        local.here = here
        return distributed.shared_missing(ids, np.array([here.rank == 0, True, here.rank > 0])).tolist()

    assert play(2, part) == [[True, True, False]] * 2


def test_other_images_on_another_machine_are_refused(monkeypatch):
    local = threading.local()
    monkeypatch.setattr(distributed, "processes", lambda: local.here)

    def part(here):
        local.here = here
        return distributed.shared_missing(["a", f"b{here.rank}"], np.ones(2, dtype=bool))

    _, second = play(2, part)
    assert isinstance(second, UserError)
    assert "other images" in str(second)


def test_without_a_launcher_nothing_is_started(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    distributed.start_processes()
    assert distributed.processes().world_size == 1
    distributed.go_on_alone()
    distributed.stop_processes()
    assert not dist.is_initialized()


def test_processes_that_do_not_know_of_each_other_are_refused(monkeypatch, tmp_path):
    from candor_monai.apps import RunOptions, prepare_data

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match=r"multi_gpu_evaluate\.yaml"):
        prepare_data(RunOptions(output_dir=tmp_path / "eval"), tmp_path / "eval")
    assert not (tmp_path / "eval").exists()
