"""What the report states about a run besides its numbers: accounting, labels, encoders, methods."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd

from .wording import MISSING, count

# At most this many files are listed for each reason; rejected.csv has them all.
LISTED_FILES = 20
ABSOLUTE = re.compile(r"(/|[A-Za-z]:[/\\]|\\\\).")
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)


@dataclass(frozen=True)
class Rejection:
    """The images left out for one reason."""

    reason: str
    means: str
    number: int
    stages: tuple[str, ...]
    files: tuple[tuple[str, str], ...]


def cohorts_of(results: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The cohorts of the results, one or several."""
    return list(results.get("cohorts") or [results["cohort"]])


def rejections(
    rejected: pd.DataFrame, by_reason: Mapping[str, int], meanings: Mapping[str, str], limit: int = LISTED_FILES
) -> list[Rejection]:
    """The rejected images by reason, the most frequent first.

    Args:
        rejected: rows of rejected.csv.
        by_reason: the run's own count of each reason.
        meanings: what a reason code means.
        limit: files listed a reason.
    """
    counts = dict(by_reason)
    parts = dict(tuple(rejected.groupby("reason", sort=False))) if len(rejected) else {}
    for reason, part in parts.items():
        counts.setdefault(str(reason), len(part))
    shown = []
    for reason in sorted(counts, key=lambda r: (-counts[r], r)):
        part = parts.get(reason, rejected.iloc[:0])
        files = tuple(
            (_text(row["file"]) or _text(row["image_id"]), _text(row["message"]))
            for row in part.head(limit).to_dict("records")
        )
        stages = tuple(dict.fromkeys(_text(stage) for stage in part["stage"])) if len(part) else ()
        shown.append(Rejection(reason, meanings.get(reason, ""), counts[reason], stages, files))
    return shown


def trained_on(card: Mapping[str, Any]) -> list[str]:
    """What an encoder's card says that it was trained on."""
    said = card.get("trained_on")
    if not said:
        return []
    return [str(name) for name in said] if isinstance(said, (list, tuple)) else [str(said)]


def untrained(card: Mapping[str, Any]) -> bool:
    """Whether an encoder's card says that it was never trained.

    >>> untrained({"objective": "none (untrained)"}), untrained({"objective": "supervised"}), untrained({})
    (True, False, False)
    """
    return card.get("trained") is False or str(card.get("objective") or "").startswith("none")


def made_for_it(card: Mapping[str, Any]) -> bool:
    """Whether an encoder is a formula for the calibration findings, and so no untrained network.

    >>> made_for_it({"objective": "none (closed form)"}), made_for_it({"objective": "none (untrained)"})
    (True, False)
    """
    return "closed form" in str(card.get("objective") or "")


def leakage(card: Mapping[str, Any], cohorts: Sequence[Mapping[str, Any]]) -> str:
    """Whether the encoder's card names the evaluated data among its training data, in words.

    >>> leakage({"trained_on": ["NIH ChestX-ray14"]}, [{"name": "nih_cxr", "title": "NIH ChestX-ray14 (part)"}])
    'yes: NIH ChestX-ray14'
    """
    if untrained(card):
        return "no: not trained"
    said = [*trained_on(card), *(text for text in card.get("overlaps") or () if text not in trained_on(card))]
    if not said:
        return "not known: the card does not say"
    names = {_plain(str(c.get(key) or "")) for c in cohorts for key in ("name", "title")}
    names |= {_plain(str(alias)) for c in cohorts for alias in c.get("aliases") or ()}
    names = {name for name in names if len(name) >= 4}
    hits = [text for text in said if any(name in _plain(text) or _plain(text) in name for name in names)]
    return f"yes: {', '.join(hits)}" if hits else "not named"


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested options as (dotted name, text).

    >>> list(flat({"k": 5, "sets": {"by": "patient"}, "none": None}))
    [('k', '5'), ('sets.by', 'patient'), ('none', 'not set')]
    >>> list(flat({"output_dir": "/home/somebody/eval"}))
    [('output_dir', '…/eval')]
    """
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from flat(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)) and not any(isinstance(item, (Mapping, list, tuple)) for item in value):
        yield name, ", ".join(_scalar(item) for item in value) or "none"
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from flat(item, f"{name}[{index}]")
    else:
        yield name, _scalar(value)


def controls(options: Mapping[str, Any]) -> list[str]:
    """What a reader must know first when the options ask another question than the usual one.

    >>> controls({"shuffle_labels": "patient"})[0].split(":")[0]
    'The labels were shuffled over patients in this run'
    >>> controls({"sets": "patient", "roles": "positives"})
    []
    """
    told = []
    if options.get("shuffle_labels"):
        told.append(
            f"The labels were shuffled over {options['shuffle_labels']}s in this run: it is a control. D should be at "
            "chance for every encoder, and nothing here describes the findings."
        )
    if options.get("roles") == "negatives":
        told.append(
            "The roles were exchanged in this run: negative images are the queries, and D is the share of them whose "
            "nearest neighbours are positive. Read “positive” as “negative” below, and the reverse."
        )
    if options.get("matched") is False:
        told.append(
            "Images were compared across groups in this run (matched: false): differences between hospitals, machines "
            "and views can pass for the finding."
        )
    if options.get("isolated"):
        told.append("Only positive images with no other finding, and negative images with none at all, were used.")
    if options.get("queries") == "boxed":
        told.append("Only positive images in which an expert marked the finding were asked about.")
    return told


def label_rows(cohort: Mapping[str, Any], results: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """Finding, positive, negative, uncertain, unlabelled: from the cohort, or counted from the groups' rows."""
    said = cohort.get("labels")
    if said:
        keys = ("positive", "negative", "uncertain", "unlabelled")
        return [(str(row.get("finding", "")), *(count(row.get(key)) for key in keys)) for row in said]  # type: ignore[misc]
    own = set(cohort.get("findings") or ())
    first: dict[str, Mapping[str, Any]] = {}
    for row in results["discordance"]:
        if row["level"] == "finding" and (not own or row["finding"] in own):
            first.setdefault(row["finding"], row)
    return [
        (finding, count(row.get("n_positive")), count(row.get("n_negative")), MISSING, MISSING)
        for finding, row in first.items()
    ]


def seconds(value: float) -> str:
    """A duration.

    >>> seconds(0.42), seconds(75), seconds(7300)
    ('0.4 s', '1 min 15 s', '2 h 1 min')
    """
    if value < 60:
        return f"{value:.1f} s"
    whole = round(value)
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def moment(text: str) -> str:
    """A point in time to the minute; text that is no ISO time is given back as it is.

    >>> moment("2026-11-02T09:30:12+00:00"), moment("2026-11-02T09:30:12"), moment("today")
    ('2 November 2026, 09:30 UTC', '2 November 2026, 09:30', 'today')
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return text
    zone = "" if time.tzinfo is None else f" {time.tzname()}"
    return f"{time.day} {MONTHS[time.month - 1]} {time.year}, {time:%H:%M}{zone}"


def _scalar(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, str) and ABSOLUTE.match(value):
        return "…/" + re.split(r"[/\\]", value.rstrip("/\\"))[-1]  # a folder's place is nobody's business
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
