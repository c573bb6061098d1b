"""Work shared out over threads."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from candor_monai.metrics.workers import in_workers


def test_results_come_in_order(number_of_threads):
    number_of_threads(3)
    assert list(in_workers(lambda piece: piece * piece, range(50))) == [piece * piece for piece in range(50)]


def test_pytorch_uses_one_thread_in_each_and_as_many_as_before_elsewhere(number_of_threads):
    number_of_threads(3)
    together = threading.Barrier(3, timeout=60)

    def work(_: int) -> tuple[int, int]:
        together.wait()  # so that each thread has one piece
        return threading.get_ident(), torch.get_num_threads()

    found = in_workers(work, range(3))
    first = next(found)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(torch.get_num_threads).result() == 3
    seen = [first, *found]
    assert len({thread for thread, _ in seen}) == 3
    assert [threads for _, threads in seen] == [1, 1, 1]
    assert torch.get_num_threads() == 3


def test_one_thread_needs_no_other(number_of_threads):
    number_of_threads(1)
    assert set(in_workers(lambda _: threading.get_ident(), range(5))) == {threading.get_ident()}


@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_error_ends_the_work(threads, number_of_threads):
    number_of_threads(threads)
    done = []

    def work(piece: int) -> int:
        if piece == 2:
            raise ValueError("piece 2")
        if piece > 2:
            time.sleep(0.001)  # all pieces would take most of a minute: the error is noticed long before
        done.append(piece)
        return piece

    with pytest.raises(ValueError, match="piece 2"):
        list(in_workers(work, range(10**5)))
    assert len(done) < 10**5 - 1
    assert torch.get_num_threads() == threads
