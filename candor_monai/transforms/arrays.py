"""What MONAI hands to a transform, as NumPy arrays, and back as what it was."""

from __future__ import annotations

import numpy as np
import torch
from monai.config import NdarrayOrTensor
from monai.data import MetaTensor


def pixels_of(image: NdarrayOrTensor) -> np.ndarray:
    """The values of an array, tensor or MetaTensor, on the CPU."""
    plain = image.as_tensor() if isinstance(image, MetaTensor) else image
    return plain.numpy(force=True) if isinstance(plain, torch.Tensor) else np.asarray(plain)


def tensor_like(values: np.ndarray, image: NdarrayOrTensor) -> torch.Tensor:
    """Values as a tensor; with the metadata of ``image`` where it is a MetaTensor."""
    tensor = torch.from_numpy(values)
    return MetaTensor(tensor, meta=dict(image.meta)) if isinstance(image, MetaTensor) else tensor
