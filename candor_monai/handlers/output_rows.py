"""Rows of ``engine.state.output`` gathered by image index, each image once, whatever the batches were."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .engine_data import column, needed_column, several_processes

PADDING = -1


class OutputRows:
    """Features of N images collected from an engine's batches.

    Args:
        n_images: number of images N; a batch's ``index`` counts into them.
        index_key: key of the batch's image indices, shape (B,), int64.
        pred_key: key of the model's output, shape (B, d).
        ok_key: key of the batch's flags of usable images; a batch without it is all usable.

    Memory: one float32 row an image, N × d × 4 bytes, allocated once at the first batch.
    """

    def __init__(self, n_images: int, index_key: str = "index", pred_key: str = "pred", ok_key: str = "ok") -> None:
        self.n_images = n_images
        self.index_key = index_key
        self.pred_key = pred_key
        self.ok_key = ok_key
        self.features: np.ndarray | None = None
        self.present = np.zeros(n_images, dtype=np.bool_)

    def reset(self) -> None:
        """Forget all rows."""
        self.features = None
        self.present = np.zeros(self.n_images, dtype=np.bool_)

    def add(self, batch: Any, output: Any) -> None:
        """Take one batch's rows. A row whose index is -1 pads a short batch and is passed over.

        Args:
            batch: ``engine.state.batch``: a mapping, or a list of mappings, with the index key.
            output: ``engine.state.output``: the same, with the prediction key.

        Raises:
            ValueError: the batch has no index, counts differ, or an index is out of range.
        """
        index = needed_column(batch, self.index_key, "engine.state.batch, which says whose rows these are,")
        pred = needed_column(output, self.pred_key, "engine.state.output")
        rows = index.reshape(-1).to(torch.int64).cpu().numpy()
        values = pred.reshape(pred.shape[0], -1).detach().to(torch.float32).cpu().numpy()
        if len(rows) != len(values):
            raise ValueError(f"the batch has {len(rows)} indices and the output {len(values)} rows.")
        if rows.size and rows.min() < PADDING:
            raise ValueError(f"image index {rows.min()} is negative; only {PADDING}, which pads a short batch, may be.")
        usable = rows != PADDING
        ok = column(batch, self.ok_key)
        if ok is not None:
            usable &= ok.reshape(-1).to(torch.bool).cpu().numpy()
        rows, values = rows[usable], values[usable]
        if rows.size and rows.max() >= self.n_images:
            raise ValueError(f"image index {rows.max()} is out of range for {self.n_images} images.")
        if self.features is None:
            self.features = np.zeros((self.n_images, values.shape[1]), dtype=np.float32)
        self.features[rows] = values
        self.present[rows] = True

    def gathered(self) -> tuple[np.ndarray, np.ndarray]:
        """Features (M, d) float32 and their image indices (M,) int64, ascending, over all processes."""
        rows = np.flatnonzero(self.present)
        width = 0 if self.features is None else self.features.shape[1]
        values = np.zeros((0, width), dtype=np.float32) if self.features is None else self.features[rows]
        if not several_processes():
            return values, rows
        import torch.distributed as dist

        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, (rows, values))
        merged: dict[int, np.ndarray] = {}
        for part_rows, part_values in parts:
            for row, value in zip(part_rows.tolist(), part_values, strict=True):
                merged.setdefault(row, value)
        order = np.array(sorted(merged), dtype=np.int64)
        return (np.stack([merged[row] for row in order.tolist()]) if merged else values), order
