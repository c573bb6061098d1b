"""The whole measure of one encoder on one cohort: D and its companions per finding and group, and pooled."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from typing import Any

import numpy as np

from .cells import Cell
from .companions import Companions, cell_companions
from .draw import POOLED_GROUP, Draw, RowSets, draw_key, draws
from .engine import GridPoint, group_questions, margin_scores, score_group
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
        together: how many option sets were measured in the same sweeps. Where there are several, ``counts`` and the
            seconds of ``check``, ``sweep`` and ``margin sweep`` are of all of them, in each of their evaluations.
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
    together: int = 1


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
    return _evaluations(features, observations, {"options": Options() if options is None else options})["options"]


def evaluate_together(
    features: Any, observations: Observations, options: Mapping[str, Options]
) -> dict[str, Evaluation]:
    """Measure discordance under several option sets, each group scored once for all of them.

    Both roles, for example, are one sweep: what positives and negatives are compared with overlaps, and the margin
    classifier's scores of one are those of the other, negated. What is compared in one pooled group
    (``matched: False``) shares nothing with matched groups and is scored beside them.

    Args:
        features: as for :func:`evaluate`, shape (N, d), float32.
        observations: the N images.
        options: by a name of your choice. All options may differ but ``precision`` and ``memory_bytes``: they change
            no bit of a result, and what is scored once is scored in one way, within one bound.

    Returns:
        by name, in the order given, the :class:`Evaluation` that :func:`evaluate` gives with these options alone, to
        the last bit of every number; :attr:`Evaluation.together` says how counts and seconds are to be read.

    Raises:
        ValueError: as :func:`evaluate`, where an option set is at fault with its name; or ``precision`` or
            ``memory_bytes`` differ.

    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(80)[:, None] % 4 == 0
    >>> features = (rng.standard_normal((80, 16)) + 3 * labels).astype(np.float32)
    >>> seen = Observations([f"image{i}" for i in range(80)], labels.astype(int), ["effusion"])
    >>> plain = Options(permutation_test=False, total_interval=False)
    >>> roles = {role: replace(plain, roles=role) for role in ("positives", "negatives")}
    >>> both = evaluate_together(features, seen, roles)
    >>> [(role, result.rows[0]["n_queries"], round(result.rows[0]["D"], 2)) for role, result in both.items()]
    [('positives', 20, 0.0), ('negatives', 60, 0.22)]
    """
    for name in ("precision", "memory_bytes"):
        values = {key: getattr(one, name) for key, one in options.items()}
        if len(set(values.values())) > 1:
            told = ", ".join(f"{value!r} in {key!r}" for key, value in values.items())
            raise ValueError(f"{name} is {told}: what is scored together has one {name}, which changes no result")
    return _evaluations(features, observations, options)


def _evaluations(features: Any, observations: Observations, options: Mapping[str, Options]) -> dict[str, Evaluation]:
    check = Clock()
    with check("check"):
        rows = FeatureRows(features)
        if len(rows) != len(observations):
            raise ValueError(f"features has {len(rows)} rows, observations {len(observations)}")
    portions, clocks = [], []
    shared: RowSets = {}
    for name, one in options.items():
        clock = Clock()
        clock.add(check.seconds)
        with clock("draw"), _named(name if len(options) > 1 else None):
            plan = evaluation_plan(observations, one, shared)
        portions.append(Portion(one, plan, plan.groups))
        clocks.append(clock)
    scored = score_together(rows, observations, portions)
    return {
        name: put_together(observations, part.options, part.plan, [found], clock)
        for name, part, found, clock in zip(options, portions, scored, clocks, strict=True)
    }


@contextmanager
def _named(name: str | None) -> Iterator[None]:
    """What is wrong with one of several option sets is told with its name."""
    try:
        yield
    except ValueError as error:
        if name is None:
            raise
        raise ValueError(f"option set {name!r}: {error}") from error


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
        counts, together: as in :class:`Evaluation`.
        seconds: wall time of each stage.
    """

    cells: list[Cell]
    companions: list[Companions]
    points: list[GridPoint]
    counts: Counts
    seconds: dict[str, float]
    together: int = 1


@dataclass(frozen=True)
class Portion:
    """Some groups of an evaluation that are to be measured.

    Attributes:
        options: of the measure.
        plan: of the whole evaluation.
        names: the groups.
        exchange: of the permutation test, from :func:`~.permutation.cohort_exchange`, where several calls share it.
    """

    options: Options
    plan: Plan
    names: Sequence[str]
    exchange: PatientExchange | None = None

    def drawn(self) -> dict[str, list[Draw]]:
        """The draws of each group, in the order of the plan."""
        wanted = set(self.names)
        by_group = groupby(self.plan.drawn, key=lambda draw: draw.group)
        return {group: list(members) for group, members in by_group if group in wanted}


def evaluation_plan(observations: Observations, options: Options, shared: RowSets | None = None) -> Plan:
    """The draws of an evaluation, and the set size that they have in common.

    Args:
        observations: the cohort.
        options: of the measure.
        shared: as for :func:`~.draw.draws`, the same for all option sets that are measured together.

    Raises:
        ValueError: an option needs what the observations lack.
    """
    if options.weights is not None:
        for finding in observations.findings:
            if finding not in options.weights:
                raise ValueError(f"weights has no {finding!r}")
    drawn = _labelled_somewhere(list(draws(observations, options, shared)))
    sizes = [draw.n for draw in drawn if draw.reason is None]
    return Plan(drawn, options.common_candidates or (min(sizes) if sizes else None))


def score_together(rows: FeatureRows, observations: Observations, portions: Sequence[Portion]) -> list[Scored]:
    """Measure some groups of evaluations of the same images; what is a group of several is scored once for all.

    Args:
        rows: the checked features of all images.
        observations: all images.
        portions: of each evaluation; all with the same ``precision`` and ``memory_bytes``.

    Returns:
        of each evaluation, what is given for it alone, to the last bit, but for counts and seconds.
    """
    out: dict[int, Scored] = {}
    for matched in (True, False):
        which = [at for at, portion in enumerate(portions) if portion.options.matched == matched]
        out.update(zip(which, _score_alike(rows, observations, [portions[at] for at in which]), strict=True))
    return [out[at] for at in range(len(portions))]


def _score_alike(rows: FeatureRows, observations: Observations, portions: Sequence[Portion]) -> list[Scored]:
    """:func:`score_together` of evaluations that compare within the same groups."""
    clock, swept, with_margin = Clock(), Counts(), Counts()
    with clock("sweep"):
        found = _sweep(rows, observations, portions, swept)
    cells = [made for made, _ in found]
    wanted = [at for at, portion in enumerate(portions) if portion.options.margin]
    if wanted:
        with clock("margin sweep"):
            asked = [(portions[at].options, cells[at]) for at in wanted]
            for at, scores in zip(wanted, margin_scores(rows, observations, asked, with_margin), strict=True):
                cells[at] = [replace(cell, margin=score) for cell, score in zip(cells[at], scores, strict=True)]
    out = []
    for portion, made, (_, points) in zip(portions, cells, found, strict=True):
        margin, own = portion.options.margin, Clock()
        own.add({name: value for name, value in clock.seconds.items() if margin or name == "sweep"})
        companions = cell_companions(rows, observations, portion.options, made, own, portion.exchange)
        counts = swept + with_margin if margin else swept
        out.append(Scored(made, companions, points, counts, own.seconds, len(portions)))
    return out


def _sweep(
    rows: FeatureRows, observations: Observations, portions: Sequence[Portion], counts: Counts
) -> list[tuple[list[Cell], list[GridPoint]]]:
    """Cells without margin scores, and grid, of each evaluation, in the order of its plan."""
    memory = {portion.options.memory_bytes for portion in portions}
    assert len(memory) <= 1, "what is scored together has one bound of memory"
    found: list[tuple[list[Cell], list[GridPoint]]] = [([], []) for _ in portions]
    drawn = [portion.drawn() for portion in portions]
    sharers = max(sum(portion.options.redraws > 1 for portion in portions), 1)

    def answer(requests: Any, ks: Any) -> Any:
        return search(rows, requests, ks, observations.order, portions[0].options, counts)

    for group in dict.fromkeys((*observations.group_names, POOLED_GROUP)):
        which = [at for at, groups in enumerate(drawn) if group in groups]
        asked = [
            group_questions(observations, portions[at].options, drawn[at][group], portions[at].plan.common, sharers)
            for at in which
        ]
        for at, (cells, points) in zip(which, score_group(asked, answer), strict=True):
            found[at][0].extend(cells)
            found[at][1].extend(points)
    return found


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
        max((part.together for part in parts), default=1),
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
