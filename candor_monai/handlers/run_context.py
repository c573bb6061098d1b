"""What the handlers of one evaluation share: its cohort, encoder, options, and what happened on the way."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .._version import __version__
from ..data.array_store import ArrayStore
from ..data.cohort import REJECTED_COLUMNS, Cohort
from ..data.feature_store import FeatureStore
from ..data.store_rows import Sources
from ..utils.plain_values import plain

LEFT_OUT = "on the list of --leave_out, or another encoder of the study has no feature of it"
VERSIONED = ("torch", "monai", "timm", "transformers", "numpy", "pandas", "pyarrow", "pydicom", "scipy")


@dataclass
class RunContext:
    """One encoder on one cohort.

    Args:
        cohort: the cohort.
        encoder: the encoder's description: at least ``name``, ``title``, ``dimension`` and ``fingerprint``.
        options: options of the run, as plain values.
        output_dir: where results go.
        store: where features come from.
        left_out: ids of images that are not scored, such as those that another encoder of a study has no feature of.
        sources: state of each record's file when the run began (:func:`~candor_monai.data.store_rows.stat_sources`).

    Attributes:
        seconds: wall time by stage, as ``encode`` and ``encode.forward``.
        bottleneck: by encoding stage, which part of it set the pace.
        chosen: options that the first batches chose.
        counts, warnings, started: what results.json tells of the run.
    """

    cohort: Cohort
    encoder: dict[str, Any]
    options: dict[str, Any]
    output_dir: Path
    store: FeatureStore | ArrayStore
    sources: Sources | None = None
    left_out: frozenset[str] = frozenset()
    seconds: dict[str, float] = field(default_factory=dict)
    bottleneck: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.time)
    _running: dict[str, float] = field(default_factory=dict, repr=False)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the wall time of the block to ``seconds[name]``."""
        self._running[name] = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.timings()[name]
            del self._running[name]

    def timings(self) -> dict[str, float]:
        """Wall time by stage; of a stage that has not ended, so far: results are written within scoring."""
        now = time.perf_counter()
        return self.seconds | {name: self.seconds.get(name, 0.0) + now - begin for name, begin in self._running.items()}

    def warn(self, message: str) -> None:
        """Keep a warning for the results, once."""
        if message not in self.warnings:
            self.warnings.append(message)

    @property
    def image_ids(self) -> list[str]:
        """Ids of the cohort's records."""
        return self.cohort.records["image_id"].tolist()

    def features(self, memory_bytes: int = 1 << 30) -> tuple[np.ndarray, np.ndarray]:
        """Features of the records, shape (N, d), float32, and which of them can be scored, shape (N,), bool.

        A record is scored when it has a feature and a label of some finding.
        """
        features, present = self.store.matrix(self.image_ids, self.sources, memory_bytes)
        return features, self._scored(present)

    def present(self) -> np.ndarray:
        """Which records can be scored, shape (N,), bool, as :meth:`features` says it; no feature is read."""
        return self._scored(self.store.present(self.image_ids, self.sources))

    def features_of(self, image_ids: Sequence[str]) -> np.ndarray:
        """Features of some records, shape (n, d), float32; no others are read.

        Raises:
            KeyError: an id is not in the cohort.
        """
        row = {image_id: i for i, image_id in enumerate(self.image_ids)}
        rows = np.array([row[image_id] for image_id in image_ids], dtype=np.int64)
        states = None if self.sources is None else self.sources.take(rows)
        return self.store.matrix(list(image_ids), states)[0]

    def _scored(self, present: np.ndarray) -> np.ndarray:
        """Of the records with a feature, those that are labelled and not left out."""
        scored = present & self.labelled()
        if self.left_out:
            scored &= ~self.cohort.records["image_id"].isin(self.left_out).to_numpy()
        return scored

    def labelled(self) -> np.ndarray:
        """Which records carry a label of some finding, shape (N,), bool; all, where no finding is asked for."""
        if not self.cohort.findings:
            return np.ones(len(self.cohort), dtype=np.bool_)
        return np.asarray((self.cohort.labels >= 0).any(axis=1))

    def rejected(self, present: np.ndarray) -> pd.DataFrame:
        """Every image that was named and is not scored, with stage and reason: the rows of ``rejected.csv``.

        Args:
            present: which records are scored, shape (N,), bool.
        """
        rows = [self.cohort.rejected[list(REJECTED_COLUMNS)]]
        records = self.cohort.records
        labelled = self.labelled()
        stored = {
            row["image_id"]: row for row in self.store.rejections(self.image_ids, self.sources).to_dict("records")
        }
        told = []
        for i in np.flatnonzero(~present).tolist():
            image_id, file = records["image_id"].iat[i], self.cohort.file_name(i)
            if not labelled[i]:
                told.append((image_id, file, "labels", "unlabelled", "no label for any of the findings"))
            elif image_id in self.left_out:
                told.append((image_id, file, "compare", "left_out", LEFT_OUT))
            elif image_id in stored:
                row = stored[image_id]
                told.append((image_id, file or str(row.get("file") or ""), row["stage"], row["reason"], row["message"]))
            else:
                told.append((image_id, file, "encode", "not_encoded", "no feature was computed; run `encode`"))
        rows.append(pd.DataFrame(told, columns=list(REJECTED_COLUMNS), dtype=object))
        return pd.concat([part for part in rows if len(part)] or rows[:1], ignore_index=True)

    def accounting(self, present: np.ndarray, rejected: pd.DataFrame) -> dict[str, Any]:
        """Images in, scored and rejected; they add up, or the run has lost an image.

        Raises:
            RuntimeError: they do not add up (a defect of this package).
        """
        scored = int(present.sum())
        outside = self.cohort.rejected["image_id"]
        images_in = len(self.cohort) + len(set(outside) - set(self.cohort.records["image_id"]))
        images_rejected = int(rejected["image_id"].nunique())
        if images_in != scored + images_rejected:
            raise RuntimeError(f"{images_in} images in, but {scored} scored and {images_rejected} rejected.")
        reasons = rejected.drop_duplicates("image_id")["reason"].value_counts()
        return {
            "images_in": images_in,
            "scored": scored,
            "rejected": images_rejected,
            "rejected_by_reason": {str(reason): int(count) for reason, count in sorted(reasons.items())},
        }

    def describe_cohort(self) -> dict[str, Any]:
        """The cohort as results.json tells it."""
        cohort, task = self.cohort, self.cohort.task
        patients = cohort.records["patient_id"]
        codes, names = cohort.groups()
        sizes = np.bincount(codes, minlength=len(names))
        labels = [
            {
                "finding": finding,
                "positive": int((cohort.labels[:, f] == 1).sum()),
                "negative": int((cohort.labels[:, f] == 0).sum()),
                "uncertain": int(cohort.uncertain[:, f].sum()),
                "unlabelled": int((cohort.labels[:, f] < 0).sum()),
            }
            for f, finding in enumerate(cohort.findings)
        ]
        return {
            "name": cohort.name,
            "title": cohort.card.get("title"),
            "fingerprint": cohort.fingerprint(),
            "n_images": len(cohort),
            "patients": None if patients.isna().all() else int(patients.nunique()),
            "findings": list(cohort.findings),
            "task": task.name,
            "match_on": list(task.match_on),
            "groups": [{"group": name, "n_images": int(n)} for name, n in zip(names, sizes, strict=True)],
            "labels": labels,
            "policy": {"uncertain": task.uncertain, "blank": task.blank},
            "counts": plain(cohort.counts),
            "licence": cohort.card.get("licence"),
            "citation": cohort.card.get("citation"),
        }


def versions() -> dict[str, str]:
    """Versions of this package and of what the numbers depend on."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    found = {"candor_monai": __version__, "python": platform.python_version()}
    for name in VERSIONED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
