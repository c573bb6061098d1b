"""Values that a user wrote, checked against the types that a dataclass or a function declares."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import UserError
from .names import names_of, nearest

_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}


def build(kind: Any, content: Mapping[Any, Any], where: str, lenient: bool = False) -> Any:
    """An instance of the dataclass ``kind`` from a mapping, with every key and value checked.

    Args:
        kind: a dataclass.
        content: field -> value.
        where: the file or card, for messages.
        lenient: as in :func:`typed`.

    Raises:
        UserError: an unknown key (the nearest known one is named), a missing key, a value of another type, or what the
            dataclass itself refuses.
    """
    fields = {f.name: f for f in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in content.items():
        if key not in fields:
            near = nearest(str(key), fields)
            hint = f" Did you mean {near!r}?" if near else f" Known: {', '.join(sorted(fields))}."
            raise UserError(f"{where}: unknown key {key!r}.{hint}")
        values[key] = typed(value, hints[key], f"{where}: {key}", lenient)
    missing = [
        name
        for name, f in fields.items()
        if name not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise UserError(f"{where}: missing key{'s' if len(missing) > 1 else ''} {', '.join(missing)}.")
    try:
        return kind(**values)
    except UserError as error:
        text = str(error)
        raise UserError(text if text.startswith(where) else f"{where}: {text}") from None


def typed(value: Any, hint: Any, where: str, lenient: bool = False) -> Any:
    """``value`` as the type ``hint`` wants it.

    Args:
        value: what was written.
        hint: a type as ``typing.get_type_hints`` gives it.
        where: what the value is, for messages.
        lenient: take what a command line makes of a value as well: a number where a text is wanted, a text of digits
            where a number is, one item where several are, names with commas between them where texts are.

    Raises:
        UserError: it is of another type.

    >>> typed(5, tuple[str, ...] | None, "match_on", lenient=True)
    ('5',)
    >>> typed("site, view", Sequence[str], "match_on", lenient=True)
    ('site', 'view')
    >>> typed({"KVP": 60}, Mapping[str, Sequence[float]], "bins", lenient=True)
    {'KVP': (60.0,)}
    """
    if hint is Any:
        return value
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return _one_type_of(value, typing.get_args(hint), where, lenient)
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint):
        if isinstance(value, hint):  # type: ignore[arg-type]
            return value
        if isinstance(value, Mapping):
            return build(hint, value, where, lenient)
        raise UserError(f"{where}: must be a mapping, got {value!r}.")
    if origin in (tuple, list, Sequence):
        return _several(value, typing.get_args(hint)[0], where, lenient)
    if origin is not None:
        if not isinstance(value, Mapping):
            raise UserError(f"{where}: must be a mapping, got {value!r}.")
        named, wanted = typing.get_args(hint)
        for key in value:
            if named is str and not lenient and not isinstance(key, str):
                raise UserError(f"{where}: the key {key!r} must be text; put it in quotes.")
        return {key: typed(v, wanted, f"{where}: {key}", lenient) for key, v in value.items()}
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if type(value) is hint:
        return value
    if lenient:
        return _converted(value, hint, where)
    raise UserError(f"{where}: must be {hint.__name__}, got {value!r}.")


def _one_type_of(value: Any, hints: tuple[Any, ...], where: str, lenient: bool) -> Any:
    if value is None and type(None) in hints:
        return None
    refused: UserError | None = None
    # what it is already comes first, text last: anything can be a text
    for hint in sorted((h for h in hints if h is not type(None)), key=lambda h: (h is not type(value), h is str)):
        try:
            return typed(value, hint, where, lenient)
        except UserError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _several(value: Any, item: Any, where: str, lenient: bool) -> Any:
    if lenient and item is str and isinstance(value, str):
        return names_of(value)
    if isinstance(value, Mapping):
        raise UserError(f"{where}: must be a list, got {value!r}.")
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        value = (value,)
    return tuple(typed(v, item, where, lenient) for v in value)


def _converted(value: Any, hint: Any, where: str) -> Any:
    """A plain value of another type than wanted, where no doubt is left what it means."""
    if hint is bool and str(value).strip().lower() in ("true", "false"):
        return str(value).strip().lower() == "true"
    if not isinstance(value, bool):
        if hint is str and isinstance(value, int | float | Path):
            return str(value)
        if issubclass(hint, Path) and isinstance(value, str | Path):
            return Path(value)
        if hint in (int, float) and isinstance(value, str | int | float):
            try:
                number = hint(value)
            except (ValueError, OverflowError):
                number = None
            if number is not None and float(number) == float(value):
                return number
    raise UserError(f"{where}: must be {_WORDS.get(hint, hint.__name__)}, got {value!r}.")
