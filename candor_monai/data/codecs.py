"""Codecs of compressed DICOM pixel data: permissively licensed ones, called directly and named in the result.

Which codec decodes a transfer syntax is fixed by :data:`CODECS`: the first installed one of the list, never another
one because the first refused a file. Lossy JPEG decodes to slightly different pixels with different codecs, so the name
and version travel with the image. pylibjpeg-libjpeg (GPL) is never used, installed or not.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import io
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from candor_monai.utils.errors import DecodeError

NATIVE = {
    "1.2.840.10008.1.2": "Implicit VR Little Endian",
    "1.2.840.10008.1.2.1": "Explicit VR Little Endian",
    "1.2.840.10008.1.2.1.99": "Deflated Explicit VR Little Endian",
    "1.2.840.10008.1.2.2": "Explicit VR Big Endian",
}
JPEG_BASELINE = "1.2.840.10008.1.2.4.50"
JPEG_EXTENDED = "1.2.840.10008.1.2.4.51"
JPEG_LOSSLESS = "1.2.840.10008.1.2.4.57"
JPEG_LOSSLESS_SV1 = "1.2.840.10008.1.2.4.70"
JPEG_LS = ("1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.81")
JPEG_2000 = ("1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91")
HTJ2K = ("1.2.840.10008.1.2.4.201", "1.2.840.10008.1.2.4.202", "1.2.840.10008.1.2.4.203")
RLE = "1.2.840.10008.1.2.5"


@dataclass(frozen=True)
class Frame:
    """What a codec needs to know of the frame it decodes."""

    syntax: str
    rows: int
    columns: int
    samples: int
    bits_allocated: int
    bits_stored: int
    signed: bool
    photometric: str


@dataclass(frozen=True)
class Codec:
    """A decoding library.

    Args:
        module: what is imported; its absence makes the codec unavailable.
        package: the distribution that carries it.
        decode: (frame bytes, frame) → (array (rows, columns[, 3]), photometric interpretation of that array).
    """

    module: str
    package: str
    decode: Callable[[bytes, Frame], tuple[np.ndarray, str]]

    @property
    def available(self) -> bool:
        """Whether the library can be imported."""
        return _importable(self.module)

    @property
    def name(self) -> str:
        """Package and version."""
        return f"{self.package} {_version(self.package)}"


def decode_frame(data: bytes, frame: Frame) -> tuple[np.ndarray, str, str]:
    """Decode one compressed frame.

    Args:
        data: the frame's compressed bytes.
        frame: what the header says of it.

    Returns:
        stored values (rows, columns) or (rows, columns, samples), photometric interpretation of the array, codec.

    Raises:
        DecodeError: ``unsupported`` unknown transfer syntax; ``no_codec``; ``bad_header`` header and code stream
            disagree; ``truncated`` the code stream has no end; ``codec_failed`` the codec refused it.
    """
    codecs = CODECS.get(frame.syntax)
    if codecs is None:
        raise DecodeError("unsupported", "this transfer syntax is not handled")
    codec = next((c for c in codecs if c.available), None)
    if codec is None:
        raise DecodeError("no_codec", f"install {' or '.join(c.package for c in codecs)} to decode {frame.syntax}")
    if frame.syntax != RLE:
        _check_stream(data, frame)
    try:
        pixels, photometric = codec.decode(data, frame)
    except (DecodeError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a Rust codec that panics raises no Exception; a message may quote the file
        raise DecodeError("codec_failed", f"{codec.name} stopped with {type(error).__name__}") from None
    shape = (frame.rows, frame.columns) if frame.samples == 1 else (frame.rows, frame.columns, frame.samples)
    if pixels.shape != shape:
        raise DecodeError("bad_header", f"the code stream holds {pixels.shape} pixels, the header says {shape}")
    return pixels, photometric, codec.name


def missing_codecs(syntaxes: list[str]) -> dict[str, str]:
    """Transfer syntaxes of a list that cannot be decoded here -> what to install."""
    missing = {}
    for syntax in dict.fromkeys(syntaxes):
        codecs = CODECS.get(syntax, ())
        if syntax not in NATIVE and not any(codec.available for codec in codecs):
            missing[syntax] = " or ".join(codec.package for codec in codecs) or "nothing known decodes it"
    return missing


def infer_syntax(data: bytes) -> str | None:
    """Transfer syntax of a code stream told by its first bytes, or None."""
    if data[:4] == b"\xff\x4f\xff\x51":
        return JPEG_2000[1]
    if data[:3] != b"\xff\xd8\xff":
        return None
    try:
        marker = start_of_frame(data).marker
    except DecodeError:
        return None
    return {0xC0: JPEG_BASELINE, 0xC1: JPEG_EXTENDED, 0xC3: JPEG_LOSSLESS, 0xF7: JPEG_LS[1]}.get(marker)


def ybr_to_rgb(pixels: np.ndarray, bits: int) -> np.ndarray:
    """RGB of full-range YCbCr (rows, columns, 3) with ``bits`` bits a sample.

    Source: DICOM PS3.3 C.7.6.3.1.2.

    >>> ybr_to_rgb(np.array([[[76, 85, 255]]], dtype=np.uint8), 8).tolist()
    [[[254, 0, 0]]]
    """
    matrix = np.array([[1.0, 0.0, 1.402], [1.0, -0.114 * 1.772 / 0.587, -0.299 * 1.402 / 0.587], [1.0, 1.772, 0.0]])
    half, top = float(1 << (bits - 1)), (1 << bits) - 1
    result = np.empty(pixels.shape, dtype=pixels.dtype)
    for start in range(0, len(pixels), 256):  # in bands, or float64 copies of a whole image would set the memory
        band = pixels[start : start + 256].astype(np.float64)
        band[..., 1:] -= half
        result[start : start + 256] = np.clip(np.rint(band @ matrix.T), 0, top).astype(pixels.dtype)
    return result


def _check_stream(data: bytes, frame: Frame) -> None:
    """Compare a JPEG-family code stream's size with the header before a codec allocates for it, and find its end."""
    if frame.syntax in JPEG_2000 or frame.syntax in HTJ2K:
        begin = data.find(b"\xff\x4f\xff\x51", 0, 4096)
        if begin < 0 or len(data) < begin + 44:
            raise DecodeError("codec_failed", "the pixel data does not start a JPEG 2000 code stream")
        right, bottom, left, top = struct.unpack_from(">4I", data, begin + 8)
        samples = struct.unpack_from(">H", data, begin + 40)[0]
        rows, columns = bottom - top, right - left
    else:
        if data[:2] != b"\xff\xd8":
            raise DecodeError("codec_failed", "the pixel data does not start a JPEG code stream")
        stream = start_of_frame(data)
        rows, columns, samples = stream.rows, stream.columns, stream.components
    if (rows, columns, samples) != (frame.rows, frame.columns, frame.samples):
        raise DecodeError(
            "bad_header",
            f"the code stream is {rows}×{columns}×{samples}, the header says "
            f"{frame.rows}×{frame.columns}×{frame.samples}",
        )
    if b"\xff\xd9" not in data[-64:]:  # end of image; up to 62 bytes of padding may follow
        raise DecodeError("truncated", f"the code stream of {len(data)} bytes has no end marker")


class StartOfFrame(NamedTuple):
    """Frame header of a JPEG or JPEG-LS stream."""

    marker: int
    precision: int
    rows: int
    columns: int
    components: int


def start_of_frame(data: bytes) -> StartOfFrame:
    """The frame header of a JPEG or JPEG-LS stream.

    Raises:
        DecodeError: ``codec_failed`` there is none.
    """
    position = 2
    while position + 4 <= len(data):
        if data[position] != 0xFF:
            break
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
            continue
        length = struct.unpack_from(">H", data, position + 2)[0]
        if (0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)) or marker == 0xF7:
            if position + 10 > len(data):
                break
            return StartOfFrame(marker, *struct.unpack_from(">BHHB", data, position + 4))
        position += 2 + length
    raise DecodeError("codec_failed", "the JPEG code stream has no frame header")


def _pillow_jpeg(data: bytes, frame: Frame) -> tuple[np.ndarray, str]:
    from PIL import Image

    if start_of_frame(data).precision != 8:
        raise DecodeError("no_codec", "install python-gdcm to decode 12-bit lossy JPEG")
    image = Image.open(io.BytesIO(data), formats=("JPEG",))
    if frame.samples == 1:
        if image.mode != "L":
            raise ValueError("not one grey component")
        return np.asarray(image), frame.photometric
    if image.mode not in ("RGB", "YCbCr"):
        raise ValueError("not three components")
    # Without a JFIF or Adobe marker the file says nothing of its colours and the DICOM header decides; libjpeg would
    # take them for YCbCr.
    unsaid = "jfif" not in image.info and "adobe" not in image.info and "adobe_transform" not in image.info
    if (
        frame.photometric == "RGB"
        and unsaid
        and [layer[0] for layer in getattr(image, "layer", [])] not in _RGB_COMPONENTS
    ):
        image.draft("YCbCr", image.size)
    return np.asarray(image), "RGB"


# Component ids that spell RGB or rgb: libjpeg itself leaves such colours alone.
_RGB_COMPONENTS = ([82, 71, 66], [114, 103, 98])


def _openjpeg(data: bytes, frame: Frame) -> tuple[np.ndarray, str]:
    import openjpeg

    about = openjpeg.get_parameters(data)
    precision, signed = int(about["precision"]), bool(about["is_signed"])
    pixels = openjpeg.decode(data)
    if frame.samples == 1:
        pixels = _as_signed(pixels, precision, frame.signed, signed)
    return pixels, "RGB" if frame.photometric in ("YBR_ICT", "YBR_RCT") else frame.photometric


def _charls(data: bytes, frame: Frame) -> tuple[np.ndarray, str]:
    import jpeg_ls

    pixels = jpeg_ls.decode(np.frombuffer(data, dtype=np.uint8))
    if (
        frame.samples == 3
        and pixels.ndim == 3
        and pixels.shape[0] == 3
        and pixels.shape
        != (
            frame.rows,
            frame.columns,
            3,
        )
    ):
        pixels = np.moveaxis(pixels, 0, -1)
    if frame.samples == 1:  # JPEG-LS knows no sign
        pixels = _as_signed(pixels, start_of_frame(data).precision, frame.signed, False)
    return pixels, frame.photometric


def _pylibjpeg_rle(data: bytes, frame: Frame) -> tuple[np.ndarray, str]:
    from rle.utils import decode_frame as rle_frame

    if frame.bits_allocated % 8:
        raise DecodeError("unsupported", f"RLE with {frame.bits_allocated} bits a sample is not handled")
    segments = struct.unpack_from("<I", data)[0] if len(data) >= 64 else 0
    if segments != frame.samples * frame.bits_allocated // 8:
        raise DecodeError("corrupt", "the number of RLE segments does not fit the header")
    raw = rle_frame(data, frame.rows * frame.columns, frame.bits_allocated, "<")
    return _planes(raw, frame), frame.photometric


def _gdcm(data: bytes, frame: Frame) -> tuple[np.ndarray, str]:
    import gdcm

    fragment = gdcm.Fragment()
    fragment.SetByteStringValue(data)
    fragments = gdcm.SequenceOfFragments.New()
    fragments.AddFragment(fragment)
    element = gdcm.DataElement(gdcm.Tag(0x7FE0, 0x0010))
    element.SetValue(fragments.__ref__())
    image = gdcm.Image()
    image.SetNumberOfDimensions(2)
    image.SetDimensions((frame.columns, frame.rows, 1))
    image.SetDataElement(element)
    kind = gdcm.PhotometricInterpretation.GetPIType(frame.photometric)
    image.SetPhotometricInterpretation(gdcm.PhotometricInterpretation(kind))
    if frame.samples > 1:
        image.SetPlanarConfiguration(0)
    image.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.GetTSType(frame.syntax)))
    image.SetPixelFormat(
        gdcm.PixelFormat(
            frame.samples, frame.bits_allocated, frame.bits_stored, frame.bits_stored - 1, int(frame.signed)
        )
    )
    raw = image.GetBuffer().encode("utf-8", "surrogateescape")
    expected = frame.rows * frame.columns * frame.samples * frame.bits_allocated // 8
    if len(raw) != expected:
        raise DecodeError("codec_failed", f"gdcm returned {len(raw)} of {expected} bytes")
    kind_of = np.dtype(f"<{'i' if frame.signed else 'u'}{frame.bits_allocated // 8}")
    pixels = np.frombuffer(raw, dtype=kind_of).reshape(frame.rows, frame.columns, frame.samples)
    return (pixels[..., 0] if frame.samples == 1 else pixels), frame.photometric


def _planes(raw: bytes | bytearray, frame: Frame) -> np.ndarray:
    """Array of planar little-endian samples."""
    kind = np.dtype(f"<{'i' if frame.signed else 'u'}{frame.bits_allocated // 8}")
    pixels = np.frombuffer(raw, dtype=kind).reshape(frame.samples, frame.rows, frame.columns)
    return pixels[0] if frame.samples == 1 else np.moveaxis(pixels, 0, -1)


def _as_signed(pixels: np.ndarray, precision: int, signed: bool, coded_signed: bool) -> np.ndarray:
    """Values as the header's sign demands when the code stream says otherwise.

    >>> _as_signed(np.array([6192], dtype=np.uint16), 13, True, False).tolist()
    [-2000]
    """
    if signed == coded_signed:
        return pixels
    values = pixels.astype(np.int64) & ((1 << precision) - 1)
    if signed:
        values -= (values >> (precision - 1)) << precision
    size = 1 if precision <= 8 else 2 if precision <= 16 else 4
    return values.astype(np.dtype(f"{'i' if signed else 'u'}{size}"))


@functools.cache
def _importable(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


@functools.cache
def _version(package: str) -> str:
    return importlib.metadata.version(package)


_PILLOW = Codec("PIL.JpegImagePlugin", "pillow", _pillow_jpeg)
_OPENJPEG = Codec("openjpeg", "pylibjpeg-openjpeg", _openjpeg)
_CHARLS = Codec("jpeg_ls", "pyjpegls", _charls)
_GDCM = Codec("gdcm", "python-gdcm", _gdcm)
_RLE = Codec("rle", "pylibjpeg-rle", _pylibjpeg_rle)

CODECS: dict[str, tuple[Codec, ...]] = {
    JPEG_BASELINE: (_PILLOW,),
    JPEG_EXTENDED: (_GDCM, _PILLOW),
    JPEG_LOSSLESS: (_GDCM,),
    JPEG_LOSSLESS_SV1: (_GDCM,),
    **dict.fromkeys(JPEG_LS, (_CHARLS,)),  # gdcm loses the sign and refuses 7 bits
    **dict.fromkeys(JPEG_2000, (_OPENJPEG,)),  # gdcm crashes on single bits
    **dict.fromkeys(HTJ2K, (_OPENJPEG,)),
    RLE: (_RLE,),
}
