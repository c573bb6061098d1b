"""The whole measure of one encoder on one cohort: D and its companions per finding and group, and pooled."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from typing import Any

import numpy as np

from .cells import Cell
from .companions import Companions, cell_companions
from .draw import Draw, draw_key, draws
from .engine import GridPoint, margin_scores, score_group
from .keyed_hash import keyed_rank
from .margin import margin_bound
from .neighbours import Counts
from .observations import Observations
from .options import Options
from .patient_exchange import PatientExchange
from .similarity import FeatureRows
from .sweep import search
from .table import Part, all_parts, grid_rows


@dataclass
class Evaluation:
    """What was measured.

    Attributes:
        rows: a dict per finding × group, per finding, and for the task: the columns of ``discordance.csv``. Numbers
            that are not defined are None. A group without a labelled image of a finding that has some elsewhere has
            no row for it.
        queries: columns of ``queries.parquet``. ``patient`` holds patient ids as given: replace them by pseudonyms
            before they leave the process.
        candidates: columns of ``candidates.parquet``; the same holds.
        grid: a dict per finding × group × draw × k × n, where ``Options.ks`` or ``Options.sizes`` ask for them.
        cells: the arrays behind the rows.
        counts: pairs scored in low precision, settled in float64, and so on.
        seconds: wall time of each stage.
        parts: the rows with the replicates behind their intervals and tests, for paired comparisons of encoders.
        notes: what a reader must know (no patient ids, for example).
    """

    rows: list[dict[str, Any]]
    queries: dict[str, list[Any] | np.ndarray]
    candidates: dict[str, list[Any] | np.ndarray]
    grid: list[dict[str, Any]]
    cells: list[Cell]
    counts: dict[str, int]
    seconds: dict[str, float]
    parts: list[Part]
    notes: list[str] = field(default_factory=list)


def evaluate(features: Any, observations: Observations, options: Options | None = None) -> Evaluation:
    """Measure discordance.

    Args:
        features: shape (N, d), float32; an array, a memory map or a tensor. Row i belongs to ``observations`` row i.
        observations: the N images.
        options: None: the defaults.

    Returns:
        an :class:`Evaluation`. It depends on the features, the observations and the options only.

    Raises:
        ValueError: a row is NaN, infinite or all zero, shapes do not fit, or an option needs what is not there.

    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(80)[:, None] % 2
    >>> features = (rng.standard_normal((80, 16)) + 3 * labels).astype(np.float32)
    >>> seen = Observations([f"image{i}" for i in range(80)], labels, ["effusion"])
    >>> result = evaluate(features, seen, Options(permutation_test=False, total_interval=False))
    >>> result.rows[0]["finding"], result.rows[0]["n_candidates"], result.rows[0]["D"]
    ('effusion', 40, 0.0)
    """
    options = Options() if options is None else options
    clock = Clock()
    with clock("check"):
        rows = FeatureRows(features)
        if len(rows) != len(observations):
            raise ValueError(f"features has {len(rows)} rows, observations {len(observations)}")
    with clock("draw"):
        plan = evaluation_plan(observations, options)
    scored = score_groups(rows, observations, options, plan, plan.groups)
    return put_together(observations, options, plan, [scored], clock)


@dataclass(frozen=True)
class Plan:
    """Who is compared with whom in a whole evaluation; the same in every process that has a part in it.

    Attributes:
        drawn: the draw of every group and finding, group by group.
        common: set size of ``D_common``, or None.
    """

    drawn: list[Draw]
    common: int | None

    @property
    def groups(self) -> list[str]:
        """Names of the groups, in order."""
        return list(dict.fromkeys(draw.group for draw in self.drawn))


@dataclass(frozen=True)
class Scored:
    """Some groups of an evaluation, scored: nothing in it depends on which groups were scored with them.

    Attributes:
        cells, companions: one a group and finding, in the order of the plan.
        points: of the grid.
        counts: as in :class:`Evaluation`.
        seconds: wall time of each stage.
    """

    cells: list[Cell]
    companions: list[Companions]
    points: list[GridPoint]
    counts: Counts
    seconds: dict[str, float]


def evaluation_plan(observations: Observations, options: Options) -> Plan:
    """The draws of an evaluation, and the set size that they have in common.

    Raises:
        ValueError: an option needs what the observations lack.
    """
    if options.weights is not None:
        for finding in observations.findings:
            if finding not in options.weights:
                raise ValueError(f"weights has no {finding!r}")
    drawn = _labelled_somewhere(list(draws(observations, options)))
    sizes = [draw.n for draw in drawn if draw.reason is None]
    return Plan(drawn, options.common_candidates or (min(sizes) if sizes else None))


def score_groups(
    rows: FeatureRows,
    observations: Observations,
    options: Options,
    plan: Plan,
    names: Sequence[str],
    exchange: PatientExchange | None = None,
) -> Scored:
    """Measure some groups of an evaluation.

    Args:
        rows: the checked features of all images.
        observations: all images.
        options: of the measure.
        plan: of the whole evaluation.
        names: the groups.
        exchange: of the permutation test, from :func:`~.permutation.cohort_exchange`, where several calls share it.
    """
    clock, counts = Clock(), Counts()
    wanted = set(names)
    cells: list[Cell] = []
    points: list[GridPoint] = []
    with clock("sweep"):
        for group, members in groupby(plan.drawn, key=lambda draw: draw.group):
            if group not in wanted:
                continue

            def answer(requests: Any, ks: Any) -> Any:
                return search(rows, requests, ks, observations.order, options, counts)

            scored, grid = score_group(observations, options, list(members), answer, plan.common)
            cells += scored
            points += grid
    if options.margin:
        with clock("margin sweep"):
            scores = margin_scores(rows, observations, options, cells, counts)
            cells = [replace(cell, margin=score) for cell, score in zip(cells, scores, strict=True)]
    companions = cell_companions(rows, observations, options, cells, clock, exchange)
    return Scored(cells, companions, points, counts, clock.seconds)


def put_together(
    observations: Observations, options: Options, plan: Plan, parts: Sequence[Scored], clock: Clock
) -> Evaluation:
    """The evaluation of groups that were scored apart: the same, to the last bit, as of all of them at once.

    Args:
        observations: all images.
        options: of the measure.
        plan: of the evaluation.
        parts: each group once, in any order.
        clock: holds what was timed so far; the parts' times are added.

    Raises:
        ValueError: a group is missing or there twice.
    """
    found = [(cell, companions) for part in parts for cell, companions in zip(part.cells, part.companions, strict=True)]
    by_key = {(cell.group, cell.finding): (cell, companions) for cell, companions in found}
    keys = [(draw.group, draw.finding) for draw in plan.drawn]
    if len(found) != len(keys) or set(by_key) != set(keys):
        raise ValueError(f"{len(found)} cells for {len(keys)} groups and findings: each must be there once")
    place = {group: at for at, group in enumerate(plan.groups)}
    points = sorted((point for part in parts for point in part.points), key=lambda point: place[point.group])
    for part in parts:
        clock.add(part.seconds)
    cells, companions = [by_key[key][0] for key in keys], [by_key[key][1] for key in keys]
    with clock("table"):
        table = all_parts(observations, options, cells, companions)
    return Evaluation(
        [part.row for part in table],
        _queries(observations, cells),
        _candidates(observations, options, cells),
        grid_rows(observations, points),
        cells,
        {item.name: sum(int(getattr(part.counts, item.name)) for part in parts) for item in fields(Counts)},
        clock.seconds,
        table,
        _notes(observations),
    )


def _labelled_somewhere(drawn: Sequence[Draw]) -> list[Draw]:
    """Draws without the groups in which a finding has no labelled image, if it has some in another group.

    A class of one family of birds would otherwise have a row for every other family.
    """
    labelled = {draw.finding for draw in drawn if len(draw.rows_pos) + len(draw.rows_neg)}
    return [draw for draw in drawn if len(draw.rows_pos) + len(draw.rows_neg) or draw.finding not in labelled]


class Clock:
    """Wall seconds of named stages."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Any:
        """Add the time of a block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add({name: time.perf_counter() - start})

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add times that were taken elsewhere."""
        for name, value in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value


def _notes(observations: Observations) -> list[str]:
    if observations.patient is None:
        return ["No patient ids: images take their place in the sets, the exclusions and the resampling."]
    unknown = int((observations.patient == "").sum())
    if unknown:
        return [f"{unknown} images have no patient id: each counts as a patient of its own."]
    return []


def _queries(observations: Observations, cells: Sequence[Cell]) -> dict[str, Any]:
    by_cell = [np.argsort(observations.order[cell.queries], kind="stable") for cell in cells]

    def column(name: str) -> np.ndarray:
        parts = [getattr(cell, name)[by] for cell, by in zip(cells, by_cell, strict=True)]
        return np.concatenate(parts) if parts else np.empty(0)

    row = column("queries").astype(np.int64)
    counts = [len(cell.queries) for cell in cells]
    codes = observations.group[row]
    return {
        "task": [observations.task] * len(row),
        "finding": np.repeat([cell.finding for cell in cells], counts).tolist() if cells else [],
        "group": np.repeat([cell.group for cell in cells], counts).tolist() if cells else [],
        "matched_group": np.asarray(observations.group_names, dtype=object)[codes].tolist(),
        "image_id": observations.image_id[row].tolist(),
        "patient": observations.unit_names[observations.units[row]].tolist(),
        "label": column("query_label").astype(np.int8),
        "removed": column("removed").astype(bool),
        "c_pos": column("c_pos"),
        "c_neg": column("c_neg"),
        "dm": column("dm"),
        "discordant": column("discordant").astype(bool),
        "c_pos_all": column("c_pos_all"),
        "c_neg_all": column("c_neg_all"),
        "dm_all": column("dm_all"),
        "margin_bound": margin_bound(column("c_neg")),
    }


def _candidates(observations: Observations, options: Options, cells: Sequence[Cell]) -> dict[str, Any]:
    finding: list[str] = []
    group: list[str] = []
    row: list[np.ndarray] = []
    label: list[np.ndarray] = []
    rank: list[np.ndarray] = []
    for cell in cells:
        both = np.concatenate([cell.cand_pos, cell.cand_neg])
        # The rank runs over both labels, as the images were drawn.
        key = draw_key(observations, options, cell.finding, cell.group, 0)
        by = keyed_rank(observations.digests[both], "draw", *key)
        finding += [cell.finding] * len(both)
        group += [cell.group] * len(both)
        row.append(both[by])
        label.append(np.repeat(np.array([1, 0], np.int8), cell.n)[by])
        rank.append(np.tile(np.arange(cell.n), 2)[by])
    rows = np.concatenate(row) if row else np.empty(0, np.int64)
    return {
        "task": [observations.task] * len(rows),
        "finding": finding,
        "group": group,
        "image_id": observations.image_id[rows].tolist(),
        "patient": observations.unit_names[observations.units[rows]].tolist(),
        "label": np.concatenate(label) if label else np.empty(0, np.int8),
        "rank": np.concatenate(rank) if rank else np.empty(0, np.int64),
    }
