"""Canonical images decoded once and served again, so that several encoders share one decoding."""

from __future__ import annotations

import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..utils.errors import DecodeError
from .image_sources import let_go

if TYPE_CHECKING:
    from .encode_loader import Pool, Result


@dataclass(frozen=True)
class _Kept:
    pixels: np.ndarray | tuple[int, tuple[int, ...]]  # in memory, or (offset, shape) in the overflow file
    channels: int
    meta: Any


class CanonicalCache:
    """Canonical images by source, in memory up to a bound, then in a temporary file up to another.

    A grey image is kept once, not three times. The file is gone when this object or the process is.

    Args:
        memory_bytes: bound of the images in memory.
        disk_bytes: bound of the temporary file; 0: none.
        folder: where the temporary file lies; None: the system's folder for such files.
    """

    def __init__(self, memory_bytes: int = 2 << 30, disk_bytes: int = 0, folder: str | Path | None = None) -> None:
        self.memory_bytes = memory_bytes
        self.disk_bytes = disk_bytes
        self._kept: dict[Any, _Kept] = {}
        self._used = self._written = 0
        self._file = tempfile.TemporaryFile(dir=folder) if disk_bytes else None  # noqa: SIM115 (lives as long as this)
        self._lock = threading.Lock()

    def get(self, key: Any) -> tuple[np.ndarray, Any] | None:
        """Pixels (3, H, W) uint8 and metadata, or None."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                return None
            pixels = kept.pixels if isinstance(kept.pixels, np.ndarray) else self._read(*kept.pixels)
        return np.array(np.broadcast_to(pixels, (kept.channels, *pixels.shape[1:]))), kept.meta

    def put(self, key: Any, pixels: np.ndarray, meta: Any) -> None:
        """Keep an image if there is room."""
        grey = len(pixels) == 3 and bool((pixels[0] == pixels[1]).all() and (pixels[0] == pixels[2]).all())
        small = pixels[:1] if grey else pixels
        with self._lock:
            if key in self._kept:
                return
            if self._used + small.nbytes <= self.memory_bytes:
                self._used += small.nbytes
                self._kept[key] = _Kept(small.copy(), len(pixels), meta)
            elif self._file is not None and self._written + small.nbytes <= self.disk_bytes:
                self._file.seek(self._written)
                self._file.write(np.ascontiguousarray(small).tobytes())
                self._kept[key] = _Kept((self._written, small.shape), len(pixels), meta)
                self._written += small.nbytes

    def _read(self, offset: int, shape: tuple[int, ...]) -> np.ndarray:
        assert self._file is not None
        self._file.seek(offset)
        return np.frombuffer(self._file.read(int(np.prod(shape))), dtype=np.uint8).reshape(shape)


class CachedPool:
    """A decode pool that decodes each state of a file once.

    Args:
        pool: decodes what the cache lacks.
        cache: shared by those who decode alike (same options, same size).
    """

    def __init__(self, pool: Pool, cache: CanonicalCache) -> None:
        self.pool = pool
        self.cache = cache

    @property
    def spent(self) -> dict[str, float] | None:
        """What the pool's workers spent by stage, if it tells."""
        return getattr(self.pool, "spent", None)

    def grow(self, workers: int) -> None:
        """Go on with this many workers, if the pool can."""
        if hasattr(self.pool, "grow"):
            self.pool.grow(workers)

    def map(self, items: Iterable[Any]) -> Iterator[Result]:
        """As the pool's: results in the order of ``items``; what fails is tried again the next time."""
        order: deque[tuple[Any, Any, tuple[np.ndarray, Any] | None]] = deque()

        def lacking() -> Iterator[Any]:
            for item in items:
                key = _key(item)
                hit = None if key is None else self.cache.get(key)
                order.append((item, key, hit))
                if hit is None:
                    yield item

        with let_go(self.pool.map(lacking())) as results:
            for index, pixels, meta, seconds in results:
                yield from _served(order)
                _, key, _ = order.popleft()
                if key is not None and not isinstance(pixels, DecodeError):
                    self.cache.put(key, pixels, meta)
                yield index, pixels, meta, seconds
            yield from _served(order)


def _served(order: deque[tuple[Any, Any, tuple[np.ndarray, Any] | None]]) -> Iterator[Result]:
    while order and order[0][2] is not None:
        item, _, hit = order.popleft()
        assert hit is not None
        yield item[0], hit[0], hit[1], 0.0


def _key(item: Any) -> Any:
    """Path and state of a file; None for bytes and for files whose state is not known: these are not kept."""
    if len(item) < 3 or item[2] is None or not isinstance(item[1], (str, Path)):
        return None
    return str(item[1]), tuple(item[2])
