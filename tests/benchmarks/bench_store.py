"""Speed and memory of the feature store. Run: python -m tests.benchmarks.bench_store [rows] [dimension].

Ratios against the plain thing in the same run: reading a raw float32 file, and a dictionary of paths. What is printed:
writing (images/s), opening (bytes verified a second, beside bare SHA-256), asking what is missing, reading in memory,
consolidating and streaming, and the peak of anonymous memory of the reading process.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from candor_monai.data.feature_store import FeatureStore
from candor_monai.data.store_rows import Sources

FINGERPRINT = {"encoder": "benchmark"}
SHARD = 1024


def synthetic_store(folder: Path, rows: int, dimension: int) -> tuple[FeatureStore, list[str], Sources]:
    """A store of random features; row i is seeded by its shard."""
    ids = [f"cohort/p{row // 3:07d}/s{row:08d}" for row in range(rows)]
    state = np.arange(rows, dtype=np.int64)
    sources = Sources(state + 10_000, state)
    store = FeatureStore(folder, FINGERPRINT)
    for start in range(0, rows, SHARD):
        stop = min(rows, start + SHARD)
        features = np.random.default_rng(start).standard_normal((stop - start, dimension), dtype=np.float32)
        columns = {
            "source_size": sources.size[start:stop],
            "source_mtime_ns": sources.mtime_ns[start:stop],
            "pixels_sha256": [hashlib.sha256(image_id.encode()).digest() for image_id in ids[start:stop]],
            "codec": ["native"] * (stop - start),
        }
        store.write(ids[start:stop], features, columns)
    return store, ids, sources


class PeakMemory:
    """Largest anonymous resident memory of this process above where it started, in bytes."""

    def __enter__(self) -> PeakMemory:
        self._stop = threading.Event()
        self._begin = self.peak = anonymous_memory()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            self.peak = max(self.peak, anonymous_memory())

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self.extra = max(self.peak, anonymous_memory()) - self._begin


def anonymous_memory() -> int:
    """Anonymous resident memory of this process, in bytes; mapped files do not count."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel tells no RssAnon")


def measure(rows: int, dimension: int, folder: Path) -> dict[str, Any]:
    """Every figure, for a store made in ``folder``."""
    found: dict[str, Any] = {"rows": rows, "dimension": dimension}
    clock = time.perf_counter

    before = clock()
    _, ids, sources = synthetic_store(folder, rows, dimension)
    found["write_rows_per_s"] = rows / (clock() - before)

    paths = sorted(folder.glob("*.arrow"))
    size = sum(path.stat().st_size for path in paths)
    found["bytes"], found["shards"] = size, len(paths)
    before = clock()
    for path in paths:
        hashlib.sha256(path.read_bytes()).digest()
    bare = clock() - before

    with PeakMemory() as memory:
        before = clock()
        store = FeatureStore(folder, FINGERPRINT)
        assert store.dimension == dimension
        opened = clock() - before
    found["open_s"], found["open_GB_per_s"] = opened, size / opened / 1e9
    found["open_ratio_to_bare_sha256"] = bare / opened
    found["open_extra_MB"] = memory.extra / 1e6

    with PeakMemory() as memory:
        before = clock()
        assert store.missing(ids, sources) == []
        found["missing_s"] = clock() - before
    found["missing_extra_MB"] = memory.extra / 1e6

    some = ids[:: max(1, rows // 50_000)]
    before = clock()
    features, present = store.read(some)
    found["read_rows_per_s"] = len(some) / (clock() - before)
    assert present.all()
    del features

    with PeakMemory() as memory:
        before = clock()
        matrix, present = store.matrix(ids, sources, memory_bytes=1 << 20)
        found["consolidate_s"] = clock() - before
        before = clock()
        total = sum(float(np.abs(matrix[start : start + 4096]).sum()) for start in range(0, rows, 4096))
        found["stream_GB_per_s"] = rows * dimension * 4 / (clock() - before) / 1e9
    assert present.all()
    assert total > 0
    found["matrix_extra_MB"] = memory.extra / 1e6
    before = clock()
    store.matrix(ids, sources, memory_bytes=1 << 20)
    found["matrix_again_s"] = clock() - before
    return found


def main(rows: int = 100_000, dimension: int = 768) -> None:
    """Measure in a temporary folder and print."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        for name, value in measure(rows, dimension, Path(folder) / "store").items():
            print(f"{name:28s} {value:,.2f}" if isinstance(value, float) else f"{name:28s} {value:,}")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
