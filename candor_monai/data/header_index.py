"""An index of DICOM headers, built once and brought up to date by size and time of change of each file.

Kept as Parquet shards, each written whole or not at all, so that a build that was killed goes on where it stopped.
The index holds patient ids and accession numbers as the files do: its folder is made readable by its owner only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ..utils import UserError
from ..utils.atomic import atomic_path
from .header_pool import read_headers
from .header_reading import DERIVED, KEYWORDS
from .radiograph_view import view_of
from .store_rows import ABSENT, file_states

SHARD = 4096
VERSION = "2"
# Nothing in the file was the cause, so nothing in its state will say that it can be read now.
TRANSIENT = ("unreadable", "timeout", "killed")


def header_index(
    root: Path,
    files: Sequence[str],
    *,
    keywords: Sequence[str] = (),
    index_dir: str | Path | None = None,
    workers: int = 2,
    memory_bytes: int = 1 << 30,
) -> pd.DataFrame:
    """Headers of files, read where the index lacks them.

    Args:
        root: the dataset's folder.
        files: paths relative to it.
        keywords: DICOM keywords wanted beyond the usual ones (``header_reading.KEYWORDS``).
        index_dir: where the index is kept; None keeps nothing.
        workers, memory_bytes: as in ``read_headers``.

    Returns:
        one row a file, in the order of ``files``: ``file``, the keywords, ``View`` and ``ViewRule`` (radiograph_view),
        ``reason`` and ``message`` (both ``""`` when the header was read).

    Raises:
        UserError: the index folder cannot be used.
    """
    wanted = tuple(sorted({*KEYWORDS, *keywords}))
    known = _Kept(root, wanted, index_dir)
    states = file_states([root / file for file in files])
    stamps = {
        file: "absent" if size == ABSENT else f"{size}:{changed}"
        for file, size, changed in zip(files, states.size.tolist(), states.mtime_ns.tolist(), strict=True)
    }
    missing = [file for file in stamps if known.get(file, stamps[file]) is None]
    paths = [str(root / file) for file in missing]
    answers = read_headers(paths, wanted, workers=workers, memory_bytes=memory_bytes)
    fresh: list[dict[str, str]] = []
    for done, (i, answer) in enumerate(answers, start=1):
        row = dict.fromkeys((*wanted, *DERIVED), "") | (answer.header or {})
        row |= {"file": missing[i], "stamp": stamps[missing[i]], "reason": answer.reason, "message": answer.message}
        row["View"], row["ViewRule"] = view_of(row)
        fresh.append(row)
        if len(fresh) == SHARD or done == len(missing):
            known.add(fresh)
            fresh = []
    columns = ["file", *wanted, *DERIVED, "View", "ViewRule", "reason", "message"]
    return pd.DataFrame([known.rows[file] for file in files], columns=columns, dtype=object)


class _Kept:
    """Rows by file, in memory and in shards on disk."""

    def __init__(self, root: Path, keywords: tuple[str, ...], index_dir: str | Path | None) -> None:
        self.rows: dict[str, dict[str, str]] = {}
        self.folder: Path | None = None
        if index_dir is None:
            return
        key = "\x00".join((VERSION, str(root.resolve()), *keywords))
        self.folder = Path(index_dir).expanduser() / hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise UserError(f"{self.folder}: the header index cannot be kept here: {error.strerror}.") from error
        for shard in sorted(self.folder.glob("headers-*.parquet"), key=lambda p: p.stat().st_mtime_ns):
            try:
                table = pd.read_parquet(shard)
            except (OSError, ValueError):
                continue  # a shard that cannot be read is as good as absent: its files are read again
            if {"file", "stamp", "reason", *keywords} <= set(table.columns):  # else somebody else's
                self.rows |= {row["file"]: row for row in table.to_dict("records")}

    def get(self, file: str, stamp: str) -> dict[str, str] | None:
        row = self.rows.get(file)
        return row if row is not None and row["stamp"] == stamp else None

    def add(self, rows: list[dict[str, str]]) -> None:
        self.rows |= {row["file"]: row for row in rows}
        rows = [row for row in rows if row["reason"] not in TRANSIENT]
        if self.folder is None or not rows:
            return
        digest = hashlib.blake2b("\x00".join(r["file"] + r["stamp"] for r in rows).encode(), digest_size=8)
        with atomic_path(self.folder / f"headers-{digest.hexdigest()}.parquet", 0o600) as temporary:
            pd.DataFrame(rows, dtype=object).astype("string").to_parquet(temporary, index=False)
