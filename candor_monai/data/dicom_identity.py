"""Which object a DICOM file is, from its first elements alone: no pixel is read and nothing is inflated."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from .dicom_header import BIG_ENDIAN, DEFLATED

_IMPLICIT = "1.2.840.10008.1.2"
# Value representations whose length takes four bytes.
_LONG = (b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV")
_UNDEFINED = 0xFFFFFFFF


def stated_instance(data: bytes) -> str | None:
    """SOPInstanceUID of a DICOM Part 10 file.

    Args:
        data: the file.

    Returns:
        that of the data set; where it cannot be read (deflated, big endian), that of the file meta information; None
        where neither says it.

    >>> meta = b"\\x02\\x00\\x03\\x00UI\\x04\\x001.4\\x00"
    >>> stated_instance(bytes(128) + b"DICM" + meta), stated_instance(bytes(128) + b"DICM")
    ('1.4', None)
    """
    syntax, uid, start = "", None, 132
    for group, element, begin, length in _elements(data, 132, implicit=False):
        if group != 0x0002:
            break
        start = begin + length
        if element == 0x0003:
            uid = _text(data, begin, length)
        elif element == 0x0010:
            syntax = _text(data, begin, length) or ""
    if syntax not in (DEFLATED, BIG_ENDIAN):
        for group, element, begin, length in _elements(data, start, implicit=syntax == _IMPLICIT):
            if (group, element) == (0x0008, 0x0018):
                return _text(data, begin, length) or uid
            if (group, element) > (0x0008, 0x0018):
                break
    return uid


def _elements(data: bytes, position: int, implicit: bool) -> Iterator[tuple[int, int, int, int]]:
    """Group, element, and where the value begins and how long it is; as long as tags rise and lengths are known."""
    last = (-1, -1)
    while position + 12 <= len(data):
        group, element = struct.unpack_from("<HH", data, position)
        if implicit:
            begin, length = position + 8, struct.unpack_from("<I", data, position + 4)[0]
        elif data[position + 4 : position + 6] in _LONG:
            begin, length = position + 12, struct.unpack_from("<I", data, position + 8)[0]
        else:
            begin, length = position + 8, struct.unpack_from("<H", data, position + 6)[0]
        if (group, element) <= last:
            return
        yield group, element, begin, length
        if length == _UNDEFINED:
            return
        position, last = begin + length, (group, element)


def _text(data: bytes, begin: int, length: int) -> str | None:
    return data[begin : begin + min(length, 64)].decode("ascii", "replace").strip("\0 ") or None
