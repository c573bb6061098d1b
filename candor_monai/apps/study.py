"""A study: several encoders on one or several cohorts, each cell the single-encoder bundle run, then compared.

A cell is the running config parsed again with ``encoder`` and ``cohort`` set, so that every override, handler and
tracker holds for it as for a single run. Only what is missing is computed: features lie in one store, and a cell whose
results were made from the same features and options is read, not run.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..data.canonical_cache import CachedPool, CanonicalCache
from ..data.cohort import REJECTED_COLUMNS
from ..handlers.companion_files import FILE
from ..handlers.report import ReportHandler
from ..handlers.results_saver import columns_of, write_parquet
from ..handlers.run_context import RunContext
from ..networks.probing import EmptyPart
from ..utils.atomic import atomic_write
from ..utils.errors import UserError
from ..utils.told import told_briefly
from ..utils.yaml_files import read_yaml
from ..visualize.csv_files import plain_text, write_csv
from ..visualize.figures import write_figures
from ..visualize.paper_tables import write_paper_tables
from ..visualize.report import write_report
from ..visualize.results_files import write_results
from .ablations import run_ablations
from .comparison import CellResults, compare, merged, read_cell
from .distributed import go_on_alone, processes, tell
from .head_agreement import trend_rows
from .head_study import HeadStudyOptions, run_head_study
from .head_tables import write_tables
from .opening import CALIBRATION, open_pool, probe_options, publishers_split_of, recorded, scored_observations
from .options import RunOptions, name_or_card
from .running import claim
from .workflow import running_workflow

logger = logging.getLogger(__name__)

# Keys that change how a file becomes a canonical image.
DECODED_BY = ("image_size", "decoding")
HEAD_TABLES = ("head_errors", "rules", "error_detection")
TABLES = (
    *("discordance", "ranking", "comparisons", "overlap", "agreement"),
    *("probe", *HEAD_TABLES, "trends", "retention", "ablations"),
)
STUDY_KEYS = ("name", "title", "encoders", "cohorts", "options", "ablations")
# Tells what a cell's results were made from.
MARKER = "cell.json"
# Keys that a cell must not inherit from the study that it is a part of.
_NOT_INHERITED = ("encoders", "cohorts", "study", "ablations")


@dataclass(frozen=True)
class Study:
    """What is run.

    Args:
        name: of the study.
        encoders: names or cards.
        cohorts: names or cards; a mapping with ``cohort`` and further keys sets these for its cells alone.
        options: overrides for every cell.
        ablations: names of ablations (:mod:`candor_monai.apps.ablations`).
    """

    name: str
    encoders: tuple[Any, ...]
    cohorts: tuple[dict[str, Any], ...]
    options: dict[str, Any]
    ablations: tuple[str, ...] = ()


@dataclass(frozen=True)
class StudyCell:
    """One encoder on one cohort of a study.

    Args:
        encoder: name or card.
        cohort: overrides that choose the cohort.
        folder: where its results go.
    """

    encoder: Any
    cohort: dict[str, Any]
    folder: Path

    @property
    def name(self) -> str:
        """Folder name of the cell."""
        return self.folder.name


def read_study(options: RunOptions) -> Study:
    """The study that the options name: a file of configs/studies, or lists of encoders and cohorts.

    Raises:
        UserError: an unknown key, or nothing to study.
    """
    content: dict[str, Any] = {}
    if options.study is not None:
        from ..utils.names import check_keys, unknown
        from ..utils.resources import resource

        path = options.study
        if not isinstance(path, Path):
            shipped = {p.stem: p for p in resource("configs", "studies").glob("*.yaml")}
            if str(path) not in shipped:
                raise unknown("study", str(path), shipped)
            path = shipped[str(path)]
        content = read_yaml(path)
        check_keys(content, STUDY_KEYS, str(path))
    encoders = options.encoders or tuple(content.get("encoders") or ()) or (options.encoder,)
    cohorts = options.cohorts or tuple(content.get("cohorts") or ()) or (None,)
    return Study(
        name=str(content.get("name", "study")),
        encoders=tuple(name_or_card("encoders", encoder) for encoder in encoders),
        cohorts=tuple(_cohort_overrides(cohort) for cohort in cohorts),
        options=dict(content.get("options") or {}),
        ablations=tuple(options.ablations or content.get("ablations") or ()),
    )


def study_cells(study: Study, output_dir: Path) -> list[StudyCell]:
    """The cells, cohort by cohort.

    Raises:
        UserError: two cells would share a folder.
    """
    cells = []
    for cohort in study.cohorts:
        for encoder in study.encoders:
            parts = [str(cohort.get("label") or cohort.get("cohort", "cohort")), _name(encoder)]
            name = "--".join(re.sub(r"[^A-Za-z0-9._-]", "_", part) for part in parts)
            overrides = {key: value for key, value in cohort.items() if key != "label"}
            cells.append(StudyCell(encoder, overrides, output_dir / "cells" / name))
    names = [cell.name for cell in cells]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two cells of the study are called {name}: give one of the cohorts a `label`.")
    return cells


@told_briefly
def run_study(options: RunOptions, output_dir: Path) -> list[dict[str, Any]]:
    """Run what is missing of a study and compare its encoders on each cohort.

    Args:
        options: of the run that asked for it.
        output_dir: results of each cohort go here, or into a folder a cohort where there are several.

    Returns:
        one document of results.json a cohort.

    Raises:
        SystemExit: the study or a part of it cannot be run.
    """
    study = read_study(options)
    claim(output_dir)
    cells = study_cells(study, output_dir)
    runner = CellRunner(running_workflow(), study, options, output_dir)
    tell(f"study {study.name}: {len(study.encoders)} encoders × {len(study.cohorts)} cohorts")
    contexts = {cell.name: runner.encode(cell) for cell in cells}
    for cohort in study.cohorts:
        runner.score_shared(_members(cells, cohort), contexts)
    go_on_alone()
    documents = []
    for cohort in study.cohorts:
        members = _members(cells, cohort)
        left_out = runner.common_images([contexts[cell.name] for cell in members])
        results = [runner.score(cell, contexts[cell.name], left_out) for cell in members]
        folder = output_dir if len(study.cohorts) == 1 else output_dir / _folder(cohort)
        changed = run_ablations(study.ablations, members, results, runner.variant)
        scored = {cell.encoder: contexts[member.name] for cell, member in zip(results, members, strict=True)}
        documents.append(write_comparison(results, folder, scored, options, runner.pool, changed))
    return documents


class CellRunner:
    """Runs the parts of a study's cells by parsing the running config again.

    Args:
        workflow: the running bundle workflow.
        study: the study.
        options: of the run that asked for it.
        output_dir: the study's folder.
    """

    def __init__(self, workflow: Any, study: Study, options: RunOptions, output_dir: Path) -> None:
        self.config = copy.deepcopy(workflow.parser.config)
        self.meta_file = workflow.meta_file
        self.study = study
        self.options = options
        self.output_dir = output_dir
        cache = CanonicalCache(options.cache_mb << 20, options.cache_disk_mb << 20)
        self.pool = CachedPool(open_pool(options), cache)

    def encode(self, cell: StudyCell) -> RunContext:
        """Encode what the cell's features lack; gives its context, without the encoder in memory."""
        workflow = self._workflow(cell, "encode", {})
        workflow.run()
        context: RunContext = workflow.parser.get_parsed_content("context")
        del workflow
        gc.collect()
        stored = int(context.features()[1].sum())
        tell(f"  {cell.name}: {stored} of {len(context.cohort)} images have features")
        return context

    def score(self, cell: StudyCell, context: RunContext, left_out: Sequence[str]) -> CellResults:
        """The cell's results, run only when they are not those of the present features and options."""
        done = self._done(cell, context, left_out)
        if done is not None:
            print(f"  {cell.name}: results are there", flush=True)
            return done
        print(f"  {cell.name}: scoring", flush=True)
        workflow = self._workflow(cell, "score", self._score_overrides(cell, left_out))
        scored: RunContext = workflow.parser.get_parsed_content("context")
        for name in ("seconds", "bottleneck", "chosen", "counts"):  # what encoding took belongs into the results too
            getattr(scored, name).update(getattr(context, name))
        workflow.run()
        gc.collect()
        atomic_write(cell.folder / MARKER, json.dumps(self._stamp(context, left_out), indent=1, sort_keys=True) + "\n")
        return read_cell(cell.folder)

    def score_shared(self, cells: Sequence[StudyCell], contexts: Mapping[str, RunContext]) -> None:
        """Score the groups of one cohort's cells on all processes; on one process nothing.

        The first process says which cells are without results and which images are left out of all of them.
        """
        here = processes()
        if here.world_size == 1:
            return
        todo: dict[str, Any] = {}
        if here.first:
            left_out = self.common_images([contexts[cell.name] for cell in cells])
            todo = {"left_out": left_out, "cells": []}
            todo["cells"] = [c.name for c in cells if self._done(c, contexts[c.name], left_out) is None]
        told = json.loads(here.share("cells", json.dumps(todo).encode()))
        for cell in cells:
            if cell.name in told["cells"]:
                tell(f"  {cell.name}: scoring groups")
                self._workflow(cell, "score_groups", self._score_overrides(cell, told["left_out"])).run()
                gc.collect()

    def _done(self, cell: StudyCell, context: RunContext, left_out: Sequence[str]) -> CellResults | None:
        """The cell's results, if they are there and those of the present features and options."""
        marker = cell.folder / MARKER
        if marker.is_file() and (cell.folder / FILE).is_file():
            try:
                if json.loads(marker.read_text(encoding="utf-8")) == self._stamp(context, left_out):
                    return read_cell(cell.folder)
            except (ValueError, UserError):
                logger.warning("%s: results cannot be read and are made again", cell.folder)
        return None

    def _score_overrides(self, cell: StudyCell, left_out: Sequence[str]) -> dict[str, Any]:
        """What a cell's score has besides its options; every process writes the same list of images."""
        overrides: dict[str, Any] = {"write_report": False}
        if left_out:
            path = cell.folder / "left_out.txt"
            atomic_write(path, "\n".join(left_out) + "\n")
            overrides["leave_out"] = str(path)
        return overrides

    def variant(self, cell: StudyCell, name: str, overrides: dict[str, Any]) -> CellResults:
        """The cell scored (and encoded where needed) with other options, in a folder of its own."""
        folder = cell.folder.parent.parent / "ablations" / f"{cell.name}--{name}"
        changed = dataclasses.replace(cell, folder=folder)
        marker = folder / MARKER
        stamp = {"overrides": json.loads(json.dumps(overrides, default=str)), "config": self._digest(cell)}
        if marker.is_file() and json.loads(marker.read_text(encoding="utf-8")) == stamp:
            return read_cell(folder)
        slim = {"write_report": False, "probe": False, "retention": False, **overrides}
        self._workflow(changed, "encode", slim).run()
        self._workflow(changed, "score", slim).run()
        gc.collect()
        atomic_write(marker, json.dumps(stamp, indent=1, sort_keys=True) + "\n")
        return read_cell(folder)

    def common_images(self, contexts: Sequence[RunContext]) -> list[str]:
        """Images that some encoder has no feature of, sorted: they are left out for all."""
        present = [context.features()[1] for context in contexts]
        labelled = contexts[0].labelled()
        failed = labelled & ~np.logical_and.reduce(present)
        kept = labelled & np.logical_or.reduce(present)
        ids = np.array(contexts[0].image_ids, dtype=str)
        return sorted(ids[failed & kept].tolist())

    def _workflow(self, cell: StudyCell, run_id: str, overrides: dict[str, Any]) -> Any:
        from monai.bundle import ConfigWorkflow

        config = copy.deepcopy(self.config)
        config.pop("_meta_", None)
        config.update(dict.fromkeys(_NOT_INHERITED))
        config.update(
            {
                "run_ids": [run_id],
                "encoder": str(cell.encoder) if isinstance(cell.encoder, Path) else cell.encoder,
                "output_dir": str(cell.folder),
                "feature_dir": str(self.options.feature_dir or self.output_dir / "features"),
                **self.study.options,
                **cell.cohort,
                **overrides,
            }
        )
        if config.get("dataset_dir") is None and config["cohort"] == CALIBRATION:
            config["dataset_dir"] = str(self.output_dir / CALIBRATION)
        path = cell.folder / "config.json"
        atomic_write(path, json.dumps(config, indent=1, default=str) + "\n")
        workflow = ConfigWorkflow(
            config_file=str(path), meta_file=self.meta_file, logging_file=False, run_id=run_id, workflow_type=None
        )
        if all(config[name] == self.config[name] for name in DECODED_BY):
            workflow.parser["decode_pool"] = self.pool  # each image is decoded once for all encoders
        workflow.initialize()
        return workflow

    def _stamp(self, context: RunContext, left_out: Sequence[str]) -> dict[str, Any]:
        """What a cell's results depend on."""
        options = {k: v for k, v in {**recorded(self.options), **context.options}.items() if k not in _OWN}
        return json.loads(
            json.dumps(
                {
                    "cohort": context.cohort.fingerprint(),
                    "encoder": context.encoder.get("fingerprint"),
                    "images": int(context.features()[1].sum()),
                    "left_out": list(left_out),
                    "options": options,
                },
                default=str,
                sort_keys=True,
            )
        )

    def _digest(self, cell: StudyCell) -> dict[str, Any]:
        return {"encoder": str(cell.encoder), "cohort": {k: str(v) for k, v in cell.cohort.items()}}


# Options that do not change a cell's numbers.
_OWN = (
    *("output_dir", "feature_dir", "dataset_dir", "progress", "encoder", "cohort"),
    *("write_report", "report_images", "report_examples", *_NOT_INHERITED, "leave_out"),
)


def write_comparison(
    cells: Sequence[CellResults],
    folder: Path,
    contexts: Mapping[str, RunContext],
    options: RunOptions,
    pool: Any,
    ablations: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Compare cells of one cohort and write everything: results, tables, figures and the report.

    Args:
        cells: one an encoder.
        folder: where the files go.
        contexts: by encoder name: where its features are.
        options: of the run that asked for it.
        pool: decodes the report's pictures.
        ablations: rows of ablations.csv.

    Returns:
        the document of results.json.
    """
    document = merged(cells, compare(cells, probe_table(cells)))
    if options.probe:
        document |= head_tables(cells, contexts, options, document["warnings"], folder / "tables")
    for name in ("probe", "retention"):
        rows = [row for cell in cells for row in cell.results.get(name) or ()]
        if rows:
            document[name] = rows
    if ablations:
        document["ablations"] = list(ablations)
    queries = pd.concat([cell.queries for cell in cells], ignore_index=True)
    candidates = pd.read_parquet(cells[0].folder / "candidates.parquet")
    rejected = pd.read_csv(cells[0].folder / "rejected.csv", dtype=str, keep_default_na=False).map(plain_text)
    write_parquet(folder / "queries.parquet", queries)
    write_parquet(folder / "candidates.parquet", candidates)
    write_csv(folder / "rejected.csv", rejected, REJECTED_COLUMNS)
    for name in TABLES:
        if document.get(name):
            write_csv(folder / f"{name}.csv", document[name], columns_of(document[name]))
    write_results(folder / "results.json", document)
    write_figures(folder / "figures", document)
    write_paper_tables(folder / "tables", document)
    if options.write_report:
        one = ReportHandler(next(iter(contexts.values())), pool)
        features = {name: ReportHandler(context).features() for name, context in contexts.items()}
        write_report(
            folder / "report.html",
            document,
            queries,
            candidates,
            rejected,
            one.thumbnails(),
            images=options.report_images and one.context.cohort.features is None,
            features=lambda name, image_ids: features[name](name, image_ids),
            examples=options.report_examples,
        )
    print(ranking_text(document["ranking"]), flush=True)
    print(f"Results: {folder}", flush=True)
    return document


def head_tables(
    cells: Sequence[CellResults],
    contexts: Mapping[str, RunContext],
    options: RunOptions,
    warnings: list[str],
    folder: Path,
) -> dict[str, list[dict[str, Any]]]:
    """Tables of the heads' errors, of rules over several heads, of error detection, and of trends.

    Args:
        cells: one an encoder.
        contexts: by encoder name.
        options: of the run.
        warnings: what a reader must know is added here; so is why there are no tables.
        folder: where the table of error detection goes as Markdown, LaTeX and CSV (r and confidence of Table 3).
    """
    first = contexts[cells[0].encoder]
    _, present = first.features()
    rows = np.flatnonzero(present)
    observations = scored_observations(first).take(rows)
    split = publishers_split_of(first.cohort)
    features = {name: (lambda c=context: c.features()[0][rows]) for name, context in contexts.items()}
    asked = HeadStudyOptions(probe=probe_options(options), measure=options.measure, margin=False)
    try:
        found = run_head_study(features, observations, split and [split[row] for row in rows.tolist()], asked)
    except EmptyPart as reason:
        warnings.append(f"no tables of head errors: {reason}")
        return {}
    warnings.extend(text for text in found.warnings if text not in warnings)
    detection = next(table for table in found.tables if table.name == "table_3")
    write_tables([dataclasses.replace(detection, name="error_detection")], folder, found.warnings)
    by_encoder = {cell.encoder: cell.rows for cell in cells}
    cards = {cell.encoder: cell.results["encoders"][0] for cell in cells}
    trends = trend_rows(found.probe, by_encoder, cards, {}, observations.task)
    kept = {name: rows for name, rows in found.results().items() if name in HEAD_TABLES and rows}
    return {**kept, "trends": trends}


def probe_table(cells: Sequence[CellResults]) -> pd.DataFrame | None:
    """Heads' AUROC and LogME by encoder and finding, where heads were trained."""
    rows = [
        {
            "encoder": cell.encoder,
            "finding": row["finding"],
            "head_auroc": np.nan if row.get("auroc") is None else row["auroc"],
            "logme": np.nan if row.get("logme") is None else row["logme"],
        }
        for cell in cells
        for row in cell.results.get("probe") or ()
        if row["level"] == "finding"
    ]
    return pd.DataFrame(rows) if rows else None


def ranking_text(ranking: Sequence[dict[str, Any]]) -> str:
    """The ranking of the task, or of the findings where the task has no pooled value, for the terminal."""
    rows = [row for row in ranking if row["finding"] is None]
    if not any(row["D"] is not None for row in rows):
        rows = [row for row in ranking if row["finding"] is not None]
    lines = []
    for row in rows:
        what = f"{row['finding']}: " if row["finding"] else ""
        if row["D"] is None:
            lines.append(f"  -  {what}{row['encoder']}: {row['reason']}")
            continue
        best = {True: ", not worse than the best", False: "", None: ""}[row["not_worse_than_best"]]
        p = "" if row["p_best"] is None else f", p = {row['p_best']:.4f} against as many blind encoders"
        lines.append(f"  {row['rank']}. {what}{row['encoder']}: D = {row['D']:.3f}{best}{p}")
    return "\n".join(lines)


def _cohort_overrides(cohort: Any) -> dict[str, Any]:
    if cohort is None:
        return {}
    if isinstance(cohort, dict) and "cohort" in cohort:
        return dict(cohort)
    card = name_or_card("cohorts", cohort)
    return {"cohort": str(card) if isinstance(card, Path) else card}


def _members(cells: Sequence[StudyCell], cohort: Mapping[str, Any]) -> list[StudyCell]:
    """The cells of a cohort."""
    return [cell for cell in cells if cell.cohort == {k: v for k, v in cohort.items() if k != "label"}]


def _folder(cohort: dict[str, Any]) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", str(cohort.get("label") or cohort.get("cohort", "cohort")))


def _name(encoder: Any) -> str:
    if isinstance(encoder, dict):
        return str(encoder.get("name", "encoder"))
    return encoder.stem if isinstance(encoder, Path) else str(encoder)
