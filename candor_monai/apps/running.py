"""What the bundles' run ids do with the parts: run an engine, export features, write a report again, calibrate."""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ..data.cohort import REJECTED_COLUMNS
from ..data.cohorts import load_cohort
from ..data.folder_lock import folder_lock
from ..data.phantom_files import phantom_complete
from ..handlers.report import ReportHandler
from ..handlers.run_context import RunContext
from ..handlers.stage_times import bottleneck, stage_seconds
from ..utils.atomic import atomic_path, atomic_write
from ..utils.errors import UserError
from ..utils.plain_values import plain
from ..utils.told import told_briefly
from ..visualize.csv_files import plain_text, write_csv
from ..visualize.results_files import read_results
from .distributed import go_on_alone, launched, processes
from .opening import CALIBRATION, dataset_folder
from .options import RunOptions

logger = logging.getLogger(__name__)

# Locks of output folders, held until the process ends.
_locks = ExitStack()
_claimed: set[Path] = set()


def claim(folder: Path) -> None:
    """Make an output folder and hold it until this process ends.

    Raises:
        UserError: it cannot be written, another run holds it, or several processes would each take it for their own.
    """
    if launched() > 1 and processes().store is None:
        raise UserError(
            f"{launched()} processes were started but do not know of each other: add multi_gpu_evaluate.yaml to "
            "--config_file (docs/scale.md)."
        )
    if folder not in _claimed and processes().first:
        _locks.enter_context(folder_lock(folder))
        _claimed.add(folder)


@told_briefly
def prepare_data(options: RunOptions, output_dir: Path, alone: bool = False) -> None:
    """Claim the output folder and, where the calibration cohort is asked for and absent, write it.

    On many processes the first one does it and the others wait.

    Args:
        options: the run's.
        output_dir: where results go.
        alone: what follows is the first process's alone; the others end here.

    Raises:
        SystemExit: a folder cannot be written, or another run holds the output folder.
    """
    with processes().first_before_others("prepared"):
        claim(output_dir)
        folder = dataset_folder(options)
        if processes().first and options.cohort == CALIBRATION and folder and not phantom_complete(folder):
            logger.info("writing the calibration cohort into %s", folder)
            load_cohort(CALIBRATION, folder, **options.cohort_options)
    if alone:
        go_on_alone()


@told_briefly
def run_engine(engine: Any, context: RunContext, stage: str, loader: Any = None) -> None:
    """Run a MONAI engine; a user's mistake that ends it is told in a few lines.

    Args:
        engine: a MONAI evaluator.
        context: keeps the stage's wall time.
        stage: ``encode`` or ``score``.
        loader: an encoding loader, whose own times are kept too. An engine without batches is not run: MONAI's
            ``Workflow.run`` would only warn.
    """
    claim(context.output_dir)
    if loader is not None and not len(loader):
        return
    with context.stage(stage):
        engine.run()
    if loader is not None:
        _note_stages(engine, context, stage, loader)


def _note_stages(engine: Any, context: RunContext, stage: str, loader: Any) -> None:
    """Keep where the time of encoding went, what the first batches chose, and which stage set the pace."""
    seconds = {**getattr(loader, "seconds", {}), **stage_seconds(engine)}
    context.seconds.update({f"{stage}.{name}": value for name, value in seconds.items()})
    context.chosen.update({f"{stage}.{name}": value for name, value in getattr(loader, "chosen", {}).items()})
    slowest = bottleneck(seconds, getattr(loader, "workers", 1))
    if slowest is not None:
        context.bottleneck[stage] = slowest[0]
        logger.info("%s: %s sets the pace (%d %% of the work)", stage, slowest[0], round(100 * slowest[1]))
    halved = getattr(getattr(engine, "inferer", None), "halvings", 0)
    if halved:
        context.warn(
            f"{stage}: {halved} batches did not fit into memory and were forwarded in halves; their features may "
            "differ in the last bits (`notes` in the feature store names them)."
        )


@told_briefly
def report_again(options: RunOptions, context: RunContext, pool: Any) -> None:
    """Write the report anew from the results that are there.

    Raises:
        SystemExit: there are none, or they are another encoder's or cohort's.
    """
    claim(context.output_dir)
    results = read_results(context.output_dir / "results.json")
    named = {encoder["name"] for encoder in results["encoders"]}
    made_by = [encoder.get("fingerprint") for encoder in results["encoders"]]
    same = named == {context.encoder["name"]} and made_by == [plain(context.encoder.get("fingerprint"))]
    if not same or results["cohort"]["fingerprint"] != context.cohort.fingerprint():
        raise UserError(
            f"{context.output_dir / 'results.json'} holds encoder {', '.join(sorted(named))} on cohort "
            f"{results['cohort']['name']}, or the encoder or the cohort has changed since: run `score` first."
        )
    queries, candidates = (pd.read_parquet(context.output_dir / f"{n}.parquet") for n in ("queries", "candidates"))
    rejected = pd.read_csv(context.output_dir / "rejected.csv", dtype=str, keep_default_na=False)
    rejected = rejected.map(plain_text)
    handler = ReportHandler(context, pool, None, options.report_images, options.report_examples)
    handler.write(results, queries, candidates, rejected)


@told_briefly
def export_features(context: RunContext) -> Path:
    """Write the cohort's features to ``features.parquet`` (image_id, feature) and ``rejected.csv``.

    Returns:
        the Parquet file.
    """
    claim(context.output_dir)
    features, present = context.store.matrix(context.image_ids, context.sources)
    rows = np.flatnonzero(present)
    path = context.output_dir / "features.parquet"
    values = pa.FixedSizeListArray.from_arrays(pa.array(features[rows].reshape(-1)), max(1, features.shape[1]))
    table = pa.table({"image_id": [context.image_ids[row] for row in rows], "feature": values})
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary)
    rejected = context.rejected(present)
    write_csv(context.output_dir / "rejected.csv", rejected, REJECTED_COLUMNS)
    logger.info("%d features in %s, %d images rejected", len(rows), path, len(rejected))
    return path


@told_briefly
def calibrate(output_dir: Path, seeds: int = 24) -> dict[str, Any]:
    """Run the calibration experiment, print it and write ``calibration.json``.

    Args:
        output_dir: where the file goes.
        seeds: number of cohorts of phantoms.

    Raises:
        SystemExit: an encoder whose D is known does not have it on this machine.
    """
    from .calibration import run_calibration

    go_on_alone()
    claim(output_dir)
    result = run_calibration(seeds, told=lambda done, total: logger.info("calibration cohort %d of %d", done, total))
    atomic_write(output_dir / "calibration.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
    blind, marker, shuffled = result["blind"], result["marker"], result["shuffled"]
    print(f"blind encoder:     mean D {blind['mean_D']:.3f} over {blind['n_seeds']} cohorts (0.50 expected)")
    print(f"sensitive encoder: largest D {marker['max_D']:.3f} (0 expected)")
    print(
        f"labels shuffled:   median D {shuffled['median_D']:.3f} (0.50 expected), median D_all "
        f"{shuffled['median_D_all']:.3f} (near 1 expected)"
    )
    if not result["passed"]:
        failed = ", ".join(name for name in ("blind", "marker", "shuffled") if not result[name]["ok"])
        raise UserError(f"the calibration failed for: {failed}. See {output_dir / 'calibration.json'}.")
    return result
