"""Which grey mapping a DICOM file asks for: modality, VOI, polarity, background."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import codecs
from .decoded_image import DecodeOptions
from .dicom_header import Header, finite_number, finite_numbers
from .dicom_tables import sequence_table
from .display_values import WINDOW_FUNCTIONS, GreyMapping, LookUpTable, Window


def grey_mapping(
    header: Header, stored: np.ndarray, about: codecs.Frame, frame: int, options: DecodeOptions
) -> GreyMapping:
    """The mapping of one frame's stored values to display values.

    Raises:
        DecodeError: ``bad_lut`` a look-up table is malformed.
    """
    modality_lut, slope, intercept = _modality(header, stored, frame)
    voi = _voi(header, frame, options, stored.dtype.kind == "i" and modality_lut is None, slope, intercept)
    full_range = options.full_range
    if full_range == "auto":
        full_range = "type" if about.bits_stored <= 8 else "image"
    if about.bits_stored > 16:  # wider types hold no meaningful black and white of their own
        full_range = "image"
    return GreyMapping(
        bits=about.bits_stored,
        signed=about.signed,
        slope=slope,
        intercept=intercept,
        modality_lut=modality_lut,
        voi=voi,
        full_range=full_range,
        inverted=_inverted(header, about.photometric, options),
        padding=_padding(header, about, options),
    )


def _modality(header: Header, stored: np.ndarray, frame: int) -> tuple[LookUpTable | None, float, float]:
    sequence = header.raw("ModalityLUTSequence")
    if sequence is not None:
        return sequence_table(sequence[0], stored.dtype.kind == "i", header.little), 1.0, 0.0
    group = "PixelValueTransformationSequence"
    slope = finite_number(header.of_frame("RescaleSlope", group, frame))
    intercept = finite_number(header.of_frame("RescaleIntercept", group, frame))
    if slope is None or slope == 0.0:
        if slope == 0.0 or header.raw("RescaleSlope") is not None:  # no number, or one that is not finite
            header.notes.append("rescale_ignored")
        return None, 1.0, intercept or 0.0
    return None, slope, intercept or 0.0


def _voi(
    header: Header, frame: int, options: DecodeOptions, signed: bool, slope: float, intercept: float
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
    header: Header, tables: Any, options: DecodeOptions, signed: bool, slope: float, intercept: float
) -> LookUpTable | None:
    if tables is None or len(tables) == 0:
        return None
    if options.window >= len(tables):
        header.notes.append("voi_choice_clipped")
    below_zero = signed or slope < 0 or intercept < 0
    return sequence_table(tables[min(options.window, len(tables) - 1)], below_zero, header.little)


def _window(header: Header, frame: int, options: DecodeOptions) -> Window | None:
    centers = finite_numbers(header.of_frame("WindowCenter", "FrameVOILUTSequence", frame))
    widths = finite_numbers(header.of_frame("WindowWidth", "FrameVOILUTSequence", frame))
    if not centers and not widths and header.raw("WindowCenter") is None:
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


def _inverted(header: Header, photometric: str, options: DecodeOptions) -> bool:
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


def _padding(header: Header, about: codecs.Frame, options: DecodeOptions) -> tuple[float, float] | None:
    if options.padding == "keep":
        return None
    values = []
    for keyword in ("PixelPaddingValue", "PixelPaddingRangeLimit"):
        number = finite_number(header.raw(keyword))
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
