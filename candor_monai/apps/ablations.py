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
Together = Callable[[Any, dict[str, dict[str, Any]]], None]


def run_ablations(
    names: Sequence[str], cells: Sequence[Any], results: Sequence[CellResults], variant: Variant, together: Together
) -> list[dict[str, Any]]:
    """Run ablations of a cohort's cells, those of a cell one after the other.

    Args:
        names: of :data:`ABLATIONS`.
        cells: the study's cells.
        results: their main results, in the same order.
        variant: runs a cell with overrides under a name.
        together: is told all that will be run of a cell, name -> overrides, before any of it, and may do work that they
            share.

    Returns:
        rows of ablations.csv: one an ablation × encoder × finding (empty: the task), and one an ablation with the rank
        correlation of the encoders' D with the main result (``encoder`` empty); of those in :data:`BESIDE` with that of
        sets as small. A part that cannot be run says why.
    """
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for cell, main in zip(cells, results, strict=True):
        together(cell, _variants(names))
        for name in names:
            print(f"  {cell.name}: ablation {name}", flush=True)
            try:
                base = variant(cell, *BESIDE[name]) if name in BESIDE else main
                changed = variant(cell, name, ABLATIONS[name])
            except SystemExit as refused:
                reason = str(refused).removeprefix("candor_monai: ")
                rows[name].append(_row(name, main.encoder, None, status="failed", reason=reason))
                continue
            pairs[name].extend(_task_values(base, changed))
            rows[name].extend(_changes(name, base, changed))
    task = results[0].results["cohort"]["task"] if results else None
    return [{**row, "task": task} for name in names for row in (*rows[name], _ranking(name, pairs[name]))]


def _variants(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """All that is run for some ablations, with what they are compared with: name -> overrides."""
    beside = [BESIDE[name] for name in names if name in BESIDE]
    return {**dict(beside), **{name: ABLATIONS[name] for name in names}}


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


def _task_values(main: CellResults, changed: CellResults) -> Iterator[tuple[float, float]]:
    """The task's D before and after, where both are known."""
    before, after = main.row("task", ""), changed.row("task", "")
    if before and after and before["D"] is not None and after["D"] is not None:
        yield before["D"], after["D"]


def _ranking(name: str, values: Sequence[tuple[float, float]]) -> dict[str, Any]:
    if len(values) < 3:
        return _row(name, None, None, status="insufficient", reason="fewer than 3 encoders have both values")
    found = spearman([one for one, _ in values], [two for _, two in values])
    return _row(name, None, None, spearman=found.value, p=found.p, status="ok", reason=found.reason)


def _row(ablation: str, encoder: str | None, finding: str | None, **values: Any) -> dict[str, Any]:
    return {**dict.fromkeys(COLUMNS), "ablation": ablation, "encoder": encoder, "finding": finding, **values}
