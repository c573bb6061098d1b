"""Features of an evaluator's batches into a feature store, as they come."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from candor_monai.data.encode_loader import EncodeLoader, Outcome
from candor_monai.data.feature_store import FeatureStore
from candor_monai.data.shards import PROVENANCE_FIELDS
from candor_monai.data.store_rows import Rejection, unusable_features

from .engine_data import needed_column
from .stage_times import stage_seconds

if TYPE_CHECKING:
    from ignite.engine import Engine

# The same image may well be read next time: nothing in its file was the cause, or it came from a server that sent
# something else or nothing, and whose objects have no state by which a change of them would show.
TRANSIENT = frozenset(
    {"not_found", "vanished", "changed", "unreadable", "timeout", "killed", "gone", "malformed", "server_error"}
)

# In the notes of rows whose batch was forwarded in parts.
HALVED = "batch halved: out of memory"

_META = tuple(f.name for f in PROVENANCE_FIELDS if f.name != "pixels_sha256")


class FeatureSaver:
    """Save the rows of ``engine.state.output`` for the images of ``engine.state.batch``, whole blocks at a time.

    Images that could not be decoded, and features that are NaN, infinite or zero, become rejections with their reason.
    Rows are written when ``shard_rows`` have come or ``shard_seconds`` have passed, at the end of the epoch, and when
    the engine stops for any reason; a killed process loses at most that much.

    Args:
        store: where they go.
        loader: where the batches come from; knows ids, file states and how each image was decoded.
        shard_rows: images in a shard, about.
        shard_seconds: longest time between two shards.
        index_key, ok_key: keys of the batch.
        pred_key: key of the output.

    Attributes:
        saved, rejected: images of this run, by count.
        seconds: time spent writing.
    """

    def __init__(
        self,
        store: FeatureStore,
        loader: EncodeLoader,
        shard_rows: int = 1024,
        shard_seconds: float = 60.0,
        index_key: str = "index",
        ok_key: str = "ok",
        pred_key: str = "pred",
    ) -> None:
        self.store = store
        self.loader = loader
        self.shard_rows = shard_rows
        self.shard_seconds = shard_seconds
        self.index_key, self.ok_key, self.pred_key = index_key, ok_key, pred_key
        self.saved = 0
        self.rejected = 0
        self.seconds = 0.0
        self._features: list[np.ndarray] = []
        self._rows: list[tuple[int, Outcome, bool]] = []
        self._rejections: list[Rejection] = []
        self._since = time.monotonic()
        self._logger = logging.getLogger(__name__)

    def attach(self, engine: Engine) -> None:
        """Register on an evaluator (Ignite engine)."""
        from ignite.engine import Events

        engine.add_event_handler(Events.EPOCH_STARTED, self._started)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._flush)
        engine.add_event_handler(Events.TERMINATE, self._flush)
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._failed)

    def __call__(self, engine: Engine) -> None:
        """Take the rows of one batch."""
        before = time.perf_counter()
        batch, output = "engine.state.batch", "engine.state.output"
        index = needed_column(engine.state.batch, self.index_key, batch).cpu().numpy()
        ok = needed_column(engine.state.batch, self.ok_key, batch).cpu().numpy().astype(bool)
        features = needed_column(engine.state.output, self.pred_key, output).detach().to("cpu", torch.float32).numpy()
        if features.ndim != 2 or len(features) != len(index):
            raise ValueError(f"{self.pred_key} must be (B, d) for {len(index)} images, has shape {features.shape}")
        self.add(index, ok, features, halved=getattr(getattr(engine, "inferer", None), "halved", False))
        self._took(engine, before)

    def add(self, index: np.ndarray, ok: np.ndarray, features: np.ndarray, halved: bool = False) -> None:
        """Take rows: image indices (-1: blank), whether each was decoded, and features (B, d).

        Args:
            index, ok, features: of a batch.
            halved: the batch did not fit into memory and was forwarded in parts, which each row's ``notes`` say.
        """
        bad = unusable_features(features)
        keep = []
        for place in np.flatnonzero(index >= 0).tolist():
            image = int(index[place])
            outcome = self.loader.outcome(image)
            if not ok[place]:
                error = outcome.error
                reason, message = (error.reason, str(error)) if error else ("failed", "decoding gave no image")
                self._reject(image, "decode", reason, message)
            elif place in bad:
                self._reject(image, "encode", *bad[place])
            else:
                keep.append(place)
                self._rows.append((image, outcome, halved))
        if keep:
            self._features.append(features[keep].copy())
        if len(self._rows) + len(self._rejections) >= self.shard_rows or self._late():
            self.flush()

    def flush(self) -> None:
        """Write what has come since the last shard.

        Raises:
            UserError: the disk is full or the folder cannot be written.
        """
        self._since = time.monotonic()
        if self._rejections:
            self.store.reject(self._rejections)
            self.rejected += len(self._rejections)
            self._rejections = []
        if self._rows:
            records = self.loader.records
            at = np.array([image for image, _, _ in self._rows])
            columns: dict[str, Any] = {
                "source_size": records.sources.size[at],
                "source_mtime_ns": records.sources.mtime_ns[at],
                "pixels_sha256": [outcome.pixels_sha256 for _, outcome, _ in self._rows],
            }
            metas = [outcome.meta for _, outcome, _ in self._rows]
            columns.update((name, [getattr(meta, name, None) for meta in metas]) for name in _META)
            for place, (_, _, halved) in enumerate(self._rows):
                if halved:
                    columns["notes"][place] = "; ".join(filter(None, (columns["notes"][place], HALVED)))
            self.store.write([records.image_ids[i] for i in at.tolist()], np.concatenate(self._features), columns)
            self.saved += len(self._rows)
            self._rows, self._features = [], []

    def _reject(self, image: int, stage: str, reason: str, message: str) -> None:
        records = self.loader.records
        self._rejections.append(
            Rejection(
                image_id=records.image_ids[image],
                file=records.files[image],
                stage=stage,
                reason=reason,
                message=message,
                source_size=int(records.sources.size[image]),
                source_mtime_ns=int(records.sources.mtime_ns[image]),
                retry=reason in TRANSIENT,
            )
        )

    def _late(self) -> bool:
        return bool(self._rows or self._rejections) and time.monotonic() - self._since > self.shard_seconds

    def _started(self, engine: Engine) -> None:
        self._since = time.monotonic()

    def _flush(self, engine: Engine) -> None:
        before = time.perf_counter()
        self.flush()
        self._took(engine, before)

    def _took(self, engine: Engine, before: float) -> None:
        self.seconds += time.perf_counter() - before
        stage_seconds(engine)["write"] = self.seconds

    def _failed(self, engine: Engine, error: BaseException) -> None:
        """Save what was finished, then let the error go on: Ignite swallows it once a handler listens."""
        try:
            self.flush()
        except Exception as second:
            self._logger.error("features finished before the error could not be saved: %s", second)
        raise error
