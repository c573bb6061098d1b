"""A small cohort of PNG files with a table of labels, and a way to run the bundle on it in this process."""

from __future__ import annotations

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


def run_bundle(run_id: str, config: str = "evaluate.yaml", tracking: str | None = None, **override: Any) -> Any:
    """Run a run id of the candor_eval bundle in this process, quietly; returns the workflow."""
    workflow = ConfigWorkflow(
        config_file=bundle_config(config), logging_file=False, run_id=run_id, tracking=tracking, **override
    )
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
