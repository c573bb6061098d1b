"""The uncertainty beside every number: conditional and total intervals, and the test against chance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from threading import BoundedSemaphore
from typing import Any

import numpy as np

from .cells import Cell
from .keyed_hash import keyed_hash
from .multiplicity import benjamini_hochberg
from .observations import Observations
from .options import Options
from .patient_exchange import PatientExchange
from .permutation import NullReplicates, chance_test, permutation_replicates, pool_nulls, weighted_mean_nulls
from .resampling import (
    MIN_POSITIVE_PATIENTS,
    Replicates,
    auroc_replicates,
    patient_weights,
    percentile_interval,
    pool_replicates,
    resample_mean,
    weighted_mean_replicates,
)
from .similarity import FeatureRows
from .total_interval import (
    Lists,
    SplitReplicates,
    cell_lists,
    lists_bytes,
    pool_splits,
    split_bits,
    splits_bytes,
    total_interval,
    total_margin_replicates,
    total_replicates,
    weighted_mean_splits,
)
from .workers import in_workers


@dataclass(frozen=True)
class Companions:
    """What the intervals and tests of one row are made from; kept so that encoders can be compared in pairs.

    Attributes:
        replicates: value -> its resamples with the candidates held fixed (``D``, ``D_all``, ``margin_auroc``).
        splits: value -> what it is in halves of the patients (``D``, ``margin_auroc``).
        null: D under exchanges of labels, or None.
        patients: distinct patients among the queries.
    """

    replicates: dict[str, Replicates] = field(default_factory=dict)
    splits: dict[str, SplitReplicates] = field(default_factory=dict)
    null: NullReplicates | None = None
    patients: int = 0


def cell_companions(
    rows: FeatureRows,
    observations: Observations,
    options: Options,
    cells: Sequence[Cell],
    clock: Any,
    exchange: PatientExchange | None = None,
) -> list[Companions]:
    """Companions of every cell, in order; empty where nothing can be estimated.

    Args:
        rows: the features.
        observations: the cohort.
        options: ``resamples``, ``total_interval`` and ``permutation_test`` say which are made.
        cells: from the exact engine.
        clock: times the stages.
        exchange: of the permutation test, where several calls share it.
    """
    with clock("conditional interval"):
        replicates = [
            made
            for _, members in groupby(cells, key=lambda cell: cell.group)
            for made in _resampled(observations, options, list(members))
        ]
    with clock("total interval"):
        splits = total_splits(rows, observations, options, cells)
    nulls: Sequence[NullReplicates | None] = [None] * len(cells)
    if options.permutation_test and options.permutations:
        with clock("permutation test"):
            nulls = permutation_replicates(cells, rows.array, observations, options, exchange)
    patients = [len(np.unique(observations.units[cell.queries[cell.own]])) for cell in cells]
    return [Companions(*items) for items in zip(replicates, splits, nulls, patients, strict=True)]


def pool_companions(parts: Sequence[Companions], patients: int) -> Companions:
    """Of a value pooled over groups by number of queries."""
    return Companions(
        {name: pool_replicates([part.replicates[name] for part in parts]) for name in _shared(parts, "replicates")},
        {name: pool_splits([part.splits[name] for part in parts]) for name in _shared(parts, "splits")},
        _pooled_null(parts, None),
        patients,
    )


def mean_companions(parts: Sequence[Companions], weights: Sequence[float], patients: int) -> Companions:
    """Of a weighted mean over findings; AUROCs are averaged without weights."""
    equal = [1.0] * len(parts)
    return Companions(
        {
            name: weighted_mean_replicates([part.replicates[name] for part in parts], _factors(name, weights, equal))
            for name in _shared(parts, "replicates")
        },
        {
            name: weighted_mean_splits([part.splits[name] for part in parts], _factors(name, weights, equal))
            for name in _shared(parts, "splits")
        },
        _pooled_null(parts, weights),
        patients,
    )


def write_companions(row: dict[str, Any], companions: Companions) -> None:
    """Put intervals and the test into a row of ``discordance.csv``; what is not defined stays None, with the reason."""
    reasons = []
    for name, replicate in companions.replicates.items():
        interval = percentile_interval(replicate)
        if companions.patients < MIN_POSITIVE_PATIENTS:
            reasons.append(f"fewer than {MIN_POSITIVE_PATIENTS} patients among the queries ({companions.patients})")
        elif interval.reason is not None:
            reasons.append(interval.reason)
        else:
            row[f"{name}_sd"], row[f"{name}_lo"], row[f"{name}_hi"] = interval.sd, interval.lo, interval.hi
    for name, split in companions.splits.items():
        total = total_interval(split)
        if total.reason is not None:
            reasons.append(total.reason)
        else:
            row[f"{name}_total_lo"], row[f"{name}_total_hi"] = total.lo, total.hi
    row["interval_reason"] = "; ".join(dict.fromkeys(reasons)) or None
    if companions.null is not None:
        test = chance_test(companions.null)
        row["p_chance"], row["chance_null"], row["chance_null_sd"] = test.p, test.mean, test.sd
        row["permutations"], row["movable_share"] = test.permutations, test.movable_share
        row["chance_reason"] = test.reason


def write_q(rows: Sequence[dict[str, Any]]) -> None:
    """``q_chance``: each level of the run is a family of its own, corrected by Benjamini and Hochberg."""
    for level in ("group", "finding", "task"):
        family = [row for row in rows if row["level"] == level]
        p = [row["p_chance"] for row in family]
        name = f"{level} level: {sum(value is not None for value in p)} tests"
        for row, q in zip(family, benjamini_hochberg(p), strict=True):
            row["q_chance"], row["q_family"] = q, name


def total_splits(
    rows: FeatureRows, observations: Observations, options: Options, cells: Sequence[Cell]
) -> list[dict[str, SplitReplicates]]:
    """What D and the margin AUROC of every cell are in halves of the patients; empty where nothing can be estimated.

    Args:
        rows: the features.
        observations: the cohort.
        options: of the evaluation.
        cells: from the exact engine.
    """
    if not options.total_interval:
        return [{} for _ in cells]
    units, order = observations.units, observations.order
    bits = split_bits(observations.unit_names.tolist(), options.seed)
    rank = keyed_hash(observations.digests, "scored in halves", options.seed)
    how = options.k, options.by_patient
    out: list[dict[str, SplitReplicates]] = [{} for _ in cells]

    most = max(map(splits_bytes, cells), default=1)
    room = BoundedSemaphore(max(1, options.memory_bytes // 4 // most))

    def split(work: tuple[int, Lists]) -> None:
        place, lists = work
        cell, made = cells[place], out[place]
        with room:
            made["D"] = total_replicates(cell, rows.array, units, bits, *how, lists=lists)
            if cell.margin is not None:
                made["margin_auroc"] = total_margin_replicates(cell, rows.array, units, bits, rank, *how, lists=lists)

    for places in _listed_together(cells, options):
        lists = cell_lists(rows, [cells[place] for place in places], units, rank, order, options)
        list(in_workers(split, zip(places, lists, strict=True)))
    return out


def _listed_together(cells: Sequence[Cell], options: Options) -> Iterator[list[int]]:
    """Places of cells of one group, as many as a quarter of the memory holds the lists of."""
    batch: list[int] = []
    spare = room = options.memory_bytes // 4
    for place, cell in enumerate(cells):
        if cell.status == "insufficient":
            continue
        need = lists_bytes(cell, options.k)
        if batch and (need > spare or cells[batch[-1]].group != cell.group):
            yield batch
            batch, spare = [], room
        batch.append(place)
        spare -= need
    if batch:
        yield batch


def _resampled(observations: Observations, options: Options, cells: Sequence[Cell]) -> list[dict[str, Replicates]]:
    """Resamples of every cell of one group; the weights of its patients are drawn once."""
    units = observations.units
    out: list[dict[str, Replicates]] = [{} for _ in cells]
    asked = [place for place, cell in enumerate(cells) if options.resamples and cell.status != "insufficient"]
    if not asked:
        return out
    used = [units[rows] for cell in cells for rows in (cell.queries[cell.own], cell.scored[2])]
    present = np.unique(np.concatenate(used))
    weights = patient_weights(observations.unit_names[present].tolist(), options.seed, options.resamples)

    def resample(place: int) -> None:
        cell, made = cells[place], out[place]
        codes = np.searchsorted(present, units[cell.queries[cell.own]])
        made["D"] = resample_mean(cell.dm[cell.own] > 0, codes, weights)
        made["D_all"] = resample_mean(cell.dm_all[cell.own] > 0, codes, weights)
        scores, positive, rows = cell.scored
        if positive.any() and not positive.all():
            codes = np.searchsorted(present, units[rows])
            made["margin_auroc"] = auroc_replicates(scores, positive, codes, weights, made["D"])

    list(in_workers(resample, asked))
    return out


def _shared(parts: Sequence[Companions], kind: str) -> list[str]:
    """Values that every part has."""
    names = [list(getattr(part, kind)) for part in parts]
    return [name for name in names[0] if all(name in other for other in names)] if names else []


def _factors(name: str, weights: Sequence[float], equal: Sequence[float]) -> Sequence[float]:
    return equal if name == "margin_auroc" else weights


def _pooled_null(parts: Sequence[Companions], weights: Sequence[float] | None) -> NullReplicates | None:
    nulls = [part.null for part in parts if part.null is not None]
    if not nulls or len(nulls) < len(parts):
        return None
    reasons = [null.reason for null in nulls if null.reason is not None]
    pooled = pool_nulls(nulls) if weights is None else weighted_mean_nulls(nulls, weights)
    if not reasons:
        return pooled
    return replace(pooled, reason=reasons[0])
