"""Tables as CSV: whole or absent, exact in numbers, and harmless when opened in a spreadsheet."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..utils.atomic import atomic_write

# A spreadsheet runs a cell that begins with one of these as a formula.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def write_csv(path: str | Path, rows: Any, columns: Sequence[str]) -> None:
    """Write rows to a UTF-8 CSV file with a header, atomically.

    An undefined value (None, or a missing key) is an empty cell; floats are written with the fewest digits that
    read back as the same number; truth values are ``true`` and ``false``. Text that a spreadsheet would run as a
    formula gets a leading apostrophe (:func:`spreadsheet_text`; :func:`plain_text` takes it off again); numbers,
    negative ones too, stay numbers.

    Args:
        path: the file; its folder is made when missing.
        rows: an iterable of mappings from column to value, or a pandas DataFrame (missing values become empty cells).
        columns: the columns, in the order in which they are written.

    Raises:
        ValueError: a row has a key that is no column, or holds NaN or an infinite number.
        TypeError: a value is neither text, number, truth value nor None.
        OSError: the file cannot be written.
    """
    atomic_write(path, csv_text(rows, columns))


def csv_text(rows: Any, columns: Sequence[str]) -> str:
    """The text that :func:`write_csv` writes.

    >>> print(csv_text([{"finding": "=1+1", "D": -0.25}, {"finding": "Edema", "D": None}], ["finding", "D"]), end="")
    finding,D
    '=1+1,-0.25
    Edema,
    """
    if hasattr(rows, "to_dict"):
        frame = rows.astype(object)
        rows = frame.where(frame.notna(), None).to_dict("records")
    known = set(columns)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([spreadsheet_text(column) for column in columns])
    for index, row in enumerate(rows):
        unknown = sorted(set(row) - known)
        if unknown:
            raise ValueError(f"row {index} has the keys {unknown}, which are no columns of the table")
        writer.writerow([_cell(row.get(column), index, column) for column in columns])
    return buffer.getvalue()


def spreadsheet_text(text: str) -> str:
    """Text as a spreadsheet shows it and does not run it.

    >>> spreadsheet_text("@SUM(A1)"), spreadsheet_text("Edema"), spreadsheet_text("'=1")
    ("'@SUM(A1)", 'Edema', "''=1")
    """
    return "'" + text if text.lstrip("'").startswith(FORMULA_STARTS) else text


def plain_text(cell: str) -> str:
    """The text that :func:`spreadsheet_text` was given.

    >>> [plain_text(spreadsheet_text(t)) for t in ("@SUM(A1)", "Edema", "'=1", "'quoted'")]
    ['@SUM(A1)', 'Edema', "'=1", "'quoted'"]
    """
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(FORMULA_STARTS) else cell


def _cell(value: Any, index: int, column: str) -> str:
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()  # a NumPy scalar
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return spreadsheet_text(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"row {index}, column {column!r}: {value} is not a number; an undefined value is None")
        return repr(value)
    raise TypeError(f"row {index}, column {column!r}: a cell cannot hold {type(value).__name__}")
