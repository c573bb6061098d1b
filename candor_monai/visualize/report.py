"""The report: one self-contained page that a clinician can read, print and send on."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from markupsafe import Markup

from ..utils.atomic import atomic_write
from .answer import across_tasks, answer, tasks_of, titles
from .equal_sets import equal_sets_drawing
from .estimates import not_estimable_rows, shown_rows
from .further_tables import further_tables
from .gallery import Gallery, build_gallery
from .heat_map import heat_map
from .interval_plot import interval_axis, interval_key
from .occlusions import OcclusionExample, occlusion_examples
from .report_facts import (
    cohorts_of,
    controls,
    flat,
    label_rows,
    leakage,
    moment,
    rejections,
    seconds,
    trained_on,
    untrained,
)
from .report_rows import encoder_order, task_matrix, task_tables
from .scatter_plot import scatter_plot
from .size_plot import size_plot
from .verdicts import LABELS, LEAST_CANDIDATES, LEAST_PATIENTS, verdict
from .wording import count, group_name, interval, listed, many, measure_name, number, probability

MAX_BYTES = 10_000_000
# What the template reads of an encoder and of a cohort; a missing key is the same as an undefined value.
ENCODER_KEYS = (
    "title",
    "dimension",
    "parameters",
    "objective",
    "year",
    "licence",
    "trained",
    "trained_on",
    "fingerprint",
)
# Embeddings, overrides and isolates of text direction, made visible.
_TURNING = {code: f"\u27e8U+{code:04X}\u27e9" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
COHORT_KEYS = ("title", "patients", "policy", "groups", "counts", "fingerprint")
# What the page may lack in the estimate of its own size.
RESERVE = 300_000


def write_report(
    path: str | Path,
    results: Mapping[str, Any],
    queries: pd.DataFrame,
    candidates: pd.DataFrame,
    rejected: pd.DataFrame,
    thumbnails: Callable[[str], np.ndarray | None],
    images: bool = True,
    *,
    features: Callable[[str, Sequence[str]], np.ndarray] | None = None,
    neighbours: pd.DataFrame | None = None,
    occlusions: Sequence[Mapping[str, Any]] = (),
    examples: int = 3,
    max_bytes: int = MAX_BYTES,
) -> None:
    """Write ``report.html``, atomically.

    The page needs no network and no scripts (they only sort and filter); its content security policy forbids both
    outside requests and scripts other than its own. Every text that comes from the data is escaped. Patients do not
    appear in it.

    Args:
        path: the file.
        results: the document of results.json, of one or several encoders.
        queries: rows of queries.parquet: encoder, task, finding, group, image_id, patient, c_pos, c_neg, dm,
            discordant.
        candidates: rows of candidates.parquet: task, finding, group, image_id, label, rank, patient.
        rejected: rows of rejected.csv: image_id, file, stage, reason, message.
        thumbnails: gives the pixels of an image id, uint8, (H, W), (H, W, 3) or (3, H, W); None when there are none.
        images: show pictures; False lists image ids and similarities only.
        features: gives the raw features of an encoder's images, float32, (n, d): called with the encoder's name and
            image ids, to find the neighbours of the examples shown.
        neighbours: the neighbours found elsewhere (columns of :data:`~.neighbours.COLUMNS`), instead of ``features``.
        occlusions: example occlusions (:func:`~.occlusions.occlusion_examples`), shown beside the retention table.
        examples: discordant positives shown for each encoder and finding.
        max_bytes: size of the page; pictures beyond it are left out, and the page says how many.

    Raises:
        OSError: the file cannot be written.
    """
    covered = occlusion_examples(occlusions if images else ())
    bare = len(render(results, rejected, Gallery(), covered).encode("utf-8"))
    room = budget = max_bytes - RESERVE - bare
    while True:
        gallery = build_gallery(
            results,
            queries,
            candidates,
            thumbnails,
            encoder_order(results),
            features=features,
            neighbours=neighbours,
            images=images,
            count=examples,
            budget=budget,
        )
        page = render(results, rejected, gallery, covered)
        size = len(page.encode("utf-8"))
        if size <= max_bytes or not gallery.shown:
            break
        budget = int(budget * room / (size - bare))  # texts of the data needed more room than was estimated
    atomic_write(path, page)


def render(
    results: Mapping[str, Any],
    rejected: pd.DataFrame,
    gallery: Gallery,
    occlusions: Sequence[OcclusionExample] = (),
) -> str:
    """The page as text."""
    style, script = _asset("report.css"), _asset("report.js")
    tables = [task_tables(results, task) for task in tasks_of(results)]
    words = glossary()
    return _template().render(
        style=Markup(style),
        script=Markup(script),
        policy=content_policy(style, script),
        results=results,
        run={"started": None, **results["run"]},
        version=results["versions"].get("candor_monai"),
        options={"k": 5, "sets": "patient", **results["options"]},
        controls=controls(results["options"]),
        accounting=results["accounting"],
        encoders=[{**dict.fromkeys(ENCODER_KEYS), **card} for card in results["encoders"]],
        name=titles(results),
        cohort_titles=cohort_titles(results),
        cohorts=[{**dict.fromkeys(COHORT_KEYS), **cohort} for cohort in cohorts_of(results)],
        lead=_lead(results),
        answers=answer(results),
        tables=tables,
        glance=task_matrix(results),
        drawing=equal_sets_drawing(),
        scatter=_scatter(results),
        key=interval_key(),
        axis=interval_axis(),
        labels=LABELS,
        least=(LEAST_CANDIDATES, LEAST_PATIENTS),
        gaps=_gaps(results),
        gallery=gallery,
        occlusions=occlusions,
        agreement=_agreement(results),
        overlap=_overlap(results),
        further=further_tables(results),
        sizes=[(task, plot) for task in tasks_of(results) if (plot := size_plot(results, task))],
        rejections=rejections(
            rejected, results["accounting"].get("rejected_by_reason") or {}, words.get("reasons") or {}
        ),
        terms=words["terms"],
        leakage=leakage,
        trained_on=trained_on,
        untrained=untrained,
        label_rows=label_rows,
        flat=flat,
        seconds=seconds,
        moment=moment,
        count=count,
        number=number,
        interval=interval,
        probability=probability,
        many=many,
        listed=listed,
        group_name=group_name,
    )


def content_policy(style: str, script: str) -> str:
    """Content security policy that allows the page's own style, script and ``data:`` pictures, and nothing else."""
    return (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def glossary() -> dict[str, Any]:
    """Terms in plain language, and what reason codes mean."""
    return yaml.safe_load(_asset("glossary.yaml"))


def _lead(results: Mapping[str, Any]) -> str:
    """What was compared, in one or two sentences."""
    encoders = [card.get("title") or card["name"] for card in results["encoders"]]
    findings = list(dict.fromkeys(row["finding"] for row in results["discordance"] if row["level"] == "finding"))
    cohorts = cohorts_of(results)
    images = sum(cohort.get("n_images") or 0 for cohort in cohorts) or results["accounting"]["scored"]
    people = sum(cohort.get("patients") or 0 for cohort in cohorts)
    text = (
        f"{many(len(encoders), 'encoder')} ({listed(encoders, 5)}) "
        f"{'was' if len(encoders) == 1 else 'were'} examined for {many(len(findings), 'finding')} "
        f"({listed(findings, 5)}) in {many(images, 'image')}"
        + (f" of {many(people, 'patient')}" if people else "")
        + f" from {listed(cohort_titles(results), 8)}."
    )
    matched = list(dict.fromkeys(name for cohort in cohorts for name in cohort.get("match_on") or ()))
    text += f" Images were compared only with images of the same {listed(matched)}." if matched else ""
    return " ".join(filter(None, (text, across_tasks(results))))


def cohort_titles(results: Mapping[str, Any]) -> list[str]:
    """Readable names of the cohorts, each once."""
    return list(dict.fromkeys(cohort.get("title") or cohort["name"] for cohort in cohorts_of(results)))


def _scatter(results: Mapping[str, Any]) -> Markup:
    shown = [row for task in tasks_of(results) for _, rows in shown_rows(results, task) for row in rows]
    return scatter_plot(row for row in shown if row["status"] == "ok")


def _gaps(results: Mapping[str, Any]) -> list[tuple[str, str, list[str], list[str], str]]:
    """What is not estimable, tied or not tested: task, verdict, estimates, encoders, why; what is alike together."""
    name = titles(results)
    encoders: dict[tuple[str, str, str, str], list[str]] = {}
    for task in tasks_of(results):
        said = [
            (estimate, row)
            for estimate, rows in shown_rows(results, task)
            for row in rows
            if row.get("D") is not None and verdict(row).code in ("tied", "small", "untested")
        ]
        for estimate, row in (*not_estimable_rows(results, task), *said):
            says = verdict(row)
            encoders.setdefault((task, says.code, says.why, estimate.label), []).append(name[row["encoder"]])
    alike: dict[tuple[str, str, str, tuple[str, ...]], list[str]] = {}
    for (task, code, why, label), found in encoders.items():
        alike.setdefault((task, code, why, tuple(found)), []).append(label)
    return [(task, code, labels, list(found), why) for (task, code, why, found), labels in alike.items()]


def _agreement(results: Mapping[str, Any]) -> list[tuple[str, Markup, int]]:
    """Heat map of the Spearman correlations of the measures, one a task."""
    by_task: dict[str, list[Mapping[str, Any]]] = {}
    for row in results.get("agreement") or ():
        if not row.get("finding"):
            by_task.setdefault(row["task"], []).append(row)
    maps = []
    for task, rows in by_task.items():
        names = list(dict.fromkeys(row[key] for row in rows for key in ("measure_a", "measure_b")))
        values = _square(names, rows, "measure_a", "measure_b", "spearman")
        title = f"Spearman correlation of {listed(names, 20)} over the encoders, task {task}"
        encoders = max((row.get("n_encoders") or 0 for row in rows), default=0)
        maps.append((task, heat_map([measure_name(n) for n in names], values, title), encoders))
    return maps


def _overlap(results: Mapping[str, Any]) -> list[tuple[str, Markup, str]]:
    """Heat map of the excess overlap of discordant sets: mean over the findings, every pair of encoders, one a task;
    and in how many of the tests behind it the overlap is beyond chance."""
    by_task: dict[str, dict[tuple[str, str], list[float | None]]] = {}
    for row in results.get("overlap") or ():
        pairs = by_task.setdefault(row["task"], {})
        pairs.setdefault((row["encoder_a"], row["encoder_b"]), []).append(row.get("delta_jaccard"))
    name = titles(results)
    maps = []
    for task, pairs in by_task.items():
        known = {encoder for pair in pairs for encoder in pair}
        encoders = [encoder for encoder in encoder_order(results, [task]) if encoder in known]
        rows = [
            {"a": a, "b": b, "mean": sum(found) / len(found) if found else None}
            for (a, b), deltas in pairs.items()
            if (found := [d for d in deltas if d is not None]) is not None
        ]
        values = _square(encoders, rows, "a", "b", "mean")
        largest = max((abs(v) for v in values.values() if v is not None), default=0) or 1.0
        title = f"Overlap of the discordant images of two encoders beyond chance, task {task}"
        tested = [r for r in results["overlap"] if r["task"] == task and r.get("q") is not None]
        beyond = sum(r["q"] <= 0.05 and (r.get("delta_jaccard") or 0) > 0 for r in tested)
        share = f"{beyond:,} of {many(len(tested), 'pair of encoders and finding', 'pairs of encoders and findings')}"
        maps.append((task, heat_map([name.get(e, e) for e in encoders], values, title, largest), share))
    return maps


def _square(
    names: Sequence[str], rows: Sequence[Mapping[str, Any]], first: str, second: str, value: str
) -> dict[tuple[int, int], float | None]:
    place = {name: i for i, name in enumerate(names)}
    values: dict[tuple[int, int], float | None] = {}
    for row in rows:
        i, j = place[row[first]], place[row[second]]
        values[max(i, j), min(i, j)] = row.get(value)
    return values


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


@cache
def _asset(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _left_to_right(value: Any) -> Any:
    """A text without the characters that turn the direction of what follows: a name could rewrite its sentence."""
    return value.translate(_TURNING) if isinstance(value, str) else value


@cache
def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        finalize=_left_to_right,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html")
