"""Files that are either whole or absent."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# What a disk says of a write without naming the file.
OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG})
# Asking for the mask sets it: two threads that ask at once could leave the process without one.
_asking_umask = threading.Lock()


@contextmanager
def atomic_path(path: str | Path, mode: int | None = None) -> Iterator[Path]:
    """A temporary path beside ``path``; on success it is synced to disk and renamed, on failure it is removed.

    A process killed in between leaves only a ``.tmp`` file, which nothing reads and only its owner may.

    Args:
        path: the file.
        mode: its permissions; None: those that the umask leaves to a new file.

    Raises:
        OSError: the folder cannot be written, ``path`` is a folder, or the disk is full; its ``filename`` is ``path``.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        error.filename = str(path)
        raise
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask() if mode is None else mode)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename2 is None:
            of_the_disk = error.filename is None and error.errno in OF_THE_DISK
            if of_the_disk or error.filename in (name, temporary):
                error.filename = str(path)
        raise


def atomic_write(path: str | Path, content: bytes | str, mode: int | None = None) -> None:
    """Write ``content`` to ``path``, whole or not at all; ``mode`` as for :func:`atomic_path`."""
    with atomic_path(path, mode) as temporary:
        temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


def _umask() -> int:
    with _asking_umask:
        mask = os.umask(0)
        os.umask(mask)
    return mask
