"""Images inside zip archives, named ``<archive>/<member>`` as if the archive were a folder.

Nothing is unpacked to disk; a member is read into memory up to a limit, whatever size the archive declares. Archives
inside archives are not opened.
"""

from __future__ import annotations

import os
import threading
import zipfile
import zlib
from pathlib import Path

from ..utils import DecodeError

LARGEST_MEMBER = 512 << 20
MOST_MEMBERS = 100_000

_one_at_a_time = threading.Lock()
_held: list[tuple[tuple[int, str, int, int], zipfile.ZipFile]] = []


def members(archive: Path) -> list[str]:
    """Names of the files in an archive, sorted.

    Raises:
        DecodeError: not a zip archive, or it has too many members.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            infos = opened.infolist()
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError) as error:
        raise DecodeError("bad_archive", f"the archive cannot be read ({type(error).__name__})") from error
    if len(infos) > MOST_MEMBERS:
        raise DecodeError("bad_archive", f"the archive has more than {MOST_MEMBERS:,} members")
    return sorted({info.filename for info in infos if not info.is_dir() and not _hidden(info.filename)})


def split_archive(path: Path) -> tuple[Path, str] | None:
    """The archive and the member that a path names; None when no part of it is a file."""
    for parent in path.parents:
        if parent.is_file():
            return parent, path.relative_to(parent).as_posix()
        if parent.is_dir():
            return None
    return None


def read_member(archive: Path, member: str, largest: int = LARGEST_MEMBER) -> bytes:
    """Bytes of one member.

    Raises:
        DecodeError: absent, encrypted, larger than ``largest`` bytes, or damaged.
    """
    try:
        with _one_at_a_time:
            opened = _open(archive)
            info = opened.getinfo(member)
            if info.flag_bits & 1:
                raise DecodeError("encrypted", "the archive's member is encrypted")
            with opened.open(info) as stream:
                content = stream.read(largest + 1)
    except DecodeError:  # itself a ValueError
        raise
    except KeyError as error:
        raise DecodeError("missing_file", "the archive has no such member") from error
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise DecodeError("bad_archive", f"the archive's member cannot be read ({type(error).__name__})") from error
    if len(content) > largest:
        raise DecodeError("too_large", f"the archive's member is larger than {largest:,} bytes")
    return content


def _open(archive: Path) -> zipfile.ZipFile:
    """The archive, kept open until another is asked for: its directory is read once, not once a member."""
    state = archive.stat()
    key = (os.getpid(), str(archive), state.st_size, state.st_mtime_ns)
    if not _held or _held[0][0] != key:
        _held[:] = [(key, zipfile.ZipFile(archive))]
    return _held[0][1]


class ArchiveReader:
    """Opens an image of a cohort: the path of a file, or the bytes of a member of an archive.

    Args:
        root: folder that the images' names start from.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, image: str) -> Path | bytes:
        """What a decoder reads for ``image``."""
        path = self.root / image
        if path.exists():
            return path
        parts = split_archive(path)
        return path if parts is None else read_member(*parts)


def _hidden(name: str) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))
