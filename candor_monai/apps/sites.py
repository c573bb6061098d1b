"""Results of several sites in one table: no image and no feature leaves a site, only the small files beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
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
# What must be alike for D of two sites to mean the same.
ALIKE = ("k", "sets", "queries", "max_candidates", "roles", "matched")


def read_sites(folders: Sequence[str | Path]) -> list[CellResults]:
    """Read the output folders of several sites' runs of one encoder or more.

    Raises:
        UserError: a folder holds no results, or the sites measured something else.
    """
    cells = [read_cell(folder) for folder in folders]
    first = cells[0]
    for cell in cells[1:]:
        for name in ALIKE:
            if cell.results["options"].get(name) != first.results["options"].get(name):
                raise UserError(
                    f"{cell.folder}: option {name} is {cell.results['options'].get(name)!r}, in {first.folder} it is "
                    f"{first.results['options'].get(name)!r}: the sites' D do not mean the same."
                )
    return cells


def site_rows(cells: Sequence[CellResults], names: Sequence[str]) -> list[dict[str, Any]]:
    """A row a site × encoder × finding (and task), then the encoder's findings pooled over all sites.

    A pooled value is the mean over sites by number of queries, with the total interval of independent sites. It is
    given only where every site has a value.

    Args:
        cells: one a site and encoder.
        names: name of each cell's site.
    """
    rows = []
    for cell, site in zip(cells, names, strict=True):
        for row in cell.rows:
            if row["level"] != "group":
                known = {name: row.get(name) for name in COLUMNS if name in row}
                rows.append({**dict.fromkeys(COLUMNS), **known, "site": site, "cohort": cell.results["cohort"]["name"]})
    for encoder in dict.fromkeys(cell.encoder for cell in cells):
        members = [cell for cell in cells if cell.encoder == encoder]
        sites = len(dict.fromkeys(names))
        for finding in dict.fromkeys(row["finding"] for c in members for row in c.rows if row["level"] == "finding"):
            rows.append(_pooled(encoder, finding, members, sites))
    return rows


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
        "task": there[0]["task"],
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
