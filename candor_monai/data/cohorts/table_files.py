"""The files of a folder that may be images."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from ...utils import DecodeError, UserError
from ..archives import members
from ..file_index import FileIndex
from .table_join import may_be_image

RASTER = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".nii", ".nii.gz", ".gif")


class ImageFiles:
    """Files below a root, told apart by name.

    Args:
        files: listings of the root.
        labels: the label table, which is not an image.

    Raises:
        UserError: the folder cannot be read or holds no file that may be an image.
    """

    def __init__(self, files: FileIndex, labels: Path) -> None:
        own = labels.relative_to(files.root).as_posix() if labels.is_relative_to(files.root) else None
        self.all: list[str] = []
        self.archived = False
        self.bad_archives: list[str] = []
        self.dicomdirs: list[str] = []
        self.unwritable: list[str] = []
        self.others = 0
        archives = []
        for name in files.walk():
            if name == own:
                continue
            if not _writable(name):
                self.unwritable.append(name.encode("utf-8", "backslashreplace").decode())
            elif may_be_image(name):
                self.all.append(name)
            else:
                self.others += 1
                if name.lower().endswith(".zip"):
                    archives.append(name)
                elif name.rpartition("/")[2].upper() == "DICOMDIR":
                    self.dicomdirs.append(name)
        for archive in archives:
            self._add(files.root, archive)
        self.unreadable, self.links = list(files.unreadable), list(files.links)
        if not self.all:
            trouble = f" {len(self.unreadable)} folders could not be read." if self.unreadable else ""
            trouble += f" Links to folders are not followed, e.g. {files.links[0]}." if files.links else ""
            raise UserError(
                f"{files.root}: the folder holds no image ({self.others:,} other files).{trouble} Set --dataset_dir to "
                f"the folder that holds the images."
            )

    @property
    def notes(self) -> dict[str, Any]:
        """What of the folder is no image, or cannot be looked into."""
        return {
            "other_files": self.others,
            "unreadable_folders": self.unreadable,
            "unreadable_archives": self.bad_archives,
            "links_not_followed": self.links,
            "names_not_utf8": len(self.unwritable),
        }

    def _add(self, root: Path, archive: str) -> None:
        """Members of an archive that may be images."""
        try:
            inner = [f"{archive}/{member}" for member in members(root / archive) if may_be_image(member)]
        except DecodeError:
            self.bad_archives.append(archive)
            return
        self.archived = self.archived or bool(inner)
        self.all += inner

    @cached_property
    def dicom(self) -> list[str]:
        """Files that may be DICOM: those without the suffix of another image format."""
        return [name for name in self.all if may_be_dicom(name)]


def may_be_dicom(name: str) -> bool:
    """Whether a file may be DICOM by its name: it has not the suffix of another image format."""
    return not name.lower().endswith(RASTER)


def _writable(name: str) -> bool:
    """Whether a name is UTF-8; another one cannot be written into a result."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
