"""Ablations: the same cells with one thing changed, each a row with its change in D and what it does to the ranking."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..metrics.rankings import spearman
from .comparison import CellResults

# Small sets, for ablations that compute features of their own.
SMALL = {"max_candidates": 500, "max_queries": 500}
# Name -> overrides. Source: arXiv 2607.18451, ablations; docs/measures.md, section 12.
ABLATIONS: dict[str, dict[str, Any]] = {
    "boxed": {"queries": "boxed"},
    "unmatched": {"matched": False},
    "isolated": {"isolated": True},
    "negatives": {"roles": "negatives"},
    "mean_patch": {"feature_point": "mean_patch", **SMALL},
    "source_512": {"image_size": 512, **SMALL},
    "balance_removed": {"balance_removed": True, "sets": "image"},
    "exclude_same_patient": {"exclude_same_patient": True, "sets": "image"},
    "sets_image": {"sets": "image"},
    "sets_patient": {"sets": "patient"},
    "redraws": {"redraws": 10},
    "shuffled_images": {"shuffle_labels": "image"},
    "shuffled_patients": {"shuffle_labels": "patient"},
    **{f"k_{k}": {"k": k} for k in (1, 2, 3, 10, 15, 20)},
    **{f"n_{n}": {"max_candidates": n} for n in (250, 500, 1000, 2000)},
}
# D depends on the number of candidates: these are compared with the cell's own features and sets as small.
BESIDE: dict[str, tuple[str, dict[str, Any]]] = dict.fromkeys(("mean_patch", "source_512"), ("small_sets", SMALL))
COLUMNS = (
    *("ablation", "encoder", "task", "finding", "D_main", "D", "change", "n_queries", "tie_rate"),
    *("spearman", "p", "status", "reason"),
)

Variant = Callable[[Any, str, dict[str, Any]], CellResults]


def run_ablations(
    names: Sequence[str], cells: Sequence[Any], results: Sequence[CellResults], variant: Variant
) -> list[dict[str, Any]]:
    """Run ablations of a cohort's cells.

    Args:
        names: of :data:`ABLATIONS`.
        cells: the study's cells.
        results: their main results, in the same order.
        variant: runs a cell with overrides under a name.

    Returns:
        rows of ablations.csv: one an ablation × encoder × finding (empty: the task), and one an ablation with the rank
        correlation of the encoders' D with the main result (``encoder`` empty); of those in :data:`BESIDE` with that of
        sets as small. A part that cannot be run says why.
    """
    rows: list[dict[str, Any]] = []
    for name in names:
        pairs = []
        for cell, main in zip(cells, results, strict=True):
            print(f"  {cell.name}: ablation {name}", flush=True)
            try:
                base = variant(cell, *BESIDE[name]) if name in BESIDE else main
                changed = variant(cell, name, ABLATIONS[name])
            except SystemExit as refused:
                reason = str(refused).removeprefix("candor_monai: ")
                rows.append(_row(name, main.encoder, None, status="failed", reason=reason))
                continue
            pairs.append((base, changed))
            rows.extend(_changes(name, base, changed))
        rows.append(_ranking(name, pairs))
    task = results[0].results["cohort"]["task"] if results else None
    return [{**row, "task": task} for row in rows]


def _changes(name: str, main: CellResults, changed: CellResults) -> Iterator[dict[str, Any]]:
    for before in main.rows:
        if before["level"] not in ("finding", "task"):
            continue
        after: Mapping[str, Any] = changed.row(before["level"], before["finding"] or "") or {}
        known = before["D"] is not None and after.get("D") is not None
        yield _row(
            name,
            main.encoder,
            before["finding"] or None,
            D_main=before["D"],
            D=after.get("D"),
            change=after["D"] - before["D"] if known else None,
            n_queries=after.get("n_queries"),
            tie_rate=after.get("tie_rate"),
            status=after.get("status", "not measured"),
            reason=after.get("reason"),
        )


def _ranking(name: str, pairs: Sequence[tuple[CellResults, CellResults]]) -> dict[str, Any]:
    values = []
    for main, changed in pairs:
        before, after = main.row("task", ""), changed.row("task", "")
        if before and after and before["D"] is not None and after["D"] is not None:
            values.append((before["D"], after["D"]))
    if len(values) < 3:
        return _row(name, None, None, status="insufficient", reason="fewer than 3 encoders have both values")
    found = spearman([one for one, _ in values], [two for _, two in values])
    return _row(name, None, None, spearman=found.value, p=found.p, status="ok", reason=found.reason)


def _row(ablation: str, encoder: str | None, finding: str | None, **values: Any) -> dict[str, Any]:
    return {**dict.fromkeys(COLUMNS), "ablation": ablation, "encoder": encoder, "finding": finding, **values}
