"""Where an adapter reads from: the dataset's root, its tables, its files, and what was asked of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ...utils import UserError
from ..file_index import FileIndex, find_root, find_table, missing_table
from ..label_tables import read_table
from ..tasks import Task, load_task
from .cards import CohortCard
from .vocabulary import Vocabulary


def user_path(name: str | Path) -> Path:
    """A path as a user writes it, ``~`` for a home folder.

    Raises:
        UserError: it begins with the home of a user that does not exist.
    """
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise UserError(f"{name}: {error}") from error


@dataclass
class Source:
    """One dataset as a user points at it.

    Args:
        card: the dataset's card.
        dataset_dir: the folder that the user named, or None.
        task: the task asked, or None to leave it to the adapter.
        match_on: covariates asked for, or None.
        allow_outside: whether paths in tables may leave the root.
        vocabulary: maps a site's names to the task's findings.
    """

    card: CohortCard
    dataset_dir: Path | None
    task: Task | None
    match_on: tuple[str, ...] | None
    allow_outside: bool
    vocabulary: Vocabulary
    root: Path | None = None
    tables: dict[str, int] = field(default_factory=dict)
    _files: FileIndex | None = None

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return self.card.name

    def findings(self, task: str) -> tuple[str, ...]:
        """Findings of the task asked, else of the adapter's own ``task``."""
        return (self.task or load_task(task)).findings

    def need_dataset_dir(self) -> Path:
        """The folder that the user named.

        Raises:
            UserError: none was named; says how to obtain the dataset and what the folder should look like.
        """
        if self.dataset_dir is None:
            tree = f"\nExpected tree:\n{self.card.tree.rstrip()}" if self.card.tree else ""
            raise UserError(f"cohort {self.name!r} needs --dataset_dir. {self.card.obtain.strip()}{tree}")
        return self.dataset_dir

    def locate(self, *markers: str) -> Path:
        """Find the root by files or folders that mark it, and keep it."""
        self.root = find_root(self.need_dataset_dir(), markers, self.name)
        self._files = FileIndex(self.root)
        return self.root

    def at(self, root: Path) -> None:
        """Use a root that the adapter found itself."""
        self.root = root
        self._files = FileIndex(root)

    @property
    def files(self) -> FileIndex:
        """Listings below the root."""
        if self._files is None:
            raise RuntimeError("locate() comes first")
        return self._files

    def named(self, name: str | Path) -> Path:
        """The path that a user wrote: below the dataset's folder or, when there is a file only there, in the working
        directory.

        Raises:
            UserError: it begins with the home of a user that does not exist.
        """
        path = user_path(name)
        if path.is_absolute() or self.root is None:
            return path.absolute()
        below = self.root / path
        return below if os.path.isfile(below) or not os.path.isfile(path) else path.absolute()

    def table_path(
        self, *patterns: str, folder: str = "", chosen: str | None = None, option: str | None = None
    ) -> Path:
        """The one table that matches the first pattern with a match, below ``folder``; ``chosen``, the value of the
        cohort's ``option``, names it instead.

        Raises:
            UserError: none, or several side by side.
        """
        path = self.find_table(*patterns, folder=folder, chosen=chosen, option=option)
        if path is None:
            raise self.no_table(*patterns, folder=folder)
        return path

    def find_table(
        self, *patterns: str, folder: str = "", chosen: str | None = None, option: str | None = None
    ) -> Path | None:
        """As ``table_path``, but None when there is none."""
        if chosen is not None:
            return self.named(chosen)
        base = self._root(folder)
        return find_table(base, patterns, self.name, option) if base.is_dir() else None

    def no_table(self, *patterns: str, folder: str = "") -> UserError:
        """The error for a table that is not there."""
        return missing_table(self._root(folder), patterns, self.name, self.card.obtain)

    def read(self, path: Path, columns: Sequence[str] | None = None, **how: Any) -> pd.DataFrame:
        """Read a table, or some columns of it, as text and count its rows."""
        table = read_table(path, None if columns is None else frozenset(columns).__contains__, **how)
        self.tables[path.name] = len(table)
        return table

    def _root(self, folder: str) -> Path:
        if self.root is None:
            raise RuntimeError("locate() comes first")
        return self.root / folder if folder else self.root
