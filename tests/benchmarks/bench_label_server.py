"""How long the next sample takes over HTTP with a large datastore: a real server, MONAI Label's own client.

    CANDOR_LABEL_PYTHON=<python> python -m tests.benchmarks.bench_label_server [--images 20000] [--asked 200]

Images are small PNG files of noise, the encoder is the calibration marker's, a tenth is labelled. Prints median, 95th
percentile and maximum in milliseconds for each strategy, for saving a label and for an answer about an image, and the
processor time that the server spent on one request, which a busy machine does not change.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from candor_monai.apps.label import STRATEGIES, LabelStore
from tests.apps.label.server_support import FINDING, Server, copied_app, write_png


def write_images(folder: Path, count: int) -> list[str]:
    """Noise images, a hundred a sub-folder; their ids."""
    rng = np.random.default_rng(0)
    names = [f"{i // 100:04d}/{i:06d}.png" for i in range(count)]
    for name in names:
        write_png(folder / name, rng.integers(0, 256, (16, 16), dtype=np.uint8))
    return names


def spent(server: Server) -> float:
    """Processor time of the server's process, in seconds."""
    assert server.process is not None
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(server: Server, asked: int, ask: Callable[[int], Any]) -> dict[str, float]:
    """Times of requests, one after the other."""
    took, before = [], spent(server)
    for i in range(asked):
        began = time.perf_counter()
        ask(i)
        took.append(1000 * (time.perf_counter() - began))
    return {
        "median": round(float(np.median(took)), 1),
        "p95": round(float(np.percentile(took, 95)), 1),
        "max": round(max(took), 1),
        "processor": round(1000 * (spent(server) - before) / asked, 1),
    }


def main() -> None:
    """Make the datastore, start the server, ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=20000)
    parser.add_argument("--asked", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        names = write_images(root / "chest", given.images)
        rng = np.random.default_rng(1)
        store = LabelStore(root / "chest.labels" / "labels", [FINDING])
        for i in rng.choice(len(names), len(names) // 10, replace=False).tolist():
            store.save(names[i], {FINDING: int(rng.integers(2))}, "random")
        conf = {"encoder": "marker", "findings": FINDING, "batch_size": "64", "image_size": "32"}
        server = Server(root, copied_app(root / "app"), str(root / "chest"), conf).start()
        try:
            print(json.dumps({"scoring": server.score()}), flush=True)
            client = server.client("reader")
            for strategy in STRATEGIES[:4]:
                took = timed(server, given.asked, lambda i, strategy=strategy: client.next_sample(strategy, {}))
                print(json.dumps({"next_sample": strategy, "ms": took}), flush=True)
            unlabelled = [n for n in names if store.get(n) is None][: given.asked]
            took = timed(server, given.asked, lambda i: server.save(unlabelled[i], {"findings": {FINDING: i % 2}}))
            print(json.dumps({"save_label": "client", "ms": took}), flush=True)
            took = timed(server, given.asked, lambda i: server.infer(names[i]))
            print(json.dumps({"infer": "candor", "ms": took}), flush=True)
            took = timed(server, given.asked // 10, lambda i: client.info())
            print(json.dumps({"info": "", "ms": took}), flush=True)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
