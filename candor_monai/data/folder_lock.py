"""One run at a time in a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from candor_monai.utils.errors import UserError

LOCK_NAME = ".lock"
_held: set[Path] = set()


@contextmanager
def folder_lock(folder: str | Path) -> Iterator[None]:
    """Hold a folder for this process; a second holder is told so at once.

    The kernel gives the lock back when the process ends, however it ends, and children forked meanwhile do not inherit
    it: a run killed with SIGKILL whose workers live a moment longer never blocks the next one. (POSIX record lock; it
    works over NFS where the server's lock service runs.)

    Args:
        folder: made when absent. The file ``.lock`` stays in it; it holds the holder's process id.

    Raises:
        UserError: another run, or this process, holds it, or the folder cannot be written.
    """
    folder = Path(folder).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made: {error.strerror}.") from error
    if folder in _held:
        raise UserError(f"{folder} is already in use by this process.")
    path = folder / LOCK_NAME
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}. Choose another folder.") from error
    try:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            holder = os.read(handle, 32).decode("ascii", "replace").strip() or "unknown"
            raise UserError(
                f"{folder} is in use by another run (process {holder}). Wait for it, or choose another folder."
            ) from error
        except OSError as error:
            raise UserError(f"{folder}: this file system cannot lock files ({error.strerror}).") from error
        _held.add(folder)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        _held.discard(folder)
        os.close(handle)
