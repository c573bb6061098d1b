"""Where the time of encoding goes, stage by stage, and which stage sets the pace."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ignite.engine import Engine

# Done by all decoding processes at once; the others by the main process, one after the other.
PARALLEL = ("read", "decode", "transform")
SERIAL = ("transfer", "forward", "write")


def stage_seconds(engine: Engine) -> dict[str, float]:
    """Seconds by stage that handlers of this engine have noted so far."""
    state: Any = engine.state
    if not hasattr(state, "stage_seconds"):
        state.stage_seconds = {}
    return state.stage_seconds


class StageTimes:
    """Note the seconds of ``transfer`` (batches to the device) and ``forward`` in ``engine.state.stage_seconds``.

    Args:
        inferer: the engine's :class:`~candor_monai.inferers.EncoderInferer`, which knows when it began.
    """

    def __init__(self, inferer: Any) -> None:
        self.inferer = inferer
        self._got = 0.0

    def attach(self, engine: Engine) -> None:
        """Register on an evaluator (MONAI engine)."""
        from ignite.engine import Events
        from monai.engines.utils import IterationEvents

        engine.add_event_handler(Events.ITERATION_STARTED, self.started)
        engine.add_event_handler(IterationEvents.FORWARD_COMPLETED, self.forwarded)

    def started(self, engine: Engine) -> None:
        """A batch is there."""
        self._got = time.perf_counter()

    def forwarded(self, engine: Engine) -> None:
        """Its features are there."""
        now, began = time.perf_counter(), self.inferer.began
        if began < self._got:  # another inferer did it
            return
        noted = stage_seconds(engine)
        noted["transfer"] = noted.get("transfer", 0.0) + began - self._got
        noted["forward"] = noted.get("forward", 0.0) + now - began


def bottleneck(seconds: Mapping[str, float], workers: int) -> tuple[str, float] | None:
    """The stage that sets the pace, and its share of the time that all stages would take one after the other.

    Args:
        seconds: by stage; those of decoding are of all processes together.
        workers: decoding processes.

    Returns:
        None when nothing was timed.

    >>> bottleneck({"read": 1, "decode": 8, "transform": 1, "forward": 3, "write": 1}, workers=4)
    ('forward', 0.46)
    """
    spent = {name: seconds.get(name, 0.0) / max(1, workers) for name in PARALLEL}
    spent |= {name: seconds.get(name, 0.0) for name in SERIAL}
    total = sum(spent.values())
    if total <= 0:
        return None
    slowest = max(spent, key=lambda name: spent[name])
    return slowest, round(spent[slowest] / total, 2)
