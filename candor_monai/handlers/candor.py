"""CANDOR as an Ignite handler: features in, D and its companions in ``engine.state.metrics``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..metrics.evaluation import Evaluation, evaluate
from ..metrics.observations import Observations
from ..metrics.options import Options
from .engine_data import GivenFeatures, present_features
from .metric_keys import metrics_of_rows
from .output_rows import OutputRows

if TYPE_CHECKING:
    from ignite.engine import Engine

logger = logging.getLogger(__name__)

PUBLISHED = ("D", "D_all", "margin_auroc")


class CandorHandler:
    """Score discordance when an evaluator's epoch completes.

    Results: ``engine.state.metrics`` gets ``D/<finding>``, ``D_all/<finding>`` and ``margin_auroc/<finding>``, with
    ``/<group>`` after it for a matched group and the metric's bare name for the task's pooled value; values that are
    not defined are left out. ``engine.state.candor`` holds the whole
    :class:`~candor_monai.metrics.evaluation.Evaluation`.

    Attach it before handlers that read the metrics (``MetricsSaver``, ``StatsHandler``, trackers).

    Args:
        observations: image ids, labels, groups and patients of the N images that a batch's ``index`` counts into.
        options: options of the measure.
        features: the features, shape (N, d), float32, with ``present``, shape (N,), bool; or a function that gives
            both. None: they are gathered from ``engine.state.output``, so that the handler also works inside a
            ``ValidationHandler`` while an encoder is being trained.
        index_key: key of the image indices in ``engine.state.batch``.
        pred_key: key of the features in ``engine.state.output``.
        prefix: put before every metric's name.
        scorer: measures features, observations and options in place of
            :func:`~candor_monai.metrics.evaluation.evaluate`, with the same result.

    Source: arXiv 2607.18451, sections 2 and 3; measures.md.
    """

    def __init__(
        self,
        observations: Observations,
        options: Options | None = None,
        features: GivenFeatures | None = None,
        index_key: str = "index",
        pred_key: str = "pred",
        prefix: str = "",
        scorer: Callable[[Any, Observations, Options], Evaluation] = evaluate,
    ) -> None:
        self.observations = observations
        self.scorer = scorer
        self.options = options or Options()
        self.features = features
        self.prefix = prefix
        self.rows = OutputRows(len(observations), index_key, pred_key)

    def attach(self, engine: Engine) -> None:
        """Register on an evaluator (Ignite engine)."""
        from ignite.engine import Events

        if self.features is None:
            engine.add_event_handler(Events.EPOCH_STARTED, self.started)
            engine.add_event_handler(Events.ITERATION_COMPLETED, self.gather)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self)

    def started(self, engine: Engine) -> None:
        """Forget the rows of an earlier epoch."""
        self.rows.reset()

    def gather(self, engine: Engine) -> None:
        """Take the rows of one batch."""
        self.rows.add(engine.state.batch, engine.state.output)

    def __call__(self, engine: Engine) -> None:
        """Score and publish."""
        evaluation = self.evaluate()
        state: Any = engine.state
        state.candor = evaluation
        state.metrics.update(published(evaluation.rows, self.prefix))

    def evaluate(self) -> Evaluation:
        """The evaluation of the features at hand."""
        features, rows = self.rows.gathered() if self.features is None else present_features(self.features)
        if len(rows) < len(self.observations):
            missing = len(self.observations) - len(rows)
            logger.warning("%d of %d images have no feature or no label: not scored", missing, len(self.observations))
        if not len(rows):
            raise ValueError("no image has a feature: the engine's batches held none of the observations' indices.")
        return self.scorer(features, self.observations.take(rows), self.options)


def published(rows: Iterable[Mapping[str, Any]], prefix: str = "") -> dict[str, float]:
    """Metrics of an evaluation's rows under the keys that :class:`CandorHandler` publishes.

    Args:
        rows: rows of ``discordance.csv``.
        prefix: put before every key.
    """
    scored = (row for row in rows if row.get("status") == "ok")
    return metrics_of_rows(scored, {name: name for name in PUBLISHED}, prefix)
