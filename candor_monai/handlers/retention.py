"""Occlusion retention as an Ignite handler: features of the views in, retention.csv and metrics out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.retention_views import RetentionViews, View
from ..metrics.retention import COLUMNS, Retention, association, retention, share_lowered_more
from ..visualize.csv_files import write_csv
from .engine_data import GivenFeatures, features_of
from .metric_keys import metrics_of_rows

if TYPE_CHECKING:
    from ignite.engine import Engine

    from ..data.feature_store import FeatureStore
    from ..data.store_rows import Sources

PUBLISHED = ("retention", "control", "difference", "standardised")
RETENTION_COLUMNS = (
    "encoder",
    "task",
    "finding",
    "level",
    "fill",
    "n_boxed",
    "n_rescaled",
    "n_images",
    "n_patients",
    "n_control",
    "n_pairs",
    *(column + part for column in COLUMNS for part in ("", "_lo", "_hi")),
    "status",
    "reason",
    "left_out",
)
ASSOCIATION_COLUMNS = ("task", "measure", "n_encoders", "spearman", "p", "lowered_more", "n_compared", "reason")


@dataclass(frozen=True)
class _Entries:
    """The boxed images of one finding that have both an original and an occluded feature."""

    finding: str
    boxed: int
    rows: list[int]
    places: np.ndarray  # (n, 3) places of original, occluded, control among the views; -1: no such feature
    left_out: Counter[str]


class RetentionHandler:
    """Measure occlusion retention when an evaluator's epoch completes.

    The evaluator's dataset may be the :class:`~candor_monai.data.retention_views.RetentionViews` themselves or anything
    else: features come from the store (or ``features``), so repeating costs nothing.

    Results: ``engine.state.metrics`` gets ``retention/<finding>``, ``control/<finding>``, ``difference/<finding>`` and
    ``standardised/<finding>``, and the bare names for all findings of the task together; undefined values are left out.
    ``engine.state.retention`` holds the rows, which are written to ``retention.csv`` in ``output_dir``.

    Attach it before handlers that read the metrics (``MetricsSaver``, ``StatsHandler``, trackers).

    Args:
        views: what was covered in which image.
        store: the store that holds the views' features, or None where ``features`` are given.
        sources: states of the cohort's files when the run began.
        features: features of the views, (V, d) float32, and which are present, (V,) bool; or a function that gives
            both.
        encoder: name of the encoder, for the table.
        output_dir: where ``retention.csv`` goes; None: nowhere.
        resamples: resamples of patients behind each interval.
        prefix: put before every metric's name.
        save_rank: only this process writes.

    Source: arXiv 2607.18451, occlusion retention.
    """

    def __init__(
        self,
        views: RetentionViews,
        store: FeatureStore | None = None,
        sources: Sources | None = None,
        features: GivenFeatures | None = None,
        encoder: str = "encoder",
        output_dir: str | Path | None = None,
        resamples: int = 1000,
        prefix: str = "",
        save_rank: int = 0,
    ) -> None:
        if (store is None) == (features is None):
            raise ValueError("RetentionHandler takes either a store or features")
        self.views, self.store, self.sources, self.features = views, store, sources, features
        self.encoder, self.output_dir = encoder, None if output_dir is None else Path(output_dir)
        self.resamples, self.prefix, self.save_rank = resamples, prefix, save_rank

    def attach(self, engine: Engine) -> None:
        """Register on an evaluator (Ignite engine)."""
        from ignite.engine import Events

        engine.add_event_handler(Events.EPOCH_COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        """Measure, publish and write."""
        import ignite.distributed as idist

        rows = self.rows()
        state: Any = engine.state
        state.retention = rows
        state.metrics.update(published(rows, self.prefix))
        if self.output_dir is not None and idist.get_rank() == self.save_rank:
            write_csv(self.output_dir / "retention.csv", rows, RETENTION_COLUMNS)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of ``retention.csv``: one a finding, then one for all of them together."""
        features, present, reasons = self._features()
        entries = [_entries(self.views, finding, present, reasons) for finding in self._findings()]
        shapes, patients = self._shapes(), self._patients()
        rows = [self._row(part, "finding", [part], features, patients, shapes) for part in entries]
        if entries:
            whole = _Entries(
                "",
                sum(part.boxed for part in entries),
                [row for part in entries for row in part.rows],
                np.concatenate([part.places for part in entries]),
                sum((part.left_out for part in entries), Counter()),
            )
            rows.append(self._row(whole, "task", entries, features, patients, shapes))
        return rows

    def _row(
        self,
        part: _Entries,
        level: str,
        parts: Sequence[_Entries],
        features: np.ndarray,
        patients: np.ndarray,
        shapes: Mapping[int, tuple[int, int]] | None,
    ) -> dict[str, Any]:
        findings = {one.finding for one in parts}
        return {
            "encoder": self.encoder,
            "task": self.views.cohort.task.name,
            "finding": part.finding,
            "level": level,
            "fill": self.views.fill,
            "n_boxed": part.boxed,
            "n_rescaled": None if shapes is None else self.views.rescaled(shapes, findings),
            **self._measured(part, parts, features, patients).row(),
            "left_out": "; ".join(f"{reason}: {n}" for reason, n in sorted(part.left_out.items())) or None,
        }

    def _measured(
        self, part: _Entries, parts: Sequence[_Entries], features: np.ndarray, patients: np.ndarray
    ) -> Retention:
        ids = [f"{self.views.cohort.image_id(row)}#{one.finding}" for one in parts for row in one.rows]
        whose = patients[np.array(part.rows, dtype=np.int64)].tolist()
        original, occluded, control = (features[np.maximum(part.places[:, kind], 0)] for kind in range(3))
        return retention(
            original,
            occluded,
            control,
            part.places[:, 2] >= 0,
            ids,
            whose,
            seed=self.views.seed,
            resamples=self.resamples,
        )

    def _patients(self) -> np.ndarray:
        """Name of each record's patient, text; those who share an image with the same pixels are one."""
        cohort = self.views.cohort
        if cohort.clusters is None and self.store is not None:
            alike = self.store.clusters(cohort.records["image_id"].tolist(), self.sources)
            cohort = cohort.with_clusters(alike.astype(str))
        seen = cohort.observations()
        return seen.unit_names[seen.units]

    def _findings(self) -> list[str]:
        return list(dict.fromkeys(sorted(view.finding for view in self.views.views if view.finding)))

    def _shapes(self) -> dict[int, tuple[int, int]] | None:
        """Rows and columns of the images that were decoded, as the store holds them; None without a store."""
        if self.store is None:
            return None
        originals = [place for place, view in enumerate(self.views.views) if view.kind == "original"]
        sources = self.views.sources(self.sources).take(np.array(originals, dtype=np.int64))
        known = self.store.provenance([self.views.views[place].view_id for place in originals], sources)
        sizes = zip(known["present"], known["rows"], known["columns"], strict=True)
        return {
            self.views.views[place].row: (int(rows), int(columns))
            for place, (present, rows, columns) in zip(originals, sizes, strict=True)
            if present and rows == rows and columns == columns  # not NaN
        }

    def _features(self) -> tuple[np.ndarray, np.ndarray, dict[str, str]]:
        """Features of the views, which are present, and why the others are not."""
        if self.store is not None:
            self.store.refresh()
            sources = self.views.sources(self.sources)
            features, present = self.store.read(self.views.view_ids, sources)
            told = self.store.rejections(self.views.view_ids, sources)
            return features, present, dict(zip(told["image_id"].tolist(), told["reason"].tolist(), strict=True))
        assert self.features is not None
        return *features_of(self.features), {}


def _entries(views: RetentionViews, finding: str, present: np.ndarray, reasons: Mapping[str, str]) -> _Entries:
    """The images of one finding, and why some of their views cannot be used."""
    by_row: dict[int, dict[str, tuple[int, View]]] = {}
    originals = {view.row: (place, view) for place, view in enumerate(views.views) if view.kind == "original"}
    for place, view in enumerate(views.views):
        if view.finding == finding:
            by_row.setdefault(view.row, {"original": originals[view.row]})[view.kind] = (place, view)
    rows, places, left_out = [], [], Counter[str]()
    for row, kinds in by_row.items():
        absent = {kind: reasons.get(view.view_id, "not encoded") for kind, (p, view) in kinds.items() if not present[p]}
        if "original" in absent or "occluded" in absent:
            left_out[absent.get("original") or absent["occluded"]] += 1
            continue
        if "control" in absent:
            left_out[absent["control"] + " (control alone)"] += 1
        rows.append(row)
        places.append([-1 if kind in absent else kinds[kind][0] for kind in ("original", "occluded", "control")])
    return _Entries(finding, len(by_row), rows, np.array(places, dtype=np.int64).reshape(-1, 3), left_out)


def published(rows: Sequence[Mapping[str, Any]], prefix: str = "") -> dict[str, float]:
    """Metrics of the rows of ``retention.csv``, undefined values left out.

    >>> published([{"finding": "Mass", "level": "finding", "retention": 0.9, "control": None}])
    {'retention/Mass': 0.9}
    """
    return metrics_of_rows(rows, {name: name for name in PUBLISHED}, prefix)


def associations(
    retained: Sequence[Mapping[str, Any]], discordance: Mapping[str, float | None], task: str
) -> list[dict[str, Any]]:
    """Over encoders: retention beside D, raw and standardised, and how often the finding's box matters more.

    Args:
        retained: rows of ``retention.csv`` of several encoders; those of level ``task`` count.
        discordance: encoder -> D of the task (or of the boxed findings).
        task: the task.

    Returns:
        two rows of ``ASSOCIATION_COLUMNS``.
    """
    rows = {row["encoder"]: row for row in retained if row["level"] == "task" and row["task"] == task}
    lowered, compared = share_lowered_more({name: row.get("difference") for name, row in rows.items()})
    result = []
    for measure in ("retention", "standardised"):
        found = association({name: row.get(measure) for name, row in rows.items()}, discordance)
        result.append(
            {
                "task": task,
                "measure": measure,
                "n_encoders": found.n_encoders,
                "spearman": found.spearman,
                "p": found.p,
                "lowered_more": lowered,
                "n_compared": compared,
                "reason": found.reason,
            }
        )
    return result
