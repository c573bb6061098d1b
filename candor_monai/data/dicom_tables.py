"""Look-up tables and palettes of DICOM files."""

from __future__ import annotations

from typing import Any

import numpy as np

from candor_monai.utils.errors import DecodeError

from .dicom_header import Header
from .display_values import LookUpTable


def sequence_table(item: Any, signed: bool, little: bool) -> LookUpTable:
    """The look-up table of an item of a modality or VOI LUT sequence."""
    try:
        descriptor, data = item.get("LUTDescriptor"), item.get("LUTData")
    except Exception:
        raise DecodeError("bad_lut", "the look-up table cannot be read") from None
    return look_up_table(descriptor, data, signed, little)


def look_up_table(descriptor: Any, data: Any, signed: bool, little: bool) -> LookUpTable:
    """A table from its descriptor (entries, first input value, bits) and data."""
    try:
        count, first, bits = (int(value) for value in descriptor)
    except Exception:
        raise DecodeError("bad_lut", "the look-up table has no usable descriptor") from None
    count = (count & 0xFFFF) or 65536
    first &= 0xFFFF
    if signed and first >= 0x8000:
        first -= 0x10000
    if not 1 <= bits <= 16:
        raise DecodeError("bad_lut", f"a look-up table of {bits} bits")
    if isinstance(data, (bytes, bytearray)):
        if bits <= 8 and len(data) in (count, count + count % 2):
            entries: np.ndarray = np.frombuffer(data, dtype=np.uint8)[:count]
        else:
            entries = np.frombuffer(data[: len(data) // 2 * 2], dtype="<u2" if little else ">u2")
    else:
        try:
            entries = np.atleast_1d(np.array(data, dtype=np.int64)) & 0xFFFF
        except Exception:
            raise DecodeError("bad_lut", "the look-up table's entries are not numbers") from None
        if bits <= 8 and len(entries) == -(-count // 2) and count > 1:  # bytes packed in words
            entries = np.stack([entries & 0xFF, entries >> 8], axis=-1).reshape(-1)
    if len(entries) < count:
        raise DecodeError("bad_lut", f"a look-up table has {len(entries)} of {count} entries")
    return LookUpTable(first, bits, entries[:count].astype(np.uint16))


def palette(header: Header, stored: np.ndarray) -> np.ndarray:
    """RGB (uint8) of palette indices; of 16-bit palette entries the high byte is what a screen shows."""
    channels = []
    for colour in ("Red", "Green", "Blue"):
        descriptor = header.raw(f"{colour}PaletteColorLookupTableDescriptor")
        data = header.raw(f"{colour}PaletteColorLookupTableData")
        if data is None:
            data = _expanded_segments(header.raw(f"Segmented{colour}PaletteColorLookupTableData"), header.little)
        if descriptor is None or data is None:
            raise DecodeError("bad_lut", f"the {colour.lower()} palette is missing")
        channels.append(look_up_table(descriptor, data, stored.dtype.kind == "i", header.little))
    wide = any(table.bits > 8 and int(table.entries.max()) > 255 for table in channels)
    planes = []
    for table in channels:
        index = np.clip(stored.astype(np.int64) - table.first, 0, len(table.entries) - 1)
        planes.append((table.entries >> 8 if wide else table.entries)[index].astype(np.uint8))
    return np.stack(planes, axis=-1)


def _expanded_segments(data: Any, little: bool) -> list[int] | None:
    """Entries of a segmented palette (16-bit words), or None where there is none.

    Source: DICOM PS3.3 C.7.9.2.
    """
    if data is None:
        return None
    if not isinstance(data, (bytes, bytearray)):
        raise DecodeError("bad_lut", "the segmented palette is not given in words")
    words = np.frombuffer(data[: len(data) // 2 * 2], dtype="<u2" if little else ">u2").tolist()
    entries: list[int] = []

    def expand(position: int, limit: int, nested: bool) -> None:
        segments = 0
        while position + 1 < len(words) and segments < limit:
            kind, length = words[position], words[position + 1]
            if kind == 0:
                entries.extend(words[position + 2 : position + 2 + length])
                position += 2 + length
            elif kind == 1 and entries and position + 2 < len(words):
                steps = np.linspace(entries[-1], words[position + 2], length + 1)[1:]
                entries.extend(int(value) for value in np.rint(steps))
                position += 3
            elif kind == 2 and not nested and position + 3 < len(words):
                offset = words[position + 2] | words[position + 3] << 16
                expand(offset // 2, length, True)
                position += 4
            else:
                raise DecodeError("bad_lut", "the segmented palette cannot be expanded")
            segments += 1
            if len(entries) > 65536:
                raise DecodeError("bad_lut", "the segmented palette has more than 65536 entries")

    expand(0, len(words), False)
    return entries
