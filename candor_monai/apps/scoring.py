"""Scoring by group: whichever process is free takes the next portion of groups, and leaves its results in a file.

Nothing about a group depends on the others that are scored beside it, so the numbers are those of one process to the
last bit. Files that a killed run left are taken up by the next one, on any number of processes. Several evaluations of
the same images (a study's ablations) have each group scored once for all of them, into files of each.
"""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..data.feature_store import FeatureStore
from ..handlers.engine_data import present_features
from ..handlers.run_context import RunContext
from ..handlers.scored_files import (
    FOLDER,
    evaluation_digest,
    forget_scored,
    images_digest,
    read_scored,
    write_scored,
)
from ..metrics.draw import RowSets
from ..metrics.evaluation import Clock, Evaluation, Portion, Scored, evaluation_plan, put_together, score_together
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
        clock = Clock()
        with clock("check"):
            images = _Images(features, observations)
        return _Work(self.folder, images, options, clock).evaluation()


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
    work = _Work(context.output_dir / FOLDER, _Images(matrix, observations.take(rows)), options, Clock())
    names = [json.loads(told) for told in here.collect("scored", json.dumps(_score([work])).encode())]
    if here.first:
        until_visible(work.folder, {name for told in names for name in told}, "Name it with --output_dir.")


def score_variants(folders: Mapping[Path, Options], features: np.ndarray, observations: Observations) -> None:
    """Score several evaluations of the same images, each group once for all of them.

    Each leaves its groups' files in its own output folder, where its own run finds them. What is there already is not
    scored again. Options that these images cannot be measured under are passed over: their own run tells why.

    Args:
        folders: output folder of each evaluation, and its options.
        features: of the images, shape (N, d), float32.
        observations: the N images.

    Raises:
        UserError: a folder cannot be written.
    """
    images = _Images(features, observations)
    works = []
    for folder, options in folders.items():
        try:
            works.append(_Work(folder / FOLDER, images, options, Clock()))
        except ValueError as error:
            logger.info("%s: %s", folder.name, error)
    _score(works)


class _Images:
    """What is measured, checked once for all evaluations of it.

    Raises:
        ValueError: a feature is NaN, infinite or all zero, or there are not as many as observations.
    """

    def __init__(self, features: np.ndarray, observations: Observations) -> None:
        self.observations = observations
        self.rows = FeatureRows(features)
        if len(self.rows) != len(observations):
            raise ValueError(f"features has {len(self.rows)} rows, observations {len(observations)}")
        self.digest = images_digest(features, observations)
        self.row_sets: RowSets = {}  # of the draws of all evaluations


class _Work:
    """An evaluation in portions."""

    def __init__(self, folder: Path, images: _Images, options: Options, clock: Clock) -> None:
        self.folder, self.images, self.options, self.clock = folder, images, options, clock
        self.digest = evaluation_digest(images.digest, options)
        with clock("draw"):
            self.plan = evaluation_plan(images.observations, options, images.row_sets)

    @cached_property
    def exchange(self) -> Any:
        """Exchanges of the permutation test, the same for all groups."""
        return cohort_exchange(self.images.observations, self.options)

    def portion(self, groups: Sequence[str]) -> Portion:
        """Some groups, as they are scored."""
        exchange = self.exchange if self.options.permutation_test and self.options.permutations else None
        return Portion(self.options, self.plan, groups, exchange)

    def missing(self) -> dict[str, float]:
        """The groups that no file holds, and about what each costs."""
        forget_scored(self.folder, but=self.digest)
        _, done = read_scored(self.folder, self.digest)
        costs = group_costs(self.plan, self.options, self.images.rows.array.shape[1])
        if done:
            logger.info("%d of %d groups are scored already", len(done), len(costs))
        return {name: cost for name, cost in costs.items() if name not in done}

    def write(self, groups: Sequence[str], scored: Scored) -> str:
        """Keep scored groups; gives the file's name."""
        try:
            return write_scored(self.folder, self.digest, groups, scored).name
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            why = "the disk is full" if full else error.strerror
            raise UserError(
                f"results of groups cannot be written into {self.folder}: {why}. What is written stays; make room "
                "or name another --output_dir, and run again."
            ) from error

    def evaluation(self) -> Evaluation:
        """All groups together; those that no file holds are scored now."""
        parts, done = read_scored(self.folder, self.digest)
        if not done.issuperset(self.plan.groups):
            _score([self])
            parts, _ = read_scored(self.folder, self.digest)
        return put_together(self.images.observations, self.options, self.plan, parts, self.clock)


def _score(works: Sequence[_Work]) -> list[str]:
    """Score the groups that are not, as far as no other process does; gives the names of the files written.

    Args:
        works: evaluations of the same images.
    """
    here = processes()
    digests = [work.digest for work in works]
    todo = _portions(works) if here.first else []
    told = json.loads(here.share("portions", json.dumps({"digests": digests, "portions": todo}).encode()))
    if told["digests"] != digests:
        raise UserError(
            f"process {here.rank} finds other features or labels than the first process: every machine must see "
            "the same dataset folder, tables and feature store, and run the same versions."
        )
    written = []
    for number in here.deal("portion", len(told["portions"])):
        groups = told["portions"][number]
        logger.info("scoring portion %d of %d: %d groups", number + 1, len(told["portions"]), len(set().union(*groups)))
        some = [(work, names) for work, names in zip(works, groups, strict=True) if names]
        images = some[0][0].images
        found = score_together(images.rows, images.observations, [work.portion(names) for work, names in some])
        written += [work.write(names, scored) for (work, names), scored in zip(some, found, strict=True)]
    return written


def _portions(works: Sequence[_Work]) -> list[list[list[str]]]:
    """Portions of work: of each, the groups of every evaluation that are not scored."""
    missing = [work.missing() for work in works]
    costs: dict[str, float] = {}
    for name, cost in (item for found in missing for item in found.items()):
        costs[name] = costs.get(name, 0.0) + cost
    return [
        [[name for name in names if name in found] for found in missing]
        for names in portions(costs, processes().world_size)
    ]
