"""Redraws, the total interval and the permutation test of a large group, in units of one sweep (a).

Run by hand: ``python -m tests.benchmarks.bench_companions --images 147169``. It prints JSON lines and decides nothing.
``--permutations`` takes fewer exchanges than the measure's 9,999: without early stopping their time is proportional.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from candor_monai.metrics.cells import Cell
from candor_monai.metrics.companions import total_splits
from candor_monai.metrics.draw import draws
from candor_monai.metrics.engine import group_questions, score_group
from candor_monai.metrics.neighbours import Counts
from candor_monai.metrics.observations import Observations
from candor_monai.metrics.options import Options
from candor_monai.metrics.permutation import permutation_replicates
from candor_monai.metrics.similarity import FeatureRows
from candor_monai.metrics.sweep import search

from .bench_sweep import OPTIONS, report
from .measuring import measured
from .synthetic_group import synthetic_group


def swept(features: np.ndarray, seen: Observations, options: Options) -> list[Cell]:
    """Cells of every finding, from the checked rows on."""
    rows, counts = FeatureRows(features), Counts()

    def answer(requests: Any, ks: Any) -> Any:
        return search(rows, requests, ks, seen.order, options, counts)

    cells: list[Cell] = []
    for _, members in groupby(draws(seen, options), key=lambda draw: draw.group):
        cells += score_group([group_questions(seen, options, list(members), None)], answer)[0][0]
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--redraws", type=int, nargs="*", default=[10, 1000])
    parser.add_argument("--permutations", type=int, default=256)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "candor_benchmarks")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    features, seen = synthetic_group(arguments.folder, arguments.images)
    print(json.dumps({"images": arguments.images, "threads": torch.get_num_threads()}), flush=True)
    swept(features[:2000], seen.take(np.arange(2000)), OPTIONS)
    base = measured(lambda: swept(features, seen, OPTIONS))
    report("sweep (a), 12 findings", base)
    for redraws in arguments.redraws:
        options = replace(OPTIONS, redraws=redraws)
        report(f"the same with {redraws} draws", measured(partial(swept, features, seen, options)), base)
    report(
        "total interval of D", measured(lambda: total_splits(FeatureRows(features), seen, OPTIONS, base.value)), base
    )
    if arguments.permutations:
        options = replace(OPTIONS, permutations=arguments.permutations)
        test = measured(lambda: permutation_replicates(base.value, features, seen, options, early_stop=False))
        report(f"permutation test, {arguments.permutations} exchanges", test, base)
        test = measured(lambda: permutation_replicates(base.value, features, seen, OPTIONS))
        most = max(len(null.values.numerators) for null in test.value)
        report(f"permutation test, up to {OPTIONS.permutations}, stopping early", test, base, exchanges=most)


if __name__ == "__main__":
    main()
