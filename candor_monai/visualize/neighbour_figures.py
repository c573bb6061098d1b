"""The figures with pictures: for each task a query with its nearest neighbours, as the report's gallery shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .answer import tasks_of
from .figures import file_stem, neighbours_figure, save_figure
from .gallery import found_neighbours, positive_queries
from .neighbours import discordant_examples
from .report_rows import encoder_order

PREFIX = "neighbours_"


def write_neighbour_figures(
    folder: str | Path,
    results: Mapping[str, Any],
    queries: pd.DataFrame,
    candidates: pd.DataFrame,
    thumbnails: Callable[[str], np.ndarray | None],
    features: Callable[[str, Sequence[str]], np.ndarray],
    dpi: int = 200,
) -> list[Path]:
    """Write for each task the clearest discordant positive of its best encoder, with its nearest neighbours.

    What earlier runs drew is removed first. Neither image ids nor patients are in the files.

    Args:
        folder: where to; made when missing.
        results: the document of results.json.
        queries, candidates, thumbnails, features: as for :func:`~.report.write_report`.
        dpi: resolution of the PNG files.

    Returns:
        the files, ``neighbours_<task>`` as SVG and PNG; none for a task without a discordant positive.

    Raises:
        OSError: a file cannot be written or removed.
    """
    folder = Path(folder)
    remove_neighbour_figures(folder)
    examples = discordant_examples(positive_queries(queries), 1)
    files: list[Path] = []
    for task in tasks_of(results):
        own = examples[examples["task"] == task]
        encoder = next((name for name in encoder_order(results, [task]) if (own["encoder"] == name).any()), None)
        if encoder is None:
            continue
        clearest = own[own["encoder"] == encoder].sort_values("dm", ascending=False, kind="stable").iloc[:1]
        near = found_neighbours(clearest, candidates, features, results["options"])
        row: Mapping[str, Any] = clearest.to_dict("records")[0]  # type: ignore[assignment]
        figure = neighbours_figure(row, near, thumbnails)
        files += save_figure(figure, folder / f"{PREFIX}{file_stem(task)}", dpi)
    return files


def remove_neighbour_figures(folder: str | Path) -> None:
    """Remove the figures with pictures from a folder: a run without pictures leaves none of an earlier one.

    Raises:
        OSError: a file cannot be removed.
    """
    for path in Path(folder).glob(f"{PREFIX}*"):
        path.unlink(missing_ok=True)
