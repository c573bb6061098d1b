"""Wall time, processor time and peak memory of a call, measured in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Measured:
    """One call: wall seconds, processor seconds over all threads, and extra anonymous memory at its peak in MiB."""

    value: Any
    wall: float
    processor: float
    memory: float


def measured(call: Callable[[], Any]) -> Measured:
    """Run a call once. Memory-mapped file pages are the system's to drop and do not count."""
    before = anonymous()
    peak = [before]
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.005):
            peak[0] = max(peak[0], anonymous())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    wall, processor = time.perf_counter(), time.process_time()
    value = call()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    stop.set()
    watcher.join()
    return Measured(value, wall, processor, (peak[0] - before) / 1024)


def anonymous() -> int:
    """Anonymous resident memory of this process in KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1])
    raise OSError("/proc/self/status has no RssAnon")
