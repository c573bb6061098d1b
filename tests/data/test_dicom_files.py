"""DICOM files as displayed: written ones for each rule, collected ones against their manifest."""

from __future__ import annotations

import csv
import io
import json
from functools import cache

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.uid import ExplicitVRBigEndian, ImplicitVRLittleEndian

from candor_monai.data.codecs import JPEG_BASELINE
from candor_monai.data.decoding import DecodeOptions, canonical, decode
from candor_monai.utils.errors import DecodeError
from tests.data.dicom_corpus import (
    SECRET,
    deflate_bomb,
    deflated,
    dicom_bytes,
    functional_groups,
    look_up,
    nested_sequences,
    ramp,
)
from tests.support import SHARED, needs_shared


def reason_of(data: bytes, **options: object) -> str:
    with pytest.raises(DecodeError) as error:
        decode(data, DecodeOptions(**options))  # type: ignore[arg-type]
    assert SECRET not in str(error.value)
    return error.value.reason


def test_by_hand():
    stored = np.array([[0, 1000], [2000, 3000], [4000, 4095]], dtype=np.uint16)
    image = decode(dicom_bytes(stored, BitsStored=12, WindowCenter="2048", WindowWidth="4096"))
    assert image.pixels.tolist() == np.rint(stored / 4095 * 65535).astype(int).tolist()
    assert image.pixels.dtype == np.uint16
    assert (image.meta.rows, image.meta.columns, image.meta.voi, image.meta.inverted) == (3, 2, "window", False)
    assert (image.meta.stored_minimum, image.meta.stored_maximum, image.meta.codec) == (0.0, 4095.0, "native")


def test_monochrome1_is_inverted_after_the_window():
    stored = ramp()
    window = {"WindowCenter": "1000", "WindowWidth": "1000"}
    plain = decode(dicom_bytes(stored, **window)).pixels
    image = decode(dicom_bytes(stored, photometric="MONOCHROME1", **window))
    np.testing.assert_array_equal(image.pixels, 65535 - plain)
    assert image.meta.inverted
    assert image.meta.photometric == "MONOCHROME1"


@pytest.mark.parametrize(
    "photometric, shape, polarity, inverted, contradiction",
    [
        ("MONOCHROME1", None, "either", True, False),
        ("MONOCHROME1", "INVERSE", "either", True, False),  # once, not twice
        ("MONOCHROME2", "IDENTITY", "either", False, False),
        ("MONOCHROME2", "INVERSE", "either", True, True),
        ("MONOCHROME1", "IDENTITY", "either", True, True),
        ("MONOCHROME2", "INVERSE", "photometric", False, True),
        ("MONOCHROME1", "IDENTITY", "shape", False, True),
    ],
)
def test_polarity(photometric: str, shape: str | None, polarity: str, inverted: bool, contradiction: bool):
    attributes = {} if shape is None else {"PresentationLUTShape": shape}
    image = decode(dicom_bytes(ramp(), photometric=photometric, **attributes), DecodeOptions(polarity=polarity))
    assert image.meta.inverted is inverted
    assert (image.pixels[0, 0] == 65535) is np.bool_(inverted)
    assert ("polarity_contradiction" in image.meta.notes) is contradiction


def test_negative_slope_with_a_window():
    image = decode(
        dicom_bytes(ramp(), RescaleSlope="-1", RescaleIntercept="4095", WindowCenter="2048", WindowWidth="4096")
    )
    assert image.pixels[0, 0] == 65535
    assert image.pixels[-1, -1] == 0
    assert image.meta.modality == "rescale"
    assert not image.meta.inverted


def test_of_several_windows_the_first_or_the_chosen():
    data = dicom_bytes(ramp(), WindowCenter=["2048", "100"], WindowWidth=["4096", "50"])
    assert decode(data).pixels[-1, 0] < 65535
    assert decode(data, DecodeOptions(window=1)).pixels[-1, 0] == 65535
    assert "voi_choice_clipped" in decode(data, DecodeOptions(window=7)).meta.notes


def test_of_table_and_window_the_table_unless_told():
    table = look_up(np.arange(4096)[::-1], bits=12)
    data = dicom_bytes(ramp(), VOILUTSequence=table, WindowCenter="2048", WindowWidth="4096")
    assert decode(data).meta.voi == "lut"
    assert decode(data).pixels[0, 0] == 65535
    assert decode(data, DecodeOptions(voi="window")).meta.voi == "window"
    assert decode(data, DecodeOptions(voi="window")).pixels[0, 0] == 0
    assert decode(data, DecodeOptions(voi="none")).meta.voi == "full_range"


@pytest.mark.parametrize("function, middle", [("LINEAR", 32752), ("LINEAR_EXACT", 32736), ("SIGMOID", 32736)])
def test_voi_functions(function: str, middle: int):
    stored = np.array([[0, 2047, 4095]], dtype=np.uint16)
    image = decode(dicom_bytes(stored, WindowCenter="2048", WindowWidth="4096", VOILUTFunction=function))
    assert abs(int(image.pixels[0, 1]) - middle) <= 32
    assert "assumed" not in image.meta.notes


def test_windows_that_cannot_be_used_are_noted():
    image = decode(dicom_bytes(ramp(), WindowCenter="2048", WindowWidth="0"))
    assert image.meta.voi == "full_range"
    assert "window_ignored" in image.meta.notes
    image = decode(dicom_bytes(ramp(), WindowCenter="1e400", WindowWidth="1e400"))
    assert (image.meta.voi, image.meta.notes) == ("full_range", "window_ignored")
    image = decode(dicom_bytes(ramp(), WindowCenter="2048", WindowWidth="4096", VOILUTFunction="CUBIC"))
    assert "voi_function_assumed_LINEAR" in image.meta.notes


@pytest.mark.parametrize("slope", ["1e400", "nan", "0"])
def test_a_slope_that_cannot_be_used_is_noted(slope: str):
    image = decode(dicom_bytes(ramp(), RescaleSlope=slope, RescaleIntercept="0"))
    assert (image.meta.modality, image.meta.notes) == ("none", "rescale_ignored")
    assert decode(dicom_bytes(ramp(), RescaleSlope="1", RescaleIntercept="0")).meta.notes == ""


def test_modality_tables_also_packed_and_signed():
    entries = np.arange(256) * 16
    for packed in (False, True):
        image = decode(dicom_bytes(ramp(top=255), ModalityLUTSequence=look_up(entries, packed=packed)))
        assert image.meta.modality == "lut"
        assert (image.pixels[0, 0], image.pixels[-1, -1]) == (0, 65535)
    signed = ramp(top=200, dtype=np.int16) - 100
    image = decode(dicom_bytes(signed, VOILUTSequence=look_up([0, 100, 255], first=-1, bits=8)))
    assert sorted(np.unique(image.pixels)) == [0, 25700, 65535] or set(np.unique(image.pixels)) == {0, 65535}


@pytest.mark.parametrize("first", [-100, 100])
def test_tables_are_looked_up_with_the_sign_of_the_values(first: int):
    stored = np.array([[-101, -100, -99, 99, 100, 101]], dtype=np.int16)
    pixels = decode(dicom_bytes(stored, VOILUTSequence=look_up([0, 100, 255], first=first, bits=8))).pixels[0]
    expected = [0, 0, 25700, 65535, 65535, 65535] if first == -100 else [0, 0, 0, 0, 0, 25700]
    assert pixels.tolist() == expected


def test_8_bit_without_a_window_is_shown_as_stored():
    stored = ramp(top=200, dtype=np.uint8)
    image = decode(dicom_bytes(stored))
    np.testing.assert_array_equal(image.pixels, stored)
    assert image.meta.voi == "none"
    np.testing.assert_array_equal(decode(dicom_bytes(stored, photometric="MONOCHROME1")).pixels, 255 - stored)


def test_wide_values_without_a_window_span_the_image_or_the_type():
    stored = ramp(top=1000)
    assert decode(dicom_bytes(stored)).pixels.max() == 65535
    image = decode(dicom_bytes(stored, BitsStored=12), DecodeOptions(full_range="type"))
    assert image.pixels.max() == round(1000 / 4095 * 65535)
    assert image.meta.voi == "none"


@pytest.mark.parametrize("syntax", [ImplicitVRLittleEndian, ExplicitVRBigEndian])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16])
def test_byte_orders_and_signs(syntax: str, dtype: type):
    stored = ramp(top=100, dtype=dtype) - (50 if dtype is np.int16 else 0)
    image = decode(dicom_bytes(stored, syntax=syntax))
    np.testing.assert_array_equal(image.pixels, decode(dicom_bytes(stored)).pixels)
    assert (image.meta.stored_minimum, image.meta.stored_maximum) == (float(stored.min()), float(stored.max()))
    assert image.meta.transfer_syntax == syntax


def test_8_bit_words_of_big_endian_files_are_swapped_back():
    stored = ramp(top=100, dtype=np.uint8)
    data = dicom_bytes(stored, syntax=ExplicitVRBigEndian)
    at = data.index(b"\x7f\xe0\x00\x10")
    pixels = np.frombuffer(data[-24:], dtype="<u2").byteswap().tobytes()
    words = data[: at + 4] + b"OW" + data[at + 6 : -24] + pixels
    np.testing.assert_array_equal(decode(words).pixels, stored)


def test_bits_beyond_the_stored_ones_are_dropped():
    stored = ramp(top=1023)
    overlaid = stored | np.uint16(0xF000)
    np.testing.assert_array_equal(
        decode(dicom_bytes(overlaid, BitsStored=10)).pixels, decode(dicom_bytes(stored, BitsStored=10)).pixels
    )
    high = decode(dicom_bytes(stored << 6, BitsStored=10, HighBit=15))
    np.testing.assert_array_equal(high.pixels, decode(dicom_bytes(stored, BitsStored=10)).pixels)


def test_padding_values_are_background_whatever_their_sign():
    stored = ramp(top=1000, dtype=np.int16)
    stored[0] = -2000
    image = decode(dicom_bytes(stored, PixelPaddingValue=-2000, photometric="MONOCHROME1"))
    assert (image.pixels[0] == 0).all()
    assert image.pixels[1].max() > 50000
    kept = decode(
        dicom_bytes(stored, PixelPaddingValue=-2000, photometric="MONOCHROME1"), DecodeOptions(padding="keep")
    )
    assert (kept.pixels[0] == 65535).all()


def test_frames_are_refused_with_their_number_or_chosen():
    frames = np.stack([ramp(top=100), ramp(top=100)[::-1], ramp(top=100)[:, ::-1]])
    data = dicom_bytes(frames[0], NumberOfFrames=3, PixelData=frames.astype("<u2").tobytes())
    with pytest.raises(DecodeError, match="3 frames") as error:
        decode(data)
    assert error.value.reason == "multi_frame"
    np.testing.assert_array_equal(decode(data, DecodeOptions(frame=2)).pixels, decode(dicom_bytes(frames[2])).pixels)
    assert reason_of(data, frame=3) == "bad_frame"


def test_each_frame_has_its_window():
    frames = np.stack([ramp(), ramp()])
    data = dicom_bytes(
        frames[0],
        NumberOfFrames=2,
        PixelData=frames.astype("<u2").tobytes(),
        PerFrameFunctionalGroupsSequence=functional_groups((2048, 4096), (100, 50)),
    )
    assert decode(data, DecodeOptions(frame=0)).pixels[-1, 0] < 65535
    assert decode(data, DecodeOptions(frame=1)).pixels[-1, 0] == 65535


def test_odd_pixel_data_with_or_without_its_padding_byte():
    stored = ramp(3, 5, 200, np.uint8)
    data = dicom_bytes(stored)
    np.testing.assert_array_equal(decode(data).pixels, stored)
    assert decode(data).meta.notes == ""
    length = len(data) - 16
    unpadded = data[: length - 4] + (15).to_bytes(4, "little") + data[length : length + 15]
    np.testing.assert_array_equal(decode(unpadded).pixels, stored)


def test_excess_bytes_are_noted():
    stored = ramp(top=100)
    data = dicom_bytes(stored, PixelData=stored.astype("<u2").tobytes() + bytes(10))
    assert "excess_bytes" in decode(data).meta.notes


def test_short_pixel_data_tells_expected_and_found_bytes():
    stored = ramp(top=100)
    with pytest.raises(DecodeError, match="48 bytes expected, 40 found") as error:
        decode(dicom_bytes(stored, PixelData=stored.astype("<u2").tobytes()[:40]))
    assert error.value.reason == "truncated"


def test_a_missing_transfer_syntax_is_inferred_where_that_is_safe():
    stored = ramp()
    for data in (dicom_bytes(stored, without=("TransferSyntaxUID",)), dicom_bytes(stored, preamble=False)):
        image = decode(data)
        np.testing.assert_array_equal(image.pixels, decode(dicom_bytes(stored)).pixels)
        assert "transfer_syntax_inferred" in image.meta.notes
    file = io.BytesIO()
    Image.fromarray(ramp(16, 16, 255, np.uint8)).save(file, "JPEG")
    jpeg = dicom_bytes(
        ramp(16, 16, 255, np.uint8), syntax=JPEG_BASELINE, frames=[file.getvalue()], without=("TransferSyntaxUID",)
    )
    assert decode(jpeg).meta.transfer_syntax == JPEG_BASELINE
    nonsense = dicom_bytes(ramp(), syntax=JPEG_BASELINE, frames=[b"nonsense"], without=("TransferSyntaxUID",))
    assert reason_of(nonsense) == "no_transfer_syntax"


@pytest.mark.parametrize(
    "data, reason",
    [
        (dicom_bytes(None), "no_pixel_data"),
        (dicom_bytes(ramp(), without=("Rows",)), "bad_header"),
        (dicom_bytes(ramp(), without=("PhotometricInterpretation",)), "bad_header"),
        (dicom_bytes(ramp(), without=("BitsAllocated",)), "bad_header"),
        (dicom_bytes(ramp(), Rows=0), "bad_header"),
        (dicom_bytes(ramp(), BitsStored=17), "bad_header"),
        (dicom_bytes(ramp(), SamplesPerPixel=3), "bad_header"),
        (dicom_bytes(ramp(), photometric="HSV"), "unsupported"),
        (dicom_bytes(ramp(), BitsAllocated=12), "unsupported"),
        (dicom_bytes(ramp(), PixelData=b""), "truncated"),
        (dicom_bytes(ramp(), Rows=65535, Columns=65535), "too_large"),
        (dicom_bytes(np.full((4, 4), 9, np.uint16)), "constant"),
        (dicom_bytes(np.zeros((4, 4, 3), np.uint8), photometric="RGB"), "constant"),
        (dicom_bytes(ramp(), WindowCenter="60000", WindowWidth="2"), "blank_display"),
        (dicom_bytes(ramp(), ModalityLUTSequence=look_up([1, 2, 3], bits=20)), "bad_lut"),
        (dicom_bytes(ramp(), photometric="PALETTE COLOR"), "bad_lut"),
        (dicom_bytes(ramp(), syntax="1.2.840.10008.1.2.4.100", frames=[b"abcd"]), "unsupported"),
        (dicom_bytes(ramp(), syntax=JPEG_BASELINE, frames=[b"not a jpeg"]), "codec_failed"),
        (dicom_bytes(ramp()).replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.5\0"), "corrupt"),
        (nested_sequences(400), "corrupt"),
        (deflated(dicom_bytes(ramp()))[:-20], "truncated"),
        (b"", "empty_file"),
        (b"PK\x03\x04" + bytes(200), "unknown_format"),
        (b"%PDF-1.7 encrypted" + bytes(200), "unknown_format"),
        (b"hello", "unknown_format"),
    ],
)
def test_refusals(data: bytes, reason: str):
    assert reason_of(data) == reason


def test_missing_tags_that_have_a_safe_reading_are_noted():
    image = decode(dicom_bytes(ramp(), without=("BitsStored", "HighBit", "PixelRepresentation")))
    assert image.meta.notes == "BitsStored_assumed;PixelRepresentation_assumed"
    image = decode(dicom_bytes(ramp(), without=("SamplesPerPixel",)))
    assert image.meta.channels == 1


def test_deflated_files_are_inflated_within_bounds():
    np.testing.assert_array_equal(decode(deflated(dicom_bytes(ramp()))).pixels, decode(dicom_bytes(ramp())).pixels)
    bomb = deflate_bomb(64 << 20)
    assert len(bomb) < 1 << 20
    assert reason_of(bomb, max_bytes=8 << 20) == "too_large"


def test_colours():
    rgb = np.zeros((4, 6, 3), np.uint8)
    rgb[1:, :, 0], rgb[2:, :, 1], rgb[3:, :, 2] = 255, 128, 7
    np.testing.assert_array_equal(decode(dicom_bytes(rgb, photometric="RGB")).pixels, rgb)
    odd = decode(dicom_bytes(rgb, photometric="RGB", PlanarConfiguration=7))
    np.testing.assert_array_equal(odd.pixels, rgb)
    assert odd.meta.notes == "planar_configuration_ignored"
    flat = np.empty((4, 6, 3), np.uint8)
    flat[:] = (200, 0, 7)
    assert reason_of(dicom_bytes(flat, photometric="RGB")) == "constant"
    planar = dicom_bytes(rgb, photometric="RGB", PlanarConfiguration=1, PixelData=np.moveaxis(rgb, -1, 0).tobytes())
    np.testing.assert_array_equal(decode(planar).pixels, rgb)
    ybr = np.asarray(Image.fromarray(rgb).convert("YCbCr"))
    shown = decode(dicom_bytes(ybr, photometric="YBR_FULL")).pixels
    assert np.abs(shown.astype(int) - rgb).max() <= 2
    wide = decode(dicom_bytes(rgb.astype(np.uint16) * 257, photometric="RGB"))
    np.testing.assert_array_equal(canonical(wide, None), canonical(decode(dicom_bytes(rgb, photometric="RGB")), None))
    ten = decode(dicom_bytes(rgb.astype(np.uint16) * 4, photometric="RGB", BitsStored=10))
    assert ten.pixels.max() == round(1020 / 1023 * 65535)


@pytest.mark.parametrize("bits", [8, 16])
def test_palettes(bits: int):
    index = np.array([[0, 1], [2, 3]], dtype=np.uint8)
    colours = {"Red": [0, 255, 0, 10], "Green": [0, 0, 255, 20], "Blue": [0, 0, 0, 30]}
    attributes: dict[str, object] = {}
    for colour, values in colours.items():
        words = np.array(values, dtype="<u2") * (256 if bits == 16 else 1)
        data = words.tobytes() if bits == 16 else words.astype(np.uint8).tobytes()
        attributes[f"{colour}PaletteColorLookupTableDescriptor"] = [4, 0, bits]
        attributes[f"{colour}PaletteColorLookupTableData"] = data
    image = decode(dicom_bytes(index, photometric="PALETTE COLOR", **attributes))
    assert image.pixels.tolist() == [[[0, 0, 0], [255, 0, 0]], [[0, 255, 0], [10, 20, 30]]]


def test_only_typed_metadata_and_no_secret_leaves():
    data = dicom_bytes(ramp(), secrets=True, WindowCenter="2048", WindowWidth="4096")
    assert SECRET.encode() in data
    meta = decode(data).meta.as_dict()
    assert SECRET not in json.dumps(meta)
    assert "1987" not in json.dumps(meta)
    assert {type(value) for value in meta.values()} <= {str, int, float, bool}
    other = decode(dicom_bytes(np.zeros((3, 3, 3), np.uint8) + ramp(3, 3, 9, np.uint8)[..., None], photometric="RGB"))
    assert {k: type(v) for k, v in other.meta.as_dict().items()} == {k: type(v) for k, v in meta.items()}


def test_text_in_coded_attributes_is_not_repeated(recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture):
    secret = f"{SECRET}^PATIENT"
    files = [
        dicom_bytes(ramp(), photometric=secret),
        dicom_bytes(ramp(), VOILUTFunction=secret, WindowCenter="1", WindowWidth="2"),
        dicom_bytes(ramp(), PresentationLUTShape=secret),
        dicom_bytes(ramp(), NumberOfFrames=1).replace(b"IS\x02\x001 ", b"IS\x02\x00" + b"S3"),
    ]
    recwarn.clear()
    caplog.clear()
    for data in files:
        assert b"S3" in data
        try:
            told = json.dumps(decode(data).meta.as_dict())
        except DecodeError as error:
            told = str(error)
        assert "S3" not in told
    assert not any("S3" in str(warning.message) for warning in recwarn)
    assert "S3" not in caplog.text


# What becomes of each collected file that does not simply load.
REJECTED = {
    "pydicom__ExplVR_LitEndNoMeta.dcm": "no_pixel_data",
    "pydicom__IM00000J": "no_pixel_data",
    "pydicom__JPEG2000-embedded-sequence-delimiter.dcm": "bad_header",
    "pydicom__MR_truncated.dcm": "truncated",
    "pydicom__badVR.dcm": "bad_header",
    "pydicom__chrKoreanMulti.dcm": "no_pixel_data",
    "pydicom__empty_charset_LEI.dcm": "no_pixel_data",
    "pydicom__meta_missing_tsyntax.dcm": "bad_header",
    "pydicom__nested_priv_SQ.dcm": "bad_header",
    "pydicom__reportsi_with_empty_number_tags.dcm": "no_pixel_data",
    "pydicom__rtplan_truncated.dcm": "no_pixel_data",
    "pydicom__rtstruct.dcm": "no_pixel_data",
    "pydicom__rtstruct.dump": "unknown_format",
    "pydicom__waveform_ecg.dcm": "no_pixel_data",
    # with a frame chosen:
    "pydicom-data__liver_deflate.dcm": "unsupported",
    "pydicom-data__liver_rle.dcm": "unsupported",
}
# pydicom refuses these; here they load: a repair that is safe, and a codec that can.
LOADED_AFTER_ALL = {"pydicom-data__OT-PAL-8-face.dcm", "pydicom__JPEG-lossy.dcm"}


@cache
def manifest() -> list[dict[str, str]]:
    with open(SHARED / "dicom" / "manifest.csv", newline="") as file:
        return list(csv.DictReader(file))


def manifest_files() -> list[str]:
    return [row["file"] for row in manifest()] if SHARED.is_dir() else []


@needs_shared
def test_the_corpus_has_its_112_files():
    assert len(manifest_files()) == 112


@needs_shared
@pytest.mark.parametrize("name", manifest_files())
def test_collected_files_end_as_the_manifest_says(name: str):
    row = next(row for row in manifest() if row["file"] == name)
    data = (SHARED / "dicom" / name).read_bytes()
    shape = json.loads(row["shape"]) if row["shape"] else None
    frames = int(float(row["frames"])) if row["frames"].replace(".", "").isdigit() else 1
    if frames > 1:
        with pytest.raises(DecodeError, match=f"{frames} frames") as error:
            decode(data)
        assert error.value.reason == "multi_frame"
    options = DecodeOptions(frame=0) if frames > 1 else DecodeOptions()
    if name in REJECTED:
        with pytest.raises(DecodeError) as error:
            decode(data, options)
        assert error.value.reason == REJECTED[name]
        return
    image = decode(data, options)
    meta = image.meta
    assert image.pixels.min() < image.pixels.max()
    assert meta.inverted == (row["photometric"] == "MONOCHROME1")
    assert meta.photometric == row["photometric"]
    assert image.pixels.shape[:2] == (int(float(row["rows"])), int(float(row["cols"]))) == (meta.rows, meta.columns)
    assert meta.frames == frames
    if shape is None:
        assert name in LOADED_AFTER_ALL
        return
    shape = shape[1:] if frames > 1 else shape
    assert list(image.pixels.shape) == (shape if "PALETTE" not in row["photometric"] else [*shape, 3])
    if frames > 1:  # the manifest's range is that of all frames
        assert float(row["vmin"]) <= meta.stored_minimum
        assert meta.stored_maximum <= float(row["vmax"])
    else:
        assert (meta.stored_minimum, meta.stored_maximum) == (float(row["vmin"]), float(row["vmax"]))


def grey_files() -> list[str]:
    if not SHARED.is_dir():
        return []
    return [
        row["file"]
        for row in manifest()
        if row["photometric"].startswith("MONO")
        and row["shape"]
        and row["file"] not in REJECTED
        and row["frames"] != "1A"
    ]


@needs_shared
@pytest.mark.parametrize("name", grey_files())
def test_grey_files_look_as_pydicom_computes_them(name: str):
    """Modality, VOI and polarity by pydicom's own functions, an independent implementation of the same pages."""
    processing = pytest.importorskip("pydicom.pixels", reason="pydicom 3")
    dataset = pydicom.dcmread(SHARED / "dicom" / name)
    try:
        stored = dataset.pixel_array
    except Exception as error:
        pytest.skip(f"pydicom has no permissive codec for it ({type(error).__name__})")
    frames = int(dataset.get("NumberOfFrames", 1) or 1)
    stored = stored[0] if frames > 1 else stored
    if stored.dtype.kind == "f":
        pytest.skip("pydicom applies no window to floats")
    image = decode((SHARED / "dicom" / name).read_bytes(), DecodeOptions(frame=0))
    assert (image.meta.stored_minimum, image.meta.stored_maximum) == (float(stored.min()), float(stored.max()))
    for groups in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):
        for macro in ("PixelValueTransformationSequence", "FrameVOILUTSequence"):
            for item in (
                dataset[groups].value[0][macro].value if groups in dataset and macro in dataset[groups].value[0] else ()
            ):
                dataset.update(item)  # pydicom looks at the top level alone
    values = processing.apply_modality_lut(stored, dataset).astype(np.float64)
    if "WindowCenter" in dataset or "VOILUTSequence" in dataset:
        assert image.meta.voi == "window"
        values = processing.apply_voi_lut(values, dataset).astype(np.float64)
        bits, signed = dataset.BitsStored, dataset.PixelRepresentation
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        if "RescaleSlope" in dataset:
            ends = np.array([low, high]) * float(dataset.RescaleSlope) + float(dataset.RescaleIntercept)
            low, high = ends.min(), ends.max()
        light = (values - low) / (high - low)
    elif dataset.BitsStored <= 8:
        light = values / (2**dataset.BitsStored - 1)
    else:
        light = (values - values.min()) / (values.max() - values.min())
    if dataset.PhotometricInterpretation == "MONOCHROME1":
        light = 1 - light
    top = 255 if dataset.BitsStored <= 8 else 65535
    padding = dataset.get("PixelPaddingValue")
    keep = np.ones(stored.shape, bool) if padding is None else stored != padding
    assert np.abs(light * top - image.pixels)[keep].max() <= 0.51


@needs_shared
def test_the_edit_that_claims_monochrome1_is_the_negative_of_its_original():
    folder = SHARED / "dicom"
    original = decode(folder / "torchxrayvision__1.2.276.0.7230010.3.1.4.8323329.6904.1517875201.850819.dcm")
    edit = decode(folder / "torchxrayvision__Fake_MONOHR1.dcm")
    np.testing.assert_array_equal(edit.pixels, 255 - original.pixels)
