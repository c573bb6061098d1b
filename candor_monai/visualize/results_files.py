"""results.json: written whole and exact, read back and checked against its schema."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..utils.atomic import atomic_write
from ..utils.errors import UserError

SCHEMA_VERSION = 1


def write_results(path: str | Path, results: Mapping[str, Any]) -> None:
    """Validate results and write them as JSON, atomically; every float reads back as the same number.

    Args:
        path: the file, usually ``results.json``.
        results: the document that ``results_schema.json`` describes; NumPy scalars are allowed.

    Raises:
        ValueError: a number is NaN or infinite; names its place. Undefined values are None.
        UserError: the document does not follow the schema; names the place.
        OSError: the file cannot be written.
    """
    document = _plain(results, "results")
    validate_results(document)
    atomic_write(path, json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n")


def read_results(path: str | Path) -> dict[str, Any]:
    """Read and validate a results.json of this or an earlier schema version.

    Raises:
        UserError: the file is missing, is not JSON, does not follow the schema, or is of a later schema version.
    """
    path = Path(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as results.json: {error}") from error
    validate_results(document, source=str(path))
    return document


def validate_results(results: Any, source: str = "results") -> None:
    """Check a results document against ``results_schema.json``.

    Args:
        results: the document.
        source: what to call it in the error message, usually its path.

    Raises:
        UserError: the document does not follow the schema; names the place and what is wrong there.
    """
    import jsonschema

    version = results.get("schema_version") if isinstance(results, Mapping) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise UserError(
            f"{source}: schema version {version} is newer than this installation reads ({SCHEMA_VERSION}). "
            "Install the version of candor_monai that wrote it."
        )
    error = jsonschema.exceptions.best_match(_validator().iter_errors(results))
    if error is not None:
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
        raise UserError(f"{source}{place}: {_short(error.message)}")


def results_schema() -> dict[str, Any]:
    """The JSON schema of results.json.

    >>> results_schema()["properties"]["schema_version"]["maximum"] == SCHEMA_VERSION
    True
    """
    text = files(__package__).joinpath("templates", "results_schema.json").read_text(encoding="utf-8")
    return json.loads(text)


@cache
def _validator() -> Any:
    import jsonschema

    return jsonschema.Draft7Validator(results_schema())


def _plain(value: Any, place: str) -> Any:
    """The value in JSON's own types; refuses NaN and infinite numbers, naming where they are."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()  # a NumPy scalar
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{place}: {value} is not a number; an undefined value is None")
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{place}[{index}]") for index, item in enumerate(value)]
    raise TypeError(f"{place}: JSON cannot hold {type(value).__name__}")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"holds {name}, which is not a number; an undefined value is null")


def _short(message: str, limit: int = 300) -> str:
    return message if len(message) <= limit else message[:limit] + " …"


def remove_matching(folder: str | Path, patterns: Sequence[str], but: Collection[Path] = ()) -> None:
    """Remove the files of a folder whose names match a pattern, such as those of results that are replaced.

    Args:
        folder: the folder; it need not be there.
        patterns: as for :meth:`pathlib.Path.glob`.
        but: files that stay.

    Raises:
        OSError: a file cannot be removed.
    """
    for pattern in patterns:
        for path in Path(folder).glob(pattern):
            if path not in but:
                path.unlink(missing_ok=True)
