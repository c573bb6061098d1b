"""Tables of labels and metadata, read as text: CSV, TSV (plain, .gz or the one member of a .zip), Parquet, Arrow IPC.

Numbers are never guessed from text, so ids keep leading zeros and more digits than 64 bits hold. A blank stays the
empty text ``""``; what a blank means is decided later, by name (label_policy).
"""

from __future__ import annotations

import csv
import gzip
import io
import warnings
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pandas as pd

from ..utils import UserError, unknown

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "space": " "}
TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
COLUMNAR_SUFFIXES = (".parquet", ".arrow", ".feather", ".ipc")


def read_table(
    path: str | Path,
    columns: Callable[[str], bool] | None = None,
    *,
    delimiter: str | None = None,
    encoding: str = "utf-8-sig",
    header: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Read a table with every value as text.

    A byte order mark is stripped, quoted cells may hold delimiters and line breaks, columns without a name and
    without any value (trailing commas) are dropped, spaces around column names are stripped.

    Args:
        path: file; the suffix says what it is.
        columns: keeps the columns for which it is true; None keeps all.
        delimiter: of a text table, as a character or one of ``comma``, ``semicolon``, ``tab``, ``bar``; None takes
            a tab for .tsv and else the one that is most frequent in the first line.
        encoding: of a text table.
        header: names of the columns of a text table that has no header line.

    Returns:
        text columns, blanks as ``""``.

    Raises:
        UserError: the file is absent, unreadable, of an unknown kind, badly formed, or has no rows.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: there is no such table.")
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in COLUMNAR_SUFFIXES:
        table = _read_columnar(path, columns)
    else:
        table = _read_text(path, suffixes, columns, delimiter, encoding, header)
    if table.empty:
        raise UserError(f"{path}: the table holds no rows.")
    return table


def find_column(table: pd.DataFrame, name: str, where: str | Path, aliases: Iterable[str] = ()) -> str:
    """Name of a column of ``table``: ``name``, else the first of ``aliases`` that is there.

    Raises:
        UserError: none is there; names the nearest column.

    >>> find_column(pd.DataFrame({"rad_ID": ["1"]}), "rad_id", "t.csv", ["rad_ID"])
    'rad_ID'
    """
    for candidate in (name, *aliases):
        if candidate in table.columns:
            return candidate
    raise unknown(f"column of {Path(where).name}:", name, [str(c) for c in table.columns])


def check_columns(table: pd.DataFrame, needed: Iterable[str], where: str | Path) -> None:
    """Every needed column is there, else UserError names the nearest."""
    for name in needed:
        find_column(table, name, where)


def line_of(row: int) -> str:
    """How a row is named in messages: data rows count from 1, as the header is not one.

    >>> line_of(0)
    'row 1'
    """
    return f"row {row + 1}"


def _read_text(
    path: Path,
    suffixes: list[str],
    columns: Callable[[str], bool] | None,
    delimiter: str | None,
    encoding: str,
    header: Sequence[str] | None,
) -> pd.DataFrame:
    kind = [s for s in suffixes if s in TEXT_SUFFIXES or s in (".gz", ".zip")]
    if not kind:
        known = ", ".join((*TEXT_SUFFIXES, ".csv.gz", ".zip", *COLUMNAR_SUFFIXES))
        raise UserError(f"{path}: not a kind of table that can be read. Known suffixes: {known}.")
    try:
        with _open(path, suffixes) as stream:
            first = stream.readline(1 << 20)
        separator = _delimiter(first, suffixes, delimiter, encoding)
        names = list(header) if header is not None else _header(first, separator, encoding)
        keep = None
        if names is not None:
            keep = [i for i, n in enumerate(names) if columns is None or columns(n.strip())]
        with _open(path, suffixes) as stream, warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(
                stream,
                sep=separator,
                dtype=str,
                na_filter=False,
                encoding=encoding,
                index_col=False,
                usecols=keep,
                header=None if header is not None else 0,
                names=list(header) if header is not None else None,
                quotechar='"',
            )
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not {encoding} text ({error.reason}); name its encoding, e.g. cp1252.") from error
    except (pd.errors.ParserError, pd.errors.ParserWarning, csv.Error) as error:
        raise UserError(f"{path}: rows and header do not fit together: {str(error).strip()}") from error
    except pd.errors.EmptyDataError as error:
        raise UserError(f"{path}: the file is empty.") from error
    except (OSError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    table.columns = [str(c).strip() for c in table.columns]
    nameless = [c for c in table.columns if c.startswith("Unnamed: ") and not (table[c] != "").any()]
    return table.drop(columns=nameless)


def _open(path: Path, suffixes: list[str]) -> io.BufferedIOBase:
    if suffixes[-1] == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if suffixes[-1] == ".zip":
        with zipfile.ZipFile(path) as archive:
            members = [m for m in archive.namelist() if m.lower().endswith(TEXT_SUFFIXES) and "__MACOSX" not in m]
            if len(members) != 1:
                raise UserError(f"{path}: must hold one table, holds {len(members)}; unpack the one that is meant.")
            return io.BytesIO(archive.read(members[0]))
    return open(path, "rb")


def _delimiter(first: bytes, suffixes: list[str], given: str | None, encoding: str) -> str:
    if given is not None:
        separator = DELIMITERS.get(given, given)
        if len(separator) != 1:
            raise UserError(f"delimiter must be one character or one of {', '.join(DELIMITERS)}, is {given!r}.")
        return separator
    if ".tsv" in suffixes:
        return "\t"
    line = first.decode(encoding)
    counts = {d: line.count(d) for d in (",", ";", "\t", "|")}
    return max(counts, key=lambda d: counts[d])


def _header(first: bytes, separator: str, encoding: str) -> list[str] | None:
    """Names in the header line; None when a quoted name runs over the line's end."""
    line = first.decode(encoding)
    if line.count('"') % 2:
        return None
    return next(csv.reader([line], delimiter=separator), [])


def _read_columnar(path: Path, columns: Callable[[str], bool] | None) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet

    try:
        reader = pa.parquet if path.suffix.lower() == ".parquet" else pa.feather
        table = reader.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    texts = {}
    for name in table.column_names:
        if columns is not None and not columns(name.strip()):
            continue
        values = table.column(name).to_pylist()
        texts[name.strip()] = ["" if v is None or v != v else str(v) for v in values]
    return pd.DataFrame(texts, dtype=str)
