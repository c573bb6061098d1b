"""ProgressHandler of an engine: how far, how fast, how long still."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from ignite.engine import Engine


def images_of(engine: Engine) -> int:
    """Images of the batch at hand; places left blank (``index`` -1) do not count."""
    batch: Any = engine.state.batch
    if isinstance(batch, Mapping):
        index = batch.get("index")
        return int((index >= 0).sum()) if index is not None else len(next(iter(batch.values())))
    return sum(int(item["index"]) >= 0 if isinstance(item, Mapping) and "index" in item else 1 for item in batch)


class ProgressHandler:
    """A progress bar with rate and time left on a terminal; now and then a line elsewhere.

    Args:
        total: items of the whole run.
        description: what is being done.
        unit: name of an item.
        count: items of the batch that was just completed, from the engine; None counts the images of a batch of
            :class:`~candor_monai.data.encode_loader.EncodeLoader`, or the rows of any other.
        stream: where it is written; None: standard error.
        every: seconds between two lines where the stream is not a terminal.
        tell_rank: only this process tells.
    """

    def __init__(
        self,
        total: int,
        description: str = "",
        unit: str = "image",
        count: Callable[[Engine], int] | None = None,
        stream: TextIO | None = None,
        every: float = 30.0,
        tell_rank: int = 0,
    ) -> None:
        self.total = total
        self.description = description
        self.unit = unit
        self.count = count or images_of
        self.stream = stream
        self.every = every
        self.tell_rank = tell_rank
        self._done = 0
        self._bar: Any = None
        self._began = self._told = 0.0

    def attach(self, engine: Engine) -> None:
        """Register on an engine."""
        import ignite.distributed as idist
        from ignite.engine import Events

        if idist.get_rank() != self.tell_rank:
            return
        engine.add_event_handler(Events.STARTED, self._start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._step)
        engine.add_event_handler(Events.COMPLETED, self._stop)
        engine.add_event_handler(Events.TERMINATE, self._stop)

    def _start(self, engine: Engine) -> None:
        stream = self.stream or sys.stderr
        self._done = 0
        self._began = self._told = time.monotonic()
        if stream.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=self.total,
                desc=self.description,
                unit=f" {self.unit}",
                file=stream,
                dynamic_ncols=True,
                leave=True,
            )

    def _step(self, engine: Engine) -> None:
        count = self.count(engine)
        self._done += count
        if self._bar is not None:
            self._bar.update(count)
        elif time.monotonic() - self._told >= self.every:
            self._tell()

    def _stop(self, engine: Engine) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        else:
            self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        print(self.line(self._told - self._began), file=self.stream or sys.stderr, flush=True)

    def line(self, elapsed: float) -> str:
        """The line for the items done after ``elapsed`` seconds.

        >>> progress = ProgressHandler(200, "encoding")
        >>> progress._done = 50
        >>> progress.line(10.0)
        'encoding: 50 of 200 images (25 %), 5.0 images/s, 0:30 left'
        """
        rate = self._done / elapsed if elapsed > 0 else 0.0
        left = (self.total - self._done) / rate if rate > 0 else None
        share = 100 * self._done // self.total if self.total else 100
        text = f"{self.description}: {self._done} of {self.total} {self.unit}s ({share} %), {rate:.1f} {self.unit}s/s"
        if self._done >= self.total:
            return f"{text}, took {_clock(elapsed)}"
        return text if left is None else f"{text}, {_clock(left)} left"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
