"""The whole measure with its default options, as a user of features has it: how long, and which stage.

Run by hand: ``python -m tests.benchmarks.bench_evaluation --images 600/2 3000/2 6000/1``: images/groups. It prints JSON
lines and decides nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path

import torch

from candor_monai.metrics.evaluation import evaluate
from candor_monai.metrics.options import Options

from .bench_sweep import report
from .measuring import measured
from .synthetic_group import synthetic_group


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", nargs="*", default=["600/2", "3000/2"])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "candor_benchmarks")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print(json.dumps({"threads": torch.get_num_threads()}), flush=True)
    for asked in arguments.images:
        images, groups = map(int, asked.split("/"))
        features, seen = synthetic_group(arguments.folder, images, groups=groups)
        result = measured(partial(evaluate, features, seen, Options()))
        seconds = {name: round(value, 1) for name, value in result.value.seconds.items()}
        report(f"{images} images in {groups} groups", result, seconds=seconds)


if __name__ == "__main__":
    main()
