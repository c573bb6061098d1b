"""Codecs of compressed frames: which one, its colours and signs, and what it refuses."""

from __future__ import annotations

import dataclasses
import io
import struct

import numpy as np
import pytest
from PIL import Image

from candor_monai.data import codecs
from candor_monai.data.codecs import (
    HTJ2K,
    JPEG_2000,
    JPEG_BASELINE,
    JPEG_LOSSLESS_SV1,
    JPEG_LS,
    RLE,
    Frame,
    decode_frame,
    infer_syntax,
    missing_codecs,
    start_of_frame,
    ybr_to_rgb,
)
from candor_monai.utils.errors import DecodeError
from tests.data.dicom_corpus import rle_frame

random = np.random.default_rng(0)
GREY = random.integers(0, 256, (24, 16), dtype=np.uint8)
# Smooth, so that a lossy codec keeps it.
SMOOTH = np.stack([np.linspace(0, 255, 24 * 16).reshape(24, 16).astype(np.uint8)] * 3, axis=-1)
SMOOTH[..., 1] //= 2
SMOOTH[:12, :, 2] = 200


def frame(syntax: str, pixels: np.ndarray, bits: int | None = None, photometric: str | None = None) -> Frame:
    samples = 1 if pixels.ndim == 2 else 3
    return Frame(
        syntax,
        *pixels.shape[:2],
        samples,
        pixels.dtype.itemsize * 8,
        bits or pixels.dtype.itemsize * 8,
        pixels.dtype.kind == "i",
        photometric or ("MONOCHROME2" if samples == 1 else "RGB"),
    )


def jpeg(pixels: np.ndarray | Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(file, "JPEG", quality=98, subsampling=0, **options)
    return file.getvalue()


def without_jfif(data: bytes) -> bytes:
    """The stream without its JFIF segment, so that it says nothing of its colours."""
    assert data[2:4] == b"\xff\xe0"
    return data[:2] + data[4 + struct.unpack(">H", data[4:6])[0] :]


def test_by_hand():
    pixels = np.array([[1, 2], [3, 4]], dtype=np.uint8)
    decoded, photometric, codec = decode_frame(rle_frame(pixels), frame(RLE, pixels))
    assert decoded.tolist() == [[1, 2], [3, 4]]
    assert photometric == "MONOCHROME2"
    assert codec.startswith("pylibjpeg-rle ")


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16])
def test_rle_of_all_depths(dtype: type):
    pixels = random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (9, 150)).astype(dtype)
    np.testing.assert_array_equal(decode_frame(rle_frame(pixels), frame(RLE, pixels))[0], pixels)
    colour = random.integers(0, 256, (9, 15, 3), dtype=np.uint8)
    np.testing.assert_array_equal(decode_frame(rle_frame(colour), frame(RLE, colour))[0], colour)


@pytest.mark.parametrize("dtype, bits", [(np.uint8, 8), (np.uint16, 12), (np.uint16, 16)])
def test_lossless_codecs_give_back_the_pixels(dtype: type, bits: int):
    import jpeg_ls
    import openjpeg

    pixels = random.integers(0, 1 << bits, (70, 80)).astype(dtype)
    stream = bytes(jpeg_ls.encode(pixels).tobytes())
    np.testing.assert_array_equal(decode_frame(stream, frame(JPEG_LS[0], pixels, bits))[0], pixels)
    stream = bytes(openjpeg.encode(pixels, bits_stored=bits, photometric_interpretation=2))
    decoded, _, codec = decode_frame(stream, frame(JPEG_2000[0], pixels, bits))
    np.testing.assert_array_equal(decoded, pixels)
    assert codec.startswith("pylibjpeg-openjpeg ")


def test_signed_values_of_a_codec_that_knows_no_sign():
    import jpeg_ls

    pixels = random.integers(-2048, 2048, (20, 30)).astype(np.int16)
    stream = bytes(jpeg_ls.encode((pixels.astype(np.int32) & 0xFFF).astype(np.uint16)).tobytes())
    assert start_of_frame(stream).precision == 12
    np.testing.assert_array_equal(decode_frame(stream, frame(JPEG_LS[0], pixels, 12))[0], pixels)


@pytest.mark.parametrize("photometric", ["YBR_FULL_422", "YBR_FULL", "RGB"])
def test_jpeg_colours_follow_the_stream_and_then_the_header(photometric: str):
    """A JFIF stream is YCbCr whatever the header says."""
    decoded, shown, _ = decode_frame(jpeg(SMOOTH), frame(JPEG_BASELINE, SMOOTH, photometric=photometric))
    assert shown == "RGB"
    assert np.abs(decoded.astype(int) - SMOOTH).max() < 12


def test_a_jpeg_that_says_nothing_of_its_colours_is_what_the_header_says():
    plain = without_jfif(jpeg(Image.merge("YCbCr", [Image.fromarray(SMOOTH[..., i]) for i in range(3)])))
    as_rgb, _, _ = decode_frame(plain, frame(JPEG_BASELINE, SMOOTH, photometric="RGB"))
    assert np.abs(as_rgb.astype(int) - SMOOTH).max() < 12
    as_ybr, _, _ = decode_frame(plain, frame(JPEG_BASELINE, SMOOTH, photometric="YBR_FULL_422"))
    assert np.abs(as_ybr.astype(int) - ybr_to_rgb(SMOOTH, 8)).max() < 16


def test_full_range_ybr():
    rgb = random.integers(0, 256, (7, 9, 3), dtype=np.uint8)
    ybr = Image.fromarray(rgb).convert("YCbCr")
    found = ybr_to_rgb(np.asarray(ybr), 8).astype(int)
    assert np.abs(found - np.asarray(ybr.convert("RGB"))).max() <= 1
    assert np.abs(found - rgb).max() <= 3  # Pillow cuts off where it should round
    wide = ybr_to_rgb(np.array([[[4095, 2048, 2048], [0, 2048, 2048]]], dtype=np.uint16), 12)
    assert wide.tolist() == [[[4095] * 3, [0] * 3]]


@pytest.mark.parametrize(
    "data, about, reason",
    [
        (jpeg(GREY)[:-2], frame(JPEG_BASELINE, GREY), "truncated"),
        (jpeg(GREY), frame(JPEG_BASELINE, GREY.T), "bad_header"),
        (jpeg(GREY), frame(JPEG_BASELINE, SMOOTH), "bad_header"),
        (b"nothing", frame(JPEG_BASELINE, GREY), "codec_failed"),
        (b"\xff\xd8" + b"\0" * 50, frame(JPEG_BASELINE, GREY), "codec_failed"),
        (jpeg(GREY), frame(JPEG_LOSSLESS_SV1, GREY.astype(np.uint16)), "codec_failed"),
        (b"nothing", frame(JPEG_2000[0], GREY), "codec_failed"),
        (rle_frame(GREY)[:80], frame(RLE, GREY), "codec_failed"),
        (rle_frame(GREY), frame(RLE, GREY.astype(np.uint16)), "corrupt"),
        (b"", frame(RLE, GREY), "corrupt"),
        (jpeg(GREY), frame("1.2.3", GREY), "unsupported"),
        (rle_frame(GREY), dataclasses.replace(frame(RLE, GREY), bits_allocated=1), "unsupported"),
    ],
)
def test_refusals(data: bytes, about: Frame, reason: str):
    with pytest.raises(DecodeError) as error:
        decode_frame(data, about)
    assert error.value.reason == reason


def test_a_code_stream_of_absurd_size_is_refused_before_it_is_decoded():
    import openjpeg

    stream = bytearray(openjpeg.encode(np.kron(GREY, np.ones((4, 4), np.uint8)), photometric_interpretation=2))
    at = stream.index(b"\xff\x4f\xff\x51") + 8
    stream[at : at + 8] = struct.pack(">II", 1 << 30, 1 << 30)
    with pytest.raises(DecodeError, match="1073741824×1073741824") as error:
        decode_frame(bytes(stream), frame(JPEG_2000[0], GREY))
    assert error.value.reason == "bad_header"


def test_missing_codecs_are_told(monkeypatch: pytest.MonkeyPatch):
    assert missing_codecs([*codecs.CODECS, "1.2.840.10008.1.2.1"]) == {}
    monkeypatch.setattr(codecs, "_importable", lambda module: module != "openjpeg")
    assert missing_codecs([*HTJ2K, JPEG_BASELINE, "1.2.3"]) == {
        **dict.fromkeys(HTJ2K, "pylibjpeg-openjpeg"),
        "1.2.3": "nothing known decodes it",
    }
    with pytest.raises(DecodeError, match="install pylibjpeg-openjpeg") as error:
        decode_frame(b"", frame(JPEG_2000[0], GREY))
    assert error.value.reason == "no_codec"


def test_only_permissively_licensed_codecs():
    packages = {codec.package for several in codecs.CODECS.values() for codec in several}
    assert packages == {"pillow", "python-gdcm", "pylibjpeg-openjpeg", "pyjpegls", "pylibjpeg-rle"}


def test_streams_that_tell_what_they_are():
    import jpeg_ls
    import openjpeg

    assert infer_syntax(jpeg(GREY)) == JPEG_BASELINE
    assert infer_syntax(bytes(jpeg_ls.encode(GREY).tobytes())) == JPEG_LS[1]
    assert (
        infer_syntax(bytes(openjpeg.encode(np.kron(GREY, np.ones((4, 4), np.uint8)), photometric_interpretation=2)))
        == JPEG_2000[1]
    )
    assert infer_syntax(rle_frame(GREY)) is None
    assert infer_syntax(b"\xff\xd8\xff") is None
