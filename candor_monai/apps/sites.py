"""Results of several sites in one table: no image and no feature leaves a site, only the small files beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..metrics.total_interval import SplitReplicates, pool_splits, total_interval
from ..utils.errors import UserError
from .comparison import CellResults, read_cell

COLUMNS = (
    *("site", "cohort", "encoder", "task", "finding", "level", "n_positive", "n_negative", "n_candidates", "n_queries"),
    *("D", "D_total_lo", "D_total_hi", "chance", "p_chance", "D_all", "margin_auroc", "status", "reason"),
)
POOLED = "all sites"
# What must be alike for D of two sites to mean the same: options, and of an encoder's fingerprint.
ALIKE = (
    *("k", "sets", "queries", "max_candidates", "roles", "matched"),
    *("isolated", "balance_removed", "exclude_same_patient", "shuffle_labels", "image_size", "decoding"),
)
ENCODER_ALIKE = ("dimension", "weights", "processor", "feature_point")


def read_sites(folders: Sequence[str | Path]) -> list[CellResults]:
    """Read the output folders of several sites' runs of one encoder or more.

    Raises:
        UserError: a folder holds no results or files of two runs, or the sites measured something else.
    """
    cells = [read_cell(folder) for folder in folders]
    first = cells[0]
    for cell in cells:
        _check_companions(cell)
    for cell in cells[1:]:
        for name in ALIKE:
            if cell.results["options"].get(name) != first.results["options"].get(name):
                raise UserError(
                    f"{cell.folder}: option {name} is {cell.results['options'].get(name)!r}, in {first.folder} it is "
                    f"{first.results['options'].get(name)!r}: the sites' D do not mean the same."
                )
        same = next(other for other in cells if other.encoder == cell.encoder)
        for name in ENCODER_ALIKE:
            if _of_encoder(cell, name) != _of_encoder(same, name):
                raise UserError(
                    f"{cell.folder}: encoder {cell.encoder!r} has other {name} than in {same.folder}: the sites' D are "
                    "those of two encoders."
                )
    return cells


def site_rows(cells: Sequence[CellResults], names: Sequence[str]) -> list[dict[str, Any]]:
    """A row a site × encoder × finding (and task), then the encoder's findings pooled over all sites, task by task.

    A pooled value is the mean over sites by number of queries, with the total interval of independent sites. It is
    given only where every site has a value.

    Args:
        cells: one a site, encoder and task.
        names: name of each cell's site.

    Raises:
        UserError: a site has two results of one encoder and task.
    """
    seen: dict[tuple[str, str, str], CellResults] = {}
    for cell, site in zip(cells, names, strict=True):
        other = seen.setdefault((site, cell.encoder, _task(cell)), cell)
        if other is not cell:
            raise UserError(
                f"{other.folder} and {cell.folder} both hold encoder {cell.encoder!r} at site {site!r}: give each site "
                "a name of its own with --sites, one a folder."
            )
    rows = []
    for cell, site in zip(cells, names, strict=True):
        for row in cell.rows:
            if row["level"] != "group":
                known = {name: row.get(name) for name in COLUMNS if name in row}
                rows.append({**dict.fromkeys(COLUMNS), **known, "site": site, "cohort": cell.results["cohort"]["name"]})
    sites = len(dict.fromkeys(names))
    for encoder, task in dict.fromkeys((cell.encoder, _task(cell)) for cell in cells):
        members = [cell for cell in cells if (cell.encoder, _task(cell)) == (encoder, task)]
        for finding in dict.fromkeys(row["finding"] for c in members for row in c.rows if row["level"] == "finding"):
            rows.append({**_pooled(encoder, finding, members, sites), "task": task})
    return rows


def _task(cell: CellResults) -> str:
    return str(cell.rows[0]["task"])


def _of_encoder(cell: CellResults, name: str) -> Any:
    """A part of the fingerprint of a cell's encoder; of features computed elsewhere the dimension alone is known."""
    encoder = cell.results["encoders"][0]
    return encoder.get(name) if name == "dimension" else (encoder.get("fingerprint") or {}).get(name)


def _check_companions(cell: CellResults) -> None:
    """The intervals of a cell rest on companions.npz: it must be of the run that wrote results.json.

    Raises:
        UserError: D or the number of queries differ.
    """
    for row in cell.rows:
        if row["level"] != "finding" or row["D"] is None:
            continue
        kept = cell.companions.get(("finding", row["finding"], ""))
        split = None if kept is None else kept.splits.get("D")
        lost = split is None and row["D_total_lo"] is not None
        if lost or (split is not None and not _alike(split, row)):
            raise UserError(
                f"{cell.folder}: companions.npz and results.json are of two runs (finding {row['finding']!r}): copy "
                "both from one run's output."
            )


def _alike(split: SplitReplicates, row: Mapping[str, Any]) -> bool:
    known = split.estimate is not None and abs(split.estimate - row["D"]) < 1e-9
    return known and split.weight == row["n_queries"]


def _pooled(encoder: str, finding: str, cells: Sequence[CellResults], sites: int) -> dict[str, Any]:
    found = [cell.row("finding", finding) for cell in cells]
    there = [row for row in found if row is not None and row["D"] is not None]
    base = {**dict.fromkeys(COLUMNS), "site": POOLED, "encoder": encoder, "finding": finding, "level": "finding"}
    if len(there) < len(cells) or len(cells) < sites:
        missing = sites - len(there)
        return {**base, "status": "incomplete", "reason": f"{missing} of {sites} sites have no value"}
    queries = sum(row["n_queries"] for row in there)
    row = {
        **base,
        "n_positive": sum(r["n_positive"] for r in there),
        "n_negative": sum(r["n_negative"] for r in there),
        "n_queries": queries,
        "D": sum(r["n_queries"] * r["D"] for r in there) / queries,
        "status": "ok",
    }
    splits = [cell.companions["finding", finding, ""].splits.get("D") for cell in cells]
    if all(split is not None for split in splits):
        interval = total_interval(pool_splits(_apart([split for split in splits if split is not None])))
        row |= {"D_total_lo": interval.lo, "D_total_hi": interval.hi, "reason": interval.reason}
    return row


def _apart(parts: Sequence[SplitReplicates]) -> list[SplitReplicates]:
    """The same parts with patient codes that no two sites share."""
    return [dataclasses.replace(part, units=part.units + (np.int64(place) << 40)) for place, part in enumerate(parts)]
