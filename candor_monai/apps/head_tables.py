"""The paper's Tables 2 (AUROC, margin), 3 (r, Conf.) and 4 from a head study, as Markdown, LaTeX and CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..metrics.combination_rules import ORACLE, RULES
from ..metrics.error_detection import CONFIDENCE
from ..utils.atomic import atomic_write
from ..visualize.csv_files import write_csv

#: Published values of Table 4 (arXiv 2607.18451): misses on majority-discordant positives (capped, uncapped), on all
#: positives, and false positives.
PAPER_TABLE_4: dict[str, tuple[float, float, float, float]] = {
    "single head": (0.426, 0.337, 0.218, 0.527),
    "chosen on validation": (0.445, 0.380, 0.206, 0.434),
    "majority vote": (0.418, 0.307, 0.186, 0.544),
    "mean probability": (0.494, 0.388, 0.217, 0.444),
    "stacked logistic regression": (0.433, 0.396, 0.205, 0.418),
    "OR": (0.049, 0.045, 0.019, 0.880),
}


@dataclass(frozen=True)
class PaperTable:
    """A table for readers: ``name`` of its files, ``title``, ``columns``, ``rows`` of plain values."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[dict[str, Any]]


def table_2(probe: Sequence[Mapping[str, Any]], discordance: Mapping[str, Sequence[Mapping[str, Any]]]) -> PaperTable:
    """Head AUROC and margin AUROC of each encoder, with D beside them.

    Args:
        probe: rows of ``probe.csv``.
        discordance: encoder -> rows of ``discordance.csv``; empty where the measure was not run.
    """
    rows = []
    for row in probe:
        if row["level"] != "task":
            continue
        pooled = next((r for r in discordance.get(row["encoder"], ()) if r.get("level") == "task"), {})
        rows.append(
            {
                "encoder": row["encoder"],
                "D": pooled.get("D"),
                "D_all": pooled.get("D_all"),
                "AUROC": row["auroc"],
                "AUROC SD": row["auroc_sd"],
                "margin": pooled.get("margin_auroc"),
                "LogME": row["logme"],
                "why not": row["reason"] if row["auroc"] is None else None,
            }
        )
    columns = ("encoder", "D", "D_all", "AUROC", "AUROC SD", "margin", "LogME", "why not")
    return PaperTable("table_2", "Discordance, head AUROC and margin AUROC", columns, rows)


def table_3(detection: Sequence[Mapping[str, Any]]) -> PaperTable:
    """Mean AUROC for detecting head errors: impurity r and confidence, and every other score."""
    scores = list(dict.fromkeys(row["score"] for row in detection))
    short = {"neighborhood impurity": "r", CONFIDENCE: "Conf."}
    rows = []
    for name in dict.fromkeys(row["encoder"] for row in detection if row["level"] != "site"):
        part = {row["score"]: row for row in detection if row["level"] != "site" and row["encoder"] == name}
        values = {short.get(score, score): part[score]["auroc"] for score in scores}
        rows.append({"encoder": name or "all", **values, "rows": part[CONFIDENCE]["rows"]})
    order = ("neighborhood impurity", CONFIDENCE)
    columns = [short[score] for score in order] + [score for score in scores if score not in order]
    return PaperTable("table_3", "Detecting head errors without the label", ("encoder", *columns, "rows"), rows)


def table_4(rules: Sequence[Mapping[str, Any]]) -> PaperTable:
    """Misses of the combination rules on majority-discordant and all positives, and their false positives."""
    places = {
        "discordant": ("capped", "majority-discordant positives"),
        "discordant, uncapped": ("uncapped", "majority-discordant positives"),
        "all": ("capped", "positives"),
        "false positives": ("capped", "negatives"),
    }
    rows = []
    for rule in (*RULES, ORACLE):
        row: dict[str, Any] = {"rule": rule}
        for place, (column, (sample, subset)) in enumerate(places.items()):
            found = next(r for r in rules if (r["rule"], r["sample"], r["subset"]) == (rule, sample, subset))
            row[column] = found["rate"]
            row[f"n {column}"] = found["n_pairs"]
            row[f"paper {column}"] = PAPER_TABLE_4[rule][place] if rule in PAPER_TABLE_4 else None
        rows.append(row)
    columns = ("rule", *places, *(f"n {column}" for column in places), *(f"paper {column}" for column in places))
    return PaperTable("table_4", "Miss rates and false positives of rules over the heads", columns, rows)


def write_tables(tables: Sequence[PaperTable], folder: Path, notes: Sequence[str]) -> list[Path]:
    """Write each table as ``.md``, ``.tex`` and ``.csv``; the notes stand under it in the first two.

    Raises:
        OSError: a file cannot be written.
    """
    files = []
    for table in tables:
        path = folder / table.name
        atomic_write(path.with_suffix(".md"), markdown(table, notes))
        atomic_write(path.with_suffix(".tex"), latex(table, notes))
        write_csv(path.with_suffix(".csv"), table.rows, table.columns)
        files += [path.with_suffix(suffix) for suffix in (".md", ".tex", ".csv")]
    return files


def markdown(table: PaperTable, notes: Sequence[str] = ()) -> str:
    """The table in Markdown.

    >>> print(markdown(PaperTable("t", "T", ("a", "b"), [{"a": "x|y", "b": 0.12345}, {"a": "z", "b": None}])))
    ## T
    <BLANKLINE>
    | a | b |
    | --- | --- |
    | x\\|y | 0.123 |
    | z | – |
    <BLANKLINE>
    """
    lines = [f"## {table.title}", "", _line(table.columns), _line(["---"] * len(table.columns))]
    lines += [_line([_text(row.get(column)).replace("|", "\\|") for column in table.columns]) for row in table.rows]
    return "\n".join([*lines, "", *(f"*{note}*\n" for note in notes)])


def latex(table: PaperTable, notes: Sequence[str] = ()) -> str:
    """The table in LaTeX (booktabs)."""
    body = [" & ".join(_escaped(_text(row.get(column))) for column in table.columns) + r" \\" for row in table.rows]
    lines = [
        r"\begin{table}",
        rf"\caption{{{_escaped(table.title)}. {_escaped(' '.join(notes))}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"\toprule",
        " & ".join(_escaped(column) for column in table.columns) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _escaped(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
    return "".join(special.get(c, "\\" + c if c in "&%$#_{}" else c) for c in text)
