"""The whole measure of one encoder: time of each stage and extra memory against the number of images.

Run by hand: ``python -m tests.benchmarks.bench_scale --images 10000 50000 150000 600000`` for one group, and
``--images 551969 --groups 11`` for a study of the paper's size (D, D_all, margin AUROC, 1,000 conditional resamples).
It prints JSON lines and decides nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from candor_monai.metrics.evaluation import evaluate
from candor_monai.metrics.options import Options

from .bench_sweep import bare_product
from .measuring import measured
from .synthetic_group import synthetic_group


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, nargs="+", default=[10_000, 20_000])
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--dimension", type=int, default=768)
    parser.add_argument("--no-margin", action="store_true", help="sweep (a) only")
    parser.add_argument("--companions", action="store_true", help="with the total interval and the permutation test")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "candor_benchmarks")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    options = Options(
        sets="image",
        queries="image_sample",
        margin=not arguments.no_margin,
        total_interval=arguments.companions,
        permutation_test=arguments.companions,
    )
    for images in arguments.images:
        features, seen = synthetic_group(arguments.folder, images, arguments.dimension, arguments.groups)
        base = bare_product(features[: min(images, 50_000)], np.arange(4000), torch.float32)
        result = measured(lambda features=features, seen=seen: evaluate(features, seen, options))
        line = {
            "images": images,
            "groups": arguments.groups,
            "threads": torch.get_num_threads(),
            "wall_s": round(result.wall, 2),
            "processor_s": round(result.processor, 2),
            "extra_MiB": round(result.memory),
            "bare_float32_product_of_50k_s": round(base.wall, 2),
            "stages": {name: round(value, 2) for name, value in result.value.seconds.items()},
            "counts": result.value.counts,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
