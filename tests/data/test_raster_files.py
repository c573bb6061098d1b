"""PNG, JPEG and TIFF files as displayed."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image

from candor_monai.data.decoding import DecodeOptions, canonical, decode
from candor_monai.utils.errors import DecodeError

GREY = np.arange(0, 240, 10, dtype=np.uint8).reshape(6, 4)


def saved(image: Image.Image | np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    image.save(file, kind, **options)
    return file.getvalue()


def test_by_hand():
    image = decode(saved(np.array([[1, 2, 3], [4, 5, 6]], dtype=np.uint8)))
    assert image.pixels.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert (image.meta.format, image.meta.rows, image.meta.columns) == ("png", 2, 3)


def test_all_grey_and_colour_modes_agree():
    grey = Image.fromarray(GREY)
    versions = {
        "L": grey,
        "RGB": grey.convert("RGB"),
        "RGBA": grey.convert("RGBA"),
        "LA": grey.convert("LA"),
        "P": grey.convert("P", palette=Image.Palette.ADAPTIVE),
    }
    for mode, image in versions.items():
        decoded = decode(saved(image))
        np.testing.assert_array_equal(canonical(decoded, None), np.repeat(GREY[None], 3, 0), err_msg=mode)
        assert decoded.meta.channels == (1 if mode == "L" else 3)


def test_16_bit_png_is_scaled_not_clipped():
    wide = GREY.astype(np.uint16) * 257
    image = decode(saved(wide))
    assert image.pixels.dtype == np.uint16
    np.testing.assert_array_equal(image.pixels, wide)
    np.testing.assert_array_equal(canonical(image, None)[0], GREY)
    assert (image.meta.bits_stored, image.meta.voi, image.meta.stored_maximum) == (16, "none", 230 * 257)
    stretched = decode(saved(GREY.astype(np.uint16)), DecodeOptions(full_range="image"))
    assert (stretched.pixels.max(), stretched.meta.voi) == (65535, "full_range")


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_wide_tiff(dtype: type):
    image = decode(saved(GREY.astype(dtype), "TIFF"))
    assert image.meta.format == "tiff"
    if dtype is np.uint16:
        np.testing.assert_array_equal(image.pixels, GREY)
    else:
        assert (image.pixels.min(), image.pixels.max(), image.meta.voi) == (0, 65535, "full_range")


def test_one_bit():
    assert set(np.unique(decode(saved(Image.fromarray(GREY).convert("1"))).pixels)) == {0, 255}


def test_jpeg_and_its_orientation():
    big = np.kron(GREY, np.ones((8, 8), dtype=np.uint8))
    plain = decode(saved(big, "JPEG", quality=95))
    assert np.abs(plain.pixels.astype(int) - big).max() < 12
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 90° to the right for display
    turned = decode(saved(big, "JPEG", quality=95, exif=exif))
    np.testing.assert_array_equal(turned.pixels, np.rot90(plain.pixels, -1))
    assert (turned.meta.rows, turned.meta.notes) == (32, "exif_orientation")


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_orientation_of_other_formats(kind: str):
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = decode(saved(GREY, kind, exif=exif))
    np.testing.assert_array_equal(turned.pixels, np.rot90(GREY, -1))
    assert (turned.meta.rows, turned.meta.columns, turned.meta.notes) == (4, 6, "exif_orientation")


@pytest.mark.parametrize("orientation", [0, 1, 9])
def test_an_orientation_that_turns_nothing_is_not_noted(orientation: int):
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert decode(saved(GREY, "JPEG", exif=exif)).meta.notes == ""


def test_of_a_telephones_jpeg_the_primary_picture_is_shown():
    big = np.kron(GREY, np.ones((8, 8), dtype=np.uint8))
    first, second = (Image.fromarray(pixels).convert("RGB") for pixels in (big, big[::-1].copy()))
    data = saved(first, "MPO", save_all=True, append_images=[second], quality=95)
    shown = decode(data)
    assert np.abs(shown.pixels[..., 0].astype(int) - big).max() < 12
    assert (shown.meta.frame, shown.meta.frames, shown.meta.notes) == (0, 2, "primary_picture")
    other = decode(data, DecodeOptions(frame=1))
    assert np.abs(other.pixels[..., 0].astype(int) - big[::-1]).max() < 12
    assert other.meta.notes == ""


def tiff(values: np.ndarray, bits: int, photometric: int = 1, sample_format: int | None = None) -> bytes:
    """A little-endian TIFF file of one strip, as Pillow does not write it."""
    rows, columns = values.shape
    raw = values.tobytes()
    if bits == 12:  # two values in three bytes
        pairs = values.reshape(-1, 2).astype(int)
        raw = b"".join(bytes([a >> 4, (a & 15) << 4 | b >> 8, b & 255]) for a, b in pairs.tolist())
    entries = [(256, columns), (257, rows), (258, bits), (259, 1), (262, photometric), (273, 0), (277, 1), (278, rows)]
    entries += [(279, len(raw))] + ([] if sample_format is None else [(339, sample_format)])
    start = 14 + 12 * len(entries)
    fields = b"".join(struct.pack("<HHII", tag, 4, 1, start if tag == 273 else value) for tag, value in entries)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + fields + bytes(4) + raw


def test_a_tiff_whose_zero_is_white():
    """Pillow exchanges black and white of 8 bits, and leaves it to the reader with 16."""
    for bits, dtype, top in ((8, np.uint8, 255), (16, np.uint16, 65535)):
        straight = decode(tiff(GREY.astype(dtype), bits, 1))
        inverted = decode(tiff(GREY.astype(dtype), bits, 0))
        np.testing.assert_array_equal(inverted.pixels, top - straight.pixels.astype(int))
    assert inverted.meta.inverted
    assert not straight.meta.inverted


def test_a_tiff_of_12_bits_spans_its_12_bits():
    values = np.array([[0, 1, 2048, 2], [4095, 300, 7, 4094]], dtype=np.uint16)
    image = decode(tiff(values, 12))
    np.testing.assert_array_equal(image.pixels, np.rint(values / 4095 * 65535))
    assert (image.meta.bits_stored, image.meta.stored_maximum) == (12, 4095)


def test_a_tiff_of_32_bits_without_a_sign():
    values = np.array([[0, 1 << 31, (1 << 32) - 1]], dtype=np.uint32)
    image = decode(tiff(values, 32))
    assert image.pixels.tolist() == [[0, 32768, 65535]]
    assert (image.meta.signed, image.meta.stored_maximum) == (False, (1 << 32) - 1)
    assert decode(tiff(values, 32, sample_format=2)).pixels.tolist() == [[65535, 0, 65535]]  # 0, -2^31, -1


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_transparent_grey_is_laid_on_black(dtype: type):
    image = decode(saved(Image.fromarray(GREY.astype(dtype)), transparency=230))
    np.testing.assert_array_equal(image.pixels, np.where(GREY == 230, 0, GREY))
    assert image.meta.notes == "alpha_on_black"
    assert decode(saved(Image.fromarray(GREY.astype(dtype)), transparency=231)).meta.notes == ""


def test_cmyk_jpeg_becomes_rgb():
    colour = np.zeros((16, 16, 3), np.uint8)
    colour[:8, :, 0] = 200
    image = decode(saved(Image.fromarray(colour).convert("CMYK"), "JPEG", quality=95))
    assert np.abs(image.pixels.astype(int) - colour).max() < 12


def test_transparency_is_laid_on_black():
    rgba = np.dstack([GREY, GREY, GREY, np.where(GREY > 100, 255, 0).astype(np.uint8)])
    image = decode(saved(rgba))
    np.testing.assert_array_equal(image.pixels[..., 0], np.where(GREY > 100, GREY, 0))
    assert image.meta.notes == "alpha_on_black"


def test_the_name_plays_no_part(tmp_path: Any):
    path = tmp_path / "scan.dcm"
    path.write_bytes(saved(GREY))
    assert decode(path).meta.format == "png"


def test_pages_are_refused_or_chosen():
    pages = saved(Image.fromarray(GREY), "TIFF", save_all=True, append_images=[Image.fromarray(GREY[::-1].copy())])
    with pytest.raises(DecodeError, match="2 frames") as error:
        decode(pages)
    assert error.value.reason == "multi_frame"
    np.testing.assert_array_equal(decode(pages, DecodeOptions(frame=1)).pixels, GREY[::-1])
    with pytest.raises(DecodeError) as error:
        decode(pages, DecodeOptions(frame=2))
    assert error.value.reason == "bad_frame"


@pytest.mark.parametrize(
    "data, reason",
    [
        (saved(GREY)[:60], "truncated"),
        (saved(np.kron(GREY, np.ones((9, 9), np.uint8)), "JPEG")[:-200], "truncated"),
        (saved(GREY)[:12], "corrupt"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "corrupt"),
        (b"\xff\xd8\xff\xe0" + bytes(100), "corrupt"),
        (b"II*\0" + bytes(100), "corrupt"),
        (saved(np.zeros((5, 5), np.uint8)), "constant"),
        (saved(np.full((5, 5, 3), 255, np.uint8)), "constant"),
        (saved(Image.new("RGB", (5, 5), (9, 0, 200))), "constant"),
        (saved(Image.new("RGB", (1, 1), (9, 0, 200)), "TIFF"), "constant"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "unknown_format"),
        (saved(np.full((5, 5), 999, np.uint16)), "constant"),
        (saved(np.full((5, 5), np.nan, np.float32), "TIFF"), "not_finite"),
    ],
)
def test_refusals(data: bytes, reason: str):
    with pytest.raises(DecodeError) as error:
        decode(data)
    assert error.value.reason == reason


def test_absurd_sizes_are_refused_before_they_are_allocated():
    data = bytearray(saved(GREY))
    at = data.index(b"IHDR") + 4
    data[at : at + 8] = (60000).to_bytes(4, "big") * 2
    import zlib

    data[at + 13 : at + 17] = zlib.crc32(bytes(data[at - 4 : at + 13])).to_bytes(4, "big")
    with pytest.raises(DecodeError) as error:
        decode(bytes(data))
    assert error.value.reason == "too_large"
