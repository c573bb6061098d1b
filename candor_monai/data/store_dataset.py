"""MONAI dataset and loader over a feature store: what the measuring evaluator runs on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from monai.data import Dataset

if TYPE_CHECKING:
    from .feature_store import FeatureStore
    from .store_rows import Sources


class StoreDataset(Dataset):
    """Items ``{"image_id": str, "index": int, "pred": (d,) float32}`` of the images that have a feature.

    The store is read when an item, the length or the matrix is first asked for, so that an encoder can fill it after
    this was made.

    Args:
        store: the feature store.
        image_ids: the cohort's ids; ``index`` counts into them.
        sources: states of their files; None: any state will do.
        transform: applied to an item.
        memory_bytes: above this, the features are memory-mapped.
    """

    def __init__(
        self,
        store: FeatureStore,
        image_ids: Sequence[str],
        sources: Sources | None = None,
        transform: Any = None,
        memory_bytes: int = 1 << 30,
    ) -> None:
        super().__init__(data=[], transform=transform)
        self.store = store
        self.image_ids = image_ids
        self.sources = sources
        self.memory_bytes = memory_bytes
        self._matrix: tuple[np.ndarray, np.ndarray] | None = None
        self._rows = np.zeros(0, dtype=np.int64)

    def matrix(self) -> tuple[np.ndarray, np.ndarray]:
        """Features aligned with ``image_ids``, shape (N, d), float32, and which are present, shape (N,), bool."""
        if self._matrix is None:
            self._matrix = self.store.matrix(self.image_ids, self.sources, self.memory_bytes)
            self._rows = np.flatnonzero(self._matrix[1])
        return self._matrix

    def refresh(self) -> None:
        """Read the store again."""
        self.store.refresh()
        self._matrix = None

    def __len__(self) -> int:
        """Number of images with a feature."""
        self.matrix()
        return len(self._rows)

    def _transform(self, index: int) -> Any:
        features, _ = self.matrix()
        row = int(self._rows[index])
        item = {"image_id": self.image_ids[row], "index": row, "pred": torch.from_numpy(np.array(features[row]))}
        return item if self.transform is None else self.transform(item)

    def batch(self, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Items ``start`` to ``stop`` at once: ``index`` (B,) int64, ``pred`` (B, d) float32."""
        features, _ = self.matrix()
        rows = self._rows[start:stop]
        return {"index": torch.from_numpy(rows.copy()), "pred": torch.from_numpy(np.array(features[rows]))}


class StoreLoader:
    """Batches of a :class:`StoreDataset`, a slice of the matrix each.

    Args:
        dataset: the features.
        batch_size: rows a batch.
    """

    def __init__(self, dataset: StoreDataset, batch_size: int = 4096) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.dataset = dataset
        self.batch_size = batch_size

    def __len__(self) -> int:
        """Number of batches, at least one."""
        return max(1, -(-len(self.dataset) // self.batch_size))

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for number in range(len(self)):
            yield self.dataset.batch(number * self.batch_size, (number + 1) * self.batch_size)


def prepare_store_batch(
    batchdata: dict[str, torch.Tensor],
    device: str | torch.device | None = None,
    non_blocking: bool = False,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """``prepare_batch`` of an evaluator over a store: the stored feature is the input; there is no label.

    Args:
        batchdata: a batch of :class:`StoreLoader`.
        device, non_blocking, kwargs: as ``torch.Tensor.to`` takes them.
    """
    return batchdata["pred"].to(device=device, non_blocking=non_blocking, **kwargs), None
