"""NIfTI files that hold one 2-D image, as displayed.

The first axis of a NIfTI array is the column, the second the row, the third the frame; nothing is flipped. This is how
SimpleITK and MONAI write 2-D images. A made-up or real affine plays no part.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

from candor_monai.utils.errors import DecodeError

from .decoded_image import DecodedImage, DecodeOptions, ImageMeta, check_not_constant, stored_range
from .display_values import GreyMapping, displayed_grey


def is_nifti(data: bytes) -> bool:
    """Whether a file is NIfTI-1 or NIfTI-2, gzipped or not, by its content."""
    head = _inflated(data, 1024)[:1024] if data[:2] == b"\x1f\x8b" else data[:1024]
    return head[344:347] in (b"n+1", b"ni1") or head[4:7] in (b"n+2", b"ni2")


def decode_nifti(data: bytes, options: DecodeOptions) -> DecodedImage:
    """The image of a NIfTI file.

    Raises:
        DecodeError: see ``decoded_image.REASONS``.
    """
    if data[:2] == b"\x1f\x8b":
        data = _inflated(data, options.max_bytes + 1)
        if len(data) > options.max_bytes:
            raise DecodeError("too_large", f"the file inflates to more than {options.max_bytes} bytes")
    if data[344:347] == b"ni1" or data[4:7] == b"ni2":
        raise DecodeError("unsupported", "a NIfTI header whose pixels stand in another file")
    import nibabel

    try:
        kind = nibabel.Nifti2Image if data[4:7] == b"n+2" else nibabel.Nifti1Image
        image = kind.from_bytes(data)
        shape = tuple(int(size) for size in image.shape)
        stored_type = image.get_data_dtype()
        proxy: Any = image.dataobj
        begin, slope, intercept = int(proxy.offset), float(proxy.slope), float(proxy.inter)
    except MemoryError:
        raise
    except Exception as error:
        raise DecodeError("corrupt", f"the NIfTI header cannot be parsed ({type(error).__name__})") from None
    frames = int(np.prod(shape[2:], dtype=np.int64)) if len(shape) > 2 else 1
    if len(shape) < 2 or min(shape) < 1:
        raise DecodeError("bad_header", f"a NIfTI array of shape {shape} is no image")
    columns, rows = shape[:2]
    options.check_size(rows, columns)
    frame = options.chosen_frame(frames)
    size = rows * columns * stored_type.itemsize
    if begin < 0 or len(data) < begin + size * frames:
        raise DecodeError("truncated", f"pixel data: {size * frames} bytes expected, {max(len(data) - begin, 0)} found")
    raw = np.frombuffer(data, dtype=stored_type, count=rows * columns, offset=begin + size * frame)
    return _shown(raw.reshape(rows, columns), slope, intercept, frame, frames, options)


def _shown(
    stored: np.ndarray, slope: float, intercept: float, frame: int, frames: int, options: DecodeOptions
) -> DecodedImage:
    bits, signed, modality, voi = stored.dtype.itemsize * 8, stored.dtype.kind != "u", "none", "none"
    if stored.dtype.names == ("R", "G", "B"):
        pixels = values = np.stack([stored[name] for name in ("R", "G", "B")], axis=-1)
        photometric, bits, signed = "RGB", 8, False
        check_not_constant(pixels)
    elif stored.dtype.kind in "iuf":
        values = stored.astype(stored.dtype.newbyteorder("="))
        photometric = "GREY"
        scaled = np.isfinite(slope) and np.isfinite(intercept) and slope != 0 and (slope, intercept) != (1.0, 0.0)
        modality = "rescale" if scaled else "none"
        full_range = "type" if (bits <= 8 or options.full_range == "type") and stored.dtype.kind != "f" else "image"
        if options.full_range == "image" or bits > 16:
            full_range = "image"
        voi = "none" if full_range == "type" else "full_range"
        pixels = displayed_grey(
            values,
            GreyMapping(
                bits=bits,
                signed=signed,
                slope=slope if scaled else 1.0,
                intercept=intercept if scaled else 0.0,
                full_range=full_range,
            ),
        )
    else:
        raise DecodeError("unsupported", "a NIfTI data type that is no grey value and no RGB")
    import nibabel

    return DecodedImage(
        np.ascontiguousarray(pixels),
        ImageMeta(
            format="nifti",
            rows=pixels.shape[0],
            columns=pixels.shape[1],
            channels=1 if pixels.ndim == 2 else 3,
            photometric=photometric,
            inverted=False,
            bits_stored=bits,
            signed=signed,
            **stored_range(values),
            modality=modality,
            voi=voi,
            transfer_syntax="",
            codec=f"nibabel {nibabel.__version__}",
            frame=frame,
            frames=frames,
            notes="",
        ),
    )


def _inflated(data: bytes, limit: int) -> bytes:
    """At most ``limit`` bytes of a gzipped file; what can be read of a broken one is told by its length."""
    inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        return inflater.decompress(data, limit)
    except (zlib.error, struct.error):
        return b""
