"""Numbers and names as a reader sees them."""

from __future__ import annotations

from collections.abc import Iterable

MISSING = "–"


def number(value: float | None, digits: int = 3) -> str:
    """A measure, with a fixed number of digits after the point.

    >>> number(0.25), number(None), number(-0.0004)
    ('0.250', '–', '0.000')
    """
    if value is None:
        return MISSING
    text = f"{value:.{digits}f}"
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text.replace("-", "−")


def interval(low: float | None, high: float | None, digits: int = 3) -> str:
    """An interval.

    >>> interval(0.2, 0.3, 2), interval(None, 0.3)
    ('0.20 to 0.30', '–')
    """
    return MISSING if low is None or high is None else f"{number(low, digits)} to {number(high, digits)}"


def count(value: int | None) -> str:
    """A count with separators of thousands.

    >>> count(12345), count(None)
    ('12,345', '–')
    """
    return MISSING if value is None else f"{value:,}"


def many(value: int, one: str, more: str | None = None) -> str:
    """A count with its noun.

    >>> many(1, "image"), many(1200, "image"), many(2, "query", "queries")
    ('1 image', '1,200 images', '2 queries')
    """
    return f"{value:,} {one if value == 1 else more or one + 's'}"


def probability(value: float | None) -> str:
    """A p-value as it is written in a paper.

    >>> probability(0.0004), probability(0.034), probability(1.0), probability(None)
    ('< 0.001', '0.034', '1.000', '–')
    """
    if value is None:
        return MISSING
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def listed(names: Iterable[str], limit: int = 6) -> str:
    """Names in a sentence; beyond the limit the rest is counted.

    >>> listed(["a"]), listed(["a", "b", "c"]), listed(["a", "b", "c", "d"], limit=2)
    ('a', 'a, b and c', 'a, b and 2 more')
    """
    names = list(names)
    if len(names) > limit:
        return f"{', '.join(names[:limit])} and {len(names) - limit} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else MISSING


def group_name(group: str | None) -> str:
    """A matched group's name, readable.

    >>> group_name("site=A|view=AP"), group_name(None), group_name("all")
    ('site A, view AP', 'all groups', 'all')
    """
    if not group:
        return "all groups"
    return ", ".join(part.replace("=", " ", 1) for part in group.split("|"))


def measure_name(name: str) -> str:
    """A measure's name, readable.

    >>> measure_name("head_auroc"), measure_name("logme"), measure_name("D_all")
    ('head AUROC', 'LogME', 'D_all')
    """
    known = {"D_all": "D_all", "logme": "LogME"}
    return known.get(name, name.replace("auroc", "AUROC").replace("_", " "))
