"""What decoding takes and gives: options, the decoded image, its metadata, and the reasons a file is refused."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from candor_monai.utils.errors import DecodeError, UserError

# Reason code of a rejected image -> what it says. docs/images.md prints this table; a test compares them.
REASONS: dict[str, str] = {
    "not_found": "no file at this path",
    "vanished": "the file was there when the cohort was read and is gone now",
    "changed": "the file's size or modification time changed since the cohort was read",
    "unreadable": "the operating system refused to open or read the file",
    "empty_file": "the file holds no bytes",
    "unknown_format": "the content is none of DICOM, PNG, JPEG, TIFF, NIfTI (encrypted files and archives end here)",
    "unsupported": "the format is known but this variant of it is not handled",
    "no_pixel_data": "a DICOM object without pixels (structure set, report, waveform)",
    "no_transfer_syntax": "the DICOM file does not say how its pixels are encoded and it cannot be inferred safely",
    "bad_header": "a value the image cannot be shown without is missing or impossible",
    "bad_lut": "a look-up table is malformed",
    "too_large": "the file, its inflated header or rows × columns exceed the limits",
    "multi_frame": "several frames and none chosen",
    "bad_frame": "the chosen frame does not exist",
    "truncated": "fewer pixel bytes than the header demands",
    "corrupt": "the file or its compressed pixels cannot be parsed",
    "no_codec": "no codec for this transfer syntax is installed",
    "codec_failed": "the codec refused the compressed pixels",
    "constant": "every pixel has the same stored value",
    "blank_display": "the window or look-up table leaves one single grey",
    "not_finite": "no finite pixel value",
    "memory": "decoding needs more memory than a worker may use",
    "timeout": "decoding took longer than a worker may take (a hanging file system too)",
    "killed": "the worker process died while decoding (codec crash, or killed by the system)",
    "failed": "decoding stopped with an error nobody foresaw",
}

VOI_POLICIES = ("lut", "window", "none")
FULL_RANGES = ("auto", "image", "type")
POLARITIES = ("either", "photometric", "shape")
PADDINGS = ("background", "keep")


@dataclass(frozen=True)
class DecodeOptions:
    """How files are decoded. Every value is part of what the pixels are.

    Args:
        voi: which grey mapping wins where a DICOM file has both: its VOI ``lut`` or its ``window``; ``none`` ignores
            both and shows the full range.
        window: which of several windows (or VOI LUTs), from 0.
        full_range: without a window, black to white is the range of the values in the ``image``, or of the stored
            ``type``; ``auto``: the type up to 8 bits and for PNG, JPEG and integer TIFF, the image otherwise.
        polarity: what makes an image be inverted: MONOCHROME1 (``photometric``), PresentationLUTShape INVERSE
            (``shape``), or ``either``.
        padding: pixels of the declared padding value are shown black (``background``) or like any other (``keep``).
        frame: the frame of a multi-frame file, from 0; None refuses such files.
        max_pixels: largest rows × columns.
        max_bytes: largest file, and largest header of a deflated file once inflated.

    Raises:
        UserError: a value is not one of those listed.
    """

    voi: str = "lut"
    window: int = 0
    full_range: str = "auto"
    polarity: str = "either"
    padding: str = "background"
    frame: int | None = None
    max_pixels: int = 64_000_000
    max_bytes: int = 512 * 2**20

    def __post_init__(self) -> None:
        for name, allowed in (
            ("voi", VOI_POLICIES),
            ("full_range", FULL_RANGES),
            ("polarity", POLARITIES),
            ("padding", PADDINGS),
        ):
            if getattr(self, name) not in allowed:
                raise UserError(f"decoding option {name}={getattr(self, name)!r}: use one of {', '.join(allowed)}")
        for name, least in (("window", 0), ("frame", 0), ("max_pixels", 1), ("max_bytes", 1)):
            value = getattr(self, name)
            if value is None and name == "frame":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UserError(f"decoding option {name}={value!r}: use a whole number of at least {least}")

    def chosen_frame(self, frames: int) -> int:
        """The frame to show of a file of ``frames``, from 0.

        Raises:
            DecodeError: there are several and none is chosen, or the chosen one does not exist.
        """
        if self.frame is None:
            if frames > 1:
                raise DecodeError("multi_frame", f"{frames} frames; choose one with the option frame")
            return 0
        if self.frame >= frames:
            raise DecodeError("bad_frame", f"frame {self.frame} of {frames} (counted from 0)")
        return self.frame

    def check_size(self, rows: int, columns: int) -> None:
        """Refuse an image of more pixels than allowed.

        Raises:
            DecodeError: it has.
        """
        if rows * columns > self.max_pixels:
            raise DecodeError("too_large", f"{rows}×{columns} pixels, allowed are {self.max_pixels}")

    def as_dict(self) -> dict[str, Any]:
        """The options as plain values, for a worker, a fingerprint or a run record."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class ImageMeta:
    """Everything that travels with a decoded image: fixed, typed, always all of it, and nothing about the patient.

    Attributes:
        format: ``dicom``, ``png``, ``jpeg``, ``tiff`` or ``nifti``.
        rows, columns: size as displayed.
        channels: 1 (grey) or 3 (RGB).
        photometric: as stored, one of DICOM's terms, or ``GREY``, ``RGB``, ``PALETTE COLOR`` for other formats.
        inverted: white and black were exchanged (MONOCHROME1 or an INVERSE presentation shape).
        bits_stored: bits of a stored value.
        signed: whether stored values are signed.
        stored_minimum, stored_maximum: of the stored values, before any grey mapping.
        modality: ``none``, ``rescale`` or ``lut``.
        voi: ``lut``, ``window``, ``full_range`` (of the values in the image) or ``none`` (of the stored type).
        transfer_syntax: DICOM UID, or empty.
        codec: the library and version that decoded the pixels; ``native`` where nothing was compressed.
        frame, frames: the frame shown and how many there are.
        notes: repairs and assumptions, words joined by ``;``, or empty.
    """

    format: str
    rows: int
    columns: int
    channels: int
    photometric: str
    inverted: bool
    bits_stored: int
    signed: bool
    stored_minimum: float
    stored_maximum: float
    modality: str
    voi: str
    transfer_syntax: str
    codec: str
    frame: int
    frames: int
    notes: str

    def as_dict(self) -> dict[str, str | int | float | bool]:
        """The fields as plain values."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class DecodedImage:
    """One image as a viewer displays it.

    Attributes:
        pixels: (rows, columns) or (rows, columns, 3); uint8 when up to 8 bits are stored, else uint16; 0 is black.
        meta: see :class:`ImageMeta`.
    """

    pixels: np.ndarray
    meta: ImageMeta


def check_not_constant(pixels: np.ndarray) -> None:
    """Refuse an image of one single colour.

    Args:
        pixels: (rows, columns) or (rows, columns, 3), as stored.

    Raises:
        DecodeError: ``constant``.
    """
    if (pixels == pixels[:1, :1]).all():
        raise DecodeError("constant", "every pixel has the same stored value")


class StoredRange(TypedDict):
    """Smallest and largest finite stored value, as :class:`ImageMeta` holds them."""

    stored_minimum: float
    stored_maximum: float


def stored_range(stored: np.ndarray) -> StoredRange:
    """Range of the stored values, of any shape; values that are not finite do not count.

    >>> stored_range(np.array([1.0, np.nan, 3.0]))
    {'stored_minimum': 1.0, 'stored_maximum': 3.0}
    """
    finite = stored[np.isfinite(stored)] if stored.dtype.kind == "f" else stored
    return {"stored_minimum": float(finite.min()), "stored_maximum": float(finite.max())}
