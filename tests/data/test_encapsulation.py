"""Frames out of encapsulated pixel data."""

from __future__ import annotations

import struct

import pytest

from candor_monai.data.encapsulation import frame_bytes
from candor_monai.utils.errors import DecodeError


def item(data: bytes) -> bytes:
    return b"\xfe\xff\x00\xe0" + struct.pack("<I", len(data)) + data


END = b"\xfe\xff\xdd\xe0\0\0\0\0"


def test_one_frame_in_two_fragments():
    assert frame_bytes(item(b"") + item(b"ab") + item(b"cd") + END, 1, 0) == b"abcd"


def test_frames_by_the_basic_offset_table():
    table = struct.pack("<II", 0, 20)
    data = item(table) + item(b"ab") + item(b"cd") + item(b"ef") + END
    assert frame_bytes(data, 2, 0) == b"abcd"
    assert frame_bytes(data, 2, 1) == b"ef"


def test_frames_by_the_extended_offset_table():
    data = item(b"") + item(b"ab") + item(b"cde\0") + END
    offsets, lengths = struct.pack("<QQ", 0, 10), struct.pack("<QQ", 2, 3)
    assert frame_bytes(data, 2, 1, offsets, lengths) == b"cde"


def test_without_a_table_each_fragment_is_a_frame():
    data = item(b"") + item(b"ab") + item(b"cd") + END
    assert frame_bytes(data, 2, 1) == b"cd"


@pytest.mark.parametrize(
    "data, frames, frame, reason",
    [
        (item(b"") + END, 1, 0, "truncated"),
        (b"", 1, 0, "truncated"),
        (item(b"") + item(b"abcd")[:-2], 1, 0, "truncated"),
        (item(b"") + b"garbage!" + item(b"ab"), 1, 0, "corrupt"),
        (item(b"") + b"\xfe\xff\x00\xe0\xff\xff\xff\xff", 1, 0, "corrupt"),
        (item(b"") + item(b"ab"), 2, 1, "bad_header"),
        (item(struct.pack("<I", 0)) + item(b"ab"), 2, 1, "bad_header"),
        (item(struct.pack("<II", 0, 999)) + item(b"ab"), 2, 1, "bad_header"),
    ],
)
def test_broken_encapsulation(data: bytes, frames: int, frame: int, reason: str):
    with pytest.raises(DecodeError) as error:
        frame_bytes(data, frames, frame)
    assert error.value.reason == reason
