"""Look-up tables and palettes as DICOM files write them."""

from __future__ import annotations

import numpy as np
import pytest

from candor_monai.data.decoding import decode
from candor_monai.data.dicom_tables import look_up_table
from candor_monai.utils.errors import DecodeError
from tests.data.dicom_corpus import dicom_bytes


def words(*values: int) -> bytes:
    return np.array(values, dtype="<u2").tobytes()


def test_by_hand():
    table = look_up_table([3, 10, 8], [0, 100, 255], signed=False, little=True)
    assert (table.first, table.bits, table.entries.tolist()) == (10, 8, [0, 100, 255])


@pytest.mark.parametrize(
    "descriptor, data, signed, little, expected",
    [
        ([3, 0, 16], words(1, 2, 3), False, True, (0, [1, 2, 3])),
        ([3, 0, 16], np.array([1, 2, 3], dtype=">u2").tobytes(), False, False, (0, [1, 2, 3])),
        ([4, 0, 8], bytes([1, 2, 3, 4]), False, True, (0, [1, 2, 3, 4])),  # a byte an entry
        ([3, 0, 8], bytes([1, 2, 3, 0]), False, True, (0, [1, 2, 3])),  # and its padding
        ([4, 0, 8], [0x0201, 0x0403], False, True, (0, [1, 2, 3, 4])),  # two in a word
        ([2, 65535, 8], [5, 6], True, True, (-1, [5, 6])),
        ([2, -1, 8], [5, 6], False, True, (65535, [5, 6])),
        ([2, 0, 16], [1, 2, 3, 4], False, True, (0, [1, 2])),
    ],
)
def test_ways_to_write_a_table(descriptor, data, signed, little, expected):
    table = look_up_table(descriptor, data, signed, little)
    assert (table.first, table.entries.tolist()) == expected


def test_no_entries_means_65536():
    assert len(look_up_table([0, 0, 16], list(range(65536)), False, True).entries) == 65536


@pytest.mark.parametrize(
    "descriptor, data",
    [
        (None, [1, 2]),
        ([2, 0], [1, 2]),
        (["a", 0, 8], [1, 2]),
        ([2, 0, 0], [1, 2]),
        ([2, 0, 17], [1, 2]),
        ([3, 0, 16], [1, 2]),
        ([2, 0, 16], None),
        ([2, 0, 16], ["x", "y"]),
        ([5, 0, 16], b"\1\2\3"),
    ],
)
def test_tables_that_cannot_be(descriptor, data):
    with pytest.raises(DecodeError) as error:
        look_up_table(descriptor, data, False, True)
    assert error.value.reason == "bad_lut"


def segmented(red: bytes) -> bytes:
    index = np.arange(6, dtype=np.uint8).reshape(2, 3)
    attributes: dict[str, object] = {}
    for colour in ("Red", "Green", "Blue"):
        attributes[f"{colour}PaletteColorLookupTableDescriptor"] = [6, 0, 16]
        flat = words(0, 6, *[0x0500] * 6)
        attributes[f"Segmented{colour}PaletteColorLookupTableData"] = red if colour == "Red" else flat
    return dicom_bytes(index, photometric="PALETTE COLOR", **attributes)


@pytest.mark.parametrize(
    "data, red",
    [
        (words(0, 6, 0, 256, 512, 768, 1024, 1280), [0, 1, 2, 3, 4, 5]),
        (words(0, 1, 0, 1, 5, 1280), [0, 1, 2, 3, 4, 5]),  # a line from 0 to 1280
        (words(0, 3, 0, 256, 512, 2, 1, 0, 0), [0, 1, 2, 0, 1, 2]),  # the first segment again
    ],
)
def test_segmented_palettes(data: bytes, red: list[int]):
    pixels = decode(segmented(data)).pixels
    assert pixels[..., 0].reshape(-1).tolist() == red
    assert (pixels[..., 1:] == 5).all()


@pytest.mark.parametrize(
    "data",
    [
        words(1, 2, 5),  # a line from nowhere
        words(7, 2, 5, 5),
        words(0, 2, 1, 2),  # too few entries
        words(2, 1, 0, 0),  # refers to itself
        words(0, 1, 0, *[1, 65535, 9] * 2),  # too many
    ],
)
def test_segmented_palettes_that_cannot_be(data: bytes):
    with pytest.raises(DecodeError) as error:
        decode(segmented(data))
    assert error.value.reason == "bad_lut"
