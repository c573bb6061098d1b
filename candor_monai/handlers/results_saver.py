"""Writes what an evaluation found: results.json, the tables beside it, and why images were left out."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ..data.cohort import REJECTED_COLUMNS
from ..metrics.head_errors import WARNING as PROBE_WARNING
from ..utils.atomic import atomic_path
from ..utils.pseudonyms import pseudonyms
from ..visualize.csv_files import write_csv
from ..visualize.figures import remove_figures
from ..visualize.neighbour_figures import remove_neighbour_figures
from ..visualize.paper_tables import remove_paper_tables
from ..visualize.results_files import SCHEMA_VERSION, write_results
from .companion_files import FILE as COMPANIONS
from .companion_files import write_companions_file
from .rank_zero import RankZeroHandler
from .run_context import RunContext, versions
from .scored_files import FOLDER as SCORED
from .scored_files import forget_scored

if TYPE_CHECKING:
    from ignite.engine import Engine

    from ..metrics.evaluation import Evaluation

logger = logging.getLogger(__name__)

# Files that an earlier run with other options (or a study) may have left, and the table that this run has if it writes
# them again.
LEFT_BY_OTHERS = {
    "probe.csv": "probe",
    "heads.safetensors": "probe",
    "retention.csv": "retention",
    "report.html": "",
    **dict.fromkeys((f"{name}.csv" for name in ("ranking", "comparisons", "overlap", "agreement", "ablations")), ""),
    **dict.fromkeys((f"{name}.csv" for name in ("head_errors", "rules", "error_detection", "trends")), ""),
}
LEADING_COLUMNS = ("encoder", "task", "finding", "group", "level")


class ResultsSaver(RankZeroHandler):
    """Write the results of :class:`~candor_monai.handlers.candor.CandorHandler` when the epoch completes.

    Files in the context's ``output_dir``: ``results.json``, ``discordance.csv``, ``queries.parquet``,
    ``candidates.parquet``, ``rejected.csv``, ``probe.csv`` and ``retention.csv`` where those handlers ran, and
    ``companions.npz`` for paired comparisons with other encoders. Each is written whole or not at all; an earlier
    results.json goes first and the new one comes last, so that it never tells of files that are not there or that are
    another run's. Patient ids are written as keyed pseudonyms only.

    Args:
        context: the run.
        key: the site's secret key for pseudonyms (:func:`candor_monai.utils.pseudonyms.read_key`).
        save_rank: only this process writes.
    """

    def __init__(self, context: RunContext, key: bytes, save_rank: int = 0) -> None:
        super().__init__(save_rank)
        self.context = context
        self.key = key

    def act(self, engine: Engine) -> None:
        """Write the files; ``engine.state.results`` keeps the document of results.json."""
        state: Any = engine.state
        context, evaluation = self.context, state.candor
        present = context.present()
        rejected = context.rejected(present)
        accounting = context.accounting(present, rejected)
        rows = [self._row(row) for row in evaluation.rows]
        folder = context.output_dir
        # Until it is written again, last, nobody takes the files of two runs for those of one.
        (folder / "results.json").unlink(missing_ok=True)
        write_csv(folder / "rejected.csv", rejected, REJECTED_COLUMNS)
        write_csv(folder / "discordance.csv", rows, columns_of(rows))
        write_parquet(folder / "queries.parquet", self._table(evaluation.queries))
        write_parquet(folder / "candidates.parquet", self._table(evaluation.candidates))
        further = self._further(engine)
        for name, source in LEFT_BY_OTHERS.items():
            if source not in further:
                (folder / name).unlink(missing_ok=True)
        remove_neighbour_figures(folder / "figures")
        remove_figures(folder / "figures")
        remove_paper_tables(folder / "tables")
        for name, table in further.items():
            write_csv(folder / f"{name}.csv", table, columns_of(table))
        write_companions_file(folder / COMPANIONS, evaluation.parts)
        context.seconds.update({f"score.{name}": float(value) for name, value in evaluation.seconds.items()})
        state.results = {**self.document(rows, accounting, evaluation), **further}
        state.rejected = rejected
        write_results(folder / "results.json", state.results)
        forget_scored(folder / SCORED)
        for name, value in accounting.items():
            logger.info("%s: %s", name.replace("_", " "), value)

    def document(self, rows: Sequence[dict[str, Any]], accounting: dict[str, Any], evaluation: Any) -> dict[str, Any]:
        """The document of results.json."""
        context = self.context
        return {
            "schema_version": SCHEMA_VERSION,
            "run": {
                "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(context.started)),
                "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "bottleneck": context.bottleneck,
                "chosen": context.chosen,
                "counts": {**context.counts, **{f"score.{name}": int(n) for name, n in _counts(evaluation).items()}},
            },
            "versions": versions(),
            "cohort": context.describe_cohort(),
            "encoders": [context.encoder],
            "options": context.options,
            "timings": {name: round(value, 6) for name, value in context.timings().items()},
            "accounting": accounting,
            "discordance": list(rows),
            "warnings": list(context.warnings),
        }

    def _further(self, engine: Engine) -> dict[str, list[dict[str, Any]]]:
        """Rows of the tables that other handlers left: ``probe``, ``retention``."""
        tables: dict[str, list[dict[str, Any]]] = {}
        state: Any = engine.state
        if getattr(state, "probe", None) is not None:
            tables["probe"] = [
                {"encoder": self.context.encoder["name"], "task": self.context.cohort.task.name, **row}
                for row in state.probe.table()
            ]
            self.context.warn(PROBE_WARNING)
        if getattr(state, "retention", None) is not None:
            tables["retention"] = state.retention
        return tables

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"encoder": self.context.encoder["name"], "task": self.context.cohort.task.name, **row}

    def _table(self, columns: Any) -> pd.DataFrame:
        table = pd.DataFrame(columns)
        table.insert(0, "encoder", self.context.encoder["name"])
        if "patient" in table:
            table["patient"] = pseudonyms(table["patient"], self.key)
        return table


def _counts(evaluation: Evaluation) -> dict[str, int]:
    """What the exact step had to do; where it did so for several option sets together, for how many."""
    together = {"together": evaluation.together} if evaluation.together > 1 else {}
    return {**evaluation.counts, **together}


def columns_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Columns of discordance.csv: what names the row, then the numbers in the order of the measure."""
    seen = dict.fromkeys(name for row in rows for name in row)
    return [name for name in LEADING_COLUMNS if name in seen or not rows] + [
        name for name in seen if name not in LEADING_COLUMNS
    ]


def write_parquet(path: Any, table: pd.DataFrame) -> None:
    """Write a table as Parquet, whole or not at all."""
    with atomic_path(path) as temporary:
        pq.write_table(pa.Table.from_pandas(table, preserve_index=False), temporary)
