"""Image files to what a radiologist's viewer shows, bounded; and the canonical image of the encoders.

Neither torch nor MONAI is imported here: worker processes start in a fifth of a second and run under a small memory
limit. For files of unknown origin use :class:`candor_monai.data.DecodePool`, which calls :func:`decode` in such
processes; :func:`decode` itself runs in the caller's.
"""

from __future__ import annotations

import os
import stat as stat_module

import numpy as np

from candor_monai.utils.errors import DecodeError, UserError

from .decoded_image import REASONS, DecodedImage, DecodeOptions, ImageMeta
from .dicom_files import decode_dicom, has_preamble, is_bare_dicom
from .display_values import to_8_bit
from .nifti_files import decode_nifti, is_nifti
from .raster_files import decode_raster, raster_format

__all__ = ["REASONS", "DecodeOptions", "DecodedImage", "ImageMeta", "canonical", "decode", "read_source"]

CANONICAL_SIZE = 224


def decode(source: str | os.PathLike[str] | bytes, options: DecodeOptions | None = None) -> DecodedImage:
    """Decode one image to the pixels a viewer displays: rows × columns, 0 black.

    The format is told by the content, never by the name.

    Args:
        source: path of a file, or its bytes.
        options: see :class:`DecodeOptions`.

    Returns:
        pixels (rows, columns) or (rows, columns, 3), uint8 or uint16, and their metadata.

    Raises:
        DecodeError: the file cannot be shown; ``reason`` is a key of :data:`REASONS`. The message holds no header text.

    >>> import io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3)).save(file, "PNG")
    >>> decode(file.getvalue()).pixels.tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    options = options or DecodeOptions()
    data = source if isinstance(source, bytes) else read_source(source, options)
    try:
        return _decode(data, options)
    except DecodeError:
        raise
    except MemoryError:
        raise DecodeError("memory", "decoding needs more memory than there is") from None
    except RecursionError:
        raise DecodeError("corrupt", "structures are nested too deeply") from None
    except Exception as error:  # one bad file is one rejected row, whatever it does; its text is not repeated
        raise DecodeError("failed", f"decoding stopped with {type(error).__name__}") from None


def _decode(data: bytes, options: DecodeOptions) -> DecodedImage:
    if not data:
        raise DecodeError("empty_file", "the file holds no bytes")
    if has_preamble(data):  # first: a DICOM preamble may hold a TIFF header (dual-format files)
        return decode_dicom(data, options)
    raster = raster_format(data)
    if raster:
        return decode_raster(data, raster, options)
    if is_nifti(data):
        return decode_nifti(data, options)
    if is_bare_dicom(data):
        return decode_dicom(data, options)
    if data.startswith(b"version https://git-lfs"):
        raise DecodeError("unknown_format", "this is a Git LFS pointer, not the image; fetch the file (git lfs pull)")
    raise DecodeError("unknown_format", f"the {len(data)} bytes are none of DICOM, PNG, JPEG, TIFF, NIfTI")


def read_source(path: str | os.PathLike[str], options: DecodeOptions, expected: tuple[int, int] | None = None) -> bytes:
    """The bytes of an image file.

    Args:
        path: the file.
        options: its ``max_bytes`` bounds the file.
        expected: (size in bytes, modification time in ns) that the file had when the cohort was read.

    Raises:
        DecodeError: ``not_found``, ``vanished``, ``unreadable``, ``changed``, ``empty_file`` or ``too_large``.
    """
    try:
        with open(path, "rb") as file:
            before = os.fstat(file.fileno())
            if not stat_module.S_ISREG(before.st_mode):
                raise DecodeError("unreadable", "the path is no regular file")
            if before.st_size > options.max_bytes:
                raise DecodeError("too_large", f"{before.st_size} bytes, allowed are {options.max_bytes}")
            data = file.read(before.st_size)
            after = os.fstat(file.fileno())
    except ValueError as error:
        if isinstance(error, DecodeError):
            raise
        raise DecodeError("not_found", "there is no file at this path: it holds a zero byte") from None
    except FileNotFoundError:
        if expected is None:
            raise DecodeError("not_found", "there is no file at this path") from None
        raise DecodeError("vanished", "the file is gone since the cohort was read") from None
    except OSError as error:
        raise DecodeError("unreadable", f"the file cannot be read ({os.strerror(error.errno or 5)})") from None
    seen = (before.st_size, before.st_mtime_ns)
    if seen != (after.st_size, after.st_mtime_ns) or (expected is not None and seen != tuple(expected)):
        raise DecodeError("changed", "the file changed since the cohort was read")
    if not data:
        raise DecodeError("empty_file", "the file holds no bytes")
    return data


def canonical(image: DecodedImage | np.ndarray, size: int | tuple[int, int] | None = CANONICAL_SIZE) -> np.ndarray:
    """The canonical image: 8 bits, squashed to one size by Lanczos, three channels.

    16-bit pixels become 8-bit first (round(v / 257)); then the resize runs in 8 bits, as it would on a PNG.

    Args:
        image: decoded image, or its pixels (rows, columns) or (rows, columns, 3), uint8 or uint16.
        size: rows and columns, or one number for both; None keeps the original resolution.

    Returns:
        (3, rows, columns) uint8; grey is repeated in the three channels.

    Raises:
        UserError: size is no positive number.

    Source: arXiv 2607.18451 (224 × 224, Lanczos, squash).
    """
    return channels_first(squashed(image.pixels if isinstance(image, DecodedImage) else image, size))


def channels_first(pixels: np.ndarray) -> np.ndarray:
    """(3, rows, columns) of pixels (rows, columns), repeated, or (rows, columns, 3)."""
    if pixels.ndim == 2:
        return np.repeat(pixels[None], 3, axis=0)
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 0))


def squashed(pixels: np.ndarray, size: int | tuple[int, int] | None) -> np.ndarray:
    """8-bit pixels of the given size, (rows, columns) or (rows, columns, 3)."""
    pixels = to_8_bit(pixels)
    if size is None:
        return pixels
    rows, columns = (size, size) if isinstance(size, int) else size
    if isinstance(size, bool) or rows < 1 or columns < 1:
        raise UserError(f"canonical size {size!r}: use a positive number of pixels, or None for the original")
    if pixels.shape[:2] == (rows, columns):
        return pixels
    from PIL import Image

    return np.asarray(Image.fromarray(pixels).resize((columns, rows), Image.Resampling.LANCZOS))
