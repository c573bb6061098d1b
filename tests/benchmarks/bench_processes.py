"""Throughput of several processes over that of one, each with one thread: of encoding, and of scoring by group.

    python -m tests.benchmarks.bench_processes [--processes 2] [--images 256] [--turns 5] [--pin]

Processes are forked from one warmed process and meet by gloo, as ``torchrun``'s do. Turns alternate between one and
several in the same run; timed is from the first process's beginning of the work to the last one's end, without imports
and without opening the cohort. Printed are the seconds of each turn, the ratio of the medians and of the best turns,
and the same of processor time (what one process needs over what the busiest of several needs), which says how well
the work is dealt out where other programs use the machine: wall time then says more about them. With ``--pin`` every
process has a core of its own, its decoding processes with it: else one process decodes on a core that several have
not. Nothing is decided.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from contextlib import contextmanager, nullcontext
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


def watch(folder: Path) -> None:
    """Note when encoding and scoring begin and end in this process, and the processor time that they take."""
    plain_stage, plain_score = RunContext.stage, scoring.score_together

    @contextmanager
    def noted() -> Any:
        began, processor = time.monotonic(), time.process_time()  # the former is the same for all processes
        yield
        told = [os.getpid(), began, time.monotonic(), time.process_time() - processor]
        (folder / f"{os.getpid()}-{began}.json").write_text(json.dumps(told))

    @contextmanager
    def stage(self: RunContext, name: str) -> Any:
        with plain_stage(self, name), noted() if name == "encode" else nullcontext():
            yield

    def score(*given: Any) -> Any:
        with noted():
            return plain_score(*given)

    RunContext.stage = stage  # type: ignore[method-assign]
    scoring.score_together = score  # type: ignore[assignment]


def turn(processes: int, run_id: str, options: dict[str, Any], scratch: Path, pin: bool) -> tuple[float, float]:
    """Seconds from the first beginning to the last end, and processor seconds of the busiest process."""
    output, times = scratch / "eval", scratch / "times"
    for folder in (output, times):
        shutil.rmtree(folder, ignore_errors=True)
    times.mkdir()
    cores = sorted(os.sched_getaffinity(0))

    def work(rank: int) -> None:
        watch(times)
        if pin:
            os.sched_setaffinity(0, {cores[rank]})
        run_bundle(run_id, FILES, output_dir=str(output), **options)

    if any(exit_codes(forked_ranks(processes, work), limit=3600)):
        raise RuntimeError(f"a process of {processes} failed")
    spans = [json.loads(path.read_text()) for path in times.iterdir()]
    busy: Counter[int] = Counter()
    for pid, _, _, processor in spans:
        busy[pid] += processor
    return max(end for _, _, end, _ in spans) - min(begin for _, begin, _, _ in spans), max(busy.values())


def compare(name: str, given: argparse.Namespace, run_id: str, options: dict[str, Any], scratch: Path) -> None:
    """Take turns and print."""
    processes = given.processes
    taken: dict[int, list[tuple[float, float]]] = {1: [], processes: []}
    for _ in range(given.turns):
        for count, found in taken.items():
            found.append(turn(count, run_id, options, scratch, given.pin))
            wall, processor = found[-1]
            load = os.getloadavg()[0]
            print(f"{name}, {count} processes: {wall:.2f} s, processor {processor:.2f} s, load {load:.1f}", flush=True)
    for what, place in (("wall time", 0), ("processor time", 1)):
        one, several = ([times[place] for times in taken[count]] for count in (1, processes))
        medians, best = np.median(one) / np.median(several), min(one) / min(several)
        print(f"{name}, {what}: {processes} processes are {medians:.2f} × one, {best:.2f} × by best turns", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--encoder", default="efficientnet_lite0")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--pin", action="store_true", help="a core for each process and what it starts")
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    shared = {"findings": ["Edema", "Mass"], "match_on": ["view"], "labels": "labels.csv", "progress": False}
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["CANDOR_MONAI_KEY_FILE"] = str(Path(scratch) / "key")
        images = write_small_cohort(Path(scratch) / "images", given.images)
        encode = {**shared, "cohort": "table", "dataset_dir": str(images), "encoder": given.encoder}
        encode |= {"batch_size": 8, "decode_workers": 1}
        compare("encoding", given, "encode", encode, Path(scratch))
        groups = Path(scratch) / "groups"
        groups.mkdir()
        write_groups(groups, given.groups, 400)
        score = {**shared, "cohort": "features", "dataset_dir": str(groups), "features": "features.npy"}
        score |= {"permutations": 999, "probe": False, "write_report": False}
        compare("scoring", given, "score", score, Path(scratch))


if __name__ == "__main__":
    main()
