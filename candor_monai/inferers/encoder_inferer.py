"""MONAI inferer that forwards images at one constant batch size."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from monai.inferers import Inferer
from torch import Tensor

from ..utils.errors import UserError

logger = logging.getLogger(__name__)


class EncoderInferer(Inferer):
    """Features of a batch, always computed at one constant batch size.

    An image forwarded alone differs in its last bits from the same image in a batch. Batches are therefore cut into
    pieces of ``batch_size``, and a short piece is padded by repeating its last image; the padding is dropped.

    A piece that does not fit into memory is forwarded in halves, and these in halves again; the next one is tried
    whole. Its features may differ from those of a whole piece in the last bits, so a warning says so.

    Attributes:
        began: when the last call began (``time.perf_counter``).
        halved: whether a piece of the last call was forwarded in halves.
        halvings: how many pieces were.

    Args:
        batch_size: images a forward pass; None forwards whatever comes, as it comes.

    Shapes:
        inputs: (B, 3, H, W) uint8 or processed float. Output: (B, d) float32.

    Raises:
        ValueError: ``batch_size`` below 1, or inputs that are not a batch of images.
        UserError: not even one image fits into memory.

    >>> double = lambda x: x.flatten(1) * 2.0
    >>> EncoderInferer(batch_size=2)(torch.ones(3, 1, 1, 1), double)
    tensor([[2.], [2.], [2.]])
    """

    def __init__(self, batch_size: int | None = None) -> None:
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.batch_size = batch_size
        self.began = 0.0
        self.halved = False
        self.halvings = 0

    def __call__(self, inputs: Tensor, network: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        """Features of a batch."""
        self.began, self.halved = time.perf_counter(), False
        images = inputs.as_subclass(Tensor)  # MetaTensor carries what no feature needs
        if images.ndim != 4:
            raise ValueError(f"inputs must be a batch of images (B, C, H, W), got shape {tuple(images.shape)}")
        size = self.batch_size or max(1, len(images))
        if len(images) == size:
            return self._forward(images, network, args, kwargs)
        if not len(images):
            padded = network(images.new_zeros((1, *images.shape[1:])), *args, **kwargs)
            return padded[:0].float()
        pieces = [self._piece(piece, size, network, args, kwargs) for piece in images.split(size)]
        return torch.cat(pieces)

    def _piece(self, piece: Tensor, size: int, network: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
        kept = len(piece)
        if kept < size:
            piece = torch.cat([piece, piece[-1:].expand(size - kept, *piece.shape[1:])])
        return self._forward(piece, network, args, kwargs)[:kept]

    def _forward(self, images: Tensor, network: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
        try:
            return network(images, *args, **kwargs).float()
        except (RuntimeError, MemoryError) as error:
            if not _out_of_memory(error):
                raise
            if len(images) == 1:
                raise UserError(
                    f"not even one image of shape {tuple(images.shape[1:])} fits into the memory of {images.device}: "
                    "take a smaller encoder, a lower --precision or another --device."
                ) from error
        # Outside of the handler: the error's frames hold the tensors of the pass that failed.
        if images.is_cuda:
            torch.cuda.empty_cache()
        if not self.halved:
            self.halved = True
            self.halvings += 1
            logger.warning(
                "a batch of %d images did not fit into the memory of %s and is forwarded in halves; its features may "
                "differ in the last bits. A smaller --batch_size avoids it.",
                len(images),
                images.device,
            )
        return torch.cat([self._forward(half, network, args, kwargs) for half in images.chunk(2)])


def _out_of_memory(error: BaseException) -> bool:
    """Whether the device or the host had no memory left; torch tells the latter by a plain RuntimeError."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return "out of memory" in str(error).lower() or "can't allocate memory" in str(error).lower()
