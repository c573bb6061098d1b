"""Throughput of several processes over that of one, each with one thread: of encoding, and of scoring by group.

    python -m tests.benchmarks.bench_processes [--processes 2] [--images 256] [--turns 5]

Processes are forked from one warmed process and meet by gloo, as ``torchrun``'s do. Turns alternate between one and
several in the same run; timed is from the first process's beginning of the work to the last one's end, without imports
and without opening the cohort. Printed are the seconds of each turn, the ratio of the medians and the ratio of the best
turns. On a machine that other programs use, the best turns say more; nothing is decided here.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from candor_monai.apps import scoring
from candor_monai.handlers import RunContext
from tests.bundles.small_cohort import exit_codes, forked_ranks, run_bundle, write_small_cohort

FILES = ("evaluate.yaml", "multi_gpu_evaluate.yaml")


def write_groups(folder: Path, groups: int, images: int) -> None:
    """Features and labels of some equal groups."""
    rng = np.random.default_rng(0)
    count = groups * images
    labels = (rng.random((count, 2)) < 0.3).astype(int)
    np.save(folder / "features.npy", rng.standard_normal((count, 64)).astype(np.float32))
    table = pd.DataFrame({"image_id": [f"i{i:06d}" for i in range(count)], "view": np.arange(count) % groups})
    table = table.assign(patient_id=[f"p{i // 2:06d}" for i in range(count)], Edema=labels[:, 0], Mass=labels[:, 1])
    table.assign(view="v" + table["view"].astype(str)).to_csv(folder / "labels.csv", index=False)


def noted(folder: Path, call: Callable[[], Any]) -> Any:
    """Run a call and keep when it began and ended, on the clock that all processes share."""
    began = time.monotonic()
    try:
        return call()
    finally:
        (folder / f"{os.getpid()}-{began}.json").write_text(json.dumps([began, time.monotonic()]))


def watch(folder: Path) -> None:
    """Note when encoding and scoring begin and end, in this process."""
    plain_stage, plain_score = RunContext.stage, scoring.score_groups

    @contextmanager
    def stage(self: RunContext, name: str) -> Any:
        began = time.monotonic()
        with plain_stage(self, name):
            yield
        if name == "encode":
            (folder / f"{os.getpid()}.json").write_text(json.dumps([began, time.monotonic()]))

    RunContext.stage = stage  # type: ignore[method-assign]
    scoring.score_groups = lambda *given: noted(folder, lambda: plain_score(*given))  # type: ignore[assignment]


def turn(processes: int, run_id: str, options: dict[str, Any], scratch: Path) -> float:
    """Seconds from the first beginning to the last end."""
    output, times = scratch / "eval", scratch / "times"
    for folder in (output, times):
        shutil.rmtree(folder, ignore_errors=True)
    times.mkdir()

    def work(rank: int) -> None:
        watch(times)
        run_bundle(run_id, FILES, output_dir=str(output), **options)

    if any(exit_codes(forked_ranks(processes, work), limit=3600)):
        raise RuntimeError(f"a process of {processes} failed")
    spans = [json.loads(path.read_text()) for path in times.iterdir()]
    return max(end for _, end in spans) - min(begin for begin, _ in spans)


def compare(name: str, processes: int, turns: int, run_id: str, options: dict[str, Any], scratch: Path) -> None:
    """Take turns and print."""
    seconds: dict[int, list[float]] = {1: [], processes: []}
    for _ in range(turns):
        for count in seconds:
            seconds[count].append(turn(count, run_id, options, scratch))
            print(f"{name}, {count} processes: {seconds[count][-1]:.2f} s, load {os.getloadavg()[0]:.1f}", flush=True)
    one, several = seconds[1], seconds[processes]
    print(
        f"{name}: {processes} processes are {np.median(one) / np.median(several):.2f} × one by medians, "
        f"{min(one) / min(several):.2f} × by best turns",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--encoder", default="efficientnet_lite0")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    shared = {"findings": ["Edema", "Mass"], "match_on": ["view"], "labels": "labels.csv", "progress": False}
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["CANDOR_MONAI_KEY_FILE"] = str(Path(scratch) / "key")
        images = write_small_cohort(Path(scratch) / "images", given.images)
        encode = {**shared, "cohort": "table", "dataset_dir": str(images), "encoder": given.encoder}
        encode |= {"batch_size": 8, "decode_workers": 1}
        compare("encoding", given.processes, given.turns, "encode", encode, Path(scratch))
        groups = Path(scratch) / "groups"
        groups.mkdir()
        write_groups(groups, given.groups, 400)
        score = {**shared, "cohort": "features", "dataset_dir": str(groups), "features": "features.npy"}
        score |= {"permutations": 999, "probe": False, "write_report": False}
        compare("scoring", given.processes, given.turns, "score", score, Path(scratch))


if __name__ == "__main__":
    main()
