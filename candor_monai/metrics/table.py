"""The rows of ``discordance.csv``: one per finding × group, per finding over groups, and for the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .cells import Cell
from .companions import (
    Companions,
    mean_companions,
    pool_companions,
    write_companions,
    write_q,
)
from .discordance import chance_rate, chance_upper
from .engine import GridPoint
from .observations import Observations
from .options import Options
from .pooling import pooled_rate, weighted_mean
from .roc import auroc

COLUMNS = (
    "task",
    "finding",
    "group",
    "level",
    "n_images",
    "n_positive",
    "n_negative",
    "n_candidates",
    "n_queries",
    "clusters",
    "D",
    "D_sd",
    "D_lo",
    "D_hi",
    "D_total_lo",
    "D_total_hi",
    "D_mid",
    "D_common",
    "n_common",
    "tie_rate",
    "chance",
    "chance_null",
    "chance_null_sd",
    "chance_upper",
    "p_chance",
    "q_chance",
    "sets",
    "queries",
    "n_pos_patients",
    "max_patient_share",
    "D_all",
    "D_all_sd",
    "D_all_lo",
    "D_all_hi",
    "margin_auroc",
    "margin_auroc_sd",
    "margin_auroc_lo",
    "margin_auroc_hi",
    "margin_auroc_total_lo",
    "margin_auroc_total_hi",
    "D_redraw_mean",
    "D_redraw_sd",
    "n_dropped",
    "unit",
    "k",
    "parts",
    "missing",
    "permutations",
    "movable_share",
    "q_family",
    "interval_reason",
    "chance_reason",
    "status",
    "reason",
)


#: Of a row without a value.
_NOT_DRAWN = np.zeros((2, 0), np.int64)


@dataclass(frozen=True)
class Part:
    """A row, with what pooling and comparisons need of it.

    Attributes:
        row: a row of ``discordance.csv``.
        events: numbers of queries that are discordant, tied and so on; empty where nothing can be estimated.
        redrawn: discordant queries, and queries, of each draw, shape (2, redraws), int64.
        units: patients of the queries, int64 codes.
        positive_units: patients of the positives, int64 codes.
        companions: behind its intervals and tests.
    """

    row: dict[str, Any]
    events: dict[str, int]
    redrawn: np.ndarray
    units: np.ndarray
    positive_units: np.ndarray
    companions: Companions


def all_parts(
    observations: Observations, options: Options, cells: Sequence[Cell], companions: Sequence[Companions]
) -> list[Part]:
    """All rows: finding × group, then findings, then the task.

    Args:
        observations: the cohort.
        options: of the measure.
        cells: of every group and finding.
        companions: of every cell.
    """
    parts = [_cell_part(observations, options, *both) for both in zip(cells, companions, strict=True)]
    findings = [
        _finding_part(observations, options, finding, [part for part in parts if part.row["finding"] == finding])
        for finding in observations.findings
    ]
    everything = [*parts, *findings, _task_part(observations, options, findings)]
    write_q([part.row for part in everything])
    return everything


def grid_rows(observations: Observations, points: Sequence[GridPoint]) -> list[dict[str, Any]]:
    """D of every k, set size and draw."""
    return [
        {
            "task": observations.task,
            "finding": point.finding,
            "group": point.group,
            "redraw": point.redraw,
            "k": point.k,
            "n_candidates": point.n,
            "n_queries": len(point.dm),
            "D": pooled_rate([int((point.dm > 0).sum())], [len(point.dm)]),
            "tie_rate": pooled_rate([int((point.dm == 0).sum())], [len(point.dm)]),
        }
        for point in points
    ]


def _blank(observations: Observations, options: Options, finding: str, group: str, level: str) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row.update(
        task=observations.task,
        finding=finding,
        group=group,
        level=level,
        sets=options.sets,
        queries=options.queries,
        unit="image" if observations.patient is None else "patient",
        k=options.k,
    )
    return row


def _cell_part(observations: Observations, options: Options, cell: Cell, companions: Companions) -> Part:
    row = _blank(observations, options, cell.finding, cell.group, "group")
    own = cell.own
    units = observations.units[cell.queries[own]]
    positive_units = np.unique(observations.units[cell.rows_pos])
    row.update(
        n_images=len(cell.rows_pos) + len(cell.rows_neg),
        n_positive=len(cell.rows_pos),
        n_negative=len(cell.rows_neg),
        n_candidates=cell.n,
        n_queries=len(units),
        clusters=companions.patients,
        n_pos_patients=len(positive_units),
        n_dropped=cell.dropped,
        status=cell.status,
        reason=cell.reason,
    )
    if cell.status == "insufficient":
        return Part(row, {}, _NOT_DRAWN, units, positive_units, companions)
    row["max_patient_share"] = _largest_share(units)
    events, redrawn = _counted(cell), _redrawn(cell)
    _rates(row, events, len(units))
    row["n_common"] = cell.n_common
    removed = float(cell.removed[own].mean()) if options.sets == "image" and not options.balance_removed else 0.0
    row["chance_upper"] = chance_upper(row["tie_rate"], options.k, cell.n, removed)
    _redraws(row, _redraw_rates(redrawn))
    row["margin_auroc"] = auroc(*cell.scored[:2])
    write_companions(row, companions)
    return Part(row, events, redrawn, units, positive_units, companions)


def _largest_share(units: np.ndarray) -> float:
    """Share of the queries that the patient with the most of them has."""
    return int(np.unique(units, return_counts=True)[1].max()) / len(units)


def _counted(cell: Cell) -> dict[str, int]:
    """Queries that are discordant, tied, … of those that D counts."""
    own = cell.own
    dm, dm_all = cell.dm[own], cell.dm_all[own]
    events = {"D": int((dm > 0).sum()), "ties": int((dm == 0).sum()), "D_all": int((dm_all > 0).sum())}
    if cell.dm_common is not None:
        common = cell.dm_common[own]
        events["common"] = int((common > 0).sum())
        events["common trials"] = int(np.isfinite(common).sum())
    return events


def _rates(row: dict[str, Any], events: dict[str, int], queries: int) -> None:
    row["D"] = pooled_rate([events["D"]], [queries])
    row["D_all"] = pooled_rate([events["D_all"]], [queries])
    row["tie_rate"] = pooled_rate([events["ties"]], [queries])
    row["D_mid"] = pooled_rate([2 * events["D"] + events["ties"]], [2 * queries])
    row["chance"] = chance_rate(row["tie_rate"])
    if "common" in events:
        row["D_common"] = pooled_rate([events["common"]], [events["common trials"]])


def _redrawn(cell: Cell) -> np.ndarray:
    """Discordant queries, and queries, of each draw, shape (2, redraws), int64."""
    draws = [dm[cell.own] for dm in (cell.dm, *cell.dm_redraws)]
    return np.array([[int((dm > 0).sum()) for dm in draws], [int(np.isfinite(dm).sum()) for dm in draws]])


def _redraw_rates(redrawn: np.ndarray) -> np.ndarray:
    """D of each draw, float64; NaN where it has no query."""
    discordant, queries = redrawn
    return np.divide(discordant, queries, out=np.full(len(queries), np.nan), where=queries > 0)


def _redraws(row: dict[str, Any], rates: np.ndarray) -> None:
    """Mean and spread of D over the draws, where there are several."""
    known = rates[np.isfinite(rates)]
    if len(known) > 1:
        row["D_redraw_mean"] = float(np.mean(known))
        row["D_redraw_sd"] = float(np.std(known, ddof=1))


def _finding_part(observations: Observations, options: Options, finding: str, parts: Sequence[Part]) -> Part:
    """A finding over its groups, by number of queries. A group without a positive has no part in it."""
    row = _blank(observations, options, finding, "", "finding")
    with_positives = [part for part in parts if part.row["n_positive"]]
    there = [part for part in with_positives if part.events]
    _totals(row, with_positives)
    _part_names(row, [p.row["group"] for p in there], [p.row["group"] for p in with_positives if not p.events])
    units, positive_units = _joined(with_positives, "units"), _joined(with_positives, "positive_units")
    if not there or (row["missing"] and not options.pool_missing):
        _not_pooled(row, bool(there), _no_group(with_positives), f"groups not estimable: {row['missing']}")
        return Part(row, {}, _NOT_DRAWN, units, positive_units, Companions())
    events = {name: sum(part.events[name] for part in there) for name in ("D", "ties", "D_all")}
    if all("common" in part.events for part in there):
        events |= {name: sum(part.events[name] for part in there) for name in ("common", "common trials")}
        row["n_common"] = there[0].row["n_common"]
    _rates(row, events, row["n_queries"])
    # A draw in which a group has no query left has no pooled D.
    redrawn = np.sum([part.redrawn for part in there], axis=0)
    redrawn[1] *= np.all([part.redrawn[1] > 0 for part in there], axis=0)
    _redraws(row, _redraw_rates(redrawn))
    sizes = [part.row["n_queries"] for part in there]
    row["chance_upper"] = _by_queries([part.row["chance_upper"] for part in there], sizes)
    row["margin_auroc"] = _by_queries([part.row["margin_auroc"] for part in there], sizes)
    _tied(row, options)
    row["max_patient_share"] = _largest_share(units)
    companions = pool_companions([part.companions for part in there], row["clusters"])
    write_companions(row, companions)
    return Part(row, events, redrawn, units, positive_units, companions)


def _no_group(with_positives: Sequence[Part]) -> str:
    """Why none of a finding's groups has a value: the reason of the group with the most positives."""
    if not with_positives:
        return "no image is positive"
    largest = max(with_positives, key=lambda part: part.row["n_positive"])
    return f"no group is estimable; {largest.row['group']}: {largest.row['reason'] or 'no query'}"


def _task_part(observations: Observations, options: Options, parts: Sequence[Part]) -> Part:
    """The task over its findings: D severity-weighted, AUROC unweighted."""
    row = _blank(observations, options, "", "", "task")
    there = [part for part in parts if part.events]
    _totals(row, parts)
    _part_names(row, [p.row["finding"] for p in there], [p.row["finding"] for p in parts if not p.events])
    both = _joined(parts, "units"), _joined(parts, "positive_units")
    if not there or (row["missing"] and not options.pool_missing):
        _not_pooled(row, bool(there), "no finding has a value", f"findings without a value: {row['missing']}")
        return Part(row, {}, _NOT_DRAWN, *both, Companions())
    for name in ("D", "D_all", "D_mid", "D_common", "tie_rate", "chance", "chance_upper"):
        values = {part.row["finding"]: part.row[name] for part in there}
        row[name] = weighted_mean(values, options.weights).value
    row["n_common"] = there[0].row["n_common"] if row["D_common"] is not None else None
    row["margin_auroc"] = weighted_mean({part.row["finding"]: part.row["margin_auroc"] for part in there}).value
    _tied(row, options)
    factors = [1.0 if options.weights is None else float(options.weights[part.row["finding"]]) for part in there]
    _redraws(row, np.average([_redraw_rates(part.redrawn) for part in there], axis=0, weights=factors))
    companions = mean_companions([part.companions for part in there], factors, row["clusters"])
    write_companions(row, companions)
    return Part(row, {}, _NOT_DRAWN, *both, companions)


def _totals(row: dict[str, Any], parts: Sequence[Part]) -> None:
    for name in ("n_images", "n_positive", "n_negative", "n_queries", "n_dropped"):
        row[name] = sum(part.row[name] for part in parts)
    row["clusters"] = len(np.unique(_joined(parts, "units")))
    row["n_pos_patients"] = len(np.unique(_joined(parts, "positive_units")))


def _joined(parts: Sequence[Part], name: str) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *(getattr(part, name) for part in parts)])


def _part_names(row: dict[str, Any], parts: Sequence[str], missing: Sequence[str]) -> None:
    row["parts"], row["missing"] = "; ".join(parts), "; ".join(missing)


def _not_pooled(row: dict[str, Any], some: bool, none: str, incomplete: str) -> None:
    row["status"], row["reason"] = ("incomplete", incomplete) if some else ("insufficient", none)


def _tied(row: dict[str, Any], options: Options) -> None:
    tied = row["tie_rate"] > options.tie_limit
    row["status"] = "tied" if tied else "ok"
    row["reason"] = f"tie rate {row['tie_rate']:.4g} is above {options.tie_limit:g}" if tied else None


def _by_queries(values: Sequence[float | None], sizes: Sequence[int]) -> float | None:
    total = 0.0
    for value, size in zip(values, sizes, strict=True):
        if value is None:
            return None
        total += value * size
    return total / sum(sizes)
