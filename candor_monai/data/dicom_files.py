"""DICOM files: a bounded read of the few attributes that showing an image needs, and its stored values.

Only the attributes of :data:`WANTED` are kept from the header. No message quotes the file.
"""

from __future__ import annotations

import io
import math
import struct
import warnings
import zlib
from typing import Any

import numpy as np

from candor_monai.utils.errors import DecodeError

from . import codecs
from .decoded_image import DecodedImage, DecodeOptions, ImageMeta
from .display_values import WINDOW_FUNCTIONS, GreyMapping, LookUpTable, Window, displayed_grey
from .encapsulation import frame_bytes

WANTED = (
    "SamplesPerPixel",
    "PhotometricInterpretation",
    "PlanarConfiguration",
    "NumberOfFrames",
    "Rows",
    "Columns",
    "BitsAllocated",
    "BitsStored",
    "HighBit",
    "PixelRepresentation",
    "PixelPaddingValue",
    "PixelPaddingRangeLimit",
    "RescaleSlope",
    "RescaleIntercept",
    "ModalityLUTSequence",
    "VOILUTSequence",
    "WindowCenter",
    "WindowWidth",
    "VOILUTFunction",
    "PresentationLUTShape",
    "SharedFunctionalGroupsSequence",
    "PerFrameFunctionalGroupsSequence",
    "RedPaletteColorLookupTableDescriptor",
    "GreenPaletteColorLookupTableDescriptor",
    "BluePaletteColorLookupTableDescriptor",
    "RedPaletteColorLookupTableData",
    "GreenPaletteColorLookupTableData",
    "BluePaletteColorLookupTableData",
    "SegmentedRedPaletteColorLookupTableData",
    "SegmentedGreenPaletteColorLookupTableData",
    "SegmentedBluePaletteColorLookupTableData",
    "ExtendedOffsetTable",
    "ExtendedOffsetTableLengths",
    "PixelData",
    "FloatPixelData",
    "DoubleFloatPixelData",
)
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
_PIXEL_TAGS = (b"\xe0\x7f\x10\x00", b"\x7f\xe0\x00\x10")
DEFLATED = "1.2.840.10008.1.2.1.99"
BIG_ENDIAN = "1.2.840.10008.1.2.2"


def has_preamble(data: bytes) -> bool:
    """Whether a file is DICOM Part 10."""
    return data[128:132] == b"DICM"


def is_bare_dicom(data: bytes) -> bool:
    """Whether a file's first bytes look like a DICOM data set without preamble."""
    if len(data) < 8:
        return False
    little = struct.unpack_from("<HH", data)
    if little[0] in (0x0002, 0x0008) and little[1] <= 0x0100:
        explicit = data[4:6].isalpha() and data[4:6].isupper()
        return explicit or struct.unpack_from("<I", data, 4)[0] <= 0x10000
    big = struct.unpack_from(">HH", data)
    return big[0] == 0x0008 and big[1] <= 0x0100 and data[4:6].isalpha() and data[4:6].isupper()


def decode_dicom(data: bytes, options: DecodeOptions) -> DecodedImage:
    """The image of a DICOM file, as displayed.

    Raises:
        DecodeError: see ``decoded_image.REASONS``.
    """
    from pydicom import config

    # pydicom converts a value when it is asked for, and its warnings quote it.
    with warnings.catch_warnings(), config.disable_value_validation():
        warnings.simplefilter("ignore")
        return _shown(_Header(data, options), options)


class _Header:
    """The wanted attributes of a file, read defensively."""

    def __init__(self, data: bytes, options: DecodeOptions) -> None:
        self.notes: list[str] = []
        self.syntax, start = _transfer_syntax(data)
        if self.syntax == DEFLATED:
            data = _inflated(data, start, options.max_bytes)
        self.dataset = _read(data)
        self.mentions_pixels = any(tag in data for tag in _PIXEL_TAGS)
        self.little = self.syntax != BIG_ENDIAN
        if not self.syntax:
            self._infer_syntax()

    def _infer_syntax(self) -> None:
        """Documented repair: native data keep the byte order the header parsed in, streams tell what they are."""
        pixels = self.raw("PixelData")
        if pixels is None:
            return
        original = getattr(self.dataset, "original_encoding", None)
        implicit, little = original if original else (self.dataset.is_implicit_VR, self.dataset.is_little_endian)
        self.little = bool(little)
        if pixels[:4] == b"\xfe\xff\x00\xe0":
            found = codecs.infer_syntax(frame_bytes(pixels, 1, 0)[:65536])
            if found is None:
                raise DecodeError(
                    "no_transfer_syntax", "compressed pixels without a transfer syntax, of no kind that tells itself"
                )
            self.syntax = found
        else:
            self.syntax = BIG_ENDIAN if not self.little else "1.2.840.10008.1.2" if implicit else "1.2.840.10008.1.2.1"
        self.notes.append("transfer_syntax_inferred")

    def raw(self, keyword: str) -> Any:
        """Value of an attribute, or None when it is absent, empty or cannot be read."""
        try:
            value = self.dataset.get(keyword)
        except Exception:  # pydicom converts on access and raises what the broken value suggests
            self.notes.append(f"unreadable_{keyword}")
            return None
        return None if value is None or (hasattr(value, "__len__") and len(value) == 0) else value

    def integer(self, keyword: str, default: int | None = None) -> int:
        """A whole number; an absent one is ``default``, or refuses the file."""
        try:
            value = self.dataset.get(keyword)
            if value is None or value == "":
                raise KeyError
            number = int(value)
        except KeyError:
            if default is None:
                raise DecodeError("bad_header", f"{keyword} is missing") from None
            return default
        except Exception:
            raise DecodeError("bad_header", f"{keyword} is not a whole number") from None
        return number

    def groups(self, frame: int) -> list[Any]:
        """Where attributes of a frame may stand: its own functional groups, the shared ones, the file itself."""
        places: list[Any] = []
        for keyword, index in (("PerFrameFunctionalGroupsSequence", frame), ("SharedFunctionalGroupsSequence", 0)):
            sequence = self.raw(keyword)
            if sequence is not None and index < len(sequence):
                places.append(sequence[index])
        return places

    def of_frame(self, keyword: str, group: str, frame: int) -> Any:
        """Value of an attribute for one frame, or None."""
        for place in self.groups(frame):
            try:
                value = place[group].value[0].get(keyword)
            except Exception:
                continue
            if value is not None:
                return value
        return self.raw(keyword)


def _shown(header: _Header, options: DecodeOptions) -> DecodedImage:
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
    if rows * columns > options.max_pixels:
        raise DecodeError("too_large", f"{rows}×{columns} pixels, allowed are {options.max_pixels}")
    samples = header.integer("SamplesPerPixel", 1)
    photometric = str(header.raw("PhotometricInterpretation") or "").strip().upper()
    if not photometric:
        raise DecodeError("bad_header", "PhotometricInterpretation is missing: black and white cannot be told apart")
    if photometric not in PHOTOMETRIC:
        raise DecodeError("unsupported", "the photometric interpretation is not one of those handled")
    if samples != (1 if photometric.startswith(("MONOCHROME", "PALETTE")) else 3):
        raise DecodeError("bad_header", f"{samples} samples a pixel do not fit {photometric}")
    frames = header.integer("NumberOfFrames", 1) or 1
    frame = _chosen_frame(frames, options)
    if not pixel_data:
        raise DecodeError("truncated", "the pixel data element is empty")

    about = _pixel_format(header, keyword, rows, columns, samples, photometric)
    if keyword != "PixelData":
        stored, codec = _native_float(pixel_data, about, frames, frame, header.little), "native"
    elif header.syntax in codecs.NATIVE:
        stored, photometric = _native(header, pixel_data, about, frames, frame)
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


def _chosen_frame(frames: int, options: DecodeOptions) -> int:
    if frames < 1:
        raise DecodeError("bad_header", f"NumberOfFrames is {frames}")
    if options.frame is None:
        if frames > 1:
            raise DecodeError("multi_frame", f"{frames} frames; choose one with the option frame")
        return 0
    if options.frame >= frames:
        raise DecodeError("bad_frame", f"frame {options.frame} of {frames} (counted from 0)")
    return options.frame


def _pixel_format(
    header: _Header, keyword: str, rows: int, columns: int, samples: int, photometric: str
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


def _need(found: int, expected: int, what: str) -> None:
    if found < expected:
        raise DecodeError("truncated", f"{what}: {expected} bytes expected, {found} found")


def _native(header: _Header, data: bytes, about: codecs.Frame, frames: int, frame: int) -> tuple[np.ndarray, str]:
    """Stored values of uncompressed pixel data, and their photometric interpretation."""
    pixels = about.rows * about.columns
    if about.bits_allocated == 1:
        bits = pixels * about.samples
        _need(len(data), -(-bits * frames // 8), "pixel data")
        first = bits * frame
        packed = np.frombuffer(data, dtype=np.uint8, count=-(-(first + bits) // 8) - first // 8, offset=first // 8)
        if not header.little and header.dataset["PixelData"].VR == "OW":
            raise DecodeError("unsupported", "single bits in big-endian words are not handled")
        unpacked = np.unpackbits(packed, bitorder="little")[first % 8 : first % 8 + bits]
        return unpacked.reshape(about.rows, about.columns), about.photometric
    size = about.bits_allocated // 8
    subsampled = about.photometric == "YBR_FULL_422"
    per_frame = pixels * 2 * size if subsampled else pixels * about.samples * size
    if subsampled and about.columns % 2:
        raise DecodeError("bad_header", f"{about.columns} columns cannot be sub-sampled in pairs")
    _need(len(data), per_frame * frames, "pixel data")
    excess = len(data) - per_frame * frames
    if excess > 1 or (excess == 1 and per_frame * frames % 2 == 0):
        header.notes.append("excess_bytes")
    order = "<" if header.little else ">"
    if size == 1 and not header.little and header.dataset["PixelData"].VR == "OW":
        even = data[: per_frame * frames + per_frame * frames % 2]
        _need(len(even), per_frame * frames + per_frame * frames % 2, "pixel data")
        data = np.frombuffer(even, dtype=">u2").astype("<u2").tobytes()
    flat = np.frombuffer(data, dtype=f"{order}u{size}", count=per_frame // size, offset=per_frame * frame)
    flat = _used_bits(header, flat, about)
    if subsampled:
        pairs = flat.reshape(-1, 4)
        rgb = np.empty((len(pairs), 2, 3), dtype=flat.dtype)
        rgb[:, 0, 0], rgb[:, 1, 0] = pairs[:, 0], pairs[:, 1]
        rgb[:, :, 1], rgb[:, :, 2] = pairs[:, 2:3], pairs[:, 3:4]
        return rgb.reshape(about.rows, about.columns, 3), "YBR_FULL"
    if about.samples == 1:
        return flat.reshape(about.rows, about.columns), about.photometric
    if header.integer("PlanarConfiguration", 0) == 1:
        return np.moveaxis(flat.reshape(about.samples, about.rows, about.columns), 0, -1), about.photometric
    return flat.reshape(about.rows, about.columns, about.samples), about.photometric


def _used_bits(header: _Header, values: np.ndarray, about: codecs.Frame) -> np.ndarray:
    """Values of the stored bits alone, with their sign, in the machine's byte order."""
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    high = header.integer("HighBit", about.bits_stored - 1)
    if not about.bits_stored - 1 <= high < about.bits_allocated:
        header.notes.append("high_bit_ignored")
        high = about.bits_stored - 1
    unused = about.bits_allocated - about.bits_stored
    if not unused:
        return values.view(values.dtype.str.replace("u", "i")) if about.signed else values
    shifted = values << (about.bits_allocated - 1 - high)
    if about.signed:
        shifted = shifted.view(shifted.dtype.str.replace("u", "i"))
    return shifted >> unused


def _native_float(data: bytes, about: codecs.Frame, frames: int, frame: int, little: bool) -> np.ndarray:
    size = about.bits_allocated // 8
    count = about.rows * about.columns
    _need(len(data), count * size * frames, "pixel data")
    values = np.frombuffer(data, dtype=f"{'<' if little else '>'}f{size}", count=count, offset=count * size * frame)
    return values.reshape(about.rows, about.columns).astype(f"f{size}", copy=False)


def _grey(
    header: _Header,
    stored: np.ndarray,
    about: codecs.Frame,
    codec: str,
    frame: int,
    frames: int,
    options: DecodeOptions,
) -> DecodedImage:
    modality_lut, slope, intercept = _modality(header, stored, frame)
    voi = _voi(header, frame, options, stored.dtype.kind == "i" and modality_lut is None, slope, intercept)
    inverted = _inverted(header, about.photometric, options)
    full_range = options.full_range
    if full_range == "auto":
        full_range = "type" if about.bits_stored <= 8 else "image"
    if about.bits_stored > 16:  # wider types hold no meaningful black and white of their own
        full_range = "image"
    mapping = GreyMapping(
        bits=about.bits_stored,
        signed=about.signed,
        slope=slope,
        intercept=intercept,
        modality_lut=modality_lut,
        voi=voi,
        full_range=full_range,
        inverted=inverted,
        padding=_padding(header, about, options),
    )
    pixels = displayed_grey(stored, mapping)
    used = "lut" if isinstance(voi, LookUpTable) else "window" if voi is not None else None
    plain = modality_lut is None and slope == 1.0 and intercept == 0.0
    return DecodedImage(
        pixels,
        _meta(
            header,
            stored,
            about,
            channels=1,
            inverted=inverted,
            modality="lut" if modality_lut is not None else "none" if plain else "rescale",
            voi=used or ("none" if full_range == "type" else "full_range"),
            codec=codec,
            frame=frame,
            frames=frames,
        ),
    )


def _modality(header: _Header, stored: np.ndarray, frame: int) -> tuple[LookUpTable | None, float, float]:
    sequence = header.raw("ModalityLUTSequence")
    if sequence is not None:
        return _table(sequence[0], stored.dtype.kind == "i", header.little), 1.0, 0.0
    group = "PixelValueTransformationSequence"
    slope = _number(header.of_frame("RescaleSlope", group, frame))
    intercept = _number(header.of_frame("RescaleIntercept", group, frame))
    if slope is None or slope == 0.0:
        if slope == 0.0:
            header.notes.append("rescale_ignored")
        return None, 1.0, intercept or 0.0
    return None, slope, intercept or 0.0


def _voi(
    header: _Header, frame: int, options: DecodeOptions, signed: bool, slope: float, intercept: float
) -> LookUpTable | Window | None:
    """The VOI table or window that the policy picks, or None for the full range."""
    if options.voi == "none":
        return None
    tables = header.raw("VOILUTSequence")
    if tables is None:
        tables = header.of_frame("VOILUTSequence", "FrameVOILUTSequence", frame)
    if options.voi == "lut":
        found: LookUpTable | Window | None = _voi_table(header, tables, options, signed, slope, intercept)
        return found if found is not None else _window(header, frame, options)
    found = _window(header, frame, options)
    return found if found is not None else _voi_table(header, tables, options, signed, slope, intercept)


def _voi_table(
    header: _Header, tables: Any, options: DecodeOptions, signed: bool, slope: float, intercept: float
) -> LookUpTable | None:
    if tables is None or len(tables) == 0:
        return None
    if options.window >= len(tables):
        header.notes.append("voi_choice_clipped")
    below_zero = signed or slope < 0 or intercept < 0
    return _table(tables[min(options.window, len(tables) - 1)], below_zero, header.little)


def _window(header: _Header, frame: int, options: DecodeOptions) -> Window | None:
    centers = _numbers(header.of_frame("WindowCenter", "FrameVOILUTSequence", frame))
    widths = _numbers(header.of_frame("WindowWidth", "FrameVOILUTSequence", frame))
    if not centers and not widths:
        return None
    count = min(len(centers), len(widths))
    if count == 0:
        header.notes.append("window_ignored")
        return None
    if options.window >= count:
        header.notes.append("voi_choice_clipped")
    index = min(options.window, count - 1)
    function = str(header.of_frame("VOILUTFunction", "FrameVOILUTSequence", frame) or "LINEAR").strip().upper()
    if function not in WINDOW_FUNCTIONS:
        header.notes.append("voi_function_assumed_LINEAR")
        function = "LINEAR"
    try:
        return Window(centers[index], widths[index], function)
    except ValueError:
        header.notes.append("window_ignored")
        return None


def _inverted(header: _Header, photometric: str, options: DecodeOptions) -> bool:
    """Whether black and white are exchanged; a contradiction is noted."""
    shape = str(header.raw("PresentationLUTShape") or "").strip().upper()
    by_photometric, by_shape = photometric == "MONOCHROME1", shape == "INVERSE"
    if shape in ("IDENTITY", "INVERSE") and by_photometric != by_shape:
        header.notes.append("polarity_contradiction")
    if options.polarity == "photometric":
        return by_photometric
    if options.polarity == "shape":
        return by_shape
    return by_photometric or by_shape


def _padding(header: _Header, about: codecs.Frame, options: DecodeOptions) -> tuple[float, float] | None:
    if options.padding == "keep":
        return None
    values = []
    for keyword in ("PixelPaddingValue", "PixelPaddingRangeLimit"):
        number = _number(header.raw(keyword))
        if number is not None and about.bits_allocated <= 16:
            # Written as US or SS whatever the pixels are: the same bits, read with the pixels' sign.
            size = 1 << about.bits_allocated
            bits = int(number) & (size - 1)
            number = float(bits - size if about.signed and bits >= size // 2 else bits)
        values.append(number)
    if values[0] is None:
        return None
    other = values[0] if values[1] is None else values[1]
    return min(values[0], other), max(values[0], other)


def _colour(
    header: _Header,
    stored: np.ndarray,
    about: codecs.Frame,
    photometric: str,
    codec: str,
    frame: int,
    frames: int,
) -> DecodedImage:
    extremes = stored
    if photometric == "PALETTE COLOR":
        pixels = _palette(header, stored)
    else:
        if about.signed:
            raise DecodeError("bad_header", f"signed samples do not fit {photometric}")
        bits = about.bits_stored
        pixels = codecs.ybr_to_rgb(stored, bits) if photometric == "YBR_FULL" else stored
        pixels = _scaled_colour(pixels, bits)
    if extremes.min() == extremes.max():
        raise DecodeError("constant", "every pixel has the same stored value")
    if pixels.min() == pixels.max():
        raise DecodeError("blank_display", "the colours of this file show every pixel alike")
    return DecodedImage(
        np.ascontiguousarray(pixels),
        _meta(
            header,
            extremes,
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


def _palette(header: _Header, stored: np.ndarray) -> np.ndarray:
    """RGB (uint8) of palette indices; of 16-bit palette entries the high byte is what a screen shows."""
    channels = []
    for colour in ("Red", "Green", "Blue"):
        descriptor = header.raw(f"{colour}PaletteColorLookupTableDescriptor")
        data = header.raw(f"{colour}PaletteColorLookupTableData")
        if data is None:
            data = _expanded_segments(header.raw(f"Segmented{colour}PaletteColorLookupTableData"), header.little)
        if descriptor is None or data is None:
            raise DecodeError("bad_lut", f"the {colour.lower()} palette is missing")
        channels.append(_look_up_table(descriptor, data, stored.dtype.kind == "i", header.little))
    wide = any(table.bits > 8 and int(table.entries.max()) > 255 for table in channels)
    planes = []
    for table in channels:
        index = np.clip(stored.astype(np.int64) - table.first, 0, len(table.entries) - 1)
        planes.append((table.entries >> 8 if wide else table.entries)[index].astype(np.uint8))
    return np.stack(planes, axis=-1)


def _expanded_segments(data: Any, little: bool) -> list[int] | None:
    """Entries of a segmented palette (16-bit words), or None where there is none.

    Source: DICOM PS3.3 C.7.9.2.
    """
    if data is None:
        return None
    if not isinstance(data, (bytes, bytearray)):
        raise DecodeError("bad_lut", "the segmented palette is not given in words")
    words = np.frombuffer(data[: len(data) // 2 * 2], dtype="<u2" if little else ">u2").tolist()
    entries: list[int] = []

    def expand(position: int, limit: int, nested: bool) -> None:
        segments = 0
        while position + 1 < len(words) and segments < limit:
            kind, length = words[position], words[position + 1]
            if kind == 0:
                entries.extend(words[position + 2 : position + 2 + length])
                position += 2 + length
            elif kind == 1 and entries and position + 2 < len(words):
                steps = np.linspace(entries[-1], words[position + 2], length + 1)[1:]
                entries.extend(int(value) for value in np.rint(steps))
                position += 3
            elif kind == 2 and not nested and position + 3 < len(words):
                offset = words[position + 2] | words[position + 3] << 16
                expand(offset // 2, length, True)
                position += 4
            else:
                raise DecodeError("bad_lut", "the segmented palette cannot be expanded")
            segments += 1
            if len(entries) > 65536:
                raise DecodeError("bad_lut", "the segmented palette has more than 65536 entries")

    expand(0, len(words), False)
    return entries


def _table(item: Any, signed: bool, little: bool) -> LookUpTable:
    """The look-up table of an item of a modality or VOI LUT sequence."""
    try:
        descriptor, data = item.get("LUTDescriptor"), item.get("LUTData")
    except Exception:
        raise DecodeError("bad_lut", "the look-up table cannot be read") from None
    return _look_up_table(descriptor, data, signed, little)


def _look_up_table(descriptor: Any, data: Any, signed: bool, little: bool) -> LookUpTable:
    """A table from its descriptor (entries, first input value, bits) and data."""
    try:
        count, first, bits = (int(value) for value in descriptor)
    except Exception:
        raise DecodeError("bad_lut", "the look-up table has no usable descriptor") from None
    count = (count & 0xFFFF) or 65536
    first &= 0xFFFF
    if signed and first >= 0x8000:
        first -= 0x10000
    if not 1 <= bits <= 16:
        raise DecodeError("bad_lut", f"a look-up table of {bits} bits")
    if isinstance(data, (bytes, bytearray)):
        if bits <= 8 and len(data) in (count, count + count % 2):
            entries: np.ndarray = np.frombuffer(data, dtype=np.uint8)[:count]
        else:
            entries = np.frombuffer(data[: len(data) // 2 * 2], dtype="<u2" if little else ">u2")
    else:
        try:
            entries = np.atleast_1d(np.array(data, dtype=np.int64)) & 0xFFFF
        except Exception:
            raise DecodeError("bad_lut", "the look-up table's entries are not numbers") from None
        if bits <= 8 and len(entries) == -(-count // 2) and count > 1:  # bytes packed in words
            entries = np.stack([entries & 0xFF, entries >> 8], axis=-1).reshape(-1)
    if len(entries) < count:
        raise DecodeError("bad_lut", f"a look-up table has {len(entries)} of {count} entries")
    return LookUpTable(first, bits, entries[:count].astype(np.uint16))


def _meta(
    header: _Header,
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
    finite = stored if stored.dtype.kind != "f" else stored[np.isfinite(stored)]
    return ImageMeta(
        format="dicom",
        rows=about.rows,
        columns=about.columns,
        channels=channels,
        photometric=about.photometric,
        inverted=inverted,
        bits_stored=about.bits_stored,
        signed=about.signed,
        stored_minimum=float(finite.min()),
        stored_maximum=float(finite.max()),
        modality=modality,
        voi=voi,
        transfer_syntax=header.syntax,
        codec=codec,
        frame=frame,
        frames=frames,
        notes=";".join(dict.fromkeys(header.notes)),
    )


def _numbers(value: Any) -> list[float]:
    """Finite numbers of a single or multiple value; none when one of them is no number."""
    if value is None:
        return []
    several = value if hasattr(value, "__iter__") and not isinstance(value, (str, bytes)) else [value]
    numbers = [_number(part) for part in several]
    return [] if any(number is None for number in numbers) else [n for n in numbers if n is not None]


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _read(data: bytes) -> Any:
    """The wanted attributes by pydicom."""
    import pydicom

    try:
        return pydicom.dcmread(io.BytesIO(data), force=True, specific_tags=list(WANTED))
    except MemoryError:
        raise
    except RecursionError:
        raise DecodeError("corrupt", "sequences are nested too deeply") from None
    except Exception as error:
        raise DecodeError("corrupt", f"the header cannot be parsed ({type(error).__name__})") from None


def _transfer_syntax(data: bytes) -> tuple[str, int]:
    """Transfer syntax UID of the file meta information (or empty) and where the data set starts.

    Only UIDs known here are returned as they stand; any other becomes ``unknown``.
    """
    position = 132 if data[128:132] == b"DICM" else 0
    syntax = ""
    while position + 8 <= len(data) and data[position : position + 2] == b"\x02\x00":
        element = data[position + 2 : position + 4]
        if data[position + 4 : position + 6] in (b"OB", b"UN", b"OW", b"SQ", b"UT"):
            if position + 12 > len(data):
                break
            length, start = struct.unpack_from("<I", data, position + 8)[0], position + 12
        else:
            length, start = struct.unpack_from("<H", data, position + 6)[0], position + 8
        if element == b"\x10\x00":
            text = data[start : start + length].rstrip(b"\0 ").decode("ascii", "replace")
            known = text in codecs.NATIVE or text in codecs.CODECS
            syntax = text if known else "unknown" if text else ""
        position = start + length
    return syntax, position


def _inflated(data: bytes, start: int, limit: int) -> bytes:
    """A deflated file as an explicit little-endian one, inflated to at most ``limit`` bytes."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        body = inflater.decompress(data[start:], limit)
    except zlib.error:
        raise DecodeError("corrupt", "the deflated data set cannot be inflated") from None
    if inflater.unconsumed_tail:
        raise DecodeError("too_large", f"the deflated data set inflates to more than {limit} bytes")
    if not inflater.eof:
        raise DecodeError("truncated", f"the deflated data set ends early (after {len(body)} inflated bytes)")
    uid = b"1.2.840.10008.1.2.1\0"
    meta = b"\x02\x00\x10\x00UI" + struct.pack("<H", len(uid)) + uid
    group = b"\x02\x00\x00\x00UL" + struct.pack("<HI", 4, len(meta))
    return bytes(128) + b"DICM" + group + meta + body
