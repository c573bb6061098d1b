"""From stored values to display values: windows, tables, polarity, padding, full range."""

from __future__ import annotations

import numpy as np
import pytest

from candor_monai.data import display_values
from candor_monai.data.display_values import GreyMapping, LookUpTable, Window, displayed_grey, to_8_bit
from candor_monai.utils.errors import DecodeError


def shown(values: list[float], dtype: str = "u2", **mapping: object) -> list[int]:
    stored = np.array([values], dtype=dtype)
    fields = {"bits": 16, "signed": dtype[0] == "i", **mapping}
    return displayed_grey(stored, GreyMapping(**fields))[0].tolist()  # type: ignore[arg-type]


def test_by_hand():
    # centre 2, width 4: black up to 2 - 0.5 - 1.5 = 0, white from 3, 1.5 in the middle
    assert shown([0, 1, 2, 3, 9], voi=Window(2, 4)) == [0, 21845, 43690, 65535, 65535]
    assert shown([0, 1, 2, 3, 9], voi=Window(2, 4), inverted=True) == [65535, 43690, 21845, 0, 0]


@pytest.mark.parametrize(
    "window, expected",
    [
        (Window(2, 4, "LINEAR_EXACT"), [0, 16384, 32768, 49151, 65535]),
        (Window(2, 4, "SIGMOID"), [7812, 17625, 32768, 47910, 57723]),
        (Window(2, 1), [0, 0, 65535, 65535, 65535]),
        (Window(2, 0.5, "LINEAR_EXACT"), [0, 0, 32768, 65535, 65535]),
    ],
)
def test_window_functions(window: Window, expected: list[int]):
    assert shown([0, 1, 2, 3, 4], voi=window) == expected


@pytest.mark.parametrize("bad", [(1, 0), (1, 0.5), (1, -3), (float("nan"), 2), (1, float("inf"))])
def test_windows_that_cannot_be(bad: tuple[float, float]):
    with pytest.raises(ValueError):
        Window(*bad)
    with pytest.raises(ValueError):
        Window(1, 2, "CUBIC")


def test_full_range_of_the_image_or_of_the_type():
    assert shown([100, 150, 200]) == [0, 32768, 65535]
    assert shown([100, 150, 200], full_range="type") == [100, 150, 200]
    assert shown([-100, 0, 100], dtype="i2") == [0, 32768, 65535]
    assert shown([0, 100, 127], dtype="u1", bits=7, full_range="type") == [0, 201, 255]


@pytest.mark.parametrize("voi", [Window(2, 4, "LINEAR_EXACT"), LookUpTable(0, 8, np.array([0, 255], np.uint16))])
def test_black_and_white_are_looked_for_only_without_a_voi(voi, monkeypatch):
    expected = shown([0, 1, 2], voi=voi)
    monkeypatch.setattr(display_values, "_extremes", None)
    assert shown([0, 1, 2], voi=voi) == expected
    with pytest.raises(TypeError):
        shown([0, 1, 2])


def test_negative_slope_turns_dark_to_bright():
    assert shown([0, 100, 200], slope=-1.0, intercept=200.0) == [65535, 32768, 0]
    assert shown([0, 100, 200], slope=-1.0, intercept=200.0, voi=Window(100.5, 201)) == [65535, 32768, 0]
    assert shown([0, 1, 255], dtype="u1", bits=8, slope=-1.0, full_range="type") == [255, 254, 0]


def test_modality_comes_before_the_window():
    assert shown([0, 10, 20], slope=2.0, intercept=-20.0, voi=Window(0.5, 41)) == [0, 32768, 65535]


def test_look_up_tables_clamp_at_their_ends():
    table = LookUpTable(first=10, bits=8, entries=np.array([0, 51, 255], dtype=np.uint16))
    assert shown([0, 10, 11, 12, 99], voi=table) == [0, 0, 13107, 65535, 65535]
    negative = LookUpTable(first=-1, bits=8, entries=np.array([0, 255], dtype=np.uint16))
    assert shown([-5, -1, 0, 7], dtype="i2", voi=negative) == [0, 0, 65535, 65535]


def test_an_entry_above_the_declared_bits_widens_the_range():
    assert LookUpTable(0, 8, np.array([0, 1000], dtype=np.uint16)).top == 1023


def test_a_modality_table_that_is_not_monotone_keeps_its_range():
    table = LookUpTable(0, 16, np.array([500, 0, 1000], dtype=np.uint16))
    assert shown([0, 1, 2], modality_lut=table) == [32768, 0, 65535]


def test_padding_is_black_and_does_not_count():
    assert shown([4000, 0, 50, 100], padding=(4000, 4000)) == [0, 0, 32768, 65535]
    assert shown([4000, 0, 50, 100], padding=(4000, 4000), inverted=True) == [0, 65535, 32768, 0]
    assert shown([3000, 4000, 0, 100], padding=(3000, 4000)) == [0, 0, 0, 65535]
    # background and one value only: both are the image
    assert shown([0, 0, 7], padding=(0, 0)) == [0, 0, 65535]


def test_floats_are_mapped_and_not_a_number_is_black():
    assert shown([0.0, 0.5, 1.0], dtype="f4", bits=32) == [0, 32768, 65535]
    assert shown([np.nan, 0.25, 0.5, np.inf], dtype="f8", bits=64) == [0, 0, 65535, 0]


@pytest.mark.parametrize(
    "values, dtype, mapping, reason",
    [
        ([7, 7, 7], "u2", {}, "constant"),
        ([0, 0, 0], "u1", {"bits": 8}, "constant"),
        ([np.nan, np.nan], "f4", {"bits": 32}, "not_finite"),
        ([1, 2, 3], "u2", {"voi": Window(1000, 2)}, "blank_display"),
        ([1, 2, 3], "u2", {"modality_lut": LookUpTable(50, 8, np.array([4, 9], dtype=np.uint16))}, "blank_display"),
    ],
)
def test_images_that_show_nothing(values: list[float], dtype: str, mapping: dict, reason: str):
    with pytest.raises(DecodeError) as error:
        shown(values, dtype, **mapping)
    assert error.value.reason == reason


def test_the_table_equals_the_direct_mapping():
    random = np.random.default_rng(3)
    stored = random.integers(-2000, 3000, (40, 50)).astype(np.int16)
    for voi in (Window(40, 400), Window(40, 400, "SIGMOID"), None):
        mapping = GreyMapping(bits=16, signed=True, slope=1.5, intercept=-7.0, voi=voi, inverted=True)
        wide = displayed_grey(stored.astype(np.float64), mapping)
        np.testing.assert_array_equal(displayed_grey(stored, mapping), wide)


def test_16_to_8_bit_is_rounding_by_257():
    every = np.arange(65536, dtype=np.uint16)
    np.testing.assert_array_equal(to_8_bit(every), np.rint(every / 257).astype(np.uint8))
    np.testing.assert_array_equal(to_8_bit(np.arange(256, dtype=np.uint16) * 257), np.arange(256))
