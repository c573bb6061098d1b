"""Load radiographs as they are displayed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from monai.config import KeysCollection, PathLike
from monai.data import MetaTensor
from monai.transforms import MapTransform, Transform

from ..data.decoded_image import DecodeOptions
from ..data.radiograph_reader import RadiographReader


class LoadRadiograph(Transform):
    """Load one image file to the pixels a viewer shows, channel first.

    Args:
        options: a :class:`candor_monai.data.DecodeOptions`, or None for its defaults.
        isolated: decode in a bounded worker process (default), or in this one (trusted files).
        kwargs: options of ``DecodeOptions`` by name (``voi="window"``, ``frame=0``, …).
    """

    def __init__(self, options: DecodeOptions | None = None, isolated: bool = True, **kwargs: Any) -> None:
        self.reader = RadiographReader(options, isolated, **kwargs)

    def __call__(self, source: PathLike | bytes) -> MetaTensor:
        """Pixels of a file.

        Args:
            source: path, or the file's bytes.

        Returns:
            (1 or 3, rows, columns), uint8 or uint16, 0 black; ``meta`` holds the fields of ``ImageMeta`` alone.

        Raises:
            DecodeError: the file cannot be shown.
        """
        pixels, meta = self.reader.get_data(self.reader.read(source))
        del meta["spatial_shape"]
        meta["original_channel_dim"] = 0
        image = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
        return MetaTensor(torch.from_numpy(np.ascontiguousarray(image)), meta=meta)


class LoadRadiographd(MapTransform):
    """Dictionary version of :class:`LoadRadiograph`.

    Args:
        keys: keys of the paths.
        options, isolated, kwargs: see :class:`LoadRadiograph`.
        allow_missing_keys: do not raise when a key is absent.
    """

    def __init__(
        self,
        keys: KeysCollection,
        options: DecodeOptions | None = None,
        isolated: bool = True,
        allow_missing_keys: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(keys, allow_missing_keys)
        self.load = LoadRadiograph(options, isolated, **kwargs)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """The items with each path replaced by its pixels."""
        result = dict(data)
        for key in self.key_iterator(result):
            result[key] = self.load(result[key])
        return result
