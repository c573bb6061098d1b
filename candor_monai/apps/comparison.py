"""Compare the encoders of a study on one cohort: differences, ranking, agreement, overlap of discordant sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..handlers.companion_files import FILE, read_companions_file
from ..metrics.companions import Companions
from ..metrics.comparison import not_worse_than_best, p_best, total_difference
from ..metrics.multiplicity import benjamini_hochberg
from ..metrics.overlap import discordant_overlap
from ..metrics.rankings import mean_spearman, spearman
from ..utils.errors import UserError
from ..visualize.results_files import read_results

# Rows of these levels are compared; a single group's too, where a finding has one group only (it is the finding then).
LEVELS = ("finding", "task")
# Measures whose rankings of the encoders are compared, and whether a larger value is a better encoder.
MEASURES = {"D": False, "D_all": False, "margin_auroc": True, "head_auroc": True, "logme": True}


@dataclass(frozen=True)
class CellResults:
    """What one encoder's run on a cohort left.

    Args:
        encoder: its name.
        results: the document of results.json.
        companions: by (level, finding, group).
        queries: rows of queries.parquet.
        folder: where it lies.
    """

    encoder: str
    results: dict[str, Any]
    companions: dict[tuple[str, str, str], Companions]
    queries: pd.DataFrame
    folder: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of discordance.csv."""
        return list(self.results["discordance"])

    def row(self, level: str, finding: str) -> dict[str, Any] | None:
        """The pooled row of a finding, or of the task."""
        return next((r for r in self.rows if r["level"] == level and (r["finding"] or "") == finding), None)


def read_cell(folder: str | Path) -> CellResults:
    """Read what a run left in its output folder.

    Raises:
        UserError: a file is missing or damaged, or the folder holds several encoders.
    """
    folder = Path(folder)
    results = read_results(folder / "results.json")
    names = [encoder["name"] for encoder in results["encoders"]]
    if len(names) != 1:
        raise UserError(f"{folder}: holds {len(names)} encoders; one run's folder is needed.")
    companions = read_companions_file(folder / FILE)
    return CellResults(names[0], results, companions, pd.read_parquet(folder / "queries.parquet"), folder)


def comparable(cells: Sequence[CellResults]) -> None:
    """Refuse cells whose numbers were not made from the same images, draws and resamples.

    Raises:
        UserError: names the first cell that differs, and in what.
    """
    first = cells[0]
    for cell in cells[1:]:
        if cell.results["cohort"]["fingerprint"] != first.results["cohort"]["fingerprint"]:
            raise UserError(f"{cell.folder}: its cohort is not that of {first.folder}; they cannot be compared.")
        if cell.results["accounting"]["scored"] != first.results["accounting"]["scored"]:
            raise UserError(
                f"{cell.folder}: {cell.results['accounting']['scored']} images scored, {first.folder}: "
                f"{first.results['accounting']['scored']}: compare encoders on the same images (run them as a study)."
            )
        for name in ("k", "seed", "sets", "queries", "max_candidates", "resamples", "roles", "matched"):
            if cell.results["options"].get(name) != first.results["options"].get(name):
                raise UserError(f"{cell.folder}: option {name} differs from {first.folder}; they cannot be compared.")


def compare(cells: Sequence[CellResults], heads: pd.DataFrame | None = None) -> dict[str, list[dict[str, Any]]]:
    """All comparisons of the encoders of one cohort.

    Args:
        cells: one an encoder.
        heads: rows of probe.csv (encoder, finding, head_auroc, logme) where heads were trained.

    Returns:
        ``ranking``, ``comparisons``, ``overlap``, ``agreement``: rows as docs/outputs.md describes them.

    Raises:
        UserError: the cells cannot be compared.
    """
    comparable(cells)
    levels = list(_levels(cells[0]))
    return {
        "ranking": [row for level, finding in levels for row in ranking_rows(cells, level, finding)],
        "comparisons": _corrected([r for lv, finding in levels for r in difference_rows(cells, lv, finding)]),
        "overlap": _corrected(overlap_rows(cells)),
        "agreement": agreement_rows(cells, heads),
    }


def ranking_rows(cells: Sequence[CellResults], level: str, finding: str) -> list[dict[str, Any]]:
    """Encoders ordered by D at one level; tied and not estimable ones have no place.

    ``not_worse_than_best`` is the simultaneous 95 % statement, ``p_best`` (on the best encoder's row) compares the
    smallest D with the smallest of as many encoders that know nothing.
    """
    task = cells[0].rows[0]["task"]
    found = [(cell, cell.row(level, finding)) for cell in cells]
    placed = [(c, r) for c, r in found if r is not None and r["status"] == "ok" and r["D"] is not None]
    placed.sort(key=lambda pair: (pair[1]["D"], pair[0].encoder))
    splits = [c.companions[level, finding, ""].splits.get("D") for c, _ in placed]
    nulls = [c.companions[level, finding, ""].null for c, _ in placed]
    members: tuple[int, ...] | None = None
    if len(placed) > 1 and all(split is not None for split in splits):
        members = not_worse_than_best([split for split in splits if split is not None]).members
    p = None
    if placed and all(null is not None for null in nulls):
        p = p_best([null for null in nulls if null is not None])
    rows = []
    for place, (cell, row) in enumerate(placed):
        rows.append(
            {
                "task": task,
                "finding": finding or None,
                "encoder": cell.encoder,
                "rank": 1 + sum(other["D"] < row["D"] for _, other in placed),
                "D": row["D"],
                "not_worse_than_best": None if members is None else place in members,
                "p_best": p if place == 0 else None,
                "reason": None,
            }
        )
    there = {cell.encoder for cell, _ in placed}
    for cell, missing in found:
        if cell.encoder not in there:
            reason = "not measured"
            if missing is not None:
                reason = f"{missing['status']}: {missing.get('reason') or 'no reason given'}"
            blank = dict.fromkeys(("rank", "D", "not_worse_than_best", "p_best"))
            rows.append({"task": task, "finding": finding or None, "encoder": cell.encoder, **blank, "reason": reason})
    return rows


def difference_rows(cells: Sequence[CellResults], level: str, finding: str) -> Iterator[dict[str, Any]]:
    """Total paired differences of D, every pair of encoders, at one level."""
    for first, second in combinations(cells, 2):
        names = {"task": first.rows[0]["task"], "finding": finding or None}
        pair = {**names, "encoder_a": first.encoder, "encoder_b": second.encoder}
        splits = [cell.companions[level, finding, ""].splits.get("D") for cell in (first, second)]
        a, b = ((cell.row(level, finding) or {}).get("D") for cell in (first, second))
        known = None if a is None or b is None else a - b
        if splits[0] is None or splits[1] is None or known is None:
            blank = dict.fromkeys(("sd", "lo", "hi", "p"))
            yield {**pair, "difference": known, **blank, "reason": "no value, or total intervals were not asked for"}
            continue
        d = total_difference(splits[0], splits[1])
        yield {**pair, "difference": d.estimate, "sd": d.sd, "lo": d.lo, "hi": d.hi, "p": d.p, "reason": d.reason}


def overlap_rows(cells: Sequence[CellResults]) -> list[dict[str, Any]]:
    """Overlap of the discordant sets of every pair of encoders, for each finding."""
    rows = []
    task = cells[0].rows[0]["task"]
    tables = {cell.encoder: _keyed(cell.queries) for cell in cells}
    for finding in cells[0].results["cohort"]["findings"]:
        for first, second in combinations(cells, 2):
            a, b = (tables[cell.encoder].get(finding) for cell in (first, second))
            names = {"task": task, "finding": finding, "encoder_a": first.encoder, "encoder_b": second.encoder}
            if a is None or b is None:
                continue
            shared = a.index.intersection(b.index)
            found = discordant_overlap(
                a.loc[shared, "discordant"].to_numpy(dtype=np.bool_),
                b.loc[shared, "discordant"].to_numpy(dtype=np.bool_),
                a.loc[shared, "group"].to_numpy(dtype=str),
            )
            rows.append(
                {
                    **names,
                    "n_queries": found.queries,
                    "n_a": found.first,
                    "n_b": found.second,
                    "n_both": found.both,
                    "jaccard": found.jaccard,
                    "delta_jaccard": found.jaccard_excess,
                    "p": found.p,
                    "p_stratified": found.p_stratified,
                }
            )
    return rows


def agreement_rows(cells: Sequence[CellResults], heads: pd.DataFrame | None = None) -> list[dict[str, Any]]:
    """Spearman correlations of the measures' rankings of the encoders: of the task, and the mean over findings.

    The sign is such that 1 is perfect agreement about which encoder is better.
    """
    task = cells[0].rows[0]["task"]
    findings = cells[0].results["cohort"]["findings"]
    tables = {name: _measure_table(cells, findings, name, heads) for name in MEASURES}
    rows = []
    for a, b in combinations(MEASURES, 2):
        one, two = tables[a], tables[b]
        pooled = np.isfinite(one[:, 0]) & np.isfinite(two[:, 0])
        names = {"task": task, "measure_a": a, "measure_b": b}
        if pooled.sum() >= 3:
            found = spearman(one[pooled, 0].tolist(), two[pooled, 0].tolist())
            rows.append(
                {**names, "finding": None, "spearman": found.value, "p": found.p, "n_encoders": int(pooled.sum())}
            )
        complete = np.isfinite(one[:, 1:]).all(axis=0) & np.isfinite(two[:, 1:]).all(axis=0)
        if complete.any() and len(cells) >= 3:
            mean = mean_spearman(one[:, 1:][:, complete], two[:, 1:][:, complete])
            label = {"finding": "mean over findings", "spearman": mean.value, "p": mean.p}
            rows.append({**names, **label, "n_encoders": len(cells)})
    return rows


def _measure_table(
    cells: Sequence[CellResults], findings: Sequence[str], name: str, heads: pd.DataFrame | None
) -> np.ndarray:
    """Values of a measure, larger is better: encoders × (task, findings), NaN where not given."""
    table = np.full((len(cells), 1 + len(findings)), np.nan)
    for i, cell in enumerate(cells):
        for j, finding in enumerate(["", *findings]):
            value = _value(cell, finding, name, heads)
            if value is not None and np.isfinite(value):
                table[i, j] = value if MEASURES[name] else -value
    return table


def _value(cell: CellResults, finding: str, name: str, heads: pd.DataFrame | None) -> float | None:
    if name in ("head_auroc", "logme"):
        if heads is None or name not in heads:
            return None
        mine = heads[heads["encoder"] == cell.encoder]
        if finding:
            mine = mine[mine["finding"] == finding]
        values = mine[name].to_numpy(dtype=np.float64)
        return float(values.mean()) if len(values) and np.isfinite(values).all() else None
    row = cell.row("finding" if finding else "task", finding)
    return None if row is None or row["status"] == "tied" else row.get(name)


def _keyed(queries: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {str(finding): part.set_index("image_id") for finding, part in queries.groupby("finding", sort=False)}


def _levels(cell: CellResults) -> Iterator[tuple[str, str]]:
    for row in cell.rows:
        if row["level"] in LEVELS:
            yield row["level"], row["finding"] or ""


def _corrected(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with q: Benjamini–Hochberg over all rows of the table that have a p."""
    for row, q in zip(rows, benjamini_hochberg([row["p"] for row in rows]), strict=True):
        row["q"] = q
    return rows


def merged(cells: Sequence[CellResults], comparisons: Mapping[str, Any]) -> dict[str, Any]:
    """One document of results.json for all encoders of a cohort, with their comparisons."""
    first = cells[0].results
    seconds: dict[str, float] = {}
    for cell in cells:
        for name, value in cell.results["timings"].items():
            seconds[name] = seconds.get(name, 0.0) + value
    warnings = dict.fromkeys(text for cell in cells for text in cell.results["warnings"])
    return {
        **first,
        "encoders": [encoder for cell in cells for encoder in cell.results["encoders"]],
        "timings": seconds,
        "discordance": [row for cell in cells for row in cell.rows],
        "warnings": list(warnings),
        **comparisons,
    }
