"""Decoding by content, the canonical image, and the table of reasons."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from PIL import Image
from pydicom.uid import ExplicitVRBigEndian, ImplicitVRLittleEndian

from candor_monai.data import decoding
from candor_monai.data.codecs import JPEG_2000, JPEG_LS, RLE
from candor_monai.data.decoded_image import REASONS
from candor_monai.data.decoding import DecodeOptions, canonical, decode
from candor_monai.utils.errors import DecodeError, UserError
from tests.data.dicom_corpus import deflated, dicom_bytes, ramp, rle_frame
from tests.support import ROOT, SHARED, needs_shared


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_by_hand():
    assert canonical(np.array([[0, 65535], [257, 514]], dtype=np.uint16), None).tolist() == [[[0, 255], [1, 2]]] * 3


def test_the_canonical_image_is_pillows_lanczos_squash():
    pixels = np.random.default_rng(0).integers(0, 256, (300, 200), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(pixels).resize((224, 224), Image.Resampling.LANCZOS))
    image = canonical(decode(png(pixels)))
    assert image.shape == (3, 224, 224)
    for channel in image:
        np.testing.assert_array_equal(channel, expected)
    assert canonical(pixels, (5, 7)).shape == (3, 5, 7)


def test_dicom_and_png_of_the_same_pixels_are_one_image():
    pixels = np.random.default_rng(1).integers(0, 256, (50, 40), dtype=np.uint8)
    expected = canonical(decode(png(pixels)))
    for photometric in ("MONOCHROME1", "MONOCHROME2"):
        stored = 255 - pixels if photometric == "MONOCHROME1" else pixels
        np.testing.assert_array_equal(canonical(decode(dicom_bytes(stored, photometric=photometric))), expected)
    windowed = dicom_bytes(pixels.astype(np.uint16) * 16, BitsStored=12, WindowCenter="2040.5", WindowWidth="4081")
    np.testing.assert_array_equal(canonical(decode(windowed)), expected)


@needs_shared
@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_real_pixels_in_any_lossless_transfer_syntax_are_one_image(photometric: str):
    """Pixels of real radiographs, headers made."""
    import jpeg_ls
    import openjpeg

    for path in sorted((SHARED / "nih_cxr" / "images").glob("*.png"))[::100]:
        expected = canonical(decode(path))
        shown = np.asarray(Image.open(path).convert("L"))
        stored = 255 - shown if photometric == "MONOCHROME1" else shown
        files = {
            ImplicitVRLittleEndian: dicom_bytes(stored, syntax=ImplicitVRLittleEndian, photometric=photometric),
            ExplicitVRBigEndian: dicom_bytes(stored, syntax=ExplicitVRBigEndian, photometric=photometric),
            "deflated": deflated(dicom_bytes(stored, photometric=photometric)),
        }
        for syntax, frame in (
            (RLE, rle_frame(stored)),
            (JPEG_LS[0], bytes(jpeg_ls.encode(stored).tobytes())),
            (JPEG_2000[0], bytes(openjpeg.encode(stored, photometric_interpretation=2))),
        ):
            files[syntax] = dicom_bytes(stored, syntax=syntax, photometric=photometric, frames=[frame])
        for name, data in files.items():
            np.testing.assert_array_equal(canonical(decode(data)), expected, err_msg=name)


def test_an_asymmetric_marker_stays_where_a_viewer_shows_it():
    pixels = np.zeros((30, 20), dtype=np.uint8)
    pixels[2:5, 14:18] = 200  # top right
    for data in (png(pixels), dicom_bytes(pixels)):
        image = canonical(decode(data), (60, 40))[0]
        assert image.shape == (60, 40)
        rows, columns = np.nonzero(image > 100)
        assert (rows.min(), rows.max()) == (4, 9)
        assert (columns.min(), columns.max()) == (28, 35)


@pytest.mark.parametrize("size", [0, -1, True, (0, 5)])
def test_sizes_that_cannot_be(size: object):
    with pytest.raises(UserError, match="canonical size"):
        canonical(ramp(dtype=np.uint8, top=9), size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options, match",
    [
        ({"voi": "best"}, "voi='best'.*lut, window, none"),
        ({"full_range": "x"}, "full_range"),
        ({"polarity": "x"}, "polarity"),
        ({"padding": "x"}, "padding"),
        ({"window": -1}, "window=-1"),
        ({"frame": "0"}, "frame='0'"),
        ({"max_pixels": 0}, "max_pixels=0"),
        ({"max_bytes": 1.5}, "max_bytes=1.5"),
    ],
)
def test_options_that_cannot_be(options: dict, match: str):
    with pytest.raises(UserError, match=match):
        DecodeOptions(**options)


def test_unforeseen_errors_and_missing_memory_are_rejections(monkeypatch: pytest.MonkeyPatch):
    for error, reason in (
        (KeyError("Secret^Name"), "failed"),
        (MemoryError(), "memory"),
        (RecursionError(), "corrupt"),
    ):

        def fail(*_: object, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(decoding, "decode_raster", fail)
        with pytest.raises(DecodeError) as caught:
            decode(png(ramp(dtype=np.uint8, top=9)))
        assert caught.value.reason == reason
        assert "Secret" not in str(caught.value)


def test_large_files_are_not_read(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(bytes(2000))
    with pytest.raises(DecodeError) as error:
        decode(path, DecodeOptions(max_bytes=1000))
    assert error.value.reason == "too_large"


def test_reasons_are_documented_and_used():
    page = (ROOT / "docs" / "images.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|$", page, flags=re.MULTILINE))
    assert {reason: rows.get(reason) for reason in REASONS} == REASONS
    source = "".join(path.read_text() for path in (ROOT / "candor_monai" / "data").glob("*.py"))
    for reason in REASONS:
        assert len(re.findall(rf'"{reason}"', source)) >= 2, reason


def test_a_path_with_a_zero_byte_is_no_file():
    with pytest.raises(DecodeError, match="zero byte") as error:
        decode("a\0b.png")
    assert error.value.reason == "not_found"
