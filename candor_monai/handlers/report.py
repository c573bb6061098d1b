"""Writes the HTML report of an evaluation, with thumbnails decoded for it alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..data.encode_loader import Pool
from ..data.image_sources import decoded_one
from ..data.retention_views import RetentionViews
from ..utils.errors import DecodeError
from ..visualize.neighbour_figures import remove_neighbour_figures, write_neighbour_figures
from ..visualize.report import write_report
from .rank_zero import RankZeroHandler
from .run_context import RunContext

if TYPE_CHECKING:
    from ignite.engine import Engine

OCCLUSION_EXAMPLES = 2

logger = logging.getLogger(__name__)


class ReportHandler(RankZeroHandler):
    """Write ``report.html`` when the epoch completes, and ``figures/neighbours_<task>`` where pictures are shown.

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
        """Write the page and, with pictures, a figure of a query with its neighbours.

        Args:
            results: the document of results.json.
            queries, candidates, rejected: the tables beside it.
        """
        path = self.context.output_dir / "report.html"
        images = self.images and self.pool is not None and self.context.cohort.features is None
        figures = path.parent / "figures"
        with self.context.stage("report"):
            write_report(
                path,
                results,
                queries,
                candidates,
                rejected,
                self.thumbnails(),
                images=images,
                features=self.features(),
                occlusions=self.occlusions() if self.images else (),
                examples=self.examples,
            )
            if images:
                write_neighbour_figures(figures, results, queries, candidates, self.thumbnails(), self.features())
            else:
                remove_neighbour_figures(figures)
        logger.info("report: %s", path)

    def thumbnails(self) -> Callable[[str], np.ndarray | None]:
        """A function from an image id to its canonical pixels, (3, H, W) uint8, or None where there are none."""
        row = {image_id: i for i, image_id in enumerate(self.context.image_ids)}
        cohort, pool = self.context.cohort, self.pool

        def thumbnail(image_id: str) -> np.ndarray | None:
            if pool is None or image_id not in row:
                return None
            pixels = decoded_one(pool, cohort.source, row[image_id])
            return None if isinstance(pixels, DecodeError) else pixels

        return thumbnail

    def occlusions(self, each: int = OCCLUSION_EXAMPLES) -> list[dict[str, Any]]:
        """Example occlusions of each finding, with what was left of the features.

        Args:
            each: images of a finding.
        """
        if self.views is None:
            return []
        place = {(view.row, view.kind, view.finding): i for i, view in enumerate(self.views.views)}
        chosen: dict[tuple[int, str], list[int | None]] = {}
        for finding in dict.fromkeys(view.finding for view in self.views.views if view.kind == "occluded"):
            rows = [view.row for view in self.views.views if (view.kind, view.finding) == ("occluded", finding)]
            for row in rows[:each]:
                others = [place.get((row, kind, finding)) for kind in ("occluded", "control")]
                chosen[row, finding] = [place[row, "original", ""], *others]
        feature = self._view_features({at for places in chosen.values() for at in places if at is not None})
        examples = []
        for (row, finding), places in chosen.items():
            pixels = {k: v for k, v in self.views.example(finding, row).items() if isinstance(v, np.ndarray)}
            original, occluded, control = (None if at is None else feature.get(at) for at in places)
            examples.append(
                {
                    "finding": finding,
                    "image_id": self.context.cohort.image_id(row),
                    **{kind: pixels.get(kind) for kind in ("original", "occluded", "control")},
                    "retention": _similarity(original, occluded),
                    "control_retention": _similarity(original, control),
                }
            )
        return examples

    def _view_features(self, places: Collection[int]) -> dict[int, np.ndarray]:
        """Features of some views by their place, where they have one; no others are read."""
        assert self.views is not None
        wanted = np.array(sorted(places), dtype=np.int64)
        sources = self.views.sources(self.context.sources).take(wanted)
        ids = [self.views.views[at].view_id for at in wanted.tolist()]
        features, present = self.context.store.matrix(ids, sources)
        return {at: features[i] for i, at in enumerate(wanted.tolist()) if present[i]}

    def features(self) -> Callable[[str, Sequence[str]], np.ndarray]:
        """A function from an encoder's name and image ids to their features, shape (n, d), float32."""
        return lambda encoder, image_ids: self.context.features_of(image_ids)


def _similarity(one: np.ndarray | None, other: np.ndarray | None) -> float | None:
    """Cosine similarity of two features; None where one of them is not there."""
    if one is None or other is None:
        return None
    a, b = one.astype(np.float64), other.astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))
