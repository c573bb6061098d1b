"""Compressed frames out of DICOM's encapsulated pixel data.

Source: DICOM PS3.5 A.4.
"""

from __future__ import annotations

import struct

from candor_monai.utils.errors import DecodeError

_ITEM = b"\xfe\xff\x00\xe0"
_END = b"\xfe\xff\xdd\xe0"


def frame_bytes(data: bytes, frames: int, frame: int, offsets: bytes = b"", lengths: bytes = b"") -> bytes:
    """The compressed bytes of one frame.

    Args:
        data: the pixel data element's value: basic offset table item, then fragments.
        frames: number of frames of the file.
        frame: the wanted one, from 0.
        offsets, lengths: the extended offset table and its lengths, where the file has them.

    Raises:
        DecodeError: ``corrupt`` not items; ``truncated`` an item runs past the end; ``bad_header`` fragments cannot be
            assigned to frames.
    """
    table, fragments = _items(data)
    if not fragments:
        raise DecodeError("truncated", "the compressed pixel data holds no fragment (expected at least 1, found 0)")
    if frames == 1:
        return b"".join(data[start:stop] for _, start, stop in fragments)
    if offsets and lengths:
        begin, size = (_numbers(buffer, "Q", frame) for buffer in (offsets, lengths))
        parts = [item for item in fragments if item[0] == begin]
        if len(parts) != 1 or size > parts[0][2] - parts[0][1]:
            raise DecodeError("bad_header", "the extended offset table points to no fragment")
        return data[parts[0][1] : parts[0][1] + size]
    if table:
        begin = _numbers(table, "I", frame)
        end = _numbers(table, "I", frame + 1) if frame + 1 < frames else 1 << 62
        parts = [item for item in fragments if begin <= item[0] < end]
        if not parts or parts[0][0] != begin:
            raise DecodeError("bad_header", "the basic offset table points to no fragment")
        return b"".join(data[start:stop] for _, start, stop in parts)
    if len(fragments) != frames:
        raise DecodeError(
            "bad_header", f"{len(fragments)} fragments without an offset table cannot be assigned to {frames} frames"
        )
    return data[fragments[frame][1] : fragments[frame][2]]


def _items(data: bytes) -> tuple[bytes, list[tuple[int, int, int]]]:
    """The basic offset table and the fragments as (offset as offset tables count it, start, stop)."""
    items: list[tuple[int, int]] = []
    position = 0
    while position + 8 <= len(data):
        tag, length = data[position : position + 4], struct.unpack_from("<I", data, position + 4)[0]
        if tag == _END:
            break
        if tag != _ITEM or length == 0xFFFFFFFF:
            raise DecodeError("corrupt", f"byte {position} of the compressed pixel data starts no item")
        start = position + 8
        if start + length > len(data):
            raise DecodeError(
                "truncated", f"a fragment of the pixel data has {len(data) - start} of its {length} bytes"
            )
        items.append((start, start + length))
        position = start + length
    if not items:
        return b"", []
    first = items[0][1]
    return data[items[0][0] : first], [(start - 8 - first, start, stop) for start, stop in items[1:]]


def _numbers(buffer: bytes, kind: str, index: int) -> int:
    """Entry ``index`` of an offset table of little-endian unsigned numbers."""
    size = struct.calcsize("<" + kind)
    if (index + 1) * size > len(buffer):
        raise DecodeError("bad_header", f"the offset table has no entry for frame {index}")
    return int(struct.unpack_from("<" + kind, buffer, index * size)[0])
