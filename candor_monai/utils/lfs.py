"""Git LFS pointers: the few lines that stand in a checkout where a large file was not fetched."""

from __future__ import annotations

from pathlib import Path

_HEAD = b"version https://git-lfs"


def is_lfs_pointer(path: str | Path) -> bool:
    """Whether the file is a Git LFS pointer in place of its content.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        return file.read(len(_HEAD)) == _HEAD
