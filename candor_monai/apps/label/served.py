"""Who was given which image: reservations by client, and images served recently, shared by threads and processes."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import filterfalse
from pathlib import Path
from typing import Any

from ...utils import UserError, atomic_write
from .files import StateLock

# A mark that lies further in the future than this was made by a clock that has been set back since.
TOLERANCE_SECONDS = 60.0
# The journal is written anew when it has so many lines more than what they leave.
_SPARE_LINES = 4096


@dataclass(frozen=True)
class Mark:
    """An image that was served.

    Args:
        image_id: the image.
        strategy: which strategy served it.
        client_id: to whom, or None.
        at: when, seconds since the epoch.
    """

    image_id: str
    strategy: str
    client_id: str | None
    at: float


@dataclass
class _State:
    """What the journal says, up to a place in it; dictionaries in the order of serving."""

    reserved: dict[str, Mark] = field(default_factory=dict)  # by image
    recent: dict[str, dict[str, Mark]] = field(default_factory=dict)  # by strategy, then image
    last: dict[str, Mark] = field(default_factory=dict)
    last_of: dict[tuple[str, str | None], Mark] = field(default_factory=dict)
    inode: int = -1
    offset: int = 0
    lines: int = 0
    skipped: int = 0


class Served:
    """Reservations and marks in one journal, a JSON line a step.

    An image is blocked for everybody but its client while it is reserved (for everybody, where the client has no
    name), and for its own strategy while it was served recently. A process that is killed loses no mark; a machine
    that loses power may lose those of the last seconds, which costs nothing but an image served twice.

    Args:
        path: the journal; its lock lies beside it.
        reserve_seconds: how long an image is reserved for the client that it was served to.
        recent_seconds: how long a strategy does not serve an image again.
        clock: seconds since the epoch. What was served "in the future", by a clock that was set back since, is free.

    Raises:
        UserError: a number of seconds is negative.
    """

    def __init__(
        self,
        path: str | Path,
        reserve_seconds: float = 1800.0,
        recent_seconds: float = 43200.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        for name, value in (("reserve_seconds", reserve_seconds), ("recent_seconds", recent_seconds)):
            if not 0 <= value < float("inf"):
                raise UserError(f"{name} must be a number of seconds, is {value}.")
        self.path = Path(path)
        self.reserve_seconds = reserve_seconds
        self.recent_seconds = recent_seconds
        self._clock = clock
        self._lock = StateLock(self.path.with_name(f".{self.path.name}.lock"))
        self._state = _State()

    def take(self, strategy: str, ranking: Iterable[str], client_id: str | None = None) -> Mark | None:
        """The first image of ``ranking`` that is not blocked, marked and reserved in the same step.

        Returns:
            its mark; None: none is left.

        Raises:
            UserError: the journal cannot be written.
        """
        with self._lock():
            now = self._caught_up()
            recent = self._state.recent.get(strategy, {})
            others = self._others(client_id)
            free = filterfalse(recent.__contains__, filterfalse(others.__contains__, ranking))
            image_id = next(free, None)
            if image_id is None:
                return None
            mark = Mark(image_id, strategy, client_id, now)
            self._append(_serving(mark))
            return mark

    def blocked(self, strategy: str, client_id: str | None = None) -> set[str]:
        """Images that the strategy does not serve to the client now."""
        with self._lock():
            self._caught_up()
            return self._others(client_id) | set(self._state.recent.get(strategy, {}))

    def release(self, image_id: str) -> None:
        """Give a reservation back (its label was saved, or the client gave up); the mark stays."""
        with self._lock():
            self._caught_up()
            if image_id in self._state.reserved:
                self._append({"release": image_id})

    def last(self, image_id: str, client_id: str | None = None) -> Mark | None:
        """The last time the image was served (to that client, where one is named)."""
        with self._lock():
            self._caught_up()
            if client_id is None:
                return self._state.last.get(image_id)
            return self._state.last_of.get((image_id, client_id))

    def reset(self, strategy: str | None = None) -> int:
        """Forget which images a strategy (None: each) served recently. Reservations stay: somebody is reading.

        Returns:
            how many images there were.
        """
        with self._lock():
            self._caught_up()
            recent = self._state.recent
            forgotten = {image for name in recent if strategy in (None, name) for image in recent[name]}
            if forgotten:
                self._append({"reset": strategy})
            return len(forgotten)

    @property
    def skipped_lines(self) -> int:
        """Lines of the journal that were no step: torn by a killed process, or written by somebody else."""
        with self._lock():
            self._caught_up()
            return self._state.skipped

    def _others(self, client_id: str | None) -> set[str]:
        """Images reserved for somebody else."""
        return {i for i, mark in self._state.reserved.items() if client_id is None or mark.client_id != client_id}

    def _caught_up(self) -> float:
        """Read what was appended since, drop what has expired; the time now."""
        self._read()
        now = self._clock()
        limits = [(self._state.reserved, self.reserve_seconds)]
        limits += [(images, self.recent_seconds) for images in self._state.recent.values()]
        for images, seconds in limits:
            _expire(images, now, seconds)
        return now

    def _read(self) -> None:
        try:
            with open(self.path, "rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._state.inode or found.st_size < self._state.offset:
                    self._state = _State(inode=found.st_ino)
                if found.st_size == self._state.offset:
                    return
                file.seek(self._state.offset)
                content = file.read()
        except FileNotFoundError:
            self._state = _State()
            return
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read: {error.strerror}.") from error
        whole = content[: content.rfind(b"\n") + 1]  # a torn last line stays unread until it is ended
        for line in whole.splitlines():
            self._step(line)
        self._state.offset += len(whole)

    def _step(self, line: bytes) -> None:
        state = self._state
        state.lines += 1
        try:
            step = json.loads(line)
            if "serve" in step:
                mark = Mark(str(step["serve"]), str(step["strategy"]), step.get("client"), float(step["at"]))
                _renew(state.recent.setdefault(mark.strategy, {}), mark)
                if step.get("reserved") is not False:
                    _renew(state.reserved, mark)
                state.last[mark.image_id] = state.last_of[mark.image_id, mark.client_id] = mark
            elif "release" in step:
                state.reserved.pop(step["release"], None)
            elif "reset" in step:
                for name in list(state.recent) if step["reset"] is None else [step["reset"]]:
                    state.recent.pop(name, None)
            else:
                raise ValueError("no step")
        except (ValueError, KeyError, TypeError):
            state.skipped += 1

    def _append(self, step: dict[str, Any]) -> None:
        line = _line(step)
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                size = os.fstat(handle).st_size
                # A line that a killed process left unfinished is ended, so that it spoils no other.
                torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
                line = b"\n" + line if torn else line
                if os.write(handle, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(handle)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror}).") from error
        self._read()
        if self._state.lines > 2 * len(self._marks()) + _SPARE_LINES:
            self._write_anew()

    def _marks(self) -> list[Mark]:
        """Marks that still block, in the order of serving."""
        state = self._state
        marks = {mark for images in (state.reserved, *state.recent.values()) for mark in images.values()}
        return sorted(marks, key=lambda mark: (mark.at, mark.image_id, mark.strategy))

    def _write_anew(self) -> None:
        """Replace the journal by one that leaves the same state."""
        lines = []
        for mark in self._marks():
            step = _serving(mark)
            if self._state.reserved.get(mark.image_id) != mark:
                step["reserved"] = False
            lines.append(_line(step))
        try:
            atomic_write(self.path, b"".join(lines))
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror}).") from error
        self._state = _State()
        self._read()


def _serving(mark: Mark) -> dict[str, Any]:
    return {"serve": mark.image_id, "strategy": mark.strategy, "client": mark.client_id, "at": mark.at}


def _line(step: dict[str, Any]) -> bytes:
    return json.dumps(step, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _renew(images: dict[str, Mark], mark: Mark) -> None:
    """Set an image's mark and put it last."""
    images.pop(mark.image_id, None)
    images[mark.image_id] = mark


def _expire(images: dict[str, Mark], now: float, seconds: float) -> None:
    """Drop what is older than ``seconds``, oldest first, and all that a clock set back since put into the future."""
    latest = now + TOLERANCE_SECONDS
    while images:
        image, mark = next(iter(images.items()))
        if mark.at + seconds > now and mark.at <= latest:
            break
        del images[image]
    if images and next(reversed(images.values())).at > latest:
        for image in [i for i, mark in images.items() if mark.at > latest]:
            del images[image]
