"""Scoring by group: whichever process is free takes the next portion of groups, and leaves its results in a file.

Nothing about a group depends on the others that are scored beside it, so the numbers are those of one process to the
last bit. Files that a killed run left are taken up by the next one, on any number of processes.
"""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..data.feature_store import FeatureStore
from ..handlers.engine_data import present_features
from ..handlers.run_context import RunContext
from ..handlers.scored_files import FOLDER, evaluation_digest, forget_scored, read_scored, write_scored
from ..metrics.evaluation import Clock, Evaluation, evaluation_plan, put_together, score_groups
from ..metrics.observations import Observations
from ..metrics.options import Options
from ..metrics.permutation import cohort_exchange
from ..metrics.similarity import FeatureRows
from ..utils.errors import UserError
from ..utils.told import told_briefly
from .distributed import processes, until_visible
from .portions import group_costs, portions

logger = logging.getLogger(__name__)

Features = Callable[[], tuple[np.ndarray, np.ndarray]]


class GroupScorer:
    """Scores an evaluation group by group, keeping what is done: the ``scorer`` of a ``CandorHandler``.

    Args:
        folder: where results of groups are kept until the evaluation's are written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, features: np.ndarray, observations: Observations, options: Options) -> Evaluation:
        """The evaluation; groups that are scored already are read.

        Raises:
            ValueError: as :func:`~candor_monai.metrics.evaluation.evaluate`.
            UserError: the folder cannot be written.
        """
        return _Work(self.folder, features, observations, options).evaluation()


def group_scorer(context: RunContext) -> GroupScorer:
    """The scorer of a run, whose files lie beside its results."""
    return GroupScorer(context.output_dir / FOLDER)


@told_briefly
def share_features(context: RunContext) -> None:
    """Let every process see the shards that the first one sees, before the cohort is scored by all of them.

    Raises:
        SystemExit: a file that another process has written cannot be seen.
    """
    if processes().world_size == 1 or not isinstance(context.store, FeatureStore):
        return
    folder = context.store.folder
    here = sorted(path.name for path in folder.glob("*.arrow"))
    names = json.loads(processes().share("shards", json.dumps(here).encode()))
    until_visible(folder, set(names), "Name it with --feature_dir.")
    context.store.refresh()


@told_briefly
def score_shared(context: RunContext, observations: Observations, options: Options, features: Features) -> None:
    """Score the groups on all processes; the first one then finds every group's file. On one process: nothing.

    A process that has nothing left to do goes on; the first one waits until all have scored, and for nothing else.

    Args:
        context: the run.
        observations: the cohort's images.
        options: of the measure.
        features: gives features and which images have one.

    Raises:
        SystemExit: the processes see different data, or a folder cannot be written.
    """
    here = processes()
    if here.world_size == 1:
        return
    with here.first_before_others("matrix"):  # a large matrix is mapped from a file that the first one makes
        matrix, rows = present_features(features)
    work = _Work(context.output_dir / FOLDER, matrix, observations.take(rows), options)
    names = [json.loads(told) for told in here.collect("scored", json.dumps(work.score()).encode())]
    if here.first:
        until_visible(work.folder, {name for told in names for name in told}, "Name it with --output_dir.")


class _Work:
    """An evaluation in portions."""

    def __init__(self, folder: Path, features: np.ndarray, observations: Observations, options: Options) -> None:
        self.folder, self.observations, self.options = folder, observations, options
        self.clock = Clock()
        with self.clock("check"):
            self.rows = FeatureRows(features)
            if len(self.rows) != len(observations):
                raise ValueError(f"features has {len(self.rows)} rows, observations {len(observations)}")
            self.digest = evaluation_digest(features, observations, options)
        with self.clock("draw"):
            self.plan = evaluation_plan(observations, options)

    @cached_property
    def exchange(self) -> Any:
        """Exchanges of the permutation test, the same for all groups."""
        return cohort_exchange(self.observations, self.options)

    def score(self) -> list[str]:
        """Score the groups that are not, as far as no other process does; gives the names of the files written."""
        here = processes()
        todo = self._missing() if here.first else []
        told = json.loads(here.share("portions", json.dumps({"digest": self.digest, "portions": todo}).encode()))
        if told["digest"] != self.digest:
            raise UserError(
                f"process {here.rank} finds other features or labels than the first process: every machine must see "
                "the same dataset folder, tables and feature store, and run the same versions."
            )
        written = []
        for number in here.deal("portion", len(told["portions"])):
            groups = told["portions"][number]
            logger.info("scoring portion %d of %d: %d groups", number + 1, len(told["portions"]), len(groups))
            exchange = self.exchange if self.options.permutation_test and self.options.permutations else None
            scored = score_groups(self.rows, self.observations, self.options, self.plan, groups, exchange)
            try:
                written.append(write_scored(self.folder, self.digest, groups, scored).name)
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                why = "the disk is full" if full else error.strerror
                raise UserError(
                    f"results of groups cannot be written into {self.folder}: {why}. What is written stays; make room "
                    "or name another --output_dir, and run again."
                ) from error
        return written

    def evaluation(self) -> Evaluation:
        """All groups together; those that no file holds are scored now."""
        parts, done = read_scored(self.folder, self.digest)
        if not done.issuperset(self.plan.groups):
            self.score()
            parts, _ = read_scored(self.folder, self.digest)
        return put_together(self.observations, self.options, self.plan, parts, self.clock)

    def _missing(self) -> list[list[str]]:
        forget_scored(self.folder, but=self.digest)
        _, done = read_scored(self.folder, self.digest)
        costs = group_costs(self.plan, self.options, self.rows.array.shape[1])
        if done:
            logger.info("%d of %d groups are scored already", len(done), len(costs))
        return portions({name: cost for name, cost in costs.items() if name not in done}, processes().world_size)
