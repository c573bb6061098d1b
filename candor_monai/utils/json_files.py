"""JSON files that others wrote: one mapping each, and one line that names the file where they are not that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import UserError, first_line, os_reason
from .lfs import is_lfs_pointer


def read_json(path: str | Path, kind: type[UserError] = UserError) -> dict[str, Any]:
    """Read a JSON file that holds one mapping.

    Args:
        path: the file, UTF-8 with or without a byte order mark.
        kind: what is raised: :class:`~candor_monai.utils.UserError` or a kind of it.

    Raises:
        UserError: of ``kind``: the file is missing, cannot be read, is empty, a Git LFS pointer, not JSON, nested too
            deeply, or holds no mapping.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
        pointer = bool(content) and is_lfs_pointer(path)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise kind(f"{path}: cannot be read: {os_reason(error)}.") from error
    if not content.strip():
        raise kind(f"{path}: the file is empty; copy it again.")
    if pointer:
        raise kind(f"{path}: this is a Git LFS pointer, not the file; fetch the file itself (git lfs pull).")
    try:
        found = json.loads(content.decode("utf-8-sig"))
    except RecursionError as error:
        raise kind(f"{path}: not JSON that can be read: it is nested too deeply.") from error
    except ValueError as error:
        raise kind(f"{path}: not JSON: {first_line(error)}") from error
    if not isinstance(found, dict):
        raise kind(f"{path}: must hold a mapping ({{…}}), holds {_named(found)}.")
    return found


def _named(value: object) -> str:
    """What a JSON value is, in JSON's words."""
    names = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")
