"""Rows of discordance.csv in the shape in which the report's tables show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from .answer import ranking_rows, summary_rows, tasks_of, titles
from .estimates import Estimate, findings_of, rows_of, shown_rows
from .interval_plot import interval_plot
from .verdicts import LABELS, Verdict, corrected_p, is_ranked, reference, verdict
from .wording import MISSING, count, group_name, interval, number, probability

# More findings than this are not drawn as a matrix, and more rows than that are shown as numbers only.
MATRIX_FINDINGS = 40
FULL_ROWS = 600


@dataclass(frozen=True)
class ReportRow:
    """One row as text, with its plot and its verdict."""

    encoder: str
    title: str
    finding: str
    group: str
    rank: str
    says: Verdict
    plot: Markup
    text: Mapping[str, str]
    groups: tuple[ReportRow, ...] = ()
    best: bool | None = None
    without: str = ""


@dataclass(frozen=True)
class MatrixCell:
    """One cell of the matrix encoder × finding: the number, its shade (0 white at chance to 5) and its verdict."""

    text: str
    shade: str
    says: Verdict | None


@dataclass(frozen=True)
class TaskTables:
    """Everything that the report shows about one task."""

    task: str
    findings: tuple[str, ...]
    overview: tuple[ReportRow, ...]
    pooled: bool
    matrix_heads: tuple[str, ...]
    matrix: tuple[tuple[str, tuple[MatrixCell, ...]], ...]
    rows: tuple[ReportRow, ...]
    compact_encoders: tuple[str, ...]
    compact: tuple[tuple[str, tuple[MatrixCell, ...]], ...]
    verdicts: tuple[tuple[str, str, int], ...]

    @property
    def conditional(self) -> bool:
        """Whether every interval of the tables is the conditional one."""
        kinds = {row.text["kind"] for row in (*self.overview, *self.rows)} - {""}
        return kinds == {"conditional"}


def report_row(
    row: Mapping[str, Any], title: str, groups: Iterable[ReportRow] = (), rank: str = "", **more: Any
) -> ReportRow:
    """One row of discordance.csv as the report shows it."""
    total = row.get("D_total_lo") is not None and row.get("D_total_hi") is not None
    conditional = interval(row.get("D_lo"), row.get("D_hi"))
    text = {
        "D": number(row.get("D")),
        "interval": interval(row["D_total_lo"], row["D_total_hi"]) if total else conditional,
        "kind": "total" if total else "conditional" if conditional != MISSING else "",
        "conditional": conditional,
        "chance": number(reference(row) if reference(row) is not None else row.get("chance")),
        "p": probability(corrected_p(row)),
        "D_all": number(row.get("D_all")),
        "D_all_interval": interval(row.get("D_all_lo"), row.get("D_all_hi")),
        "auroc": number(row.get("margin_auroc")),
        "auroc_interval": _auroc_interval(row),
        "positive": count(row.get("n_positive")),
        "negative": count(row.get("n_negative")),
        "candidates": count(row.get("n_candidates")),
        "queries": count(row.get("n_queries")),
        "patients": count(row.get("n_pos_patients")),
        "share": MISSING if row.get("max_patient_share") is None else f"{100 * row['max_patient_share']:.0f} %",
        "D_common": MISSING
        if row.get("D_common") is None
        else f"{number(row['D_common'])} at n = {count(row.get('n_common'))}",
        "ties": MISSING if row.get("tie_rate") is None else f"{100 * row['tie_rate']:.1f} %",
    }
    finding = row.get("finding") or "all findings"
    return ReportRow(
        row["encoder"], title, finding, group_name(row.get("group")), rank, verdict(row), interval_plot(row), text,
        tuple(groups), without=group_name(row["missing"]) if row.get("missing") else "", **more,
    )  # fmt: skip


def _auroc_interval(row: Mapping[str, Any]) -> str:
    """The total interval of the margin AUROC, or the conditional one."""
    total = interval(row.get("margin_auroc_total_lo"), row.get("margin_auroc_total_hi"))
    return total if total != MISSING else interval(row.get("margin_auroc_lo"), row.get("margin_auroc_hi"))


def task_tables(results: Mapping[str, Any], task: str, detail: bool = True) -> TaskTables:
    """The tables of one task.

    Args:
        results: the results.
        task: its name.
        detail: with the rows of the matched groups.
    """
    name = titles(results)
    findings = tuple(findings_of(results, task))
    shown = shown_rows(results, task)
    many = sum(len(part) for _, part in shown) > FULL_ROWS
    rows = tuple(_estimate_rows(results, task, shown, name, detail and not many))
    encoders, cells = _cells(results, task, shown)
    drawn = 1 < len(shown) <= MATRIX_FINDINGS and len(encoders) > 1
    matrix = zip(encoders, cells, strict=True) if drawn else ()
    tally = {code: sum(r.says.code == code for r in rows) for code in LABELS}
    return TaskTables(
        task=task,
        findings=findings,
        overview=tuple(_overview(results, task, name)),
        pooled=len(findings) > 1,
        matrix_heads=tuple(estimate.label for estimate, _ in shown),
        matrix=tuple((name[e], tuple(_matrix_cell(row) for row in column)) for e, column in matrix),
        rows=rows,
        compact_encoders=tuple(name[e] for e in encoders),
        compact=_compact(shown, cells) if many else (),
        verdicts=tuple((code, LABELS[code], n) for code, n in tally.items() if n),
    )


def task_matrix(results: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[tuple[str, tuple[MatrixCell, ...]], ...]]:
    """D of every encoder on every task: the tasks, and encoder -> its cells; empty for one task or one encoder."""
    tasks, name = tasks_of(results), titles(results)
    if len(tasks) < 2 or len(name) < 2:
        return (), ()
    cells = {(row["encoder"], task): row for task in tasks for row in summary_rows(results, task)}
    order = encoder_order(results)
    return tuple(tasks), tuple((name[e], tuple(_matrix_cell(cells.get((e, t)), 3) for t in tasks)) for e in order)


def encoder_order(results: Mapping[str, Any], tasks: Sequence[str] | None = None) -> list[str]:
    """Names of the encoders, best first: by their mean place over the tasks (None: all) in which they have one."""
    places: dict[str, list[float]] = {card["name"]: [] for card in results["encoders"]}
    for task in tasks_of(results) if tasks is None else tasks:
        whole = summary_rows(results, task)
        for rows in [whole] if any(map(is_ranked, whole)) else [part for _, part in shown_rows(results, task)]:
            ranked = sorted((row for row in rows if is_ranked(row)), key=lambda row: row["D"])
            for place, row in enumerate(ranked):
                places[row["encoder"]].append(place / len(ranked))
    return sorted(places, key=lambda e: sum(places[e]) / len(places[e]) if places[e] else 2.0)


def _overview(results: Mapping[str, Any], task: str, name: Mapping[str, str]) -> list[ReportRow]:
    """The rows that stand for the task, best first; empty when no encoder has a number for it."""
    compared = ranking_rows(results, task)
    rows = summary_rows(results, task)
    ranked = sorted((row for row in rows if is_ranked(row)), key=lambda row: row["D"])
    others = [row for row in rows if not is_ranked(row)]
    if not any(row.get("D") is not None for row in rows):
        return []
    shown = []
    for place, row in enumerate([*ranked, *others], 1):
        extra = compared.get(row["encoder"], {})
        shown.append(
            report_row(
                row,
                name[row["encoder"]],
                rank=str(1 + sum(other["D"] < row["D"] for other in ranked)) if place <= len(ranked) else MISSING,
                best=extra.get("not_worse_than_best") if place <= len(ranked) else None,
            )
        )
    return shown


def _estimate_rows(
    results: Mapping[str, Any],
    task: str,
    shown: Sequence[tuple[Estimate, Sequence[Mapping[str, Any]]]],
    name: Mapping[str, str],
    detail: bool,
) -> Iterable[ReportRow]:
    """Estimate by estimate, encoders by D, undefined last; the matched groups inside."""
    parts: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows_of(results, task, "group") if detail else ():
        parts.setdefault((row["encoder"], row["finding"]), []).append(row)
    for estimate, rows in shown:
        for row in sorted(rows, key=lambda r: (not is_ranked(r), r["D"] if is_ranked(r) else 0)):
            title = name[row["encoder"]]
            groups = parts.get((row["encoder"], row["finding"]), []) if estimate.group is None else [row]
            yield report_row(row, title, [report_row(g, title) for g in groups] if detail else ())


def _cells(
    results: Mapping[str, Any], task: str, shown: Sequence[tuple[Estimate, Sequence[Mapping[str, Any]]]]
) -> tuple[list[str], list[list[Mapping[str, Any] | None]]]:
    """The task's encoders, best first, and for each its rows in the order of the estimates."""
    by_encoder: dict[str, dict[Estimate, Mapping[str, Any]]] = {}
    for estimate, rows in shown:
        for row in rows:
            by_encoder.setdefault(row["encoder"], {})[estimate] = row
    encoders = [encoder for encoder in encoder_order(results, [task]) if encoder in by_encoder]
    return encoders, [[by_encoder[e].get(estimate) for estimate, _ in shown] for e in encoders]


def _compact(
    shown: Sequence[tuple[Estimate, Any]], cells: Sequence[Sequence[Mapping[str, Any] | None]]
) -> tuple[tuple[str, tuple[MatrixCell, ...]], ...]:
    """Estimate -> its cells in the order of the encoders."""
    return tuple(
        (estimate.label, tuple(_matrix_cell(column[i], 3) for column in cells)) for i, (estimate, _) in enumerate(shown)
    )


def _matrix_cell(row: Mapping[str, Any] | None, digits: int = 2) -> MatrixCell:
    if row is None:
        return MatrixCell(MISSING, "x", None)
    says = verdict(row)
    if not is_ranked(row):
        return MatrixCell({"tied": "tied"}.get(says.code, "n/e"), "x", says)
    chance = reference(row) if reference(row) is not None else row.get("chance") or 0.5
    if row["D"] > chance:
        return MatrixCell(number(row["D"], digits), f"o{min(5, int((row['D'] - chance) * 12))}", says)
    return MatrixCell(number(row["D"], digits), f"b{min(5, int((chance - row['D']) * 12))}", says)
