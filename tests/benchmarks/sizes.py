"""Size of the tests at 5 % where nothing is to be found, on many simulated cohorts.

    python -m tests.benchmarks.sizes --folder RAW [--cohorts 10000] [--part 0/2]
    python -m tests.benchmarks.sizes --folder RAW --output docs/sizes.csv

`total`: the total interval against chance; `difference`: two equally good encoders; `permutation`: the exact
engine and the permutation test (199 exchanges). Cohorts are made in rounds of 500 that are written as they come.
"""

from __future__ import annotations

import argparse
import csv
from itertools import product
from pathlib import Path

import numpy as np
from scipy import stats

from candor_monai.metrics.comparison import total_difference
from candor_monai.metrics.evaluation import evaluate
from candor_monai.metrics.observations import Observations
from candor_monai.metrics.options import Options
from candor_monai.metrics.permutation import chance_test, permutation_replicates
from candor_monai.metrics.total_interval import total_p, total_replicates
from tests.metrics.simulation import Setting, simulate

ROUND, SPLITS = 500, 400
SETTINGS = {
    "60 of 180, no hubs": Setting(60, 180),
    "60 of 180, cone": Setting(60, 180, offset=8.0),
    "60 of 180, stronger hubs": Setting(60, 180, offset=8.0, spread=0.3),
    "200 of 600, cone": Setting(200, 600, offset=8.0),
}
QUICK = Options(permutations=199, resamples=0, margin=False, total_interval=False, permutation_test=False)


def p_total(setting: Setting, rng: np.random.Generator) -> float:
    cohort = simulate(setting, rng)[0]
    bits = rng.integers(0, 2**16, (len(cohort.units), SPLITS), dtype=np.uint16)
    return float(total_p(total_replicates(cohort.cells[0], cohort.features, cohort.units, bits)) or 0.0)


def p_difference(setting: Setting, rng: np.random.Generator) -> float:
    cohorts = simulate(setting, rng, second=0.5)
    bits = rng.integers(0, 2**16, (len(cohorts[0].units), SPLITS), dtype=np.uint16)
    one, two = (total_replicates(c.cells[0], c.features, c.units, bits) for c in cohorts)
    return float(total_difference(one, two).p or 0.0)


def p_permutation(setting: Setting, rng: np.random.Generator) -> float:
    features = rng.standard_normal((setting.images, setting.width)).astype(np.float32)
    features *= np.exp(setting.spread * rng.standard_normal((setting.images, 1), np.float32))
    features[:, 0] += setting.offset
    labels = (rng.permutation(setting.images) < setting.positives).astype(np.int8)
    seen = Observations([f"{rng.integers(2**62)}" for _ in range(setting.images)], labels[:, None], ["finding"])
    cells = evaluate(features, seen, QUICK).cells
    return float(chance_test(permutation_replicates(cells, features, seen, QUICK, early_stop=False)[0]).p or 0.0)


TESTS = {"total": p_total, "difference": p_difference, "permutation": p_permutation}


def _stem(setting: str) -> str:
    return setting.replace(",", "").replace(" ", "_")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cohorts", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--part", default="0/1")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    part, parts = (int(number) for number in options.part.split("/"))
    rows = []
    for place, (test, setting) in enumerate(product(TESTS, SETTINGS)):
        for number in range(options.cohorts // ROUND):
            path = options.folder / f"{test}-{_stem(setting)}-{number}.npy"
            if not path.exists() and options.output is None and (place + number) % parts == part:
                rng = np.random.default_rng([place, number])
                np.save(path, np.array([TESTS[test](SETTINGS[setting], rng) for _ in range(ROUND)]))
        found = sorted(options.folder.glob(f"{test}-{_stem(setting)}-*.npy"))
        if found:
            p = np.concatenate([np.load(one) for one in found])
            hits = int((p <= 0.05).sum())
            low, high = stats.beta.ppf([0.005, 0.995], [hits, hits + 1], [len(p) - hits + 1, len(p) - hits])
            rows.append([test, setting, len(p), round(hits / len(p), 4), round(float(low), 4), round(float(high), 4)])
    if options.output is not None:
        with options.output.open("w", newline="") as stream:
            csv.writer(stream).writerows([["test", "setting", "cohorts", "size", "lower99", "upper99"], *rows])


if __name__ == "__main__":
    main()
