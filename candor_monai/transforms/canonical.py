"""The canonical image of the encoders: 8 bits, one size, three channels."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from monai.config import KeysCollection, NdarrayOrTensor
from monai.transforms import MapTransform, Transform
from monai.utils import ensure_tuple

from ..data.decoding import CANONICAL_SIZE, canonical
from ..utils.errors import UserError
from .arrays import pixels_of, tensor_like


class CanonicalImage(Transform):
    """Squash to one size by Lanczos, in 8 bits, and repeat grey in three channels.

    Args:
        size: rows and columns, or one number for both; None keeps the original resolution.

    Raises:
        UserError: ``size`` is neither.
    """

    def __init__(self, size: int | tuple[int, int] | None = CANONICAL_SIZE) -> None:
        pair = isinstance(size, tuple | list) and len(size) == 2 and all(isinstance(side, int) for side in size)
        if not (pair or size is None or isinstance(size, int)):
            raise UserError(f"CanonicalImage size={size!r}: use a number, (rows, columns), or None for the original")
        self.size = size if size is None or isinstance(size, int) else (size[0], size[1])

    def __call__(self, image: NdarrayOrTensor) -> torch.Tensor:
        """The canonical image.

        Args:
            image: (1 or 3, rows, columns), uint8 or uint16.

        Returns:
            (3, rows, columns) uint8; a MetaTensor keeps its metadata.

        Raises:
            UserError: another type or shape: values must be displayed pixels, not floats of an unknown range.
        """
        pixels = pixels_of(image)
        if pixels.dtype not in (np.uint8, np.uint16) or pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
            raise UserError(
                f"CanonicalImage takes (1 or 3, rows, columns) uint8 or uint16, got {pixels.shape} {pixels.dtype}; "
                "load with LoadRadiographd, or with LoadImaged(reader=RadiographReader, dtype=None, "
                "ensure_channel_first=True)"
            )
        shown = pixels[0] if pixels.shape[0] == 1 else np.moveaxis(pixels, 0, -1)
        return tensor_like(canonical(shown, self.size), image)

    def boxes(self, boxes: NdarrayOrTensor, shape: tuple[int, int]) -> np.ndarray:
        """Boxes of a source image in the canonical image.

        Args:
            boxes: (n, 4) as x, y, width, height in pixels of the source; x counts columns, y rows, from the top left.
            shape: rows and columns of the source.

        Returns:
            (n, 4) float64 in pixels of the canonical image.
        """
        values = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
        if self.size is None:
            return values
        rows, columns = (self.size, self.size) if isinstance(self.size, int) else self.size
        scale = np.array([columns / shape[1], rows / shape[0]] * 2)
        return values * scale


class CanonicalImaged(MapTransform):
    """Dictionary version of :class:`CanonicalImage`; boxes follow their image.

    Args:
        keys: keys of the images.
        size: see :class:`CanonicalImage`.
        box_keys: for each image key the key of its boxes, or none.
        allow_missing_keys: do not raise when a key is absent.
    """

    def __init__(
        self,
        keys: KeysCollection,
        size: int | tuple[int, int] | None = CANONICAL_SIZE,
        box_keys: KeysCollection | None = None,
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, allow_missing_keys)
        self.canonical = CanonicalImage(size)
        self.box_keys = () if box_keys is None else ensure_tuple(box_keys)
        if self.box_keys and len(self.box_keys) != len(self.keys):
            raise UserError(f"CanonicalImaged has {len(self.keys)} image keys and {len(self.box_keys)} box keys")

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """The items with canonical images, and boxes in their pixels."""
        result = dict(data)
        box_key_of = dict(zip(ensure_tuple(self.keys), self.box_keys, strict=False))
        for key in self.key_iterator(result):
            shape = tuple(result[key].shape[-2:])
            result[key] = self.canonical(result[key])
            box_key = box_key_of.get(key)
            if box_key in result:
                result[box_key] = self.canonical.boxes(result[box_key], shape)
        return result
