"""A million images: scored within the stated memory. By hand: ``pytest -m slow tests/bundles/test_capacity.py -s``."""

import json
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

ROWS, DIMENSION, MEMORY_MB = 1_000_000, 64, 128
CHILD = """
import json, resource, sys
from tests.bundles.small_cohort import run_bundle
options = json.loads(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
workflow = run_bundle("score", **options)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
context = workflow.parser.get_parsed_content("context")
print(json.dumps({"before_kb": before, "after_kb": after, "seconds": context.seconds}))
"""


def score(folder, rows, memory_mb=MEMORY_MB):
    """Peak memory beyond the imports, in bytes, and seconds of each stage."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    features = np.lib.format.open_memmap(folder / "features.npy", mode="w+", dtype=np.float32, shape=(rows, DIMENSION))
    for start in range(0, rows, 50_000):
        features[start : start + 50_000] = rng.standard_normal((min(50_000, rows - start), DIMENSION), np.float32)
    features.flush()
    table = pd.DataFrame(
        {
            "image_id": [f"image{i:07d}" for i in range(rows)],
            "patient_id": [f"patient{i // 3:06d}" for i in range(rows)],
            "view": np.where(np.arange(rows) % 2, "AP", "PA"),
            "Edema": rng.integers(0, 2, rows),
        }
    )
    table.to_csv(folder / "labels.csv", index=False)
    options = {
        "cohort": "features",
        "dataset_dir": str(folder),
        "features": "features.npy",
        "labels": "labels.csv",
        "findings": ["Edema"],
        "match_on": ["view"],
        "output_dir": str(folder / "eval"),
        "memory_mb": memory_mb,
        "probe": False,
        "write_report": False,
        "permutations": 99,
        "progress": False,
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, json.dumps(options)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.strip().splitlines()[-1])
    return (told["after_kb"] - told["before_kb"]) * 1024, told["seconds"]


@pytest.mark.slow
def test_a_million_rows_are_scored_within_the_memory(tmp_path):
    began = time.monotonic()
    peak, seconds = score(tmp_path / "million", ROWS)
    print(f"{ROWS} rows: {peak / 2**20:.0f} MiB beyond the imports, {time.monotonic() - began:.0f} s, {seconds}")
    mapped = ROWS * DIMENSION * 4  # pages of the mapped features count as resident, and can be taken away at any time
    table = ROWS * 2000  # the cohort's table, ids and per-image results
    code = 400 << 20  # modules that are loaded on the way
    assert peak < mapped + table + code + MEMORY_MB * 2**20
