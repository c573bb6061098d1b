"""Features of the datastore's images: the encoder, its feature store, and the encoding of what the store lacks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...data.cohort import Cohort
from ...data.encode_loader import EncodeLoader, EncodeRecords, cohort_sources
from ...data.feature_store import FeatureStore, store_folder
from ...utils import DecodeError
from ..opening import feature_fingerprint, open_pool
from .conf import LabelOptions

logger = logging.getLogger(__name__)


class Encoding:
    """The encoder over the datastore's images. Every method may be called from any thread.

    Several processes may share one feature store: each writes shards of its own, and all read all.

    Args:
        options: the app's.

    Raises:
        UserError: the encoder is unknown, its weights are missing or wrong, or the heads are not its own.
    """

    def __init__(self, options: LabelOptions) -> None:
        import torch

        from ...networks.encoders import load_encoder

        run = options.run
        self.options = options
        self.device = options.device or ("cuda:0" if torch.cuda.is_available() else "cpu")
        self.network = load_encoder(
            run.encoder,
            weights_dir=run.weights_dir,
            device=self.device,
            precision=run.precision,
            feature_point=run.feature_point,
            processor=run.encoder_processor,
        )
        self.name = str(self.network.describe()["name"])
        fingerprint = feature_fingerprint(run, self.network)
        self.store = FeatureStore(
            store_folder(options.features_folder, self.name, "labelled_images", fingerprint), fingerprint
        )
        self.heads = self._heads()
        self._pool = open_pool(run)
        self._lock = threading.Lock()

    def _heads(self) -> Any:
        path = self.options.heads
        if path is None:
            return None
        from ...networks.head_files import load_heads, read_head_card
        from ...networks.heads import check_fingerprint

        check_fingerprint(self.network, read_head_card(path).get("encoder", {}).get("fingerprint"), str(path))
        return load_heads(path)

    def stored(self, cohort: Cohort) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What the store has of the images.

        Returns:
            features (N, d) float32; which rows are there (N,) bool; and for each image a text that is equal where the
            canonical pixels are (N,).
        """
        self.store.refresh()  # other processes may have written
        ids, sources = cohort.records["image_id"].tolist(), cohort_sources(cohort)
        features, present = self.store.matrix(ids, sources, self.options.run.measure.memory_bytes)
        return features, present, self.store.clusters(ids, sources).astype(str)

    def encode(self, cohort: Cohort) -> int:
        """Encode the images that the store lacks; how many there were.

        Images that cannot be decoded are told in the store's rejections and tried again when their file changes.
        """
        import torch
        from monai.engines.evaluator import SupervisedEvaluator

        from ...handlers.feature_saver import FeatureSaver
        from ...inferers import EncoderInferer

        run = self.options.run
        with self._lock:
            self.store.refresh()
            records = EncodeRecords.of(cohort, self.store)
            size = run.canonical_size
            loader = EncodeLoader(records, self._pool, run.batch_size if size is not None else 1, size)
            if not len(loader):
                return 0
            engine = SupervisedEvaluator(
                device=torch.device(self.device),
                val_data_loader=loader,
                network=self.network,
                inferer=EncoderInferer(run.batch_size if size is not None else 1),
                decollate=False,
                val_handlers=[FeatureSaver(self.store, loader)],
            )
            engine.logger.setLevel(logging.WARNING)
            engine.run()
            return loader.images

    def feature(self, cohort: Cohort, row: int) -> np.ndarray:
        """The feature of one image, encoded where the store lacks it, shape (d,), float32.

        It is forwarded in a block as large as every other, so that it is the feature that a later run would compute.

        Raises:
            DecodeError: the image is gone or cannot be decoded; says why.
        """
        one = cohort.select(np.array([row]))
        self.encode(one)
        ids, sources = one.records["image_id"].tolist(), cohort_sources(one)
        features, present = self.store.read(ids, sources)
        if present[0]:
            return np.asarray(features[0])
        why = self.store.rejections(ids, sources)
        if len(why):
            raise DecodeError(str(why["reason"].iloc[0]), str(why["message"].iloc[0]))
        raise DecodeError("vanished", "the file changed while it was read")

    def rejected(self, cohort: Cohort) -> list[dict[str, str]]:
        """Images that have no feature because they cannot be used: image_id, reason, message."""
        ids: Sequence[str] = cohort.records["image_id"].tolist()
        rows = self.store.rejections(ids, cohort_sources(cohort))
        return [{key: str(row[key]) for key in ("image_id", "reason", "message")} for row in rows.to_dict("records")]

    def close(self) -> None:
        """End the decoding processes."""
        self._pool.close()
