"""The header of a DICOM file, read within bounds and without repeating what it says.

Only the attributes of :data:`WANTED` are kept. Everything here is meant for files of unknown origin.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from typing import Any

from candor_monai.utils.errors import DecodeError

from . import codecs
from .decoded_image import DecodeOptions
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

_PIXEL_TAGS = (b"\xe0\x7f\x10\x00", b"\x7f\xe0\x00\x10")
_MAGIC = b"DICM"
DEFLATED = "1.2.840.10008.1.2.1.99"
BIG_ENDIAN = "1.2.840.10008.1.2.2"


def has_preamble(data: bytes) -> bool:
    """Whether a file is DICOM Part 10."""
    return data[128:132] == _MAGIC


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


class Header:
    """The wanted attributes of a file, read defensively.

    Args:
        data: the file.
        options: its ``max_bytes`` bounds what a deflated file inflates to.

    Attributes:
        dataset: the attributes, a pydicom data set.
        syntax: transfer syntax UID, as stated or inferred; ``unknown`` for one that is not handled.
        little: byte order of the pixels.
        notes: repairs and assumptions.
        mentions_pixels: the bytes of a pixel data tag stand somewhere in the file.

    Raises:
        DecodeError: ``corrupt``, ``truncated``, ``too_large`` or ``no_transfer_syntax``.
    """

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
    position = 132 if has_preamble(data) else 0
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
    return bytes(128) + _MAGIC + group + meta + body


def finite_numbers(value: Any) -> list[float]:
    """Finite numbers of a single or multiple value; none when one of them is no number."""
    if value is None:
        return []
    several = value if hasattr(value, "__iter__") and not isinstance(value, (str, bytes)) else [value]
    numbers = [finite_number(part) for part in several]
    return [] if any(number is None for number in numbers) else [n for n in numbers if n is not None]


def finite_number(value: Any) -> float | None:
    """A value as a finite number, or None."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
