"""A study: several encoders on one or several cohorts, each cell the single-encoder bundle run, then compared.

A cell is the running config parsed again with ``encoder`` and ``cohort`` set, so that every override, handler and
tracker holds for it as for a single run. Only what is missing is computed: features lie in one store, and a cell whose
results were made from the same features, labels and options by the same version of this package is read, not run.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._version import __version__
from ..data.canonical_cache import CachedPool, CanonicalCache
from ..data.cohorts.cards import load_card
from ..data.feature_store import FeatureStore
from ..handlers.companion_files import FILE
from ..handlers.engine_data import present_features
from ..handlers.run_context import RunContext
from ..metrics.options import Options as MeasureOptions
from ..utils.atomic import atomic_write
from ..utils.errors import UserError
from ..utils.told import told_briefly
from .ablations import ABLATIONS, run_ablations
from .comparison import CellResults, read_cell
from .distributed import go_on_alone, processes, tell
from .opening import CALIBRATION, open_pool, recorded
from .options import RunOptions
from .running import claim
from .scoring import score_variants
from .study_file import NOT_INHERITED, Study, StudyCell, StudyCohort, encoder_name, read_study, safe, study_cells
from .study_plan import plan_study, speed_record, tell_plan
from .study_results import ranking_text, write_comparison, write_whole_study
from .study_tracking import track_study, tracked_to
from .workflow import running_workflow

logger = logging.getLogger(__name__)

# Keys that change how a file becomes a canonical image.
DECODED_BY = ("image_size", "decoding")
# Ablations that need features of their own change one of these.
FEATURES_BY = frozenset({"image_size", "feature_point"})
# What an ablation leaves away: its table holds D alone.
D_ALONE = dict.fromkeys(("write_report", "probe", "retention", "margin", "total_interval", "permutation_test"), False)
MARKER = "cell.json"
# Options that do not change a cell's numbers.
_OWN = (
    *("output_dir", "feature_dir", "dataset_dir", "progress", "encoder", "cohort"),
    *("write_report", "report_images", "report_examples", *NOT_INHERITED, "leave_out"),
)


@contextmanager
def _collecting_what_is_new() -> Iterator[None]:
    """Collections between cells look at what the cells made: the imported libraries alone would take half a second."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@told_briefly
@_collecting_what_is_new()
def run_study(options: RunOptions, output_dir: Path) -> list[dict[str, Any]]:
    """Run what is missing of a study and compare its encoders on each cohort; what will be run is told first.

    Args:
        options: of the run that asked for it.
        output_dir: results of the study go here; those of a cohort in a folder of its label where there are several.

    Returns:
        one document of results.json a cohort.

    Raises:
        SystemExit: the study or a part of it cannot be run.
    """
    study = read_study(options)
    claim(output_dir)
    cells = study_cells(study, output_dir)
    workflow = running_workflow()
    tracked = tracked_to(workflow)
    runner = CellRunner(workflow, study, options, output_dir)
    runner.config.update(tracked or {})  # a cell's run goes where the study's goes
    opened = [[runner.open(cell) for cell in members] for members in cells]
    seen: set[tuple[Path, str]] = set()
    planned = [
        runner.planned(own, cohort, seen)
        for cohort, members in zip(study.cohorts, opened, strict=True)
        for own in members
    ]
    tell(tell_plan(study.name, plan_study(planned, output_dir)))
    contexts = [[runner.encode(own) for own in members] for members in opened]
    for members, parts in zip(cells, contexts, strict=True):
        runner.score_shared(members, parts)
    go_on_alone()
    found = []
    for cohort, members, parts, own in zip(study.cohorts, cells, contexts, opened, strict=True):
        left_out = runner.common_images(parts)
        results = [runner.score(cell, context, left_out) for cell, context in zip(members, parts, strict=True)]
        folder = output_dir if len(study.cohorts) == 1 else output_dir / safe(cohort.label)
        changed = run_ablations(cohort.ablations, members, results, runner.variant, runner.score_variants)
        scored = {result.encoder: context for result, context in zip(results, parts, strict=True)}
        found.append(write_comparison(cohort.label, results, folder, scored, own[0].options, runner.pool, changed))
        tell(ranking_text(found[-1].document["ranking"]))
        tell(f"Results: {folder}")
    if len(found) > 1:
        write_whole_study(found, output_dir, runner.pool)
        tell(f"Results of all cohorts: {output_dir}")
    if tracked is not None:
        encoders = [encoder_name(encoder) for encoder in study.encoders]
        track_study(tracked, study.name, encoders, [cohort.label for cohort in study.cohorts], output_dir)
    return [part.document for part in found]


@dataclass(frozen=True)
class OpenedCell:
    """A cell before its work.

    Args:
        cell: the cell.
        context, options: as its own run has them.
        images, views: images and occluded views without a feature.
    """

    cell: StudyCell
    context: RunContext
    options: RunOptions
    images: int
    views: int


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

    def open(self, cell: StudyCell) -> OpenedCell:
        """The cell before any work: all that it needs is there, or it is told now; no encoder stays in memory."""
        workflow = self._workflow(cell, "encode", {})
        parsed = workflow.parser.get_parsed_content
        parsed("embedding::dataloader")  # counts what the store lacks, the same on every process
        views = parsed("occlusion::dataloader")
        context: RunContext = parsed("context")
        missing = 0 if isinstance(views, list) else int(views.records.missing.sum())
        opened = OpenedCell(cell, context, parsed("options"), context.counts.get("images_encoded", 0), missing)
        del workflow, parsed, views
        gc.collect()
        return opened

    def planned(self, opened: OpenedCell, cohort: StudyCohort, seen: set[tuple[Path, str]]) -> dict[str, Any]:
        """What there is to do for a cell, as :func:`~.study_plan.plan_study` takes it.

        Args:
            opened: the cell.
            cohort: of the study.
            seen: (store, image) of the cells before, which will have been encoded by then; this cell's are added.
        """
        cell, context = opened.cell, opened.context
        missing: set[tuple[Path, str]] = set()
        if opened.images and isinstance(context.store, FeatureStore):
            folder = context.store.folder
            missing = {(folder, i) for i in context.store.missing(context.image_ids, context.sources)} - seen
            seen |= missing
        main = _read_stamp(cell.folder)
        current = main is not None and not opened.images and main == self._stamp(context, main.get("left_out", ()))
        current = current and context.left_out <= set((main or {}).get("left_out", ()))
        there = [self._variant(cell, name, ABLATIONS[name], main) for name in cohort.ablations] if current else []
        return {
            "name": cell.name,
            "encoder": context.encoder["name"],
            "cohort": safe(cohort.label),
            "images": len(context.cohort),
            "to_encode": len(missing),
            "views": opened.views,
            "scored": current,
            "ablations": (len(cohort.ablations), sum(_read_stamp(folder) == stamp for folder, stamp in there)),
        }

    def encode(self, opened: OpenedCell) -> RunContext:
        """Encode what the cell's features lack; gives its context, without the encoder in memory."""
        cell, context = opened.cell, opened.context
        if opened.images or opened.views:
            workflow = self._workflow(cell, "encode", {})
            workflow.run()
            context = workflow.parser.get_parsed_content("context")
            del workflow
            gc.collect()
            speed_record(cell.folder, context.counts.get("images_encoded", 0), context.seconds.get("encode", 0.0))
        stored = int(context.present().sum())
        tell(f"  {cell.name}: {stored} of {len(context.cohort)} images have features")
        return context

    def score(self, cell: StudyCell, context: RunContext, left_out: Sequence[str]) -> CellResults:
        """The cell's results, run only when they are not those of the present features and options."""
        stamp = self._stamp(context, left_out)
        found = _done(cell.folder, stamp)
        if found is not None:
            tell(f"  {cell.name}: results are there")
            return found
        tell(f"  {cell.name}: scoring")
        _forget(cell.folder)
        workflow = self._workflow(cell, "score", _score_overrides(cell, left_out))
        scored: RunContext = workflow.parser.get_parsed_content("context")
        for name in ("seconds", "bottleneck", "chosen", "counts"):  # what encoding took belongs into the results too
            getattr(scored, name).update(getattr(context, name))
        workflow.run()
        return self._finished(cell.folder, stamp)

    def score_shared(self, cells: Sequence[StudyCell], contexts: Sequence[RunContext]) -> None:
        """Score the groups of one cohort's cells on all processes; on one process nothing.

        The first process says which cells are without results and which images are left out of all of them.
        """
        here = processes()
        if here.world_size == 1:
            return
        todo: dict[str, Any] = {}
        if here.first:
            left_out = self.common_images(contexts)
            missing = [
                cell.name
                for cell, context in zip(cells, contexts, strict=True)
                if _done(cell.folder, self._stamp(context, left_out)) is None
            ]
            todo = {"left_out": left_out, "cells": missing}
        told = json.loads(here.share("cells", json.dumps(todo).encode()))
        for cell in cells:
            if cell.name in told["cells"]:
                tell(f"  {cell.name}: scoring groups")
                self._workflow(cell, "score_groups", _score_overrides(cell, told["left_out"])).run()
                gc.collect()

    def score_variants(self, cell: StudyCell, variants: Mapping[str, Mapping[str, Any]]) -> None:
        """Score the groups of a cell's ablations that use its features and are not there: each group once for all.

        Their own runs find the groups scored. Where this cannot be done, each of them scores its own, and tells what
        is wrong.

        Args:
            cell: the cell, whose own results come first.
            variants: overrides of each ablation by its name.
        """
        main = _read_stamp(cell.folder) or {}
        todo = {}
        for name, overrides in variants.items():
            folder, stamp = self._variant(cell, name, overrides, main)
            if FEATURES_BY.isdisjoint(overrides) and _read_stamp(folder) != stamp:
                todo[folder] = overrides
        if len(todo) < 2:
            return
        tell(f"  {cell.name}: scoring {len(todo)} ablations together")
        try:
            self._score_together(dataclasses.replace(cell, folder=next(iter(todo))), todo, main.get("left_out", ()))
        except SystemExit as refused:
            logger.warning("%s: ablations are scored one by one: %s", cell.name, refused)
        gc.collect()

    @told_briefly
    def _score_together(self, cell: StudyCell, todo: Mapping[Path, Mapping[str, Any]], left_out: Sequence[str]) -> None:
        """Score ablations, by their folders, on the features and labels of a cell in the folder of one of them."""
        workflow = self._workflow(cell, "score_groups", {**D_ALONE, **_leave_out(cell.folder, left_out)})
        parsed = workflow.parser.get_parsed_content
        features, rows = present_features(parsed("stored_features"))
        options = parsed("measure_options")
        measured = {folder: _changed(options, overrides) for folder, overrides in todo.items()}
        possible = {folder: changed for folder, changed in measured.items() if changed is not None}
        score_variants(possible, features, parsed("observations").take(rows))

    def variant(self, cell: StudyCell, name: str, overrides: dict[str, Any]) -> CellResults:
        """The cell's D (and features where needed) with other options, in a folder of its own.

        It depends on all that the cell's own results depend on, which come first.
        """
        main = _read_stamp(cell.folder) or {}
        folder, stamp = self._variant(cell, name, overrides, main)
        found = _done(folder, stamp)
        if found is not None:
            return found
        _forget(folder)
        changed = dataclasses.replace(cell, folder=folder)
        if not FEATURES_BY.isdisjoint(overrides):
            self._workflow(changed, "encode", {**D_ALONE, **overrides}).run()
        left_out = _leave_out(folder, main.get("left_out", ()))
        self._workflow(changed, "score", {**D_ALONE, **overrides, **left_out}).run()
        return self._finished(folder, stamp)

    def _variant(
        self, cell: StudyCell, name: str, overrides: Mapping[str, Any], main: Any
    ) -> tuple[Path, dict[str, Any]]:
        """Folder and stamp of a cell's ablation."""
        folder = cell.folder.parent.parent / "ablations" / f"{cell.name}--{name}"
        return folder, json.loads(json.dumps({"main": main, "overrides": overrides}, default=str))

    def _finished(self, folder: Path, stamp: dict[str, Any]) -> CellResults:
        gc.collect()
        atomic_write(folder / MARKER, json.dumps(stamp, indent=1, sort_keys=True) + "\n")
        return read_cell(folder)

    def common_images(self, contexts: Sequence[RunContext]) -> list[str]:
        """Images that some encoder has no feature of, and those of the user's own list, sorted: left out for all."""
        present = [context.present() for context in contexts]
        labelled = contexts[0].labelled()
        failed = labelled & ~np.logical_and.reduce(present)
        kept = labelled & np.logical_or.reduce(present)
        ids = np.array(contexts[0].image_ids, dtype=str)
        return sorted({*ids[failed & kept].tolist(), *(i for context in contexts for i in context.left_out)})

    def _workflow(self, cell: StudyCell, run_id: str, overrides: dict[str, Any]) -> Any:
        from monai.bundle import ConfigWorkflow

        config = copy.deepcopy(self.config)
        config.pop("_meta_", None)
        config.update(dict.fromkeys(NOT_INHERITED))
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
        if "dataset_dir" not in cell.cohort:
            config["dataset_dir"] = self._dataset_dir(config)
        path = cell.folder / "config.json"
        atomic_write(path, json.dumps(config, indent=1, default=str) + "\n")
        workflow = ConfigWorkflow(
            config_file=str(path), meta_file=self.meta_file, logging_file=False, run_id=run_id, workflow_type=None
        )
        if all(config[name] == self.config[name] for name in DECODED_BY):
            workflow.parser["decode_pool"] = self.pool  # each image is decoded once for all encoders
        workflow.initialize()
        return workflow

    def _dataset_dir(self, config: Mapping[str, Any]) -> str | None:
        """Where a cell's dataset lies that does not say so itself: in the folder of its name below the study's, if
        there is one. Calibration data are the study's own when no folder is named."""
        card, given = load_card(config["cohort"]), config.get("dataset_dir")
        if given is None:
            parts = config.get("cohort_options", {}).get("cohorts") or () if card.adapter == "pooled" else ()
            named = {part.get("cohort") if isinstance(part, dict) else part for part in parts}
            if named == {CALIBRATION}:
                return str(self.output_dir)
            return str(self.output_dir / CALIBRATION) if config["cohort"] == CALIBRATION else None
        own = Path(given) / card.name
        return str(own) if len(self.study.cohorts) > 1 and own.is_dir() else str(given)

    def _stamp(self, context: RunContext, left_out: Sequence[str]) -> dict[str, Any]:
        """What a cell's results depend on."""
        options = {k: v for k, v in {**recorded(self.options), **context.options}.items() if k not in _OWN}
        return json.loads(
            json.dumps(
                {
                    "cohort": context.cohort.fingerprint(),
                    "encoder": context.encoder.get("fingerprint"),
                    "features": context.features_digest(),
                    "version": __version__,
                    "left_out": list(left_out),
                    "options": options,
                },
                default=str,
                sort_keys=True,
            )
        )


def _changed(options: MeasureOptions, overrides: Mapping[str, Any]) -> MeasureOptions | None:
    """The measure's options with some changed; None where they cannot be, which the ablation's own run tells."""
    try:
        return dataclasses.replace(options, **overrides)
    except ValueError:
        return None


def _read_stamp(folder: Path) -> dict[str, Any] | None:
    """What a folder's results depend on, as :data:`MARKER` keeps it; None where it is missing or cannot be read."""
    try:
        stamp = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None


def _forget(folder: Path) -> None:
    """Before a folder's results are made again: they are nobody's until the run that makes them has ended."""
    (folder / MARKER).unlink(missing_ok=True)


def _done(folder: Path, stamp: Mapping[str, Any]) -> CellResults | None:
    """The results of a folder, if they were made from what the stamp says and can be read."""
    if _read_stamp(folder) != stamp or not (folder / FILE).is_file():
        return None
    try:
        return read_cell(folder)
    except UserError:
        logger.warning("%s: results cannot be read and are made again", folder)
        return None


def _score_overrides(cell: StudyCell, left_out: Sequence[str]) -> dict[str, Any]:
    """What a cell's score has besides its options; every process writes the same list of images."""
    return {"write_report": False, **_leave_out(cell.folder, left_out)}


def _leave_out(folder: Path, images: Sequence[str]) -> dict[str, str]:
    """The override that leaves images out, written to a file of the folder."""
    if not images:
        return {}
    path = folder / "left_out.txt"
    atomic_write(path, "\n".join(images) + "\n")
    return {"leave_out": str(path)}
