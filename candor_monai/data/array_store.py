"""Features computed elsewhere, behind the reading half of the feature store's interface."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from .store_rows import Sources, unusable_features

COLUMNS = ("image_id", "file", "stage", "reason", "message", "retry")


class ArrayStore:
    """Read-only store over an array of features.

    Args:
        image_ids: N distinct ids.
        features: shape (N, d), float32; may be memory-mapped. Rows that are not finite or zero are rejected.
    """

    def __init__(self, image_ids: Sequence[str], features: np.ndarray) -> None:
        self.image_ids = list(image_ids)
        self.features = features
        self.unusable = unusable_features(features)
        self._row = {image_id: row for row, image_id in enumerate(self.image_ids)}

    @property
    def dimension(self) -> int:
        """Length d of a feature."""
        return int(self.features.shape[1])

    def __len__(self) -> int:
        return len(self.image_ids) - len(self.unusable)

    def missing(self, image_ids: Sequence[str], sources: Sources | None = None) -> list[str]:
        """Nothing can be encoded, so nothing is missing."""
        return []

    def present(self, image_ids: Sequence[str], sources: Sources | None = None) -> np.ndarray:
        """Which ids have a feature that can be used, shape (N,), bool."""
        return self._usable()[self._rows(image_ids)]

    def matrix(
        self, image_ids: Sequence[str], sources: Sources | None = None, memory_bytes: int = 1 << 30
    ) -> tuple[np.ndarray, np.ndarray]:
        """Features aligned with ``image_ids``, and which of them can be used, shape (N,), bool."""
        rows = self._rows(image_ids)
        whole = len(rows) == len(self.image_ids) and bool((rows == np.arange(len(rows))).all())
        return (self.features if whole else self.features[rows]), self._usable()[rows]

    def rejections(self, image_ids: Sequence[str], sources: Sources | None = None) -> pd.DataFrame:
        """The rows that cannot be used, and why."""
        wanted = set(image_ids)
        rows = [
            (self.image_ids[row], None, "feature", reason, message, False)
            for row, (reason, message) in self.unusable.items()
            if self.image_ids[row] in wanted
        ]
        return pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)

    def refresh(self) -> None:
        """Nothing to look for."""

    def _rows(self, image_ids: Sequence[str]) -> np.ndarray:
        """Row of each id, -1 where there is none; shape (N,), int64."""
        return np.array([self._row.get(image_id, -1) for image_id in image_ids], dtype=np.int64)

    def _usable(self) -> np.ndarray:
        """Which rows can be used, and False for row -1; shape (rows + 1,), bool."""
        usable = np.ones(len(self.image_ids) + 1, dtype=np.bool_)
        usable[[*self.unusable, -1]] = False
        return usable
