"""From stored values to what a viewer displays: modality, then VOI, then polarity.

Source: DICOM PS3.3 C.11.1 (modality LUT), C.11.2 (VOI LUT and window functions), C.7.6.3.1.2 (photometric
interpretation) and C.7.5.1.1.2 (pixel padding).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from candor_monai.utils.errors import DecodeError

WINDOW_FUNCTIONS = ("LINEAR", "LINEAR_EXACT", "SIGMOID")


@dataclass(frozen=True)
class LookUpTable:
    """A DICOM look-up table.

    Args:
        first: the input value of the first entry; smaller inputs get that entry, larger ones the last.
        bits: bits of an entry; the output range is 0 … 2**bits − 1.
        entries: (n,) unsigned.
    """

    first: int
    bits: int
    entries: np.ndarray

    @property
    def top(self) -> int:
        """The largest value of the output range, grown where an entry exceeds the declared bits."""
        return max((1 << self.bits) - 1, (1 << int(self.entries.max()).bit_length()) - 1)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Entries of ``values`` (float64, rounded to whole numbers), same shape, float64."""
        index = np.clip(np.rint(values) - self.first, 0, len(self.entries) - 1).astype(np.int64)
        return self.entries[index].astype(np.float64)


@dataclass(frozen=True)
class Window:
    """A VOI window: centre and width in modality values, and the function between black and white."""

    center: float
    width: float
    function: str = "LINEAR"

    def __post_init__(self) -> None:
        least = 1.0 if self.function == "LINEAR" else 0.0
        usable = math.isfinite(self.center) and math.isfinite(self.width) and self.width >= least and self.width > 0
        if self.function not in WINDOW_FUNCTIONS or not usable:
            raise ValueError("window centre, width or function is not usable")

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Brightness in [0, 1] of modality values.

        >>> Window(2, 4, "LINEAR")(np.array([0.0, 1.5, 3.0])).round(3).tolist()
        [0.0, 0.5, 1.0]
        >>> Window(2, 4, "LINEAR_EXACT")(np.array([0.0, 2.0, 4.0])).tolist()
        [0.0, 0.5, 1.0]
        >>> Window(2, 4, "SIGMOID")(np.array([2.0])).tolist()
        [0.5]
        """
        if self.function == "SIGMOID":
            with np.errstate(over="ignore"):
                return 1.0 / (1.0 + np.exp(-4.0 * (values - self.center) / self.width))
        if self.function == "LINEAR_EXACT":
            return np.clip((values - self.center) / self.width + 0.5, 0.0, 1.0)
        middle, span = self.center - 0.5, self.width - 1.0
        if span == 0.0:
            return (values > middle).astype(np.float64)
        return np.clip((values - middle) / span + 0.5, 0.0, 1.0)


@dataclass(frozen=True)
class GreyMapping:
    """How one grey image goes from stored values to the screen.

    Args:
        bits: bits stored.
        signed: whether stored values are signed.
        slope, intercept: rescale, used where ``modality_lut`` is None.
        modality_lut: look-up table from stored to modality values.
        voi: VOI look-up table, window, or None for the full range.
        full_range: ``image`` or ``type``, used where ``voi`` is None.
        inverted: exchange black and white at the end.
        padding: (lowest, highest) stored value that is background, or None.
    """

    bits: int
    signed: bool
    slope: float = 1.0
    intercept: float = 0.0
    modality_lut: LookUpTable | None = None
    voi: LookUpTable | Window | None = None
    full_range: str = "image"
    inverted: bool = False
    padding: tuple[float, float] | None = None

    def modality(self, stored: np.ndarray) -> np.ndarray:
        """Modality values (float64) of stored values."""
        values = stored.astype(np.float64)
        if self.modality_lut is not None:
            return self.modality_lut(values)
        if self.slope == 1.0 and self.intercept == 0.0:
            return values
        return values * self.slope + self.intercept

    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value the stored type holds."""
        return (-(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1) if self.signed else (0, (1 << self.bits) - 1)

    def is_padding(self, stored: np.ndarray) -> np.ndarray | None:
        """Mask of the background, or None where there is none or it would leave no image."""
        if self.padding is None:
            return None
        mask = (stored >= self.padding[0]) & (stored <= self.padding[1])
        return mask if mask.any() and not mask.all() else None


def displayed_grey(stored: np.ndarray, mapping: GreyMapping) -> np.ndarray:
    """The grey image a viewer shows.

    Up to 16 bits the mapping is tabulated once per stored value, so it is exact and cheap for any image size.

    Args:
        stored: (rows, columns) integers, or floats (NaN is background).
        mapping: see :class:`GreyMapping`.

    Returns:
        (rows, columns) uint8 when ``mapping.bits`` ≤ 8, else uint16; 0 is black.

    Raises:
        DecodeError: ``not_finite`` no finite value; ``constant`` one stored value; ``blank_display`` one grey is left.
    """
    finite = None
    if stored.dtype.kind == "f":
        finite = np.isfinite(stored)
        if not finite.any():
            raise DecodeError("not_finite", "no pixel has a finite value")
        if finite.all():
            finite = None
    usable = stored if finite is None else stored[finite]
    low, high = usable.min(), usable.max()
    if low == high:
        raise DecodeError("constant", "every pixel has the same stored value")

    extremes = _extremes(usable, mapping) if mapping.voi is None else None
    if stored.dtype.kind in "iu" and int(high) - int(low) < 1 << 16:
        values = np.arange(int(low), int(high) + 1)
        table = _brightness(values, mapping, extremes)
        pixels = np.empty(stored.shape, dtype=table.dtype)
        for rows in _bands(len(stored)):
            np.take(table, np.subtract(stored[rows], low, dtype=np.intp), out=pixels[rows], mode="clip")
    else:
        filled = stored if finite is None else np.where(finite, stored, low)
        pixels = _brightness(filled, mapping, extremes)
        if finite is not None:
            pixels[~finite] = 0
    if pixels.min() == pixels.max():
        raise DecodeError("blank_display", "the grey mapping of this file shows every pixel alike")
    return pixels


def _extremes(usable: np.ndarray, mapping: GreyMapping) -> tuple[float, float]:
    """Modality values of black and white where there is no VOI."""
    if mapping.full_range == "type":
        ends = mapping.modality(np.array(mapping.bounds()))
        return float(ends.min()), float(ends.max())
    padding = mapping.is_padding(usable)
    shown = usable if padding is None else usable[~padding]
    if shown.min() == shown.max():  # only background and one value: both are the image
        shown = usable
    if mapping.modality_lut is not None:  # a table need not be monotone
        values = mapping.modality(np.unique(shown))
    else:
        values = mapping.modality(np.array([shown.min(), shown.max()]))
    return float(values.min()), float(values.max())


def _brightness(stored: np.ndarray, mapping: GreyMapping, extremes: tuple[float, float] | None) -> np.ndarray:
    """uint8 or uint16 brightness of stored values; ``extremes``: as :func:`_extremes` gives them without a VOI."""
    values = mapping.modality(stored)
    if isinstance(mapping.voi, LookUpTable):
        light = mapping.voi(values) / mapping.voi.top
    elif mapping.voi is not None:
        light = mapping.voi(values)
    else:
        assert extremes is not None
        low, high = extremes
        if low == high:
            raise DecodeError("blank_display", "the modality mapping of this file gives every pixel one value")
        light = np.clip((values - low) / (high - low), 0.0, 1.0)
    if mapping.inverted:
        light = 1.0 - light
    top, dtype = (255, np.uint8) if mapping.bits <= 8 else (65535, np.uint16)
    pixels = np.rint(light * top).astype(dtype)
    padding = mapping.is_padding(stored)
    if padding is not None:
        pixels[padding] = 0
    return pixels


def to_8_bit(pixels: np.ndarray) -> np.ndarray:
    """8-bit version of displayed pixels: uint16 v becomes round(v / 257), so 0 → 0 and 65535 → 255.

    >>> to_8_bit(np.array([0, 128, 129, 65535], dtype=np.uint16)).tolist()
    [0, 0, 1, 255]
    """
    if pixels.dtype == np.uint8:
        return pixels
    result = np.empty(pixels.shape, dtype=np.uint8)
    for rows in _bands(len(pixels)):  # for every uint16 v this is round(v / 257)
        result[rows] = (pixels[rows].astype(np.uint32) * 255 + 32895) >> 16
    return result


def _bands(rows: int, height: int = 32) -> Iterator[slice]:
    """Slices of a few rows: what is computed on the way stays small and in the cache."""
    return (slice(start, start + height) for start in range(0, rows, height))
