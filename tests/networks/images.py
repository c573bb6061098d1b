"""Pictures that the encoder tests share: photographs that ship in wheels, noise, and canonical images of them."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from PIL import Image


@cache
def photo(name: str) -> Image.Image:
    """A photograph of scikit-image or scikit-learn, RGB."""
    if name in ("china.jpg", "flower.jpg"):
        from sklearn.datasets import load_sample_image

        return Image.fromarray(load_sample_image(name))
    import skimage.data

    array = skimage.data.stereo_motorcycle()[0] if name == "motorcycle" else getattr(skimage.data, name)()
    return Image.fromarray(array).convert("RGB")


@cache
def noise(size: int = 224) -> Image.Image:
    """Every pixel drawn by itself: the hardest picture to resize alike."""
    return Image.fromarray(np.random.default_rng(7).integers(0, 256, (size, size, 3), dtype=np.uint8))


def canonical(image: Image.Image, size: int = 224) -> Image.Image:
    """The canonical image: 8-bit RGB, Lanczos, squashed."""
    return image.convert("RGB").resize((size, size), Image.Resampling.LANCZOS)


def as_tensor(*images: Image.Image) -> torch.Tensor:
    """(B, 3, H, W) uint8."""
    return torch.stack([torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1) for image in images])
