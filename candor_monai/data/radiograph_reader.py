"""A MONAI image reader for radiographs, as displayed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from monai.config import PathLike
from monai.data import ImageReader
from monai.utils import ensure_tuple

from .decode_pool import shared_pool
from .decoded_image import DecodedImage, DecodeOptions
from .decoding import decode


class RadiographReader(ImageReader):
    """Reads DICOM, PNG, JPEG, TIFF and NIfTI to the pixels a radiologist's viewer shows.

    ``LoadImaged(keys="image", reader=RadiographReader)`` works. Unlike MONAI's own readers the array is rows × columns
    (a 20 columns × 30 rows PNG gives (30, 20)), windowed, and never inverted; its metadata is the fixed set of
    :class:`candor_monai.data.ImageMeta`, so files with different headers collate and nothing about a patient travels.

    Args:
        options: a :class:`DecodeOptions`, or None for its defaults; single options can be given by name instead.
        isolated: decode in a bounded worker process (default), or in this one (trusted files).
        kwargs: options of :class:`DecodeOptions`.

    Raises:
        UserError: an option has a value that does not exist.
    """

    def __init__(self, options: DecodeOptions | None = None, isolated: bool = True, **kwargs: Any) -> None:
        super().__init__()
        self.options = DecodeOptions(**kwargs) if options is None else options
        self.isolated = isolated

    def verify_suffix(self, filename: Sequence[PathLike] | PathLike) -> bool:
        """True: the format is told by the content, never by the name."""
        return True

    def read(self, data: Sequence[PathLike] | PathLike | bytes, **kwargs: Any) -> list[PathLike | bytes]:
        """The paths (or the files' bytes), as a list; they are opened by :meth:`get_data`.

        MONAI's ``LoadImage`` wraps what this method raises into a RuntimeError that blames missing libraries; what
        ``get_data`` raises arrives as it is.
        """
        return [data] if isinstance(data, (bytes, bytearray)) else list(ensure_tuple(data))

    def get_data(self, img: Sequence[PathLike | bytes]) -> tuple[np.ndarray, dict[str, Any]]:
        """Pixels and metadata of one image.

        Args:
            img: what :meth:`read` gave; one file.

        Returns:
            (rows, columns) or (rows, columns, 3), uint8 or uint16, and the fields of ``ImageMeta`` with MONAI's
            ``original_channel_dim`` and ``spatial_shape``.

        Raises:
            DecodeError: the file cannot be shown.
            ValueError: more than one file.
        """
        sources = ensure_tuple(img)
        if len(sources) != 1:
            raise ValueError(f"a radiograph is one file, got {len(sources)}")
        image = self.decode(sources[0])
        meta: dict[str, Any] = image.meta.as_dict()
        meta["original_channel_dim"] = float("nan") if image.pixels.ndim == 2 else -1
        meta["spatial_shape"] = np.asarray(image.pixels.shape[:2])
        return image.pixels, meta

    def decode(self, source: PathLike | bytes) -> DecodedImage:
        """The image of a file, by a worker or here."""
        if not isinstance(source, bytes):
            source = os.fspath(source)
        return shared_pool(self.options).decode(source) if self.isolated else decode(source, self.options)
