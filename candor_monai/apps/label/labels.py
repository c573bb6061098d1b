"""Labels of images as JSON files, one an image: whole or absent, read again when another process changes them."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...utils import UserError, atomic_write
from .files import Signature, StateLock, signature, utc
from .readings import (
    SELECTED_BY,
    Label,
    Reading,
    Submission,
    check_client,
    check_findings,
    check_image_id,
    check_selected,
    label_json,
    read_label,
    read_submission,
)

__all__ = ["SELECTED_BY", "Label", "LabelStore", "Reading", "Submission", "read_submission"]

SET_ASIDE = "set_aside"
_LOCK = ".lock"
_GENERATION = ".generation"
_SUFFIX = ".json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Entry:
    """A file as it was last read: its label, or what is wrong with it."""

    signature: Signature
    label: Label | None
    problem: str | None


class LabelStore:
    """Labels in a folder. Every method may be called from any thread, and several processes may share the folder.

    A reading is on disk when :meth:`save` returns, and earlier readings of its image are kept with it. A file that
    cannot be used is never overwritten: it is told in :attr:`problems`, counts as no label, and is set aside when
    its image is labelled anew.

    Args:
        folder: made when the first label is saved.
        findings: names that a label may hold, any text.
        clock: seconds since the epoch.

    Raises:
        UserError: no finding, or one is named twice.
    """

    def __init__(self, folder: str | Path, findings: Sequence[str], clock: Callable[[], float] = time.time) -> None:
        if isinstance(findings, str):
            raise UserError(f"findings must be a list of names, is {findings!r}.")
        self.folder = Path(folder)
        self.findings = tuple(check_findings(dict.fromkeys(findings), "findings"))
        if len(self.findings) < len(findings):
            raise UserError("a finding is named twice.")
        self._clock = clock
        self._lock = StateLock(self.folder / _LOCK)
        self._entries: dict[str, _Entry] = {}  # by file name
        self._changed: set[str] = set()
        self._seen: tuple[str, int] | None = None
        self._read = False

    def save(
        self,
        image_id: str,
        findings: Mapping[str, int | None],
        selected_by: str = "chosen",
        client_id: str | None = None,
    ) -> Label:
        """Add a reading. It is on disk when this returns; earlier readings are kept.

        Args:
            image_id: any text.
            findings: finding -> 1, 0 or None; a finding that is not named keeps what was said before.
            selected_by: one of :data:`SELECTED_BY`.
            client_id: pseudonym of the reader.

        Raises:
            UserError: an unknown finding or way of selecting, another value, or the folder cannot be written.
        """
        image_id = check_image_id(image_id)
        where = f"label of {image_id!r}"
        values = check_findings(findings, where, self.findings)
        check_selected(selected_by, where)
        check_client({"client_id": client_id}, where)
        with self._lock():
            self._catch_up()
            name = _file_name(image_id)
            entry = self._look(name)
            if entry is not None and entry.problem is not None:
                self._put_aside(name)
            before = entry.label.readings if entry is not None and entry.label is not None else ()
            known = before[-1].findings if before else {}
            reading = Reading({**known, **values}, selected_by, client_id, utc(self._clock()))
            label = Label(image_id, (*before, reading))
            self._write(name, label_json(label) + "\n")
            state = signature(self.folder / name)
            assert state is not None
            self._entries[name] = _Entry(state, label, None)
            self._changed.add(image_id)
            self._bump()
        return label

    def get(self, image_id: str) -> Label | None:
        """The label of an image as it is on disk now.

        Returns:
            None: it has none, or its file cannot be used (:attr:`problems`).
        """
        with self._lock():
            entry = self._look(_file_name(check_image_id(image_id)))
            return None if entry is None else entry.label

    def remove(self, image_id: str) -> bool:
        """Forget an image's readings; False: it had none."""
        name = _file_name(check_image_id(image_id))
        with self._lock():
            self._catch_up()
            entry = self._entries.pop(name, None)
            try:
                (self.folder / name).unlink()
            except FileNotFoundError:
                return False
            except OSError as error:
                raise UserError(f"{self.folder / name}: cannot be removed: {error.strerror}.") from error
            self._bump()
            if entry is not None and entry.label is not None:
                self._changed.add(image_id)
                return True
            return False

    def refresh(self, whole: bool = False) -> list[str]:
        """Look at what other processes did.

        Args:
            whole: look at every file, also where nothing says that one changed: a file that was edited in place by
                hand is noticed only so, or when its own image is asked for.

        Returns:
            ids of the images whose label changed since the last call, those saved here included, sorted.
        """
        with self._lock():
            self._catch_up(whole)
            changed, self._changed = sorted(self._changed), set()
            return changed

    def path(self, image_id: str) -> Path:
        """The file of an image's label, whether it is there or not."""
        return self.folder / _file_name(check_image_id(image_id))

    def image_ids(self) -> list[str]:
        """Images with a readable label, sorted."""
        return sorted(self._labels())

    def matrix(self, image_ids: Sequence[str]) -> np.ndarray:
        """Current labels, shape (N, F), int8: 1, 0, -1 not said or no label."""
        labels = self._labels()
        table = np.full((len(image_ids), len(self.findings)), -1, dtype=np.int8)
        for row, image_id in enumerate(image_ids):
            label = labels.get(image_id)
            if label is not None:
                values = label.findings
                table[row] = [-1 if (value := values.get(finding)) is None else value for finding in self.findings]
        return table

    def labels(self) -> dict[str, Label]:
        """Image id -> label, of every image that has a readable one."""
        return dict(self._labels())

    @property
    def problems(self) -> dict[str, str]:
        """File name -> what is wrong with it."""
        with self._lock():
            self._catch_up()
            return {name: entry.problem for name, entry in sorted(self._entries.items()) if entry.problem is not None}

    def _labels(self) -> dict[str, Label]:
        with self._lock():
            self._catch_up()
            return {e.label.image_id: e.label for e in self._entries.values() if e.label is not None}

    def _catch_up(self, whole: bool = False) -> None:
        """Read the files that changed, where another process (or somebody's file manager) was at the folder.

        Writers leave a new word in ``.generation``, since the folder's own time of change is too coarse to tell two
        writes of one moment apart.
        """
        seen = self._state()
        if self._read and not whole and seen == self._seen:
            return
        try:
            names = {entry.name for entry in os.scandir(self.folder) if _is_label(entry.name)}
        except FileNotFoundError:
            names = set()
        except OSError as error:
            raise UserError(f"{self.folder}: labels cannot be read: {error.strerror}.") from error
        for name in set(self._entries) - names:
            self._forget(name)
        for name in names:
            self._look(name)
        self._seen, self._read = seen, True

    def _state(self) -> tuple[str, int] | None:
        try:
            word = (self.folder / _GENERATION).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            word = ""
        state = signature(self.folder)
        return None if state is None else (word, state[2])

    def _look(self, name: str) -> _Entry | None:
        """A file's entry, read again when the file is another than before."""
        path = self.folder / name
        state = signature(path)
        known = self._entries.get(name)
        if state is None:
            self._forget(name)
            return None
        if known is not None and known.signature == state:
            return known
        try:
            label = read_label(path.read_bytes(), f"label file {name}")
            problem = None if _file_name(label.image_id) == name else f"it holds the label of {label.image_id!r}"
        except OSError as error:
            label, problem = None, f"cannot be read: {error.strerror}"
        except UserError as error:
            label, problem = None, str(error)
        entry = _Entry(state, label if problem is None else None, problem)
        if problem is not None:
            logger.warning("%s: %s", path, problem)
        before = known.label if known is not None else None
        if before != entry.label:
            self._changed |= {found.image_id for found in (before, entry.label) if found is not None}
        self._entries[name] = entry
        return entry

    def _forget(self, name: str) -> None:
        gone = self._entries.pop(name, None)
        if gone is not None and gone.label is not None:
            self._changed.add(gone.label.image_id)

    def _put_aside(self, name: str) -> None:
        aside = self.folder / SET_ASIDE
        target = aside / f"{name}.{secrets.token_hex(4)}"
        try:
            aside.mkdir(exist_ok=True)
            os.replace(self.folder / name, target)
        except OSError as error:
            raise UserError(f"{self.folder / name}: cannot be set aside: {error.strerror}.") from error
        logger.warning("%s could not be used; it is now %s", self.folder / name, target)

    def _write(self, name: str, text: str) -> None:
        try:
            atomic_write(self.folder / name, text)
        except OSError as error:
            raise UserError(
                f"{self.folder}: the label cannot be written ({error.strerror}); what was saved before is kept."
            ) from error

    def _bump(self) -> None:
        """Tell the other processes that something changed, and remember the state that is ours."""
        self._write(_GENERATION, secrets.token_hex(8))
        self._seen = self._state()


def _file_name(image_id: str) -> str:
    """A file name for any id: what can be read of it, and a hash that tells ids apart.

    >>> _file_name("a/b.dcm")
    'b_dcm-e30b029289cca09d3b7384070db632a8.json'
    """
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", image_id.rpartition("/")[2])[-60:]
    return f"{readable}-{hashlib.blake2b(image_id.encode(), digest_size=16).hexdigest()}{_SUFFIX}"


def _is_label(name: str) -> bool:
    return name.endswith(_SUFFIX) and not name.startswith(".")
