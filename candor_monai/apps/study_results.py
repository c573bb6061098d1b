"""What a study writes: the comparison of each cohort's encoders, and all cohorts together."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..data.cohort import REJECTED_COLUMNS
from ..handlers.companion_files import FILE as COMPANIONS
from ..handlers.report import ReportHandler
from ..handlers.results_saver import columns_of, write_parquet
from ..handlers.run_context import RunContext
from ..networks.probing import EmptyPart
from ..visualize.csv_files import plain_text, write_csv
from ..visualize.figures import remove_figures, write_figures
from ..visualize.neighbour_figures import remove_neighbour_figures, write_neighbour_figures
from ..visualize.paper_tables import remove_paper_tables, write_paper_tables
from ..visualize.report import write_report
from ..visualize.results_files import write_results
from ..visualize.table_files import SUFFIXES
from .comparison import CellResults, compare, merged
from .head_agreement import trend_rows
from .head_study import HeadStudyOptions, run_head_study
from .head_tables import write_tables
from .opening import probe_options, publishers_split_of, scored_observations
from .options import RunOptions

DETECTION = "error_detection"
HEAD_TABLES = ("head_errors", "rules", DETECTION)
TABLES = (
    *("discordance", "ranking", "comparisons", "overlap", "agreement"),
    *("probe", *HEAD_TABLES, "trends", "retention", "ablations"),
)
# What an earlier run left in the folder that is made anew last, if at all: none of it may stand beside other results.
OF_OTHERS = ("results.json", "report.html", COMPANIONS, "heads.safetensors", "metrics.csv")


@dataclasses.dataclass(frozen=True)
class CohortResults:
    """What a study found on one cohort.

    Args:
        label: the cohort's name in the study.
        document: of its results.json.
        queries, candidates, rejected: the tables beside it.
        contexts: by encoder name: where its features are.
        options: of its cells.
    """

    label: str
    document: dict[str, Any]
    queries: pd.DataFrame
    candidates: pd.DataFrame
    rejected: pd.DataFrame
    contexts: Mapping[str, RunContext]
    options: RunOptions


def write_comparison(
    label: str,
    cells: Sequence[CellResults],
    folder: Path,
    contexts: Mapping[str, RunContext],
    options: RunOptions,
    pool: Any,
    ablations: Sequence[dict[str, Any]] = (),
) -> CohortResults:
    """Compare cells of one cohort and write everything: results, tables, figures and the report.

    Args:
        label: the cohort's name in the study.
        cells: one an encoder.
        folder: where the files go.
        contexts: by encoder name: where its features are.
        options: of the cells.
        pool: decodes the report's pictures.
        ablations: rows of ablations.csv.
    """
    document = merged(cells, compare(cells, probe_table(cells)))
    if options.probe:
        document |= head_tables(cells, contexts, options, document["warnings"], folder / "tables")
    document["trends"] = trends(cells)
    for name in ("probe", "retention"):
        rows = [row for cell in cells for row in cell.results.get(name) or ()]
        if rows:
            document[name] = rows
    if ablations:
        document["ablations"] = list(ablations)
    found = CohortResults(
        label,
        document,
        queries=pd.concat([cell.queries for cell in cells], ignore_index=True),
        candidates=pd.read_parquet(cells[0].folder / "candidates.parquet"),
        rejected=pd.read_csv(cells[0].folder / "rejected.csv", dtype=str, keep_default_na=False).map(plain_text),
        contexts=contexts,
        options=options,
    )
    write_parquet(folder / "queries.parquet", found.queries)
    write_parquet(folder / "candidates.parquet", found.candidates)
    _write(folder, [found], found, pool)
    return found


def write_whole_study(found: Sequence[CohortResults], folder: Path, pool: Any) -> dict[str, Any]:
    """Write all cohorts together: results, tables, figures and one report, whose image ids begin with the cohort.

    A cohort's ``queries.parquet`` and ``candidates.parquet`` stay in its own folder.

    Args:
        found: what each cohort gave, two at least.
        folder: where the files go.
        pool: decodes the report's pictures.

    Returns:
        the document of results.json.
    """
    tasks = [part.document["cohort"]["task"] for part in found]
    renamed = [f"{t} ({part.label})" if tasks.count(t) > 1 else t for t, part in zip(tasks, found, strict=True)]
    parts = [_named(part, task) for part, task in zip(found, renamed, strict=True)]
    for name in ("queries", "candidates"):  # of a study of one cohort before
        (folder / f"{name}.parquet").unlink(missing_ok=True)
    whole = CohortResults(
        "study",
        whole_document([part.document for part in parts]),
        queries=pd.concat([part.queries for part in parts], ignore_index=True),
        candidates=pd.concat([part.candidates for part in parts], ignore_index=True),
        rejected=pd.concat([part.rejected for part in parts], ignore_index=True),
        contexts={},
        options=parts[0].options,
    )
    _write(folder, parts, whole, pool)
    return whole.document


def whole_document(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One document of results.json for several cohorts, whose tasks have different names.

    Numbers stay those of each cohort; counts of images and seconds are added up, and ``cohorts`` lists them all.
    """
    first = documents[0]
    encoders = {card["name"]: card for document in documents for card in document["encoders"]}
    accounting = {key: sum(d["accounting"][key] for d in documents) for key in ("images_in", "scored", "rejected")}
    reasons: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for document in documents:
        reasons.update(document["accounting"].get("rejected_by_reason") or {})
        seconds.update(document["timings"])
    tables = {name: [row for d in documents for row in d.get(name) or ()] for name in TABLES}
    return {
        **{key: value for key, value in first.items() if key not in TABLES},
        "run": {**first["run"], "finished": documents[-1]["run"].get("finished")},
        "cohorts": [document["cohort"] for document in documents],
        "encoders": list(encoders.values()),
        "timings": dict(seconds),
        "accounting": {**accounting, "rejected_by_reason": dict(sorted(reasons.items()))},
        "warnings": _warnings(documents),
        **{name: rows for name, rows in tables.items() if rows},
    }


def _warnings(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """What holds for all cohorts once; what holds for some with the name of the task in front."""
    common = [t for t in documents[0]["warnings"] if all(t in document["warnings"] for document in documents)]
    own = [f"{d['cohort']['task']}: {t}" for d in documents for t in d["warnings"] if t not in common]
    return [*common, *own]


def _named(part: CohortResults, task: str) -> CohortResults:
    """The part with its task's name in the study, and its image ids told apart from other cohorts'."""
    document = dict(part.document)
    own = document["cohort"]["task"]
    document["cohort"] = {**document["cohort"], "task": task}
    for name in TABLES:
        if document.get(name):
            document[name] = [{**row, "task": task} if row.get("task") == own else row for row in document[name]]
    tables = {}
    for name in ("queries", "candidates", "rejected"):
        table = getattr(part, name).copy()
        table["image_id"] = f"{part.label}:" + table["image_id"].astype(str)
        if "task" in table:
            table["task"] = task
        tables[name] = table
    return dataclasses.replace(part, document=document, **tables)


def _write(folder: Path, parts: Sequence[CohortResults], whole: CohortResults, pool: Any) -> None:
    """Write results, tables, figures and report of one cohort, or of all together."""
    document, options = whole.document, whole.options
    for name in OF_OTHERS:
        (folder / name).unlink(missing_ok=True)
    write_csv(folder / "rejected.csv", whole.rejected, REJECTED_COLUMNS)
    for name in TABLES:
        if document.get(name):
            write_csv(folder / f"{name}.csv", document[name], columns_of(document[name]))
        else:
            (folder / f"{name}.csv").unlink(missing_ok=True)
    write_results(folder / "results.json", document)
    remove_figures(folder / "figures", but=write_figures(folder / "figures", document))
    remove_neighbour_figures(folder / "figures")
    remove_paper_tables(folder / "tables", but=write_paper_tables(folder / "tables", document, options.published))
    if len(parts) > 1 or not document.get(DETECTION):  # it is written beside one cohort's results only
        for suffix in SUFFIXES:
            (folder / "tables" / f"{DETECTION}{suffix}").unlink(missing_ok=True)
    if not options.write_report:
        return
    sources = {"" if len(parts) == 1 else f"{part.label}:": part for part in parts}
    pictured = [p for p in parts if p.options.report_images and _first(p).cohort.features is None]
    thumbnails, features = _thumbnails(sources, pictured, pool), _features(sources)
    write_report(
        folder / "report.html",
        document,
        whole.queries,
        whole.candidates,
        whole.rejected,
        thumbnails,
        images=bool(pictured),
        features=features,
        examples=options.report_examples,
    )
    if pictured:
        shown = {part.document["cohort"]["task"] for part in pictured}
        queries = whole.queries[whole.queries["task"].isin(shown)]
        write_neighbour_figures(folder / "figures", document, queries, whole.candidates, thumbnails, features)


def _first(part: CohortResults) -> RunContext:
    return next(iter(part.contexts.values()))


def _thumbnails(sources: Mapping[str, CohortResults], pictured: Sequence[CohortResults], pool: Any) -> Any:
    """A function from an image id of the document to its pixels; None where there are none to show."""
    own = {prefix: ReportHandler(_first(p), pool).thumbnails() for prefix, p in sources.items() if p in pictured}

    def thumbnail(image_id: str) -> np.ndarray | None:
        prefix = _prefix(image_id, sources)
        return own[prefix](image_id.removeprefix(prefix)) if prefix in own else None

    return thumbnail


def _features(sources: Mapping[str, CohortResults]) -> Any:
    """A function from an encoder and image ids of the document to features."""
    own = {
        prefix: {name: ReportHandler(context).features() for name, context in part.contexts.items()}
        for prefix, part in sources.items()
    }

    def features(encoder: str, image_ids: Sequence[str]) -> np.ndarray:
        by_prefix: dict[str, list[int]] = {}
        for place, image_id in enumerate(image_ids):
            by_prefix.setdefault(_prefix(image_id, sources), []).append(place)
        parts = [
            own[prefix][encoder](encoder, [image_ids[place].removeprefix(prefix) for place in places])
            for prefix, places in by_prefix.items()
        ]
        order = np.argsort([place for places in by_prefix.values() for place in places])
        return np.concatenate(parts)[order]

    return features


def _prefix(image_id: str, known: Mapping[str, Any]) -> str:
    """The longest of the prefixes that the id begins with."""
    return max((prefix for prefix in known if image_id.startswith(prefix)), key=len)


def trends(cells: Sequence[CellResults]) -> list[dict[str, Any]]:
    """What D and D_all follow over the encoders and findings of a cohort: rows of trends.csv."""
    by_encoder = {cell.encoder: cell.rows for cell in cells}
    cards = {cell.encoder: cell.results["encoders"][0] for cell in cells}
    named = [
        {"encoder": cell.encoder, "level": "finding", "finding": finding}
        for cell in cells
        for finding in cell.results["cohort"]["findings"]
    ]
    return trend_rows(named, by_encoder, cards, {}, cells[0].rows[0]["task"])


def head_tables(
    cells: Sequence[CellResults],
    contexts: Mapping[str, RunContext],
    options: RunOptions,
    warnings: list[str],
    folder: Path,
) -> dict[str, list[dict[str, Any]]]:
    """Tables of the heads' errors, of rules over several heads, and of error detection.

    Args:
        cells: one an encoder.
        contexts: by encoder name.
        options: of the run.
        warnings: what a reader must know is added here; so is why there are no tables.
        folder: where the table of error detection goes as Markdown, LaTeX and CSV (r and confidence of Table 3).
    """
    first = contexts[cells[0].encoder]
    rows = np.flatnonzero(np.logical_and.reduce([context.present() for context in contexts.values()]))
    observations = scored_observations(first).take(rows)
    split = publishers_split_of(first.cohort)
    features = {name: (lambda c=context: c.features()[0][rows]) for name, context in contexts.items()}
    asked = HeadStudyOptions(probe=probe_options(options), measure=options.measure, margin=False)
    try:
        found = run_head_study(features, observations, split and [split[row] for row in rows.tolist()], asked)
    except EmptyPart as reason:
        warnings.append(f"no tables of head errors: {reason}")
        return {}
    warnings.extend(text for text in found.warnings if text not in warnings)
    detection = next(table for table in found.tables if table.name == "table_3")
    write_tables([dataclasses.replace(detection, name=DETECTION)], folder, found.warnings)
    return {name: rows for name, rows in found.results().items() if name in HEAD_TABLES and rows}


def probe_table(cells: Sequence[CellResults]) -> pd.DataFrame | None:
    """Heads' AUROC and LogME by encoder and finding, where heads were trained."""
    rows = [
        {
            "encoder": cell.encoder,
            "finding": row["finding"],
            "head_auroc": np.nan if row.get("auroc") is None else row["auroc"],
            "logme": np.nan if row.get("logme") is None else row["logme"],
        }
        for cell in cells
        for row in cell.results.get("probe") or ()
        if row["level"] == "finding"
    ]
    return pd.DataFrame(rows) if rows else None


def ranking_text(ranking: Sequence[dict[str, Any]]) -> str:
    """The ranking of the task, or of the findings where the task has no pooled value, for the terminal."""
    rows = [row for row in ranking if row["finding"] is None]
    if not any(row["D"] is not None for row in rows):
        rows = [row for row in ranking if row["finding"] is not None]
    lines = []
    for row in rows:
        what = f"{row['finding']}: " if row["finding"] else ""
        if row["D"] is None:
            lines.append(f"  -  {what}{row['encoder']}: {row['reason']}")
            continue
        best = {True: ", not worse than the best", False: "", None: ""}[row["not_worse_than_best"]]
        p = "" if row["p_best"] is None else f", p = {row['p_best']:.4f} against as many blind encoders"
        lines.append(f"  {row['rank']}. {what}{row['encoder']}: D = {row['D']:.3f}{best}{p}")
    return "\n".join(lines)
