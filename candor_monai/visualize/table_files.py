"""A table for readers, as CSV, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..utils.atomic import atomic_write
from .csv_files import write_csv
from .wording import MISSING

SUFFIXES = (".csv", ".md", ".tex")


@dataclass(frozen=True)
class TextTable:
    """A table.

    Args:
        name: of its files, without suffix.
        title: one line above it.
        columns: keys of the rows, which are its headings too.
        rows: plain values; floats are rounded in Markdown and LaTeX, and exact in CSV.
        notes: sentences below it.
        digits: digits after the point of a float.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[Mapping[str, Any]]
    notes: tuple[str, ...] = ()
    digits: int = 3


def write_table(folder: str | Path, table: TextTable) -> list[Path]:
    """Write a table as CSV, Markdown and LaTeX, each whole or not at all.

    Args:
        folder: where to; made when missing.
        table: the table.

    Returns:
        the files.

    Raises:
        OSError: a file cannot be written.
    """
    files = [Path(folder) / f"{table.name}{suffix}" for suffix in SUFFIXES]
    write_csv(files[0], table.rows, table.columns)
    atomic_write(files[1], markdown(table))
    atomic_write(files[2], latex(table))
    return files


def markdown(table: TextTable) -> str:
    """The table in Markdown.

    >>> rows = [{"encoder": "a|b", "D": 0.25}, {"encoder": "c"}]
    >>> print(markdown(TextTable("t", "D", ("encoder", "D"), rows)), end="")
    ### D
    <BLANKLINE>
    | encoder | D |
    | :-- | --: |
    | a\\|b | 0.250 |
    | c | – |
    """
    rule = [":--" if _is_text(table, column) else "--:" for column in table.columns]
    lines = [f"### {table.title}", "", _line(map(_markdown_text, table.columns)), _line(rule)]
    lines += [_line(_markdown_text(_shown(row.get(c), table.digits)) for c in table.columns) for row in table.rows]
    notes = [line for note in table.notes for line in ("", _markdown_text(note))]
    return "\n".join([*lines, *notes]) + "\n"


def latex(table: TextTable) -> str:
    """The table in LaTeX, with the rules of the booktabs package."""
    align = "".join("l" if _is_text(table, column) else "r" for column in table.columns)
    body = [
        " & ".join(_latex_text(_shown(row.get(c), table.digits)) for c in table.columns) + r" \\" for row in table.rows
    ]
    notes = " ".join(_latex_text(note) for note in table.notes)
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            rf"\caption{{{_latex_text(table.title)}.{' ' if notes else ''}{notes}}}",
            rf"\begin{{tabular}}{{{align}}}",
            r"\toprule",
            " & ".join(map(_latex_text, table.columns)) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _is_text(table: TextTable, column: str) -> bool:
    values = [row.get(column) for row in table.rows if row.get(column) is not None]
    return bool(values) and all(isinstance(value, str) for value in values)


def _shown(value: Any, digits: int) -> str:
    if value is None:
        return MISSING
    if isinstance(value, float):
        return f"{value:.{digits}f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_text(text: str) -> str:
    """Text that Markdown and the HTML made of it show as it is."""
    for character in "\\`*_[]<>|":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())


def _latex_text(text: str) -> str:
    special = {
        **{character: "\\" + character for character in "&%$#_{}"},
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "–": "--", "±": r"$\pm$", "Δ": r"$\Delta$"},
    }
    return " ".join("".join(special.get(character, character) for character in text).split())
