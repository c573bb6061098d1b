"""The probe as an Ignite handler: heads trained from the stored features when an evaluator's epoch completes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..metrics.head_errors import WARNING
from ..metrics.observations import Observations
from ..networks.probing import EmptyPart, Probe, ProbeOptions, run_probe
from ..utils.errors import UserError
from .engine_data import GivenFeatures, present_features, several_processes
from .metric_keys import metrics_of_rows

if TYPE_CHECKING:
    from ignite.engine import Engine

logger = logging.getLogger(__name__)

PUBLISHED = {"auroc": "head_auroc", "miss_rate": "head_miss_rate", "false_positive_rate": "head_false_positive_rate"}


class ProbeHandler:
    """Train, threshold and score linear heads of every finding when an evaluator's epoch completes.

    It needs no model and no image: features come from the feature store (or any array), so it can also be called on an
    engine that iterates over nothing but image ids, or run without one by :meth:`probe`.

    Results: ``engine.state.metrics`` gets ``head_auroc/<finding>``, ``head_miss_rate/<finding>`` and
    ``head_false_positive_rate/<finding>``, with ``/<group>`` after it for a matched group and the bare name for the
    task's mean; undefined values are left out. ``engine.state.metric_details["head_logit"]`` holds the head's logit of
    every image, shape (N, F), NaN outside the capped test sample. ``engine.state.probe`` keeps the whole
    :class:`~candor_monai.networks.probing.Probe`, whose ``table()`` is ``probe.csv``. When the cohort is too small to
    train and test (no labelled image in a part), ``engine.state.probe`` is None, the reason is logged as a warning and
    kept in ``engine.state.probe_reason``, and nothing is published.

    Attach it before handlers that read the metrics (``MetricsSaver``, ``StatsHandler``, trackers).

    Args:
        observations: image ids, labels, groups and patients of the N images.
        features: the features, shape (N, d), float32, with ``present``, shape (N,), bool; or a function that gives
            both.
        split: the publisher's part of each image (``train``, ``val``, ``test`` or None); None: there is none.
        options: how to probe.
        encoder: description of the encoder: ``name`` and ``fingerprint``, for the tables and the heads' card.
        heads_file: where the heads are saved (safetensors); None: they are not.
        device: where heads are trained.
        prefix: put before every metric's name.
    """

    warning = WARNING

    def __init__(
        self,
        observations: Observations,
        features: GivenFeatures,
        split: Sequence[str | None] | None = None,
        options: ProbeOptions | None = None,
        encoder: Mapping[str, Any] | None = None,
        heads_file: str | Path | None = None,
        device: str = "cpu",
        prefix: str = "",
    ) -> None:
        self.observations = observations
        self.features = features
        self.split = split
        self.options = options or ProbeOptions()
        self.encoder = dict(encoder or {"name": "encoder"})
        self.heads_file = heads_file
        self.device = device
        self.prefix = prefix

    def attach(self, engine: Engine) -> None:
        """Register on an evaluator (Ignite engine)."""
        from ignite.engine import Events

        engine.add_event_handler(Events.EPOCH_COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        """Probe and publish; on many processes the first one works and saves, all publish the same."""
        state: Any = engine.state
        state.probe, state.probe_reason = None, None
        try:
            probe, rows = self._of_rank_zero()
        except EmptyPart as error:
            state.probe_reason = f"no heads: {error}"
            logger.warning("encoder %s: no heads: %s", self.encoder["name"], error)
            return
        state.probe = probe
        state.metrics.update(published(probe.table(), self.prefix))
        details = getattr(state, "metric_details", None)
        if not isinstance(details, dict):
            details = state.metric_details = {}
        logits = np.full((len(self.observations), len(self.observations.findings)), np.nan)
        logits[rows[probe.rows.test]] = probe.test_logits[0]
        details[f"{self.prefix}head_logit"] = logits

    def probe(self) -> tuple[Probe, np.ndarray]:
        """The probe of the features at hand, and the rows of ``observations`` that it saw, shape (n,), int64.

        Raises:
            UserError: a patient in two parts, an unknown part or training site, an unusable feature.
            EmptyPart: no labelled training or test image.
        """
        features, rows = present_features(self.features)
        observations, split = self.observations, self.split
        if len(rows) != len(observations):
            observations = observations.take(rows)
            split = None if split is None else [split[row] for row in rows.tolist()]
        name = str(self.encoder["name"])
        try:
            probe = run_probe(features, observations, split, self.options, name, self.device)
        except EmptyPart:
            raise
        except ValueError as error:
            raise UserError(f"heads of encoder {name!r}: {error}.") from error
        if self.heads_file is not None:
            probe.save(self.heads_file, self.encoder.get("fingerprint"))
        return probe, rows

    def _of_rank_zero(self) -> tuple[Probe, np.ndarray]:
        """The probe of process 0, sent to all: heads trained twice could differ in the last bits between machines."""
        if not several_processes():
            return self.probe()
        import torch.distributed as dist

        box: list[Any] = [None]
        if dist.get_rank() == 0:
            try:
                box = [self.probe()]
            except ValueError as error:
                box = [error]
        dist.broadcast_object_list(box, src=0)
        if isinstance(box[0], ValueError):
            raise box[0]
        probe, rows = box[0]
        return probe, rows


def published(rows: Iterable[Mapping[str, Any]], prefix: str = "") -> dict[str, float]:
    """Metrics of the rows of ``probe.csv`` under the keys that :class:`ProbeHandler` publishes.

    Args:
        rows: rows of ``probe.csv``.
        prefix: put before every key.
    """
    return metrics_of_rows(rows, PUBLISHED, prefix)
