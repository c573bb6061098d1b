"""Tables of labels and metadata, read as text: CSV, TSV (plain, .gz or the one member of a .zip), Parquet, Arrow IPC.

Numbers are never guessed from text, so ids keep leading zeros and more digits than 64 bits hold. A blank stays the
empty text ``""``; what a blank means is decided later, by name (label_policy).
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import pandas as pd

from ..utils import UserError, unknown
from ..utils.errors import first_line

if TYPE_CHECKING:
    import pyarrow

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "space": " "}
TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
NAMELESS = "Unnamed: "
REPEATED = "repeated"  # names that several columns of a table bear, in its ``attrs``
ENCODINGS = ("utf-8", "utf-16", "cp1252", "latin-1", "shift_jis", "gb18030")
BLOCK = 1 << 24  # bytes; the longest row must fit into one
LINE = 1 << 20  # characters of a header that are looked at
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
        text columns, blanks as ``""``. A name that occurs again gets its place behind it; ``find_column`` refuses it.

    Raises:
        UserError: the file is absent, unreadable, of an unknown kind, badly formed, or has no rows.
    """
    path = Path(path)
    check_file(path, "table")
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in COLUMNAR_SUFFIXES:
        table, names = _read_columnar(path, columns)
    else:
        table, names = _read_text(path, suffixes, columns, delimiter, encoding, header)
    if table.empty:
        raise UserError(f"{path}: the table holds no rows.")
    times = Counter(name.strip() for name in names)
    table.attrs[REPEATED] = tuple(sorted(name for name, count in times.items() if name and count > 1))
    return table


def read_lines(path: Path, what: str) -> list[str]:
    """Lines of a UTF-8 text file without outer spaces; blank ones are left out.

    Args:
        path: the file.
        what: what it should be, for messages.

    Raises:
        UserError: there is no such file, or it cannot be read.
    """
    check_file(path, what)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the {what} cannot be read: {error}") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def check_file(path: Path, what: str) -> None:
    """Refuse a path that leads to no file.

    Args:
        path: the path.
        what: what the file should be, for messages.

    Raises:
        UserError: there is nothing, a folder, a link to nothing or something else; says which.
    """
    if "\0" in str(path):
        raise UserError(f"{str(path)!r}: there is no such {what}: no path holds the character NUL.")
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        link = path.is_symlink()
        raise UserError(
            f"{path}: {f'a link to a {what} that is not there' if link else f'there is no such {what}'}."
        ) from None
    except OSError as error:
        raise UserError(f"{path}: the {what} cannot be read: {error.strerror}.") from error
    if stat.S_ISDIR(mode):
        raise UserError(f"{path}: a folder, not a {what}.")
    if not stat.S_ISREG(mode):
        raise UserError(f"{path}: no regular file.")


def find_column(table: pd.DataFrame, name: str, where: str | Path, aliases: Iterable[str] = ()) -> str:
    """Name of a column of ``table``: ``name``, else the first of ``aliases`` that is there.

    Raises:
        UserError: none is there (the nearest column is named), or the table has several of that name.

    >>> find_column(pd.DataFrame({"rad_ID": ["1"]}), "rad_id", "t.csv", ["rad_ID"])
    'rad_ID'
    """
    for candidate in (name, *aliases):
        if candidate in table.columns:
            if candidate in table.attrs.get(REPEATED, ()):
                raise UserError(
                    f"{Path(where).name}: two columns are called {candidate!r}; rename the one that is not meant."
                )
            return candidate
    raise unknown(f"column of {Path(where).name}:", name, [str(c) for c in table.columns])


def check_columns(table: pd.DataFrame, needed: Iterable[str], where: str | Path) -> None:
    """Every needed column is there, else UserError names the nearest."""
    for name in needed:
        find_column(table, name, where)


def check_unique(keys: pd.Series, where: str | Path, what: str = "image", of: str = "rows") -> None:
    """Refuse keys that occur twice.

    Args:
        keys: one a row.
        where: the table, for messages.
        what: what a key names.
        of: what it has two of.

    Raises:
        UserError: a key does; names it, and the rows where ``of`` is "rows".

    >>> check_unique(pd.Series(["a", "b"]), "t.csv")
    """
    repeated = keys.duplicated().to_numpy(dtype=bool)
    if repeated.any():
        second = int(repeated.argmax())
        key = keys.iat[second]
        first = int((keys == key).to_numpy(dtype=bool).argmax())
        told = f": {line_of(first)} and {line_of(second)}" if of == "rows" else ""
        raise UserError(f"{Path(where).name}: {what} {key!r} has two {of}{told}.")


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
) -> tuple[pd.DataFrame, Sequence[str]]:
    """The table, and the names as its header has them."""
    import pyarrow

    kind = [s for s in suffixes if s in TEXT_SUFFIXES or s in (".gz", ".zip")]
    if not kind:
        known = ", ".join((*TEXT_SUFFIXES, ".csv.gz", ".zip", *COLUMNAR_SUFFIXES))
        raise UserError(f"{path}: not a kind of table that can be read. Known suffixes: {known}.")
    _check_encoding(encoding)
    try:
        separator = _delimiter(path, suffixes, delimiter, encoding)
        names, lines = (list(header), 0) if header is not None else _header(path, suffixes, separator, encoding)
        how = _How(separator, "utf8" if encoding == "utf-8-sig" else encoding, lines, columns)
        try:
            table = _parse(path, suffixes, names, how)
        except pyarrow.ArrowInvalid as error:
            fitted = _fitted(names, str(error))
            try:
                if fitted is None:
                    raise
                table = _parse(path, suffixes, fitted, how)
            except pyarrow.ArrowInvalid:
                raise _misfit(path, suffixes, names, how) from None
        if columns is None:
            _check_closed(path, suffixes, table, encoding)
    except UnicodeError as error:
        raise _not_text(path, suffixes, encoding) from error
    except csv.Error as error:
        raise UserError(f"{path}: its header cannot be read ({error}).") from error
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    nameless = [c for c in table.columns if c.startswith(NAMELESS) and not (table[c] != "").any()]
    table = table.drop(columns=nameless)
    beyond = [c for c in table.columns if c.startswith(NAMELESS) and int(c[len(NAMELESS) :]) >= len(names)]
    if beyond:
        row = int((table[beyond[0]] != "").to_numpy().argmax())
        raise _ragged(path, row, len(table.columns) + len(nameless), len(names), separator)
    return table, names


@dataclass(frozen=True)
class _How:
    """How a text table is parsed."""

    separator: str
    encoding: str
    skip: int
    columns: Callable[[str], bool] | None


def _parse(path: Path, suffixes: list[str], header: Sequence[str], how: _How, threads: bool = True) -> pd.DataFrame:
    import pyarrow
    import pyarrow.csv

    names = _distinct(header)
    options = pyarrow.csv.ReadOptions(
        use_threads=threads, column_names=names, skip_rows=how.skip, block_size=BLOCK, encoding=how.encoding
    )
    kept = [n for n in names if how.columns is None or how.columns(n)]
    convert = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pyarrow.string()), include_columns=kept, strings_can_be_null=False
    )
    parse = pyarrow.csv.ParseOptions(delimiter=how.separator, newlines_in_values=True)
    with _open(path, suffixes) as stream:
        table: pd.DataFrame = pyarrow.csv.read_csv(stream, options, parse, convert).to_pandas()
    return table


def _misfit(path: Path, suffixes: list[str], names: Sequence[str], how: _How) -> UserError:
    """The error for rows that do not fit the header; only a parser of one thread says which row it is."""
    import pyarrow

    message = ""
    try:
        _parse(path, suffixes, names, how, threads=False)
    except pyarrow.ArrowInvalid as error:
        message = str(error)  # its end is the row itself, which may name a patient
    if "UTF8" in message:
        return _not_text(path, suffixes, how.encoding)
    told = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", message)
    if told:
        row, expected, got = map(int, told.groups())
        return _ragged(path, row - how.skip - 1, got, expected, how.separator)
    if "straddl" in message:
        return UserError(f"{path}: a row is longer than {BLOCK >> 20} MiB: a quote may be opened and never closed.")
    return UserError(f"{path}: rows and header do not fit together.")


def _ragged(path: Path, row: int, fields: int, expected: int, separator: str) -> UserError:
    return UserError(
        f"{path}, {line_of(row)}: {fields} fields where {expected} are expected. Put fields that hold the delimiter "
        f"{separator!r} into quotes; the option delimiter of a table of your own names another one."
    )


def _check_closed(path: Path, suffixes: list[str], table: pd.DataFrame, encoding: str) -> None:
    """A quote that is opened and never closed would swallow all rows that follow into the last cell."""
    if table.empty or not {"\n", "\r"} & set(str(table.iat[-1, -1])):
        return
    with _open(path, suffixes) as stream, io.TextIOWrapper(stream, encoding=encoding) as text:
        if not text.read().rstrip().endswith('"'):
            raise UserError(f"{path}, {line_of(len(table) - 1)}: a quote is opened and never closed.")


def _fitted(names: Sequence[str], message: str) -> list[str] | None:
    """The header made as long as the rows are, when they differ in trailing columns without a name only."""
    told = re.search(r"Expected (\d+) columns, got (\d+)", message)
    if told is None:
        return None
    fields = int(told.group(2))
    if fields > len(names):
        return [*names, *[""] * (fields - len(names))]
    return None if any(n.strip() for n in names[fields:]) else list(names[:fields])


def _open(path: Path, suffixes: list[str]) -> IO[bytes]:
    if suffixes[-1] == ".gz":
        return cast("IO[bytes]", gzip.open(path, "rb"))
    if suffixes[-1] == ".zip":
        with zipfile.ZipFile(path) as archive:
            members = [m for m in archive.namelist() if m.lower().endswith(TEXT_SUFFIXES) and "__MACOSX" not in m]
            if len(members) != 1:
                raise UserError(f"{path}: must hold one table, holds {len(members)}; unpack the one that is meant.")
            return archive.open(members[0])  # keeps the file open until it is closed itself
    return open(path, "rb")


def _check_encoding(encoding: str) -> None:
    try:
        known = codecs.lookup(encoding)._is_text_encoding
    except (LookupError, ValueError):
        known = False
    if not known:
        raise UserError(f"encoding {encoding!r} is none that Python knows. Usual ones: {', '.join(ENCODINGS)}.")


def _not_text(path: Path, suffixes: list[str], encoding: str) -> UserError:
    """The error for bytes that are no text of this encoding, with the encoding that they are likely to have."""
    with _open(path, suffixes) as stream:
        start = stream.read(1 << 16)
    wide = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in start
    likely = "utf-16" if wide else "cp1252"
    return UserError(
        f"{path}: not {encoding} text. Save it as UTF-8; the option encoding of a table of your own names another one, "
        f"e.g. {likely}."
    )


def _delimiter(path: Path, suffixes: list[str], given: str | None, encoding: str) -> str:
    if given is not None:
        separator = DELIMITERS.get(given, given)
        if len(separator) != 1 or not separator.isascii() or separator in '"\r\n\0':
            raise UserError(
                f"delimiter must be one ASCII character, no quote or line break, or one of {', '.join(DELIMITERS)}; is "
                f"{given!r}."
            )
        return separator
    if ".tsv" in suffixes:
        return "\t"
    with _open(path, suffixes) as stream, io.TextIOWrapper(stream, encoding=encoding) as text:
        line = text.readline(LINE)
        while line and not line.strip():
            line = text.readline(LINE)
    if "\0" in line:
        raise UnicodeError("a text holds no NUL")
    counts = {d: line.count(d) for d in (",", ";", "\t", "|")}
    return max(counts, key=lambda d: counts[d])


def _header(path: Path, suffixes: list[str], separator: str, encoding: str) -> tuple[list[str], int]:
    """Names in the header and the number of lines it takes (a quoted name may run over the end of a line)."""
    with _open(path, suffixes) as stream, io.TextIOWrapper(stream, encoding=encoding, newline="") as text:
        reader = csv.reader(text, delimiter=separator)
        names = next((row for row in reader if any(name.strip() for name in row)), None)
        if names is None:
            raise UserError(f"{path}: the file is empty.")
        names[0] = names[0].removeprefix("\ufeff")
        return names, reader.line_num


def _distinct(names: Sequence[str]) -> list[str]:
    """Names without outer spaces; a name that is blank or occurs again is told apart by its place."""
    distinct: dict[str, None] = {}
    for i, name in enumerate(n.strip() for n in names):
        while not name or name in distinct:
            name = f"{name}.{i}" if name else f"{NAMELESS}{i}"
        distinct[name] = None
    return list(distinct)


def read_arrow(path: Path) -> pyarrow.Table:
    """A Parquet, Arrow IPC or Feather file.

    Raises:
        UserError: it cannot be read.
    """
    import pyarrow
    import pyarrow.feather
    import pyarrow.parquet

    try:
        reader = pyarrow.parquet if path.suffix.lower() == ".parquet" else pyarrow.feather
        return reader.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: cannot be read: {first_line(error)}") from error


def _read_columnar(path: Path, columns: Callable[[str], bool] | None) -> tuple[pd.DataFrame, Sequence[str]]:
    table = read_arrow(path)
    texts = {}
    for i, name in enumerate(_distinct(table.column_names)):
        if columns is None or columns(name):
            texts[name] = ["" if v is None or v != v else str(v) for v in table.column(i).to_pylist()]
    return pd.DataFrame(texts, dtype=str), table.column_names
