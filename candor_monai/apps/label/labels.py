"""Labels of images as JSON files, one an image: whole or absent, read again when another process changes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# How an image came to be read. What each does to the measure: docs/labels.md.
SELECTED_BY = (
    "random",
    "candor_diverse",
    "candor_uncertain",
    "candor_review",
    "reread_random",
    "chosen",
    "imported",
)


@dataclass(frozen=True)
class Reading:
    """One reading of an image.

    Args:
        findings: finding -> 1 present, 0 absent, None not said. Findings that are not named were not said.
        selected_by: one of :data:`SELECTED_BY`.
        client_id: pseudonym of the reader, or None.
        time: UTC, as ``2026-01-31T10:00:00.000000Z``.
    """

    findings: Mapping[str, int | None]
    selected_by: str
    client_id: str | None
    time: str


@dataclass(frozen=True)
class Label:
    """All readings of an image, oldest first; the last one counts."""

    image_id: str
    readings: tuple[Reading, ...]

    @property
    def current(self) -> Reading:
        """The last reading."""
        return self.readings[-1]


@dataclass(frozen=True)
class Submission:
    """What a reader hands in: ``findings``, and where the client says so ``selected_by`` and ``client_id``."""

    findings: Mapping[str, int | None]
    selected_by: str | None = None
    client_id: str | None = None


def read_submission(document: Any, findings: Sequence[str], where: str = "label") -> Submission:
    """A submission from JSON: a text, bytes, or a mapping ``{"findings": {name: 1|0|null}, "selected_by": …}``.

    Raises:
        UserError: not JSON, an unknown key, finding or ``selected_by``, or a value that is not 1, 0 or null.
    """
    raise NotImplementedError


class LabelStore:
    """Labels in a folder. Every method may be called from any thread, and several processes may share the folder.

    Args:
        folder: made when the first label is saved.
        findings: names that a label may hold, any text.
        clock: seconds since the epoch.
    """

    def __init__(self, folder: str | Path, findings: Sequence[str], clock: Callable[[], float] = time.time) -> None:
        raise NotImplementedError

    def save(
        self,
        image_id: str,
        findings: Mapping[str, int | None],
        selected_by: str = "chosen",
        client_id: str | None = None,
    ) -> Label:
        """Add a reading. It is on disk when this returns; earlier readings are kept.

        Raises:
            UserError: as :func:`read_submission`; or the folder cannot be written.
        """
        raise NotImplementedError

    def get(self, image_id: str) -> Label | None:
        """The label of an image as it is on disk now; None: it has none (a file that cannot be used is in
        :attr:`problems` and counts as none)."""
        raise NotImplementedError

    def remove(self, image_id: str) -> bool:
        """Forget an image's readings; False: it had none."""
        raise NotImplementedError

    def refresh(self, whole: bool = False) -> list[str]:
        """Look at what other processes did; ids of the images whose label changed since the last call, own included.

        Args:
            whole: look at every file, also where nothing says that one changed (files edited by hand).
        """
        raise NotImplementedError

    def path(self, image_id: str) -> Path:
        """The file of an image's label, whether it is there or not."""
        raise NotImplementedError

    def image_ids(self) -> list[str]:
        """Images with a label, sorted."""
        raise NotImplementedError

    def matrix(self, image_ids: Sequence[str]) -> np.ndarray:
        """Current labels, shape (N, F), int8: 1, 0, -1 not said or no label."""
        raise NotImplementedError

    @property
    def problems(self) -> dict[str, str]:
        """File name -> what is wrong with it."""
        raise NotImplementedError
