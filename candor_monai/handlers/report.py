"""Writes the HTML report of an evaluation, with thumbnails decoded for it alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..data.encode_loader import Pool
from ..data.retention_views import RetentionViews
from ..utils.errors import DecodeError
from ..visualize.report import write_report
from .rank_zero import RankZeroHandler
from .run_context import RunContext

if TYPE_CHECKING:
    from ignite.engine import Engine

OCCLUSION_EXAMPLES = 2

logger = logging.getLogger(__name__)


class ReportHandler(RankZeroHandler):
    """Write ``report.html`` when the epoch completes.

    Args:
        context: the run.
        pool: decodes the images shown; None shows none.
        images: show pictures.
        views: views of occlusion retention, of which examples are shown; None shows none.
        examples: discordant positives shown for each finding.
        save_rank: only this process writes.
    """

    def __init__(
        self,
        context: RunContext,
        pool: Pool | None = None,
        views: RetentionViews | None = None,
        images: bool = True,
        examples: int = 3,
        save_rank: int = 0,
    ) -> None:
        super().__init__(save_rank)
        self.context = context
        self.pool = pool
        self.views = views
        self.images = images
        self.examples = examples

    def act(self, engine: Engine) -> None:
        """Write the page from what :class:`~candor_monai.handlers.results_saver.ResultsSaver` left."""
        state: Any = engine.state
        evaluation = state.candor
        name = self.context.encoder["name"]
        queries = pd.DataFrame(evaluation.queries).assign(encoder=name)
        self.write(state.results, queries, pd.DataFrame(evaluation.candidates), state.rejected)

    def write(
        self, results: Mapping[str, Any], queries: pd.DataFrame, candidates: pd.DataFrame, rejected: pd.DataFrame
    ) -> None:
        """Write the page.

        Args:
            results: the document of results.json.
            queries, candidates, rejected: the tables beside it.
        """
        path = self.context.output_dir / "report.html"
        with self.context.stage("report"):
            write_report(
                path,
                results,
                queries,
                candidates,
                rejected,
                self.thumbnails(),
                images=self.images and self.pool is not None and self.context.cohort.features is None,
                features=self.features(),
                occlusions=self.occlusions() if self.images else (),
                examples=self.examples,
            )
        logger.info("report: %s", path)

    def thumbnails(self) -> Callable[[str], np.ndarray | None]:
        """A function from an image id to its canonical pixels, (3, H, W) uint8, or None where there are none."""
        row = {image_id: i for i, image_id in enumerate(self.context.image_ids)}
        cohort, pool = self.context.cohort, self.pool

        def thumbnail(image_id: str) -> np.ndarray | None:
            if pool is None or image_id not in row:
                return None
            try:
                source = cohort.source(row[image_id])
            except (DecodeError, OSError):
                return None
            for _, pixels, _, _ in pool.map([(row[image_id], source)]):
                return None if isinstance(pixels, DecodeError) else pixels
            return None

        return thumbnail

    def occlusions(self, each: int = OCCLUSION_EXAMPLES) -> list[dict[str, Any]]:
        """Example occlusions of each finding, with what was left of the features.

        Args:
            each: images of a finding.
        """
        if self.views is None:
            return []
        ids, context = self.views.view_ids, self.context
        features, present = context.store.matrix(ids, self.views.sources(context.sources))
        place = {(view.row, view.kind, view.finding): i for i, view in enumerate(self.views.views)}
        examples = []
        for finding in dict.fromkeys(view.finding for view in self.views.views if view.kind == "occluded"):
            rows = [view.row for view in self.views.views if (view.kind, view.finding) == ("occluded", finding)]
            for row in rows[:each]:
                pixels = {k: v for k, v in self.views.example(finding, row).items() if isinstance(v, np.ndarray)}
                places = [place[row, "original", ""]] + [
                    place.get((row, kind, finding), -1) for kind in ("occluded", "control")
                ]
                kept = [_similarity(features, present, places[0], other) for other in places[1:]]
                examples.append(
                    {
                        "finding": finding,
                        "image_id": context.cohort.image_id(row),
                        **{kind: pixels.get(kind) for kind in ("original", "occluded", "control")},
                        "retention": kept[0],
                        "control_retention": kept[1],
                    }
                )
        return examples

    def features(self) -> Callable[[str, Sequence[str]], np.ndarray]:
        """A function from an encoder's name and image ids to their features, shape (n, d), float32."""
        context = self.context

        def rows(encoder: str, image_ids: Sequence[str]) -> np.ndarray:
            matrix, _ = context.features()
            row = {image_id: i for i, image_id in enumerate(context.image_ids)}
            return np.asarray(matrix[[row[image_id] for image_id in image_ids]])

        return rows


def _similarity(features: np.ndarray, present: np.ndarray, one: int, other: int) -> float | None:
    """Cosine similarity of two rows; None where one of them is not there."""
    if other < 0 or not (present[one] and present[other]):
        return None
    a, b = (features[row].astype(np.float64) for row in (one, other))
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))
