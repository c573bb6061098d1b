"""Tables 1 to 4 in the paper's form, from any run's results, with the published numbers beside them when asked.

Table 1 describes the data, Table 2 the encoders on the chest findings, Table 3 D on every other task, Table 4 the rules
that combine the heads of several encoders. A table whose numbers the run does not hold is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from .answer import summary_rows, tasks_of, titles
from .estimates import findings_of, rows_of
from .figures import file_stem
from .report_facts import cohorts_of
from .results_files import remove_matching
from .table_files import SUFFIXES, TextTable, write_table
from .verdicts import is_ranked

PAPER = " (paper)"


@cache
def published() -> dict[str, Any]:
    """The numbers that the paper gives, by the names of the encoders' and tasks' cards.

    >>> published()["table_2"]["encoders"]["rad_dino"]["D"]
    0.277
    """
    return yaml.safe_load(files(__package__).joinpath("templates", "published.yaml").read_text(encoding="utf-8"))


def paper_tables(results: Mapping[str, Any], beside: bool = False) -> list[TextTable]:
    """Every table that the results hold the numbers for.

    Args:
        results: the document of results.json.
        beside: give the published number of each cell in a column of its own.
    """
    tables = [data_table(results)]
    chest = published()["table_2"]["task"]
    tasks = tasks_of(results)
    tables += [encoder_table(results, task, beside) for task in tasks if task == chest or task.startswith(chest)]
    others = [task for task in tasks if task != chest and not task.startswith(chest)]
    if others:
        tables.append(task_table(results, others, beside))
    rules = results.get("rules") or ()
    ruled = list(dict.fromkeys(row.get("task") for row in rules))
    for task in ruled:
        own = [row for row in rules if row.get("task") == task]
        if len(ruled) == 1 or task == chest:
            tables.append(rule_table(own, beside))
        else:
            tables.append(rule_table(own, task=task))
    return tables


def write_paper_tables(folder: str | Path, results: Mapping[str, Any], beside: bool = False) -> list[Path]:
    """Write the tables as CSV, Markdown and LaTeX.

    Args:
        folder: where to; made when missing.
        results: the document of results.json.
        beside: with the published numbers.

    Returns:
        the files.

    Raises:
        OSError: a file cannot be written.
    """
    return [file for table in paper_tables(results, beside) for file in write_table(folder, table)]


def remove_paper_tables(folder: str | Path, but: Collection[Path] = ()) -> None:
    """Remove what :func:`write_paper_tables` wrote of other results.

    Args:
        folder: where it was written.
        but: files that stay.

    Raises:
        OSError: a file cannot be removed.
    """
    remove_matching(folder, [f"table_*{suffix}" for suffix in SUFFIXES], but)


def data_table(results: Mapping[str, Any]) -> TextTable:
    """Table 1: images, patients, groups and findings of each cohort, positive queries of each task."""
    rows: list[dict[str, Any]] = [
        {
            "data": cohort.get("title") or cohort["name"],
            "images": cohort.get("n_images"),
            "patients": cohort.get("patients"),
            "groups": len(cohort["groups"]) if cohort.get("groups") else None,
            "matched on": ", ".join(cohort.get("match_on") or ()) or None,
        }
        for cohort in cohorts_of(results)
    ]
    rows += [
        {
            "data": f"task {task}",
            "findings": len(findings_of(results, task)),
            "positive queries": _queries(results, task),
        }
        for task in tasks_of(results)
    ]
    columns = ("data", "images", "patients", "groups", "matched on", "findings", "positive queries")
    return TextTable("table_1", "Data", columns, rows)


def encoder_table(results: Mapping[str, Any], task: str, beside: bool = False) -> TextTable:
    """Table 2: the encoders on a task, by D: parameters, D, D_all, head AUROC, margin AUROC and retention."""
    paper = published()["table_2"]
    name = titles(results)
    cards = {card["name"]: card for card in results["encoders"]}
    heads = _by_encoder(results.get("probe"), task)
    kept = _by_encoder(results.get("retention"), task)
    rows = []
    for row in _ordered(summary_rows(results, task)):
        encoder = row["encoder"]
        parameters = cards[encoder].get("parameters")
        ours = {
            "D": row.get("D"),
            "D_all": row.get("D_all"),
            "head AUROC": heads.get(encoder, {}).get("auroc"),
            "margin AUROC": row.get("margin_auroc"),
            "retention": kept.get(encoder, {}).get("retention"),
        }
        out = {"encoder": name[encoder], "parameters (M)": None if parameters is None else round(parameters / 1e6)}
        for key, value in ours.items():
            out[key] = value
            if key == "D":
                out["D SD"] = row.get("D_sd")
            if beside:
                theirs = paper["encoders"].get(encoder, {}) if task == paper["task"] else {}
                out[key + PAPER] = theirs.get(key.lower().replace(" ", "_") if " " in key else key)
        out["status"] = None if row.get("status") == "ok" else row.get("reason") or row.get("status")
        rows.append(out)
    held = dict.fromkeys(column for row in rows for column in row if row[column] is not None)
    columns = tuple(column for column in (rows[0] if rows else ()) if column in held or column in ("encoder", "D"))
    rows = [{column: row[column] for column in columns} for row in rows]
    notes = [f"{_queries(results, task):,} positive queries." if _queries(results, task) is not None else ""]
    if any(column.endswith(PAPER) for column in columns):
        notes.append(_source(f"{paper['queries']:,} positive queries of MIMIC-CXR and CheXpert"))
    stem = "table_2" if task == paper["task"] else f"table_2_{file_stem(task)}"
    return TextTable(stem, f"Encoders on task {task}, by D", columns, rows, tuple(filter(None, notes)))


def task_table(results: Mapping[str, Any], tasks: Sequence[str], beside: bool = False) -> TextTable:
    """Table 3: D of every encoder on every task, and what all encoders share on it."""
    paper = published()["table_3"]
    name = titles(results)
    value = {
        (row["encoder"], task): row.get("D") if is_ranked(row) else None
        for task in tasks
        for row in summary_rows(results, task)
    }
    heading = {task: paper["tasks"].get(task, task) for task in tasks}
    rows: list[dict[str, Any]] = []
    for card in results["encoders"]:
        theirs = paper["encoders"].get(card["name"], {})
        rows.append(
            _task_row(name[card["name"]], tasks, heading, lambda t, e=card["name"]: value.get((e, t)), theirs, beside)
        )
    for label, key, ours in (
        ("positive queries", "queries", lambda task: _queries(results, task)),
        ("overlap ΔJ", "delta_jaccard", lambda task: _delta_jaccard(results, task)),
        ("impurity r, AUROC", "impurity", lambda task: _detection(results, task, "neighborhood impurity")),
        ("confidence, AUROC", "confidence", lambda task: _detection(results, task, "maximum softmax")),
    ):
        row = _task_row(label, tasks, heading, ours, paper[key], beside)
        if any(item is not None for column, item in row.items() if column != "encoder"):
            rows.append(row)
    said = any(value is not None for row in rows for column, value in row.items() if column.endswith(PAPER))
    notes = (_source("tasks and encoders that the paper has"),) if said else ()
    return TextTable("table_3", "D of every encoder on every task", tuple(rows[0]), rows, notes)


def rule_table(rules: Sequence[Mapping[str, Any]], beside: bool = False, task: str | None = None) -> TextTable:
    """Table 4: miss rates and false positives of the rules over the heads of several encoders.

    Args:
        rules: rows of rules.csv, of one task.
        beside: with the published numbers.
        task: its name, where it has not Table 4 for itself.
    """
    places = {
        "misses, discordant": ("capped", "majority-discordant positives", "capped"),
        "misses, discordant, uncapped": ("uncapped", "majority-discordant positives", "uncapped"),
        "misses, all": ("capped", "positives", "all"),
        "false positives": ("capped", "negatives", "false_positives"),
    }
    known = {(row["rule"], row["sample"], row["subset"]): row.get("rate") for row in rules}
    rows = []
    for rule in dict.fromkeys(row["rule"] for row in rules):
        out: dict[str, Any] = {"rule": rule}
        for heading, (sample, subset, key) in places.items():
            out[heading] = known.get((rule, sample, subset))
            if beside:
                out[heading + PAPER] = published()["table_4"]["rules"].get(rule, {}).get(key)
        rows.append(out)
    notes = (_source("five chest sites, 11 encoders"),) if beside else ()
    stem, of = ("table_4", "") if task is None else (f"table_4_{file_stem(task)}", f", task {task}")
    return TextTable(stem, f"Rules over the heads of several encoders{of}", tuple(rows[0]), rows, notes)


def _task_row(
    label: str,
    tasks: Sequence[str],
    heading: Mapping[str, str],
    ours: Any,
    theirs: Mapping[str, Any],
    beside: bool,
) -> dict[str, Any]:
    row: dict[str, Any] = {"encoder": label}
    for task in tasks:
        row[heading[task]] = ours(task)
        if beside:
            row[heading[task] + PAPER] = theirs.get(task)
    return row


def _ordered(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(rows, key=lambda row: (not is_ranked(row), row["D"] if is_ranked(row) else 0))


def _by_encoder(rows: Sequence[Mapping[str, Any]] | None, task: str) -> dict[str, Mapping[str, Any]]:
    """Encoder -> its row for the whole task."""
    return {row["encoder"]: row for row in rows or () if row.get("task") == task and row.get("level") == "task"}


def _queries(results: Mapping[str, Any], task: str) -> int | None:
    """Positive queries of the task: over its findings, of the first encoder that has them all."""
    for encoder in dict.fromkeys(row["encoder"] for row in rows_of(results, task, "finding")):
        counts = [row.get("n_queries") for row in rows_of(results, task, "finding") if row["encoder"] == encoder]
        if None not in counts:
            return sum(count for count in counts if count is not None)
    return None


def _delta_jaccard(results: Mapping[str, Any], task: str) -> float | None:
    found = [
        row["delta_jaccard"]
        for row in results.get("overlap") or ()
        if row["task"] == task and row.get("delta_jaccard") is not None
    ]
    return sum(found) / len(found) if found else None


def _detection(results: Mapping[str, Any], task: str, score: str) -> float | None:
    """Mean AUROC of a score over the encoders."""
    for row in results.get("error_detection") or ():
        if row.get("task") == task and row["score"] == score and row.get("level") != "site" and not row.get("encoder"):
            return row.get("auroc")
    return None


def _source(what: str) -> str:
    return f"Columns marked “paper”: {published()['source']}; {what}."
