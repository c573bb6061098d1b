"""What tests share: where the real data is, skipping when it is not there, and work in several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data"

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="real data folder ../shared/data is absent")


def failures_in_threads(work: Callable[[int], None], count: int = 8) -> list[BaseException]:
    """Run ``work(0)`` to ``work(count - 1)`` in threads at once; what they raised."""
    failed: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # told by the test's thread
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed
