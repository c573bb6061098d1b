"""Stored values of uncompressed DICOM pixel data.

Source: DICOM PS3.5 section 8.
"""

from __future__ import annotations

import numpy as np

from candor_monai.utils.errors import DecodeError

from . import codecs
from .dicom_header import Header


def native(header: Header, data: bytes, about: codecs.Frame, frames: int, frame: int) -> tuple[np.ndarray, str]:
    """Stored values of uncompressed pixel data, and their photometric interpretation."""
    pixels = about.rows * about.columns
    if about.bits_allocated == 1:
        bits = pixels * about.samples
        _need(len(data), -(-bits * frames // 8), "pixel data")
        first = bits * frame
        packed = np.frombuffer(data, dtype=np.uint8, count=-(-(first + bits) // 8) - first // 8, offset=first // 8)
        if not header.little and header.dataset["PixelData"].VR == "OW":
            raise DecodeError("unsupported", "single bits in big-endian words are not handled")
        unpacked = np.unpackbits(packed, bitorder="little")[first % 8 : first % 8 + bits]
        return unpacked.reshape(about.rows, about.columns), about.photometric
    size = about.bits_allocated // 8
    subsampled = about.photometric == "YBR_FULL_422"
    per_frame = pixels * 2 * size if subsampled else pixels * about.samples * size
    if subsampled and about.columns % 2:
        raise DecodeError("bad_header", f"{about.columns} columns cannot be sub-sampled in pairs")
    _need(len(data), per_frame * frames, "pixel data")
    excess = len(data) - per_frame * frames
    if excess > 1 or (excess == 1 and per_frame * frames % 2 == 0):
        header.notes.append("excess_bytes")
    order = "<" if header.little else ">"
    if size == 1 and not header.little and header.dataset["PixelData"].VR == "OW":
        even = data[: per_frame * frames + per_frame * frames % 2]
        _need(len(even), per_frame * frames + per_frame * frames % 2, "pixel data")
        data = np.frombuffer(even, dtype=">u2").astype("<u2").tobytes()
    flat = np.frombuffer(data, dtype=f"{order}u{size}", count=per_frame // size, offset=per_frame * frame)
    flat = _used_bits(header, flat, about)
    if subsampled:
        pairs = flat.reshape(-1, 4)
        rgb = np.empty((len(pairs), 2, 3), dtype=flat.dtype)
        rgb[:, 0, 0], rgb[:, 1, 0] = pairs[:, 0], pairs[:, 1]
        rgb[:, :, 1], rgb[:, :, 2] = pairs[:, 2:3], pairs[:, 3:4]
        return rgb.reshape(about.rows, about.columns, 3), "YBR_FULL"
    if about.samples == 1:
        return flat.reshape(about.rows, about.columns), about.photometric
    planar = header.integer("PlanarConfiguration", 0)
    if planar not in (0, 1):
        header.notes.append("planar_configuration_ignored")
    if planar == 1:
        return np.moveaxis(flat.reshape(about.samples, about.rows, about.columns), 0, -1), about.photometric
    return flat.reshape(about.rows, about.columns, about.samples), about.photometric


def _used_bits(header: Header, values: np.ndarray, about: codecs.Frame) -> np.ndarray:
    """Values of the stored bits alone, with their sign, in the machine's byte order."""
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    high = header.integer("HighBit", about.bits_stored - 1)
    if not about.bits_stored - 1 <= high < about.bits_allocated:
        header.notes.append("high_bit_ignored")
        high = about.bits_stored - 1
    unused = about.bits_allocated - about.bits_stored
    if not unused:
        return values.view(values.dtype.str.replace("u", "i")) if about.signed else values
    shifted = values << (about.bits_allocated - 1 - high)
    if about.signed:
        shifted = shifted.view(shifted.dtype.str.replace("u", "i"))
    return shifted >> unused


def native_float(data: bytes, about: codecs.Frame, frames: int, frame: int, little: bool) -> np.ndarray:
    size = about.bits_allocated // 8
    count = about.rows * about.columns
    _need(len(data), count * size * frames, "pixel data")
    values = np.frombuffer(data, dtype=f"{'<' if little else '>'}f{size}", count=count, offset=count * size * frame)
    return values.reshape(about.rows, about.columns).astype(f"f{size}", copy=False)


def _need(found: int, expected: int, what: str) -> None:
    if found < expected:
        raise DecodeError("truncated", f"{what}: {expected} bytes expected, {found} found")
