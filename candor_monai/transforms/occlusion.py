"""Occlude annotated boxes or masks, or a control region of the same size."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from monai.config import KeysCollection, NdarrayOrTensor
from monai.transforms import MapTransform, Transform
from monai.utils import ensure_tuple

from ..data.occlusion import FILLS, MASK_MODES, Piece, box_pieces, control_pieces, mask_pieces, occluded, union
from ..utils.errors import DecodeError, UserError
from .arrays import pixels_of, tensor_like

REGIONS = ("finding", "control")


class OccludeBox(Transform):
    """Cover a finding's boxes or mask, all together, or their control region.

    Args:
        fill: ``mean``, ``zero``, ``blur`` or ``noise``, see :func:`candor_monai.data.occlusion.occluded`.
        region: ``finding``, or ``control``: the same sizes at the left-right mirrored position, or at a random one
            (from the seed and the image id) where that touches an annotation.
        masks: what of a mask is covered: its ``pixels``, each of its ``components``' bounding box, or one ``box``.
        seed: for the fill ``noise`` and the random control.

    Raises:
        UserError: a value is not one of those listed.
    """

    def __init__(self, fill: str = "mean", region: str = "finding", masks: str = "pixels", seed: int = 42) -> None:
        for name, value, allowed in (("fill", fill, FILLS), ("region", region, REGIONS), ("masks", masks, MASK_MODES)):
            if value not in allowed:
                raise UserError(f"OccludeBox {name}={value!r}: use one of {', '.join(allowed)}")
        self.fill, self.region, self.masks, self.seed = fill, region, masks, seed

    def __call__(
        self,
        image: NdarrayOrTensor,
        boxes: NdarrayOrTensor | None = None,
        mask: NdarrayOrTensor | None = None,
        others: NdarrayOrTensor | None = None,
        image_id: str = "",
    ) -> NdarrayOrTensor:
        """The image with the region covered.

        Args:
            image: (C, rows, columns), uint8 or uint16: the source image, before any resize.
            boxes: (n, 4) as x, y, width, height in pixels of the image.
            mask: (rows, columns) or (1, rows, columns), non-zero where the finding is.
            others: (m, 4) boxes of other findings, which a control must not touch either.
            image_id: names the image in the random choices.

        Returns:
            a copy of the image, of its type; a MetaTensor keeps its metadata.

        Raises:
            DecodeError: the region cannot be made; ``reason`` is a key of ``VIEW_REASONS``.
            UserError: neither boxes nor mask, or an image of another kind.
        """
        pixels = pixels_of(image)
        if pixels.ndim != 3 or pixels.dtype not in (np.uint8, np.uint16):
            raise UserError(f"OccludeBox takes (C, rows, columns) uint8 or uint16, got {pixels.shape} {pixels.dtype}")
        shape = (pixels.shape[1], pixels.shape[2])
        covered = union(self.pieces(shape, boxes, mask, others, image_id), shape)
        result = np.moveaxis(occluded(np.moveaxis(pixels, 0, -1), covered, self.fill, image_id, self.seed), -1, 0)
        result = np.ascontiguousarray(result)
        return tensor_like(result, image) if isinstance(image, torch.Tensor) else result

    def pieces(
        self,
        shape: tuple[int, int],
        boxes: NdarrayOrTensor | None = None,
        mask: NdarrayOrTensor | None = None,
        others: NdarrayOrTensor | None = None,
        image_id: str = "",
    ) -> list[Piece]:
        """The parts that are covered in an image of ``shape``; arguments as in the call."""
        found: list[Piece] = []
        if boxes is not None and len(boxes):
            found += box_pieces(np.asarray(boxes), shape)
        if mask is not None:
            array = np.asarray(mask)
            array = array[0] if array.ndim == 3 else array
            if array.shape != shape:
                raise UserError(f"the mask has shape {array.shape}, the image {shape}")
            found += mask_pieces(array, self.masks)
        if not found:
            raise UserError("OccludeBox needs boxes or a mask")
        if self.region == "finding":
            return found
        annotated = union(found, shape)
        if others is not None and len(others):
            annotated |= union(box_pieces(np.asarray(others), shape), shape)
        return control_pieces(found, annotated, image_id, self.seed)


class OccludeBoxd(MapTransform):
    """Dictionary version of :class:`OccludeBox`.

    Beside each image ``<key>_occluded`` (bool) and ``<key>_reason`` (text, empty when occluded) tell whether the region
    could be covered; where it could not the image is unchanged, so that batches still collate.

    Args:
        keys: keys of the images.
        box_key: key of the boxes (n, 4), or None.
        mask_key: key of the mask, or None.
        other_key: key of the boxes of other findings, or None.
        id_key: key of the image id, or None.
        fill, region, masks, seed: see :class:`OccludeBox`.
        allow_missing_keys: do not raise when an image key is absent.
    """

    def __init__(
        self,
        keys: KeysCollection,
        box_key: str | None = "boxes",
        mask_key: str | None = None,
        other_key: str | None = None,
        id_key: str | None = "image_id",
        fill: str = "mean",
        region: str = "finding",
        masks: str = "pixels",
        seed: int = 42,
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, allow_missing_keys)
        self.occlude = OccludeBox(fill, region, masks, seed)
        self.box_key, self.mask_key, self.other_key, self.id_key = box_key, mask_key, other_key, id_key

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """The items with their regions covered."""
        result = dict(data)
        boxes, mask, others = (
            None if key is None else data.get(key) for key in (self.box_key, self.mask_key, self.other_key)
        )
        image_id = "" if self.id_key is None else str(ensure_tuple(data.get(self.id_key, ""))[0])
        for key in self.key_iterator(result):
            reason = ""
            try:
                result[key] = self.occlude(data[key], boxes, mask, others, image_id)
            except DecodeError as error:
                reason = error.reason
            result[f"{key}_occluded"], result[f"{key}_reason"] = not reason, reason
        return result
