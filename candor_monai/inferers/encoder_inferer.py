"""MONAI inferer that forwards images at one constant batch size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from monai.inferers import Inferer
from torch import Tensor


class EncoderInferer(Inferer):
    """Features of a batch, always computed at one constant batch size.

    An image forwarded alone differs in its last bits from the same image in a batch. Batches are therefore cut into
    pieces of ``batch_size``, and a short piece is padded by repeating its last image; the padding is dropped.

    Args:
        batch_size: images a forward pass; None forwards whatever comes, as it comes.

    Shapes:
        inputs: (B, 3, H, W) uint8 or processed float. Output: (B, d) float32.

    Raises:
        ValueError: ``batch_size`` below 1, or inputs that are not a batch of images.

    >>> double = lambda x: x.flatten(1) * 2.0
    >>> EncoderInferer(batch_size=2)(torch.ones(3, 1, 1, 1), double)
    tensor([[2.], [2.], [2.]])
    """

    def __init__(self, batch_size: int | None = None) -> None:
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.batch_size = batch_size

    def __call__(self, inputs: Tensor, network: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        images = inputs.as_subclass(Tensor)  # MetaTensor carries what no feature needs
        if images.ndim != 4:
            raise ValueError(f"inputs must be a batch of images (B, C, H, W), got shape {tuple(images.shape)}")
        size = self.batch_size or max(1, len(images))
        if len(images) == size:
            return network(images, *args, **kwargs).float()
        if not len(images):
            padded = network(images.new_zeros((1, *images.shape[1:])), *args, **kwargs)
            return padded[:0].float()
        pieces = [self._piece(piece, size, network, args, kwargs) for piece in images.split(size)]
        return torch.cat(pieces)

    @staticmethod
    def _piece(piece: Tensor, size: int, network: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
        kept = len(piece)
        if kept < size:
            piece = torch.cat([piece, piece[-1:].expand(size - kept, *piece.shape[1:])])
        return network(piece, *args, **kwargs)[:kept].float()
