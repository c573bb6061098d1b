"""Base of handlers that act in one process, after the measures, when an epoch completes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ignite.engine import Engine


class RankZeroHandler:
    """A handler of EPOCH_COMPLETED that only one process runs.

    Args:
        save_rank: that process.
    """

    def __init__(self, save_rank: int = 0) -> None:
        self.save_rank = save_rank

    def attach(self, engine: Engine) -> None:
        """Register on an evaluator (Ignite engine), after the handlers whose results it reads."""
        from ignite.engine import Events

        engine.add_event_handler(Events.EPOCH_COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        """Act, in the process ``save_rank`` alone."""
        import ignite.distributed as idist

        if idist.get_rank() == self.save_rank:
            self.act(engine)

    def act(self, engine: Engine) -> None:
        """What the handler does."""
        raise NotImplementedError
