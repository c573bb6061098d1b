"""DICOM files, as displayed. No message quotes the file."""

from __future__ import annotations

import warnings

import numpy as np

from candor_monai.utils.errors import DecodeError

from . import codecs
from .decoded_image import DecodedImage, DecodeOptions, ImageMeta, check_not_constant, stored_range
from .dicom_grey import grey_mapping
from .dicom_header import Header, has_preamble, is_bare_dicom
from .dicom_pixels import native, native_float
from .dicom_tables import palette
from .display_values import LookUpTable, displayed_grey
from .encapsulation import frame_bytes

__all__ = ["decode_dicom", "has_preamble", "is_bare_dicom"]

PHOTOMETRIC = (
    "MONOCHROME1",
    "MONOCHROME2",
    "PALETTE COLOR",
    "RGB",
    "YBR_FULL",
    "YBR_FULL_422",
    "YBR_ICT",
    "YBR_RCT",
)


def decode_dicom(data: bytes, options: DecodeOptions) -> DecodedImage:
    """The image of a DICOM file, as displayed.

    Raises:
        DecodeError: see ``decoded_image.REASONS``.
    """
    from pydicom import config

    # pydicom converts a value when it is asked for, and its warnings quote it.
    with warnings.catch_warnings(), config.disable_value_validation():
        warnings.simplefilter("ignore")
        return _shown(Header(data, options), options)


def _shown(header: Header, options: DecodeOptions) -> DecodedImage:
    """Check the image attributes, get the stored values, map them to display values."""
    keyword = next((k for k in ("PixelData", "FloatPixelData", "DoubleFloatPixelData") if k in header.dataset), None)
    if keyword is None:
        if header.mentions_pixels:
            raise DecodeError("corrupt", "the header cannot be parsed as far as the pixels")
        raise DecodeError("no_pixel_data", "the file is DICOM but holds no pixels")
    pixel_data = header.raw(keyword)
    rows, columns = header.integer("Rows"), header.integer("Columns")
    if rows <= 0 or columns <= 0:
        raise DecodeError("bad_header", f"the header says {rows} rows × {columns} columns")
    options.check_size(rows, columns)
    samples = header.integer("SamplesPerPixel", 1)
    photometric = str(header.raw("PhotometricInterpretation") or "").strip().upper()
    if not photometric:
        raise DecodeError("bad_header", "PhotometricInterpretation is missing: black and white cannot be told apart")
    if photometric not in PHOTOMETRIC:
        raise DecodeError("unsupported", "the photometric interpretation is not one of those handled")
    if samples != (1 if photometric.startswith(("MONOCHROME", "PALETTE")) else 3):
        raise DecodeError("bad_header", f"{samples} samples a pixel do not fit {photometric}")
    frames = header.integer("NumberOfFrames", 1) or 1
    if frames < 1:
        raise DecodeError("bad_header", f"NumberOfFrames is {frames}")
    frame = options.chosen_frame(frames)
    if not pixel_data:
        raise DecodeError("truncated", "the pixel data element is empty")

    about = _pixel_format(header, keyword, rows, columns, samples, photometric)
    if keyword != "PixelData":
        stored, codec = native_float(pixel_data, about, frames, frame, header.little), "native"
    elif header.syntax in codecs.NATIVE:
        stored, photometric = native(header, pixel_data, about, frames, frame)
        codec = "native"
    else:
        if header.syntax not in codecs.CODECS:
            raise DecodeError("unsupported", "this transfer syntax is not handled")
        if pixel_data[:4] != b"\xfe\xff\x00\xe0":
            raise DecodeError("corrupt", "compressed pixel data that starts with no item")
        offsets = header.raw("ExtendedOffsetTable") or b""
        lengths = header.raw("ExtendedOffsetTableLengths") or b""
        stream = frame_bytes(pixel_data, frames, frame, offsets, lengths)
        stored, photometric, codec = codecs.decode_frame(stream, about)
    if photometric.startswith("MONOCHROME"):
        return _grey(header, stored, about, codec, frame, frames, options)
    return _colour(header, stored, about, photometric, codec, frame, frames)


def _pixel_format(
    header: Header, keyword: str, rows: int, columns: int, samples: int, photometric: str
) -> codecs.Frame:
    """The stored format, with the stated assumptions where a file is silent."""
    if keyword != "PixelData":
        bits = 32 if keyword == "FloatPixelData" else 64
        return codecs.Frame(header.syntax, rows, columns, samples, bits, bits, True, photometric)
    allocated = header.integer("BitsAllocated")
    if allocated not in (1, 8, 16, 32):
        raise DecodeError("unsupported", f"{allocated} bits allocated a sample; handled are 1, 8, 16 and 32")
    for name in ("BitsStored", "PixelRepresentation"):
        if name not in header.dataset:
            header.notes.append(f"{name}_assumed")
    stored = header.integer("BitsStored", allocated)
    if not 1 <= stored <= allocated:
        raise DecodeError("bad_header", f"{stored} bits stored of {allocated} allocated")
    representation = header.integer("PixelRepresentation", 0)
    if representation not in (0, 1):
        raise DecodeError("bad_header", f"PixelRepresentation is {representation}, neither 0 nor 1")
    return codecs.Frame(header.syntax, rows, columns, samples, allocated, stored, representation == 1, photometric)


def _grey(
    header: Header,
    stored: np.ndarray,
    about: codecs.Frame,
    codec: str,
    frame: int,
    frames: int,
    options: DecodeOptions,
) -> DecodedImage:
    mapping = grey_mapping(header, stored, about, frame, options)
    pixels = displayed_grey(stored, mapping)
    used = "lut" if isinstance(mapping.voi, LookUpTable) else "window" if mapping.voi is not None else None
    plain = mapping.slope == 1.0 and mapping.intercept == 0.0
    return DecodedImage(
        pixels,
        _meta(
            header,
            stored,
            about,
            channels=1,
            inverted=mapping.inverted,
            modality="lut" if mapping.modality_lut is not None else "none" if plain else "rescale",
            voi=used or ("none" if mapping.full_range == "type" else "full_range"),
            codec=codec,
            frame=frame,
            frames=frames,
        ),
    )


def _colour(
    header: Header,
    stored: np.ndarray,
    about: codecs.Frame,
    photometric: str,
    codec: str,
    frame: int,
    frames: int,
) -> DecodedImage:
    if photometric == "PALETTE COLOR":
        pixels = palette(header, stored)
    else:
        if about.signed:
            raise DecodeError("bad_header", f"signed samples do not fit {photometric}")
        bits = about.bits_stored
        pixels = codecs.ybr_to_rgb(stored, bits) if photometric == "YBR_FULL" else stored
        pixels = _scaled_colour(pixels, bits)
    check_not_constant(stored)
    if (pixels == pixels[:1, :1]).all():
        raise DecodeError("blank_display", "the colours of this file show every pixel alike")
    return DecodedImage(
        np.ascontiguousarray(pixels),
        _meta(
            header,
            stored,
            about,
            channels=3,
            inverted=False,
            modality="none",
            voi="none",
            codec=codec,
            frame=frame,
            frames=frames,
        ),
    )


def _scaled_colour(pixels: np.ndarray, bits: int) -> np.ndarray:
    """Samples of ``bits`` bits on the full range of uint8 (up to 8 bits) or uint16."""
    if bits == 8:
        return pixels.astype(np.uint8, copy=False)
    if bits == 16:
        return pixels.astype(np.uint16, copy=False)
    if bits > 16:
        return (pixels >> (bits - 16)).astype(np.uint16)
    top, dtype = (255, np.uint8) if bits < 8 else (65535, np.uint16)
    return np.rint(pixels.astype(np.float64) * (top / ((1 << bits) - 1))).clip(0, top).astype(dtype)


def _meta(
    header: Header,
    stored: np.ndarray,
    about: codecs.Frame,
    *,
    channels: int,
    inverted: bool,
    modality: str,
    voi: str,
    codec: str,
    frame: int,
    frames: int,
) -> ImageMeta:
    return ImageMeta(
        format="dicom",
        rows=about.rows,
        columns=about.columns,
        channels=channels,
        photometric=about.photometric,
        inverted=inverted,
        bits_stored=about.bits_stored,
        signed=about.signed,
        **stored_range(stored),
        modality=modality,
        voi=voi,
        transfer_syntax=header.syntax,
        codec=codec,
        frame=frame,
        frames=frames,
        notes=";".join(dict.fromkeys(header.notes)),
    )
