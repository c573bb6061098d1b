"""The paper's Tables 2 (AUROC, margin), 3 (r, Conf.) and 4 from a head study, as Markdown, LaTeX and CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..metrics.combination_rules import ORACLE, RULES
from ..metrics.error_detection import CONFIDENCE
from ..visualize.paper_tables import published
from ..visualize.table_files import TextTable, write_table


def table_2(probe: Sequence[Mapping[str, Any]], discordance: Mapping[str, Sequence[Mapping[str, Any]]]) -> TextTable:
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
    return TextTable("table_2", "Discordance, head AUROC and margin AUROC", columns, rows)


def table_3(detection: Sequence[Mapping[str, Any]]) -> TextTable:
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
    return TextTable("table_3", "Detecting head errors without the label", ("encoder", *columns, "rows"), rows)


def table_4(rules: Sequence[Mapping[str, Any]]) -> TextTable:
    """Misses of the combination rules on majority-discordant and all positives, and their false positives."""
    places = {
        "discordant": ("capped", "majority-discordant positives", "capped"),
        "discordant, uncapped": ("uncapped", "majority-discordant positives", "uncapped"),
        "all": ("capped", "positives", "all"),
        "false positives": ("capped", "negatives", "false_positives"),
    }
    paper = published()["table_4"]["rules"]
    rows = []
    for rule in (*RULES, ORACLE):
        row: dict[str, Any] = {"rule": rule}
        for column, (sample, subset, key) in places.items():
            found = next(r for r in rules if (r["rule"], r["sample"], r["subset"]) == (rule, sample, subset))
            row[column] = found["rate"]
            row[f"n {column}"] = found["n_pairs"]
            row[f"paper {column}"] = paper.get(rule, {}).get(key)
        rows.append(row)
    columns = ("rule", *places, *(f"n {column}" for column in places), *(f"paper {column}" for column in places))
    return TextTable("table_4", "Miss rates and false positives of rules over the heads", columns, rows)


def write_tables(tables: Sequence[TextTable], folder: Path, notes: Sequence[str]) -> list[Path]:
    """Write each table as CSV, Markdown and LaTeX; the notes stand under it in the last two.

    Raises:
        OSError: a file cannot be written.
    """
    return [file for table in tables for file in write_table(folder, replace(table, notes=(*table.notes, *notes)))]
