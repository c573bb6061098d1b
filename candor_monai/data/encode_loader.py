"""Batches of decoded images for the evaluator that encodes what the store lacks."""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from candor_monai.utils.errors import DecodeError

from .blocks import EMPTY, work_blocks
from .decoding import CANONICAL_SIZE
from .image_sources import let_go, opened
from .store_rows import ABSENT, Sources, file_states
from .warm_up import FIRST_PREFETCH, MOST_PREFETCH, WarmUp

if TYPE_CHECKING:
    from .cohort import Cohort
    from .feature_store import FeatureStore

logger = logging.getLogger(__name__)

Result = tuple[int, "np.ndarray | DecodeError", Any, float]


class Pool(Protocol):
    """What is needed of a :class:`~candor_monai.data.decode_pool.DecodePool`."""

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """Decode, in order: ``(index, canonical pixels or error, ImageMeta or None, seconds)``.

        Args:
            items: ``(index, path or bytes, expected)``; expected is the (size, modification time in ns) that the file
                must still have, or None.
        """
        ...


@dataclass(frozen=True)
class EncodeRecords:
    """The images of a cohort as the encoding part sees them; no labels.

    Args:
        image_ids: N distinct ids.
        files: the files as outputs name them, relative to the dataset folder.
        sources: their state when the cohort was read.
        missing: what the store lacks, shape (N,), bool.
        open: gives image ``i``'s file, or its bytes.
    """

    image_ids: Sequence[str]
    files: Sequence[str | None]
    sources: Sources
    missing: np.ndarray
    open: Callable[[int], str | Path | bytes]

    @classmethod
    def of(cls, cohort: Cohort, store: FeatureStore, sources: Sources | None = None) -> EncodeRecords:
        """The records of a cohort of image files beside what the store holds of them.

        Args:
            cohort: the cohort.
            store: the encoder's store over it.
            sources: states of the files, if already known.
        """
        ids = cohort.records["image_id"].tolist()
        states = cohort_sources(cohort) if sources is None else sources
        lacking = set(store.missing(ids, states))
        missing = np.fromiter((image_id in lacking for image_id in ids), bool, len(ids))
        files = [cohort.file_name(i) or None for i in range(len(cohort))]
        return cls(ids, files, states, missing, cohort.source)


def cohort_sources(cohort: Cohort) -> Sources:
    """State of every image file of a cohort; of images inside an archive, the archive's."""
    root = "" if cohort.root is None else str(cohort.root)
    images = cohort.records["image"].tolist()
    return file_states([os.path.join(root, image) if isinstance(image, str) else None for image in images])


@dataclass(frozen=True)
class Outcome:
    """What became of one image on its way into a batch.

    Args:
        error: why it has no pixels, or None.
        meta: how its pixels came to be (ImageMeta), or None.
        pixels_sha256: hash of its canonical pixels, or None.
    """

    error: DecodeError | None
    meta: Any
    pixels_sha256: bytes | None


class EncodeLoader:
    """Iterable of batches with a length: a ``val_data_loader`` for MONAI's ``SupervisedEvaluator``.

    A batch holds ``image`` (B, 3, size, size) uint8, ``index`` (B,) int64 into ``records.image_ids`` and ``ok`` (B,)
    bool, and always B = ``batch_size`` rows. Where decoding failed, and in places that a block leaves blank, the image
    is zero and ``ok`` false; blank places have index -1. Batches are put together in a thread, ``prefetch`` ahead.

    What is not given is chosen by the first batches (:mod:`.warm_up`), from the times that they took.

    Args:
        records: the images and what is missing of them.
        pool: decodes them.
        batch_size: B.
        image_size: side of a canonical image; None: as large as each image is, one image a batch.
        rank, world_size: this process among those that share the work.
        prefetch: batches made ahead; None: chosen.
        workers: most decoding processes that the pool may be grown to by choice; None: it stays as it is.
        pin_memory: hand out batches in page-locked memory; None: where that is faster on ``device``.
        device: where batches go, for that choice.

    Attributes:
        chosen: what was chosen by the first batches, by name; empty until then, and where all was given.

    Raises:
        ValueError: ``image_size`` None with more than one image a batch.
    """

    def __init__(
        self,
        records: EncodeRecords,
        pool: Pool,
        batch_size: int = 32,
        image_size: int | None = CANONICAL_SIZE,
        rank: int = 0,
        world_size: int = 1,
        prefetch: int | None = 2,
        workers: int | None = None,
        pin_memory: bool | None = False,
        device: Any = "cpu",
    ) -> None:
        if image_size is None and batch_size != 1:
            raise ValueError(f"images of their own size cannot share a batch: batch_size must be 1, got {batch_size}")
        self.records = records
        self.pool = pool
        self.batch_size = batch_size
        self.image_size = image_size
        self.prefetch = FIRST_PREFETCH if prefetch is None else max(1, prefetch)
        self.pin_memory = bool(pin_memory)
        self.chosen: dict[str, Any] = {}
        self._warm_up = WarmUp(prefetch is None, workers if hasattr(pool, "grow") else None, pin_memory is None, device)
        self.blocks = work_blocks(records.image_ids, records.missing, batch_size, rank, world_size)
        self._seconds = {"decode": 0.0, "assemble": 0.0, "wait": 0.0}
        self._spent_before = dict(getattr(pool, "spent", None) or {})
        self._recent: deque[dict[int, Outcome]] = deque(maxlen=max(self.prefetch, MOST_PREFETCH) + 3)

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.blocks)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by stage so far.

        ``read``, ``decode`` and ``transform`` are those of all workers together (``decode`` alone, all three in one,
        where the pool does not tell them apart); ``assemble``: putting batches together; ``wait``: of the consumer.
        """
        spent = getattr(self.pool, "spent", None) or {}
        return {**self._seconds, **{name: value - self._spent_before.get(name, 0.0) for name, value in spent.items()}}

    @property
    def workers(self) -> int:
        """Decoding processes, 1 where the pool does not say."""
        pool: Any = self.pool
        while not hasattr(pool, "workers") and hasattr(pool, "pool"):
            pool = pool.pool
        return int(getattr(pool, "workers", 1))

    @property
    def images(self) -> int:
        """Number of images that this process encodes."""
        return int((self.blocks != EMPTY).sum())

    def outcome(self, index: int) -> Outcome:
        """What became of an image of the batch at hand.

        Raises:
            KeyError: it was in none of the latest batches.
        """
        for outcomes in self._recent:
            if index in outcomes:
                return outcomes[index]
        raise KeyError(index)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        ready: queue.Queue[Any] = queue.Queue(self.prefetch)
        stop = threading.Event()
        worker = threading.Thread(target=self._fill, args=(ready, stop), name="candor-encode-loader", daemon=True)
        worker.start()
        try:
            while True:
                before = time.perf_counter()
                item = ready.get()
                self._seconds["wait"] += time.perf_counter() - before
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                batch, outcomes = item
                self._recent.append(outcomes)
                handed = time.perf_counter()
                yield batch
                if self._warm_up.consumed(time.perf_counter() - handed, batch):
                    self._choose(ready)
        finally:
            stop.set()
            worker.join()

    def _choose(self, ready: queue.Queue[Any]) -> None:
        """Set what the first batches have shown to be best, and tell it."""
        self.chosen = self._warm_up.choice(self.workers, self.batch_size)
        if "decode_workers" in self.chosen:
            pool: Any = self.pool
            pool.grow(self.chosen["decode_workers"])
        if "prefetch" in self.chosen:
            self.prefetch = self.chosen["prefetch"]
            with ready.mutex:
                ready.maxsize = self.prefetch
                ready.not_full.notify()
        self.pin_memory = self.chosen.get("pin_memory", self.pin_memory)
        if self.chosen:
            logger.info("%s", self._warm_up.told(self.chosen))

    def _fill(self, ready: queue.Queue[Any], stop: threading.Event) -> None:
        """Runs in the thread: every batch, then None; or the exception that ended it."""

        def put(item: Any) -> bool:
            while not stop.is_set():
                try:
                    ready.put(item, timeout=0.1)
                    return True
                except queue.Full:
                    continue
            return False

        try:
            wanted = self.blocks[self.blocks != EMPTY].tolist()
            with let_go(_Decoded(self.pool, self.records, wanted)) as decoded:
                for block in self.blocks:
                    if not put(self._batch(block, decoded)):
                        return
            put(None)
        except BaseException as error:
            put(error)

    def _batch(self, block: np.ndarray, decoded: _Decoded) -> tuple[dict[str, torch.Tensor], dict[int, Outcome]]:
        size = self.image_size
        images = None if size is None else np.zeros((len(block), 3, size, size), dtype=np.uint8)
        ok = np.zeros(len(block), dtype=bool)
        outcomes = {}
        for place in np.flatnonzero(block != EMPTY).tolist():
            index, pixels, meta, seconds = decoded.take(int(block[place]))
            self._seconds["decode"] += seconds
            self._warm_up.decoded(seconds)
            before = time.perf_counter()
            if isinstance(pixels, DecodeError):
                outcomes[index] = Outcome(pixels, meta, None)
            else:
                if images is None:
                    images = np.zeros((1, *pixels.shape), dtype=np.uint8)
                images[place] = pixels
                ok[place] = True
                outcomes[index] = Outcome(None, meta, pixels_digest(pixels))
            self._seconds["assemble"] += time.perf_counter() - before
        if images is None:
            images = np.zeros((1, 3, 8, 8), dtype=np.uint8)
        image = torch.from_numpy(images)
        if self.pin_memory:
            image = image.pin_memory()
        batch = {"image": image, "index": torch.from_numpy(block.copy()), "ok": torch.from_numpy(ok)}
        return batch, outcomes


class _Decoded:
    """The pool's results in the order of ``wanted``; an image that cannot even be opened never reaches the pool."""

    def __init__(self, pool: Pool, records: EncodeRecords, wanted: Iterable[int]) -> None:
        self._unopened: dict[int, DecodeError] = {}
        self._results = pool.map(self._items(records, wanted))
        self._ahead: Result | None = None

    def _items(
        self, records: EncodeRecords, wanted: Iterable[int]
    ) -> Iterator[tuple[int, Any, tuple[int, int] | None]]:
        for index in wanted:
            item = opened(records.open, index)
            if isinstance(item, DecodeError):
                self._unopened[index] = item
            else:
                state = int(records.sources.size[index]), int(records.sources.mtime_ns[index])
                yield index, item, None if isinstance(item, bytes) or ABSENT in state else state

    def take(self, index: int) -> Result:
        """The result of image ``index``, the next one due."""
        if self._ahead is None:
            self._ahead = next(self._results, None)
        if self._ahead is not None and self._ahead[0] == index:
            result, self._ahead = self._ahead, None
            return result
        if index in self._unopened:
            return index, self._unopened.pop(index), None, 0.0
        raise RuntimeError(f"the decode pool gave no result for image {index}")

    def close(self) -> None:
        """Let the pool go when its results are not wanted any more."""
        close = getattr(self._results, "close", None)
        if close is not None:
            close()


def pixels_digest(pixels: np.ndarray) -> bytes:
    """SHA-256 of canonical pixels and their shape.

    Args:
        pixels: shape (3, rows, columns), uint8.
    """
    digest = hashlib.sha256(repr((pixels.dtype.str, pixels.shape)).encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()
