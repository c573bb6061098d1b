"""How many decoding processes, batches ahead, and whether page-locked memory: chosen by what the first batches took."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch

# Batches that are looked at; the first one is slow for reasons of its own and does not count.
BATCHES = 4
FIRST_PREFETCH, MOST_PREFETCH = 2, 8
# Decoding is made this much faster than the encoder, for images that differ.
MARGIN = 1.25


class WarmUp:
    """Watches the first batches of a loader.

    Args:
        prefetch: whether the number of batches ahead is to be chosen.
        workers: most decoding processes that may be chosen; None: their number is given.
        pin_memory: whether page-locked memory is to be chosen.
        device: where batches go.
    """

    def __init__(self, prefetch: bool, workers: int | None, pin_memory: bool, device: Any = "cpu") -> None:
        self._prefetch, self._workers, self._pin = prefetch, workers, pin_memory
        self._device = torch.device(device)
        self._decoded: list[float] = []
        self._consumed: list[float] = []
        self._batch: torch.Tensor | None = None

    @property
    def _watching(self) -> bool:
        return (self._prefetch or self._workers is not None or self._pin) and len(self._consumed) < BATCHES

    def decoded(self, seconds: float) -> None:
        """An image was read, decoded and transformed."""
        if self._watching:
            self._decoded.append(seconds)

    def consumed(self, seconds: float, batch: dict[str, torch.Tensor]) -> bool:
        """A batch was used for so long; True with the last one that is looked at."""
        if not self._watching:
            return False
        self._consumed.append(seconds)
        self._batch = batch["image"]
        return not self._watching

    def choice(self, workers: int, batch_size: int) -> dict[str, Any]:
        """What is chosen, by option.

        Args:
            workers: decoding processes that there are.
            batch_size: images a batch.
        """
        used = self._consumed[1:]
        batch_seconds = sum(used) / len(used)
        chosen: dict[str, Any] = {}
        if self._workers is not None:
            chosen["decode_workers"] = workers_needed(self.decode_seconds, batch_seconds / batch_size, self._workers)
            chosen["decode_workers"] = max(workers, chosen["decode_workers"])
        if self._prefetch:
            chosen["prefetch"] = batches_ahead(max(self._decoded, default=0.0), batch_seconds)
        if self._pin:
            chosen["pin_memory"] = pinning_pays(self._batch, self._device)
        return chosen

    @property
    def decode_seconds(self) -> float:
        """Mean seconds of an image."""
        return sum(self._decoded) / max(1, len(self._decoded))

    def told(self, chosen: dict[str, Any]) -> str:
        """A line about what was chosen and why."""
        used = self._consumed[1:]
        options = ", ".join(f"{name} {value}" for name, value in chosen.items())
        return (
            f"chosen by the first batches: {options} (an image is decoded in {1000 * self.decode_seconds:.1f} ms, a "
            f"batch encoded in {1000 * sum(used) / len(used):.0f} ms)"
        )


def workers_needed(decode: float, encode: float, most: int) -> int:
    """Decoding processes that keep the encoder busy.

    Args:
        decode, encode: seconds an image.
        most: of them.

    >>> workers_needed(0.030, 0.010, most=16), workers_needed(0.030, 0.010, most=2), workers_needed(0.001, 1, most=16)
    (4, 2, 1)
    """
    return max(1, min(most, math.ceil(MARGIN * decode / max(encode, 1e-9))))


def batches_ahead(slowest: float, batch: float) -> int:
    """Batches ready ahead, so that the slowest image does not keep the encoder waiting.

    Args:
        slowest: seconds of the slowest image.
        batch: seconds that a batch is encoded in.

    >>> batches_ahead(0.03, 1.0), batches_ahead(2.5, 1.0), batches_ahead(100.0, 1.0)
    (2, 4, 8)
    """
    return min(MOST_PREFETCH, max(FIRST_PREFETCH, 1 + math.ceil(slowest / max(batch, 1e-9))))


def pinning_pays(
    batch: torch.Tensor | None, device: torch.device, timed: Callable[[torch.Tensor, torch.device], float] | None = None
) -> bool:
    """Whether a batch reaches a GPU faster from page-locked memory; never for the CPU.

    Args:
        batch: such as is sent.
        device: where to.
        timed: seconds that sending takes; given by tests.
    """
    if batch is None or device.type != "cuda":
        return False
    timed = timed or _sent
    plain = min(timed(batch, device) for _ in range(3))
    pinned = min(timed(batch.pin_memory(), device) for _ in range(3))
    return pinned < plain


def _sent(batch: torch.Tensor, device: torch.device) -> float:
    torch.cuda.synchronize(device)
    before = time.perf_counter()
    batch.to(device, non_blocking=True)
    torch.cuda.synchronize(device)
    return time.perf_counter() - before
