"""Work shared out over threads that each do all of a piece, in place of libraries that share out every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def in_workers(work: Callable[[Piece], Result], pieces: Iterable[Piece]) -> Iterator[Result]:
    """The results of ``work`` on pieces, in their order, from as many threads as PyTorch uses here.

    In each of them PyTorch and its libraries use one thread. The first error ends the work and is raised.

    >>> list(in_workers(abs, [-1, 2]))
    [1, 2]
    """
    number = torch.get_num_threads()
    if number == 1:
        yield from map(work, pieces)
        return
    pool = ThreadPoolExecutor(number)
    try:
        _use_one_thread_each(pool, number)
        yield from pool.map(work, pieces)
    finally:
        pool.shutdown(cancel_futures=True)


def _use_one_thread_each(pool: ThreadPoolExecutor, number: int) -> None:
    """Set PyTorch's number of threads in every thread of the pool.

    ``torch.set_num_threads`` holds for the thread that calls it, and for threads that start to use PyTorch later. So
    it is called in each, and at once set back here, for whatever starts next.
    """
    together = Barrier(number)

    def limit(_: int) -> None:
        together.wait()
        torch.get_num_threads()  # a thread's first use takes over the number for all, and would undo the next line
        torch.set_num_threads(1)

    try:
        list(pool.map(limit, range(number)))
    finally:
        together.abort()  # no thread waits for one that could not be started
        torch.set_num_threads(number)
