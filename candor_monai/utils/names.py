"""Nearest known name for a mistyped one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from .errors import UserError

# More names than this are not listed in an error message; the nearest ones are.
LISTED = 40


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``, or None when none is alike.

    >>> nearest("rad_dnio", ["rad_dino", "dinov3_s"])
    'rad_dino'
    >>> nearest("x", ["rad_dino"]) is None
    True
    """
    by_lower = {k.lower(): k for k in known}
    found = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.5)
    return by_lower[found[0]] if found else None


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """The error for an unknown name: what it is, the nearest known one, and the known ones."""
    names = sorted(known)
    near = nearest(str(name), names)
    hint = f" Did you mean {near!r}?" if near else ""
    if len(names) > LISTED:
        alike = difflib.get_close_matches(str(name), names, n=5, cutoff=0.0)
        return UserError(f"unknown {what} {name!r}.{hint} The nearest of {len(names)} known: {', '.join(alike)}.")
    return UserError(f"unknown {what} {name!r}.{hint} Known: {', '.join(names) or 'none'}.")


def on_one_line(text: str) -> str:
    r"""A text as a terminal may show it: line breaks, escapes and what turns its direction are written out.

    >>> print(on_one_line("Edema\n\x1b[31mred"))
    Edema\n\x1b[31mred
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def names_of(value: Any) -> tuple[str, ...]:
    """A list of names as a user may write it: one text, a list, or a tuple.

    >>> names_of("site"), names_of(["site", "view"])
    (('site',), ('site', 'view'))
    """
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(str(part) for part in value)
