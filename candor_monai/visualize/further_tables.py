"""What else a run measured, as tables of the report: paired differences, heads, retention, ablations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .answer import summary_rows, tasks_of, titles
from .verdicts import is_ranked
from .wording import MISSING, group_name, interval, measure_name, number, probability

# Rows of one table; the CSV file has them all.
MOST_ROWS = 250
WARNING = "These numbers stand beside D. D does not predict which images a finished classifier will miss."


@dataclass(frozen=True)
class FurtherTable:
    """One table: rows of texts, and whether each column holds numbers."""

    key: str
    title: str
    note: str
    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    total: int


# key of results.json -> title, note, the columns shown where rows have them; `*`: a value with its interval
KNOWN: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "probe": (
        "Trained linear heads",
        WARNING,
        (
            "encoder",
            "task",
            "finding",
            "group",
            "auroc*",
            "miss_rate",
            "false_positive_rate",
            "logme",
            "n_test_positive",
            "reason",
        ),
    ),
    "head_errors": (
        "Errors of the heads among discordant images and among the others",
        WARNING,
        ("encoder", "task", "finding", "role", "exposed_rate", "other_rate", "difference*", "n_strata", "reason"),
    ),
    "rules": (
        "Rules over the heads of several encoders",
        WARNING,
        ("rule", "task", "sample", "subset", "measure", "rate*", "n_pairs", "reason"),
    ),
    "error_detection": (
        "Detecting errors of the heads without the label",
        WARNING,
        ("encoder", "task", "finding", "site", "score", "auroc*", "difference*", "q", "verdict"),
    ),
    "retention": (
        "How much of a feature is left when the annotated finding is covered",
        "Retention is the similarity of an image's feature before and after the finding is covered; the control covers "
        "an area of the same size elsewhere. Retention below the control's says that the encoder sees the place.",
        ("encoder", "task", "finding", "retention*", "control*", "difference*", "standardised*", "n_images", "reason"),
    ),
    "trends": (
        "What D and D_all follow",
        "Over every encoder and finding: rank correlation with the number of positives, and slope on the encoder's "
        "year and the decimal logarithm of its parameters (trained encoders). p counts each finding once.",
        ("task", "measure", "against", "kind", "value", "p", "clusters", "reason"),
    ),
    "ablations": (
        "Ablations",
        "The same measure with one option changed; Spearman's correlation says whether the encoders keep their order.",
        ("ablation", "encoder", "task", "finding", "D_main", "D", "change", "spearman", "reason"),
    ),
}


def further_tables(results: Mapping[str, Any]) -> list[FurtherTable]:
    """Every further table that the results hold rows for."""
    name = titles(results)
    tables = []
    if len(results["encoders"]) > 1:
        tables.append(_beside(results, name))
    if results.get("comparisons"):
        tables.append(_comparisons(results, name))
    for key, (title, note, wanted) in KNOWN.items():
        rows = results.get(key) or ()
        if rows:
            tables.append(_table(key, title, note, wanted, rows, name))
    return tables


def _table(
    key: str, title: str, note: str, wanted: Sequence[str], rows: Sequence[Mapping[str, Any]], name: Mapping[str, str]
) -> FurtherTable:
    columns = [c for c in wanted if any(row.get(c.rstrip("*")) not in (None, "") for row in rows)]
    single = {c for c in ("encoder", "task") if len({row.get(c) for row in rows}) == 1}
    columns = [c for c in columns if c not in single]
    ordered = sorted(rows, key=lambda row: {"task": 0, "all": 0, "finding": 1}.get(str(row.get("level")), 2))
    shown = tuple(tuple(_cell(row, column, name) for column in columns) for row in ordered[:MOST_ROWS])
    numeric = tuple(
        all(isinstance(v, (int, float)) for row in rows if (v := row.get(c.rstrip("*"))) not in (None, ""))
        for c in columns
    )
    headings = tuple(measure_name(column.rstrip("*")) for column in columns)
    return FurtherTable(key, title, note, headings, numeric, shown, len(rows))


def _cell(row: Mapping[str, Any], column: str, name: Mapping[str, str]) -> str:
    value = row.get(column.rstrip("*"))
    if value is None or value == "":
        return "all" if column in ("finding", "group", "site", "encoder") else MISSING
    if column == "encoder":
        return name.get(value, value)
    if column == "group":
        return group_name(value)
    if column in ("p", "q"):
        return probability(value)
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    if column.endswith("*"):
        around = interval(row.get(f"{column[:-1]}_lo", row.get("lo")), row.get(f"{column[:-1]}_hi", row.get("hi")))
        return number(value) if around == MISSING else f"{number(value)} ({around})"
    return number(value)


def _beside(results: Mapping[str, Any], name: Mapping[str, str]) -> FurtherTable:
    """The encoders by D with what else could choose among them: other measures, size, year, pretraining."""
    cards = {card["name"]: card for card in results["encoders"]}
    tasks = tasks_of(results)
    heads = {(row.get("task"), row["encoder"]): row for row in results.get("probe") or () if row.get("level") == "task"}
    rows = []
    for task in tasks:
        ranked = sorted((row for row in summary_rows(results, task) if is_ranked(row)), key=lambda row: row["D"])
        for row in ranked:
            card, head = cards[row["encoder"]], heads.get((task, row["encoder"]), {})
            numbers = (row["D"], row.get("D_all"), row.get("margin_auroc"), head.get("auroc"), head.get("logme"))
            rows.append(
                (
                    task,
                    name[row["encoder"]],
                    *(number(value) for value in numbers),
                    MISSING if not card.get("parameters") else f"{card['parameters'] / 1e6:,.1f}",
                    MISSING if not card.get("year") else str(card["year"]),
                    card.get("objective") or MISSING,
                )
            )
    columns = (
        "task",
        "encoder",
        "D",
        "D_all",
        "margin AUROC",
        "head AUROC",
        "LogME",
        "M parameters",
        "year",
        "pretraining",
    )
    kept = [i for i in range(len(columns)) if i < 3 or any(row[i] != MISSING for row in rows)]
    kept = kept if len(tasks) > 1 else kept[1:]
    numeric = (False, False, *(True,) * 7, False)
    return FurtherTable(
        "beside",
        "D beside other measures, and the encoders' size and pretraining",
        "Sort by a column to see whether another measure, or size, would have put the encoders in the same order.",
        tuple(columns[i] for i in kept),
        tuple(numeric[i] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in rows[:MOST_ROWS]),
        len(rows),
    )


def _comparisons(results: Mapping[str, Any], name: Mapping[str, str]) -> FurtherTable:
    """Paired differences that involve the encoder with the lowest D of each task."""
    best: dict[str, str] = {}
    for task in dict.fromkeys(row["task"] for row in results["comparisons"]):
        ranked = sorted((row for row in summary_rows(results, task) if is_ranked(row)), key=lambda row: row["D"])
        if ranked:
            best[task] = ranked[0]["encoder"]
    rows = [
        row
        for row in results["comparisons"]
        if row["task"] not in best or best[row["task"]] in (row["encoder_a"], row["encoder_b"])
    ]
    shown = tuple(
        (
            row["task"],
            row.get("finding") or "all",
            name.get(row["encoder_a"], row["encoder_a"]),
            name.get(row["encoder_b"], row["encoder_b"]),
            number(row.get("difference")),
            interval(row.get("lo"), row.get("hi")),
            probability(row.get("p")),
            probability(row.get("q")),
        )
        for row in rows[:MOST_ROWS]
    )
    note = "Difference of D, first minus second, over the same images. Below 0 the first is better."
    columns = ("task", "finding", "first", "second", "difference", "95 % interval", "p", "q")
    return FurtherTable(
        "comparisons", "Paired differences", note, columns, (False,) * 4 + (True,) * 4, shown, len(rows)
    )
