"""Cards and tables in YAML, read safely: no Python tags, no duplicate keys, errors that name file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from .errors import UserError


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key written twice in one mapping."""


def _mapping(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    seen = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
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
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    try:
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark is not None else str(path)
        raise UserError(f"{where}: not valid YAML: {getattr(error, 'problem', error)}") from error
    if not isinstance(data, dict):
        raise UserError(f"{path}: must hold a mapping, holds {type(data).__name__}.")
    return data
