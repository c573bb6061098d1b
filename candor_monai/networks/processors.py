"""Processors: what an encoder's own library does to an image, for a batch of canonical images at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cards import ProcessorCard

# Pillow's fixed-point luma, ITU-R 601-2.
_LUMA = (19595, 38470, 7471)


class EncoderProcessor(nn.Module):
    """Canonical 8-bit images to what an encoder was trained on.

    Nothing is resized when an image has the right size already. 8-bit resizing rounds and clips after each of its
    two passes, as Pillow does; on the processor it is done by torch's own 8-bit kernel, elsewhere by the same two
    passes in float, which differ by at most one level.

    Args:
        card: the numbers.

    Shapes:
        images: (B, 3, H, W) uint8, RGB. Output: (B, channels, h, w) float32.

    >>> grey = torch.full((1, 3, 4, 4), 255, dtype=torch.uint8)
    >>> processor = EncoderProcessor(ProcessorCard(size=4, mean=(0.5,) * 3, std=(0.5,) * 3))
    >>> processor(grey).unique()
    tensor([1.])
    """

    factor: Tensor
    offset: Tensor

    def __init__(self, card: ProcessorCard) -> None:
        super().__init__()
        self.card = card
        shape = (1, card.channels, 1, 1)
        std = torch.tensor(card.std, dtype=torch.float64).view(shape)
        mean = torch.tensor(card.mean, dtype=torch.float64).view(shape)
        rescaled = 1.0 if card.order == "rescale_resize" else card.scale
        self.register_buffer("factor", (rescaled / std).float(), persistent=False)
        self.register_buffer("offset", (-mean / std).float(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images must be uint8 (B, 3, H, W), got {images.dtype} {tuple(images.shape)}")
        card = self.card
        x = images if card.channels == 3 else _luma(images)
        if card.order == "rescale_resize":
            x = x.float().mul_(card.scale)
        if card.resize == "square":
            x = centre(x, min(x.shape[-2:]), "down")
        height, width = self.resized(x.shape[-2], x.shape[-1])
        if (height, width) != tuple(x.shape[-2:]):
            x = resize(x, height, width, card.interpolation, card.antialias)
        if card.resize == "long_pad":
            x = F.pad(x, (0, int(card.size or 0) - width, 0, int(card.size or 0) - height))
        if card.crop is not None:
            x = centre(x, card.crop, "down" if card.backend == "pil" else "even")
        out = torch.empty(x.shape, dtype=torch.float32, device=x.device)  # contiguous, however x lies in memory
        return torch.mul(x, self.factor, out=out).add_(self.offset)

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns after resizing an image of this size."""
        size = self.card.size
        if size is None:
            return height, width
        if self.card.resize == "shortest":
            # Long side cut to an integer, as torchvision, transformers, timm and open_clip do.
            short, long = min(height, width), max(height, width)
            longer = int(size * long / short)
            return (size, longer) if height <= width else (longer, size)
        if self.card.resize == "long_pad":
            long = max(height, width)
            return max(1, height * size // long), max(1, width * size // long)
        return size, size

    def extra_repr(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.card.numbers().items())


def resize(x: Tensor, height: int, width: int, interpolation: str, antialias: bool) -> Tensor:
    """Resize uint8 or float32 images (B, C, H, W); uint8 stays uint8, rounded after each pass as Pillow does."""
    if x.dtype != torch.uint8:
        return F.interpolate(x, size=(height, width), mode=interpolation, antialias=antialias, align_corners=False)
    if _has_8_bit_kernel(x) and antialias:
        # The 8-bit kernel is fastest, and closest to Pillow, in channels-last order.
        x = x.contiguous(memory_format=torch.channels_last) if x.shape[1] == 3 else x
        return F.interpolate(x, size=(height, width), mode=interpolation, antialias=True, align_corners=False)
    for size in ((x.shape[-2], width), (height, width)):
        if tuple(x.shape[-2:]) != size:
            y = F.interpolate(x.float(), size=size, mode=interpolation, antialias=antialias, align_corners=False)
            x = y.add_(0.5).floor_().clamp_(0, 255).to(torch.uint8)
    return x


def _has_8_bit_kernel(x: Tensor) -> bool:
    return x.device.type == "cpu"


def centre(x: Tensor, side: int, half: str = "even") -> Tensor:
    """Centre square of ``side`` pixels; an image smaller than that is padded with zeros first.

    Args:
        x: (..., H, W).
        side: of the square.
        half: where half a pixel goes: ``down``, as Pillow's backend of transformers does it, or ``even``, as
            torchvision does it (and so timm and open_clip).
    """
    height, width = x.shape[-2:]
    if height < side or width < side:
        top, left = max(0, (side - height) // 2), max(0, (side - width) // 2)
        x = F.pad(x, (left, max(0, side - width - left), top, max(0, side - height - top)))
        height, width = x.shape[-2:]
    if half == "down":
        top, left = (height - side) // 2, (width - side) // 2
    else:
        top, left = round((height - side) / 2), round((width - side) / 2)
    return x[..., top : top + side, left : left + side]


def _luma(images: Tensor) -> Tensor:
    red, green, blue = (images[:, c : c + 1].int() * weight for c, weight in enumerate(_LUMA))
    return red.add_(green).add_(blue).add_(1 << 15).bitwise_right_shift_(16).to(torch.uint8)
