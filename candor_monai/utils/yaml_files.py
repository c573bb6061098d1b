"""Cards and tables in YAML, read safely: no Python tags, no duplicate keys, errors that name file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from .errors import UserError, first_line, os_reason
from .lfs import is_lfs_pointer

MOST_VALUES = 1_000_000


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key written twice in one mapping."""


def _mapping(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    seen = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        try:
            again = key in seen
        except TypeError:
            problem = f"a {type(key).__name__} cannot be a key; put a text with {{ }} or [ ] in quotes"
            raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark) from None
        if again:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is written twice", key_node.start_mark)
        seen.add(key)
    return dict(yaml.SafeLoader.construct_mapping(loader, node, deep))


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file that holds one mapping.

    Raises:
        UserError: the file is missing, unreadable, not YAML, or does not hold a mapping; names file and line.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
        pointer = is_lfs_pointer(path)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise UserError(f"{path}: cannot be read: {os_reason(error)}.") from error
    if pointer:
        raise UserError(f"{path}: this is a Git LFS pointer, not the file; fetch the file itself (git lfs pull).")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8.") from error
    try:
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{path}{_line(error, text)}: not valid YAML: {_problem(error)}") from error
    except RecursionError as error:
        raise UserError(f"{path}: not YAML that can be read: it is nested too deeply.") from error
    except (ValueError, AttributeError) as error:  # a date that does not exist, a tag whose value is not of its kind
        raise UserError(f"{path}: a value is not what it looks like: {first_line(error)}; put it in quotes.") from error
    if not isinstance(data, dict):
        raise UserError(f"{path}: must hold a mapping, {_held(data)}.")
    if _size(data, {}) > MOST_VALUES:
        raise UserError(f"{path}: its references (*name) make more than {MOST_VALUES:,} values of it; write fewer.")
    return data


def _size(value: Any, known: dict[int, int]) -> int:
    """How many values there are when every reference stands for a copy, as it does where the content is copied."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(value)]


def _line(error: yaml.YAMLError, text: str) -> str:
    """Where in the file the error is, where that is known."""
    mark, position = getattr(error, "problem_mark", None), getattr(error, "position", None)
    if mark is not None:
        return f", line {mark.line + 1}"
    return "" if position is None else f", line {text.count(chr(10), 0, position) + 1}"


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or first_line(error))


def _held(data: object) -> str:
    return "is empty" if data is None else f"holds {type(data).__name__}"
