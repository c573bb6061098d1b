"""What a reader says about an image, and its JSON: the rules of label_schema.json, with errors that name the place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...utils import UserError, first_line, unknown

SCHEMA_VERSION = 1
# How an image came to be read. What each does to the measure: docs/labels.md.
SELECTED_BY = (
    "random",
    "candor_diverse",
    "candor_uncertain",
    "candor_review",
    "reread_random",
    "chosen",
    "imported",
)
LONGEST_CLIENT = 200
LARGEST_BYTES = 1 << 20
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
_READING = ("findings", "selected_by", "client_id", "time")
_LABEL = ("schema_version", "image_id", *_READING, "history")
_SUBMISSION = ("findings", "selected_by", "client_id")


@dataclass(frozen=True)
class Reading:
    """One reading of an image.

    Args:
        findings: what is known after it, finding -> 1 present, 0 absent, None not said.
        selected_by: one of :data:`SELECTED_BY`.
        client_id: pseudonym of the reader, or None.
        time: UTC, as ``2026-01-31T10:00:00.000000Z``.
    """

    findings: Mapping[str, int | None]
    selected_by: str
    client_id: str | None
    time: str


@dataclass(frozen=True)
class Label:
    """All readings of an image, oldest first."""

    image_id: str
    readings: tuple[Reading, ...]

    @property
    def current(self) -> Reading:
        """The last reading."""
        return self.readings[-1]

    @property
    def findings(self) -> Mapping[str, int | None]:
        """What is known now."""
        return self.current.findings


@dataclass(frozen=True)
class Submission:
    """What a reader hands in: ``findings``, and where the client says so ``selected_by`` and ``client_id``."""

    findings: Mapping[str, int | None]
    selected_by: str | None = None
    client_id: str | None = None


def label_schema() -> dict[str, Any]:
    """The JSON schema of label files; of submissions under ``$defs``.

    >>> sorted(label_schema()["$defs"]["submission"]["properties"])
    ['client_id', 'findings', 'selected_by']
    """
    schema: dict[str, Any] = json.loads(Path(__file__).with_name("label_schema.json").read_text(encoding="utf-8"))
    return schema


def read_submission(document: Any, findings: Sequence[str], where: str = "label") -> Submission:
    """A submission from JSON.

    Args:
        document: text, UTF-8 bytes, or a mapping ``{"findings": {name: 1|0|null}, "selected_by": …, "client_id": …}``.
        findings: names that may be labelled.
        where: what messages call it.

    Raises:
        UserError: not JSON, a key written twice, an unknown key, finding or ``selected_by``, or a value that is not
            1, 0 or null.

    >>> read_submission('{"findings": {"Edema": 1}}', ["Edema"]).findings
    {'Edema': 1}
    """
    content = document if isinstance(document, Mapping) else parse_json(document, where)
    content = _keys(content, _SUBMISSION, ("findings",), where)
    values = check_findings(content["findings"], where, findings)
    selected = content.get("selected_by")
    return Submission(
        values, None if selected is None else check_selected(selected, where), check_client(content, where)
    )


def check_findings(values: Any, where: str, known: Iterable[str] | None = None) -> dict[str, int | None]:
    """Findings as they may stand in a label.

    Args:
        values: finding -> 1, 0 or None.
        where: what messages call it.
        known: names that may stand there; None: any.

    Raises:
        UserError: an unknown or empty name, another value, or nothing at all.
    """
    if not isinstance(values, Mapping) or not values:
        raise UserError(f'{where}: findings must be a mapping such as {{"Edema": 1}}, is {_shown(values)}.')
    names = None if known is None else list(known)
    for name, value in values.items():
        if not isinstance(name, str) or not name or not _is_text(name):
            raise UserError(f"{where}: {_shown(name)} is no name of a finding.")
        if names is not None and name not in names:
            raise unknown(f"finding in {where}:", name, names)
        if value is not None and (type(value) is not int or value not in (0, 1)):
            raise UserError(
                f"{where}: finding {name!r} is {_shown(value)}; it must be 1 (present), 0 (absent) or null (not said)."
            )
    return dict(values)


def check_selected(value: Any, where: str) -> str:
    """A way of selecting.

    Raises:
        UserError: unknown.
    """
    if value not in SELECTED_BY:
        raise unknown(f"selected_by in {where}:", str(value), SELECTED_BY)
    return str(value)


def check_client(content: Mapping[str, Any], where: str) -> str | None:
    """The reader's pseudonym.

    Raises:
        UserError: not text, or longer than 200 characters.
    """
    value = content.get("client_id")
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > LONGEST_CLIENT or not _is_text(value):
        raise UserError(f"{where}: client_id must be text of at most {LONGEST_CLIENT} characters.")
    return value


def parse_json(document: Any, where: str) -> Any:
    """A JSON document, with every key once and numbers that are numbers.

    Raises:
        UserError: it is not; the message says where.
    """
    if not isinstance(document, (str, bytes)):
        raise UserError(f"{where}: a JSON document is needed, not {type(document).__name__}.")
    if len(document) > LARGEST_BYTES:
        raise UserError(f"{where}: {len(document):,} bytes are no label; at most {LARGEST_BYTES:,} are read.")
    try:
        text = document.decode("utf-8-sig") if isinstance(document, bytes) else document
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except UnicodeDecodeError:
        raise UserError(f"{where}: not UTF-8 text.") from None
    except RecursionError:
        raise UserError(f"{where}: nested too deeply to be a label.") from None
    except ValueError as error:
        raise UserError(f"{where}: not JSON: {first_line(error)}.") from None


def label_json(label: Label) -> str:
    """The content of a label's file."""
    *earlier, current = label.readings
    return json.dumps(
        {
            "schema_version": SCHEMA_VERSION,
            "image_id": label.image_id,
            **_plain(current),
            "history": [_plain(reading) for reading in earlier],
        },
        ensure_ascii=False,
        indent=1,
    )


def read_label(document: bytes, where: str) -> Label:
    """A label from the content of its file. Findings that nobody asks for now are kept.

    Raises:
        UserError: it is not a label.
    """
    content = _keys(parse_json(document, where), _LABEL, _LABEL, where)
    version = content["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise UserError(f"{where}: schema_version is {_shown(version)}; this version reads {SCHEMA_VERSION}.")
    image_id, history = content["image_id"], content["history"]
    if not isinstance(image_id, str) or not image_id:
        raise UserError(f"{where}: image_id is {_shown(image_id)}; the image's id is needed.")
    if not isinstance(history, list):
        raise UserError(f"{where}: history must be a list of earlier readings.")
    earlier = [_keys(item, _READING, _READING, f"{where}, history[{place}]") for place, item in enumerate(history)]
    return Label(image_id, tuple(_reading(item, where) for item in (*earlier, content)))


def check_image_id(image_id: Any) -> str:
    """An image's id as it may stand in a file.

    Raises:
        UserError: empty, not text, or text that is not Unicode.
    """
    if not isinstance(image_id, str) or not image_id:
        raise UserError(f"image id {_shown(image_id)}: a text is needed.")
    if not _is_text(image_id):
        raise UserError(f"image id {image_id!a} is not Unicode text and cannot be written.")
    return image_id


def _is_text(value: str) -> bool:
    """Whether a text can be written: JSON can hold half of a surrogate pair."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _reading(content: Mapping[str, Any], where: str) -> Reading:
    time = content["time"]
    if not isinstance(time, str) or not _TIME.fullmatch(time):
        raise UserError(f"{where}: time is {_shown(time)}; UTC as 2026-01-31T10:00:00.000000Z is needed.")
    return Reading(
        check_findings(content["findings"], where),
        check_selected(content["selected_by"], where),
        check_client(content, where),
        time,
    )


def _plain(reading: Reading) -> dict[str, Any]:
    return {
        "findings": dict(reading.findings),
        "selected_by": reading.selected_by,
        "client_id": reading.client_id,
        "time": reading.time,
    }


def _keys(content: Any, known: Sequence[str], needed: Sequence[str], where: str) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise UserError(f'{where}: a mapping such as {{"findings": {{"Edema": 1}}}} is needed, not {_shown(content)}.')
    for key in content:
        if key not in known:
            raise unknown(f"key in {where}:", str(key), known)
    for key in needed:
        if key not in content:
            raise UserError(f"{where}: {key} is missing.")
    return content


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"{repeated[:60]!r} is written twice")
    return content


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
