"""State on disk that threads and processes share: a lock, and what tells that a file has changed."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from ...utils import UserError

Signature = tuple[int, int, int]


class StateLock:
    """One holder at a time, among the threads of this process and among processes; a thread may take it again.

    The kernel gives the lock back when its process ends, however it ends.

    Args:
        path: the lock's own file; made with its folder when first taken.

    Raises:
        UserError: on taking it: the folder cannot be written, or its file system cannot lock files.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = threading.RLock()
        self._depth = 0
        self._handle = -1

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._thread:
            if self._depth == 0:
                self._handle = self._taken()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    # given back by name: a child forked meanwhile holds the open file too
                    fcntl.flock(self._handle, fcntl.LOCK_UN)
                    os.close(self._handle)

    def _taken(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UserError(f"{self.path.parent}: cannot be written: {error.strerror}. Name another folder.") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            os.close(handle)
            raise UserError(f"{self.path}: this file system cannot lock files ({error.strerror}).") from error
        return handle


def signature(path: Path) -> Signature | None:
    """What changes when a file is written or replaced: inode, size, modification time in ns; None: there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def utc(seconds: float) -> str:
    """Seconds since the epoch as text.

    >>> utc(0.5)
    '1970-01-01T00:00:00.500000Z'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
