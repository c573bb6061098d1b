"""Files of a dataset by directory listing: what is there, where the root is, which tables lie side by side."""

from __future__ import annotations

import errno
import fnmatch
import gzip
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ..utils import UserError
from .label_tables import line_of

LEVELS = 2  # how deep below the folder that the user names a dataset's root is looked for


class FileIndex:
    """Listings of the folders below one root, each read once when it is first asked about.

    Args:
        root: the dataset's folder.

    Attributes:
        unreadable: folders met by ``walk`` that could not be listed.
        links: links to folders met by ``walk``, which does not follow them.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._files: dict[str, frozenset[str]] = {}
        self._folded: dict[str, dict[str, str]] = {}
        self.unreadable: list[str] = []
        self.links: list[str] = []

    def listing(self, folder: str) -> frozenset[str]:
        """Names in a folder (relative, ``""`` is the root); empty when there is no such folder."""
        if folder not in self._files:
            try:
                names = frozenset(os.listdir(self.root / folder))
            except OSError as error:
                # a path that cannot be is not there; a folder that may not be read is another matter
                if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP):
                    names = frozenset()
                else:
                    raise UserError(f"{self.root / folder}: the folder cannot be listed: {error.strerror}.") from error
            self._files[folder] = names
        return self._files[folder]

    def present(self, paths: pd.Series) -> np.ndarray:
        """Whether each relative path is there, shape (N,), bool; one listing a folder, not one call a file."""
        folders, names = split_paths(paths)
        codes, unique = pd.factorize(np.asarray(folders, dtype=object))
        found = np.zeros(len(paths), dtype=np.bool_)
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=len(unique)))
        start = 0
        array = np.asarray(names, dtype=object)
        for folder, end in zip(unique, ends, strict=True):
            rows = order[start:end]
            listed = self.listing(folder)
            found[rows] = [name in listed for name in array[rows]]
            start = end
        return found

    def resolve(self, path: str, suffixes: Sequence[str] = ()) -> str | None:
        """The file that ``path`` means: itself, the same name in other letter case, or with another suffix.

        Args:
            path: relative path.
            suffixes: suffixes to try in place of the path's own, in order.
        """
        folder, name = os.path.split(path)
        listed = self.listing(folder)
        if name in listed:
            return path
        if not listed:
            return None
        if folder not in self._folded:
            self._folded[folder] = {entry.lower(): entry for entry in sorted(listed, reverse=True)}
        folded = self._folded[folder]
        stem = split_suffix(name)[0]
        for candidate in (name, *(stem + suffix for suffix in suffixes)):
            if candidate.lower() in folded:
                return f"{folder}/{folded[candidate.lower()]}" if folder else folded[candidate.lower()]
        return None

    def walk(self) -> Iterator[str]:
        """Relative paths of all files, sorted; hidden ones are passed over, links to folders are not followed.

        Folders that cannot be listed are recorded in ``unreadable``, links to folders in ``links``.
        """
        stack = [""]
        while stack:
            current = stack.pop()
            try:
                with os.scandir(self.root / current) as entries:
                    listed = sorted(entries, key=lambda e: e.name)
            except OSError:
                self.unreadable.append(current or ".")
                continue
            below = []
            for entry in listed:
                if entry.name.startswith("."):
                    continue
                relative = f"{current}/{entry.name}" if current else entry.name
                try:
                    if entry.is_dir(follow_symlinks=False):
                        below.append(relative)
                    elif entry.is_file():
                        yield relative
                    elif entry.is_symlink() and entry.is_dir():
                        self.links.append(relative)
                except OSError:  # a link that leads back to itself
                    self.unreadable.append(relative)
            stack.extend(reversed(below))


def split_suffix(name: str) -> tuple[str, str]:
    """A file name's stem and suffix; ``.nii.gz`` is one suffix, and what is made of digits alone is none.

    >>> split_suffix("a.b.png"), split_suffix("scan.nii.gz"), split_suffix("1.2.840.7")
    (('a.b', '.png'), ('scan', '.nii.gz'), ('1.2.840.7', ''))
    """
    if name.lower().endswith(".nii.gz"):
        return name[: -len(".nii.gz")], name[-len(".nii.gz") :]
    stem, suffix = os.path.splitext(name)
    return (name, "") if suffix[1:].isdigit() else (stem, suffix)


def split_paths(paths: pd.Series) -> tuple[list[str], list[str]]:
    """Folder and name of each relative path."""
    pairs = [path.rpartition("/") for path in paths]
    return [p[0] for p in pairs], [p[2] for p in pairs]


def inside(paths: pd.Series, where: str, allow_outside: bool = False, root: Path | None = None) -> pd.Series:
    """Paths of a table made relative, with ``/``; none may leave the dataset's folder unless that is allowed.

    Args:
        paths: relative or absolute paths.
        where: the table, for messages.
        allow_outside: leave absolute paths and those that climb out as they are.
        root: the dataset's folder; absolute paths below it are made relative to it.

    Raises:
        UserError: an absolute path, one that climbs out with ``..`` or one with a NUL; names table and row.

    >>> inside(pd.Series(["a/./b.png", "c\\\\d.png"]), "t.csv").tolist()
    ['a/b.png', 'c/d.png']
    """
    texts = paths.str.replace("\\", "/", regex=False)
    odd = texts.str.contains(r"^/|^[A-Za-z]:/|(?:^|/)\.{1,2}(?:/|$)|//|\x00", regex=True)
    if not odd.any():
        return texts
    straight: list[str] = texts.tolist()
    below = tuple(f"{base}/" for base in {str(root.absolute()), str(root.resolve())}) if root is not None else ()
    for i in np.flatnonzero(odd.to_numpy(dtype=bool)).tolist():
        text = straight[i]
        if "\x00" in text:
            raise UserError(f"{where}, {line_of(i)}: {text[:80]!r} is no path: it holds the character NUL.")
        normal = os.path.normpath(text)
        normal = next((normal[len(base) :] for base in below if normal.startswith(base)), normal)
        outside = normal.startswith(("/", "../")) or normal == ".." or normal[1:3] == ":/"
        if outside and not allow_outside:
            raise UserError(
                f"{where}, {line_of(i)}: the path {text[:80]!r} leaves the dataset's folder. Paths are relative "
                f"to it; allow_outside: true accepts absolute paths from a table that you trust."
            )
        straight[i] = normal
    return pd.Series(straight, index=texts.index, dtype=texts.dtype)


def find_root(dataset_dir: str | Path, markers: Sequence[str], name: str) -> Path:
    """The folder that holds a dataset: ``dataset_dir`` itself, or the one folder up to two levels below it.

    Args:
        dataset_dir: where the user says the dataset is.
        markers: names or patterns of files and folders; one that is there marks the root.
        name: the dataset's name, for messages.

    Raises:
        UserError: no such folder, none or several below it are marked, or the folder is inside the dataset; says
            what was looked for, what was found, and how to mend it.
    """
    start = Path(dataset_dir)
    if not os.path.isdir(start):
        raise UserError(f"{start}: there is no such folder. Set --dataset_dir to the folder that holds {name}.")
    level = [start]
    for _ in range(LEVELS + 1):
        hits = [folder for folder in level if _marked(folder, markers)]
        if len(hits) == 1:
            return hits[0]
        if hits:
            listed = ", ".join(str(h) for h in hits[:4])
            raise UserError(
                f"{start}: {len(hits)} folders look like {name}: {listed}. Set --dataset_dir to one of them."
            )
        level = [child for folder in level for child in _folders(folder)]
    for parent in list(start.resolve().parents)[:3]:
        if _marked(parent, markers):
            raise UserError(
                f"{start}: this folder lies inside {name}; the dataset's root is {parent}. Set --dataset_dir to it."
            )
    raise UserError(
        f"{start}: not the root of {name}. Looked for {' or '.join(markers)} here and up to {LEVELS} levels below; "
        f"found {_entries(start)}. Download may be incomplete, or --dataset_dir points elsewhere."
    )


def find_table(root: Path, patterns: Sequence[str], name: str, option: str | None = None) -> Path | None:
    """The one file in ``root`` that matches one of the patterns; None when there is none.

    A file beside its own .gz is that file, when both hold the same bytes.

    Raises:
        UserError: several match; names them, and the option that chooses where the cohort has one.
    """
    entries = sorted(e for e in os.listdir(root) if not e.startswith("."))
    for pattern in patterns:
        hits = [e for e in entries if fnmatch.fnmatchcase(e.lower(), pattern.lower()) and (root / e).is_file()]
        plain = [h for h in hits if not (h.endswith(".gz") and h[:-3] in hits and _same(root / h[:-3], root / h))]
        if len(plain) == 1:
            return root / plain[0]
        if plain:
            choose = "" if option is None else f"name the one to use with --cohort_options \"{{'{option}': '…'}}\", or "
            raise UserError(
                f"{root}: {len(plain)} versions of {name}'s table {pattern} lie side by side: {', '.join(plain)}. "
                f"To go on, {choose}move the others away."
            )
    return None


def missing_table(root: Path, patterns: Sequence[str], name: str, obtain: str = "") -> UserError:
    """The error for a table that is not there."""
    return UserError(f"{root}: {name} needs {' or '.join(patterns)}; found {_entries(root)}. {obtain}".rstrip())


def _marked(folder: Path, markers: Sequence[str]) -> bool:
    try:
        entries = [e.lower() for e in os.listdir(folder)]
    except OSError:
        return False
    return any(fnmatch.fnmatchcase(e, m.lower()) for m in markers for e in entries)


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            found = [Path(e.path) for e in entries if e.is_dir() and not e.name.startswith((".", "__MACOSX"))]
    except OSError:
        return []
    return sorted(found)[:200]


def _entries(folder: Path) -> str:
    """What a folder holds, for messages."""
    entries = sorted(os.listdir(folder))
    return ", ".join(entries[:8]) + (f", … ({len(entries)} entries)" if len(entries) > 8 else "") or "nothing"


def _same(plain: Path, packed: Path) -> bool:
    with open(plain, "rb") as a, gzip.open(packed, "rb") as b:
        return hashlib.file_digest(a, "blake2b").digest() == hashlib.file_digest(b, "blake2b").digest()
