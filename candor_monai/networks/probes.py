"""Synthetic images that encoders are tried with: the same on every machine, no patient in them."""

from __future__ import annotations

import torch
from torch import Tensor

from candor_monai.data.decoding import CANONICAL_SIZE


def probe_image(size: int = CANONICAL_SIZE, seed: int = 0) -> Tensor:
    """A fixed synthetic image (1, 3, size, size) uint8: smooth waves in three colours.

    >>> probe_image(4).shape
    torch.Size([1, 3, 4, 4])
    """
    step = torch.arange(size, dtype=torch.float64) / size
    waves = [
        torch.sin((3 + c + seed) * torch.pi * step)[:, None] * torch.cos((2 + 2 * c + seed) * torch.pi * step)[None]
        for c in range(3)
    ]
    return (torch.stack(waves) * 100 + 128).round().clamp(0, 255).to(torch.uint8)[None]


def noise_image(size: int = CANONICAL_SIZE, seed: int = 0) -> Tensor:
    """An image (1, 3, size, size) uint8 of independent pixels."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (1, 3, size, size), dtype=torch.uint8, generator=generator)


def plain_image(value: int, size: int = CANONICAL_SIZE) -> Tensor:
    """An image (1, 3, size, size) uint8 of one value."""
    return torch.full((1, 3, size, size), value, dtype=torch.uint8)
