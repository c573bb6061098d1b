"""NIfTI files with one 2-D image."""

from __future__ import annotations

import gzip

import nibabel
import numpy as np
import pytest

from candor_monai.data.decoding import DecodeOptions, decode
from candor_monai.utils.errors import DecodeError

SHOWN = np.arange(0, 120, 10, dtype=np.uint8).reshape(4, 3)  # rows × columns


def nifti(array: np.ndarray, kind: type = nibabel.Nifti1Image) -> bytes:
    return kind(array, np.diag([-1.0, -1.0, 1.0, 1.0])).to_bytes()


def test_by_hand_the_first_axis_is_the_column():
    image = decode(nifti(SHOWN.T))
    np.testing.assert_array_equal(image.pixels, SHOWN)
    assert (image.meta.format, image.meta.rows, image.meta.columns) == ("nifti", 4, 3)


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.float32, np.float64])
def test_kinds_and_types(kind: type, dtype: type):
    image = decode(gzip.compress(nifti(SHOWN.T[..., None].astype(dtype), kind)))
    if dtype is np.uint8:
        np.testing.assert_array_equal(image.pixels, SHOWN)
    else:
        np.testing.assert_array_equal(image.pixels, np.rint(SHOWN / 110 * 65535))
    assert (image.meta.stored_minimum, image.meta.stored_maximum) == (0.0, 110.0)


def test_negative_scaling_turns_dark_to_bright():
    stored = nibabel.Nifti1Image(SHOWN.T.astype(np.int16), np.eye(4))
    stored.header.set_slope_inter(-2.0, 5.0)
    data = bytearray(stored.to_bytes())
    data[112:120] = np.array([-2.0, 5.0], dtype="<f4").tobytes()
    image = decode(bytes(data))
    assert (image.pixels[0, 0], image.pixels[-1, -1], image.meta.modality) == (65535, 0, "rescale")


def test_rgb():
    colour = np.zeros((3, 4), dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])
    colour["R"], colour["B"] = SHOWN.T, 7
    image = decode(nifti(colour))
    np.testing.assert_array_equal(image.pixels[..., 0], SHOWN)
    assert image.pixels.shape == (4, 3, 3)


def test_slices_are_refused_or_chosen():
    volume = np.stack([SHOWN.T, SHOWN.T[::-1]], axis=-1)
    with pytest.raises(DecodeError, match="2 frames"):
        decode(nifti(volume))
    np.testing.assert_array_equal(decode(nifti(volume), DecodeOptions(frame=1)).pixels, SHOWN[:, ::-1])


@pytest.mark.parametrize(
    "data, reason",
    [
        (nifti(SHOWN.T)[:-4], "truncated"),
        (nifti(np.zeros((3, 4), np.float32)), "constant"),
        (nifti(np.full((3, 4), np.nan, np.float32)), "not_finite"),
        (nifti(SHOWN.T.astype(np.complex64)), "unsupported"),
        (gzip.compress(nifti(SHOWN.T), mtime=0).replace(b"n+1", b"n+1")[:40], "unknown_format"),
        (nifti(SHOWN.T).replace(b"n+1\0", b"ni1\0"), "unsupported"),
        (gzip.compress(bytes(3000), mtime=0), "unknown_format"),
    ],
)
def test_refusals(data: bytes, reason: str):
    with pytest.raises(DecodeError) as error:
        decode(data)
    assert error.value.reason == reason


def test_gzip_bombs_are_bounded():
    bomb = gzip.compress(nifti(SHOWN.T) + bytes(32 << 20))
    with pytest.raises(DecodeError) as error:
        decode(bomb, DecodeOptions(max_bytes=1 << 20))
    assert error.value.reason == "too_large"
