"""Who was given which image: reservations by client, and images served recently, shared by threads and processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


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


class Served:
    """Reservations and marks in one file.

    An image is blocked for everybody while it is reserved, and for its own strategy while it was served recently.

    Args:
        path: the file.
        reserve_seconds: how long an image is reserved for the client that it was served to.
        recent_seconds: how long a strategy does not serve an image again.
        clock: seconds since the epoch; a clock that is set back frees what was reserved "in the future".
    """

    def __init__(
        self,
        path: str | Path,
        reserve_seconds: float = 1800.0,
        recent_seconds: float = 43200.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        raise NotImplementedError

    def take(self, strategy: str, ranking: Iterable[str], client_id: str | None = None) -> str | None:
        """The first image of ``ranking`` that is not blocked, marked and reserved in the same step; None: none left."""
        raise NotImplementedError

    def release(self, image_id: str) -> None:
        """Give a reservation back (its label was saved, or the client gave up); the mark stays."""
        raise NotImplementedError

    def last(self, image_id: str, client_id: str | None = None) -> Mark | None:
        """The last time the image was served (to that client, where one is named)."""
        raise NotImplementedError

    def reset(self, strategy: str | None = None) -> int:
        """Forget marks of a strategy (None: all) and their reservations; how many images are free again."""
        raise NotImplementedError
