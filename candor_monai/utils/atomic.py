"""Files that are either whole or absent."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Asking for the mask sets it: two threads that ask at once could leave the process without one.
_asking_umask = threading.Lock()


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path beside ``path``; on success it is synced to disk and renamed, on failure it is removed.

    A process killed in between leaves only a ``.tmp`` file, which nothing reads.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def atomic_write(path: str | Path, content: bytes | str) -> None:
    """Write ``content`` to ``path``, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


def _umask() -> int:
    with _asking_umask:
        mask = os.umask(0)
        os.umask(mask)
    return mask
