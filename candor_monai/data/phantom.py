"""Radiograph phantoms: independent backgrounds, and a small local marker that makes a finding.

An image looks like a chest radiograph from afar: lungs, heart and ribs of varying shape, over soft structure and
noise. All of it is coarse; the marker alone holds fine stripes (see :mod:`candor_monai.networks.calibration`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

SIDE = 224
# Of a marker, in pixels of a 224 × 224 image: period of its stripes, standard deviation of its envelope, half of its
# extent; and its height, where white is 1.
PERIOD, SIGMA, MARKER_HALF = 5.0, 5.0, 15
AMPLITUDE = 0.16
VIEWS = ("PA", "AP")
KINDS = ("vertical", "horizontal")


@dataclass(frozen=True)
class Marker:
    """A marker in an image.

    Args:
        kind: ``"vertical"`` or ``"horizontal"`` stripes.
        row, column: its centre, as a share of the image's side.
    """

    kind: str
    row: float
    column: float

    def box(self, side: int) -> tuple[int, int, int, int]:
        """x, y, width and height of the smallest box of whole pixels around it."""
        half = MARKER_HALF * side / SIDE
        x, y = math.floor(self.column * side - half), math.floor(self.row * side - half)
        far = math.ceil(2 * half) + 1
        return x, y, far, far


def backgrounds(rng: np.random.Generator, count: int, side: int = SIDE, view: str = "PA") -> np.ndarray:
    """Independent phantoms without a marker.

    Args:
        rng: where the variation comes from.
        count: n.
        side: pixels a side.
        view: ``"PA"`` or ``"AP"``: the heart is larger and the lungs are smaller in AP.

    Returns:
        shape (n, side, side), float32, within [0.18, 0.82], where white is 1.
    """
    parts = [_anatomy(rng, count, side, view)]
    for cells, height in ((4, 0.055), (7, 0.055), (14, 0.03)):
        smooth = _interpolation(side, cells)
        coarse = height * rng.standard_normal((count, cells, cells), dtype=np.float32)
        parts.append((np.matmul(smooth, coarse), np.broadcast_to(smooth.T, (count, cells, side))))
    rows = np.concatenate([part[0] for part in parts], axis=2)
    columns = np.concatenate([part[1] for part in parts], axis=1)
    image = np.matmul(rows, columns)
    image += 0.008 * rng.standard_normal(image.shape, dtype=np.float32)
    return np.clip(image, 0.18, 0.82, out=image)


def mean_background(side: int = SIDE) -> np.ndarray:
    """The anatomy that all phantoms share, without its variation; shape (side, side), float32."""
    parts = [_anatomy(None, 1, side, view) for view in VIEWS]
    return np.mean([np.matmul(rows, columns)[0] for rows, columns in parts], axis=0)


def random_marker(rng: np.random.Generator, kind: str) -> Marker:
    """A marker somewhere in the middle of an image."""
    return Marker(kind, float(rng.uniform(0.25, 0.75)), float(rng.uniform(0.15, 0.85)))


def marker_pattern(kind: str, rows: np.ndarray, columns: np.ndarray, phase: float = 0.0) -> np.ndarray:
    """Fine stripes under a Gaussian envelope, in [-1, 1], of zero mean but for 1e-16.

    Args:
        kind: ``"vertical"`` or ``"horizontal"`` stripes.
        rows, columns: places relative to the marker's centre, in pixels of a 224 × 224 image; shapes (h,), (w,).
        phase: of the stripes, radians.

    Returns:
        shape (h, w), float64.
    """
    fine, plain = (columns, rows) if kind == "vertical" else (rows, columns)
    stripes = np.cos(2 * np.pi * fine / PERIOD + phase) * np.exp(-0.5 * (fine / SIGMA) ** 2)
    envelope = np.exp(-0.5 * (plain / SIGMA) ** 2)
    return np.outer(envelope, stripes) if kind == "vertical" else np.outer(stripes, envelope)


def add_marker(image: np.ndarray, marker: Marker) -> None:
    """Add a marker to an image, in place.

    Args:
        image: shape (side, side), float32, within [0.18, 0.82].
        marker: what and where.
    """
    side = image.shape[0]
    place = (np.arange(side, dtype=np.float64) + 0.5) / side
    rows, columns = (place - marker.row) * SIDE, (place - marker.column) * SIDE
    inside_rows, inside_columns = np.abs(rows) <= MARKER_HALF, np.abs(columns) <= MARKER_HALF
    pattern = marker_pattern(marker.kind, rows[inside_rows], columns[inside_columns])
    image[np.ix_(inside_rows, inside_columns)] += (AMPLITUDE * pattern).astype(np.float32)


def canonical_pixels(images: np.ndarray) -> np.ndarray:
    """Phantoms as canonical images.

    Args:
        images: shape (n, side, side), float32, where white is 1.

    Returns:
        shape (n, 3, side, side), uint8 (a view: the channels share memory).
    """
    grey = np.rint(images * 255).astype(np.uint8)
    return np.broadcast_to(grey[:, None], (len(grey), 3, *grey.shape[1:]))


def _anatomy(rng: np.random.Generator | None, count: int, side: int, view: str) -> tuple[np.ndarray, np.ndarray]:
    """Lungs with ribs, and heart, on a body: (n, side, 4) and (n, 4, side), whose product is the image."""
    place = ((np.arange(side) + 0.5) / side).astype(np.float32)

    def profile(middle: float, half: float) -> np.ndarray:
        centre, width = np.full((count, 1), middle), np.full((count, 1), half)
        if rng is not None:
            centre += rng.normal(0, 0.03, (count, 1))
            width *= np.exp(rng.normal(0, 0.15, (count, 1)))
        return np.exp(-(((place - centre) / width) ** 4))

    wide, tall, heart = (0.16, 0.28, 0.13) if view == "PA" else (0.14, 0.24, 0.17)
    rows, columns = [np.full((count, side), 0.62)], [np.ones((count, side))]
    for middle in (0.30, 0.70):
        lung = profile(0.47, tall)
        if rng is not None:
            waves = place * rng.uniform(8, 10, (count, 1)) + rng.uniform(0, 1, (count, 1))
            lung = lung * (1.0 + 0.15 * np.cos(2 * np.pi * waves))
        rows.append(-0.30 * lung)
        columns.append(profile(middle, wide))
    rows.append(0.16 * profile(0.62, 0.15))
    columns.append(profile(0.55, heart))
    return np.stack(rows, axis=2).astype(np.float32), np.stack(columns, axis=1).astype(np.float32)


def _interpolation(side: int, cells: int) -> np.ndarray:
    """Smooth weights from ``cells`` coarse values to ``side`` pixels, of unit variance; shape (side, cells)."""
    pixels = (np.arange(side) + 0.5) / side * cells - 0.5
    weights = np.exp(-0.5 * ((pixels[:, None] - np.arange(cells)) / 0.6) ** 2)
    return (weights / np.sqrt((weights**2).sum(axis=1, keepdims=True))).astype(np.float32)
