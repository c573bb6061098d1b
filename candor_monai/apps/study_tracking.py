"""A study in MLflow: beside a run for each cell one for the study itself, with its report, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..handlers.mlflow_results import MlflowResults

TARGET = f"candor_monai.handlers.{MlflowResults.__name__}"
KEYS = ("tracking_uri", "experiment_name")


def tracked_to(workflow: Any) -> dict[str, Any] | None:
    """Where the settings file ``tracking_mlflow.yaml`` makes a run's results go; None without it.

    Args:
        workflow: the running bundle workflow.

    Returns:
        ``tracking_uri`` and ``experiment_name``, as the study's own run has them.
    """
    handlers = workflow.parser.config.get("handlers") or ()
    if not any(isinstance(handler, Mapping) and handler.get("_target_") == TARGET for handler in handlers):
        return None
    return {key: workflow.parser.get_parsed_content(key) for key in KEYS}


def track_study(
    tracked: Mapping[str, Any], name: str, encoders: Sequence[str], cohorts: Sequence[str], folder: Path
) -> None:
    """Log what a study wrote as one run that bears its name.

    Args:
        tracked: as :func:`tracked_to` gives it.
        name: of the study.
        encoders, cohorts: their names.
        folder: the study's output folder: its files, ``figures/`` and ``tables/``, not those of its cells.

    Raises:
        UserError: the server cannot be reached or refuses.
    """
    named = {"study": name, "encoders": ", ".join(encoders)[:500], "cohorts": ", ".join(cohorts)[:500]}
    files = [folder / "results.json", folder / "report.html", *sorted(folder.glob("*.csv"))]
    tracker = MlflowResults(
        **tracked,
        run_name=name,
        experiment_param=named | {"folder": folder.name},
        artifacts=[*files, folder / "figures", folder / "tables"],
    )
    tracker.log_files()
