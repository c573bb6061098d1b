"""A small cohort of PNG files with a table of labels, and a way to run the bundle on it in this process."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from monai.bundle import ConfigWorkflow
from PIL import Image

from candor_monai.utils import bundle_config

IMAGES, PATIENTS = 48, 32


def write_small_cohort(folder: Path, images: int = IMAGES, seed: int = 0) -> Path:
    """Noise images of 32 patients in two views, every third positive; returns the folder."""
    rng = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True)
    rows = []
    for i in range(images):
        name = f"images/{i:03d}.png"
        Image.fromarray(rng.integers(0, 256, (64, 48), dtype=np.uint8)).save(folder / name)
        rows.append((name, f"subject-{i % PATIENTS:02d}", "AP" if i % 2 else "PA", int(i % 3 == 0), int(i % 4 == 0)))
    labels = pd.DataFrame(rows, columns=["image", "patient_id", "view", "Edema", "Mass"])
    labels.to_csv(folder / "labels.csv", index=False)
    return folder


def run_bundle(
    run_id: str, config: str | Sequence[str] = "evaluate.yaml", tracking: str | None = None, **override: Any
) -> Any:
    """Run a run id of the candor_eval bundle in this process, quietly; returns the workflow."""
    files = [bundle_config(name) for name in ([config] if isinstance(config, str) else config)]
    workflow = ConfigWorkflow(config_file=files, logging_file=False, run_id=run_id, tracking=tracking, **override)
    workflow.initialize()
    workflow.run()
    return workflow


def table_options(folder: Path, output: Path, **more: Any) -> dict[str, Any]:
    """Overrides that evaluate a small cohort with the blind calibration encoder."""
    return {
        "cohort": "table",
        "dataset_dir": str(folder),
        "labels": "labels.csv",
        "findings": ["Edema", "Mass"],
        "match_on": ["view"],
        "encoder": "blind",
        "output_dir": str(output),
        "batch_size": 16,
        "permutations": 99,
        "progress": False,
        **more,
    }


def forked(work: Callable[[], Any]) -> int:
    """Id of a child of this warmed process that does ``work``; torch must have one thread, and no group."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            work()
            status = 0
        except SystemExit as end:
            status = 0 if end.code in (None, 0) else 1
        finally:
            os._exit(status)
    return pid


def forked_ranks(processes: int, work: Callable[[int], Any]) -> list[int]:
    """Ids of children that find themselves launched as ranks of one group, and do ``work(rank)``."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]

    def child(rank: int) -> None:
        world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        os.environ.update({name: str(value) for name, value in world.items()})
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
        work(rank)

    return [forked(lambda rank=rank: child(rank)) for rank in range(processes)]


def exit_codes(pids: Sequence[int], limit: float = 300) -> list[int]:
    """Exit codes of children, in order. As a launcher does, it kills the others once one has failed."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + limit
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                codes[pid] = os.waitstatus_to_exitcode(ended[1])
        if any(codes.values()) or time.monotonic() > deadline:
            for pid in pids:
                if pid not in codes:
                    os.kill(pid, signal.SIGKILL)
                    codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        time.sleep(0.02)
    return [codes[pid] for pid in pids]
