"""Rows as they enter a matrix product: divided by their norms, centred, and rounded; compiled loops."""

from __future__ import annotations

import numpy as np

from .compiled import compiled

# Running sums of a row, which processors add many at a time.
_LANES = 64


@compiled
def write_offsets(
    array: np.ndarray,
    members: np.ndarray,
    norms: np.ndarray,
    centre: np.ndarray,
    offset: np.ndarray,
    length: np.ndarray,
    bias: np.ndarray,
) -> None:
    """x/‖x‖ − μ of some rows, its length, and its product with μ.

    The quotient is rounded once (twice in float64, where the inverse norm is), and so is the difference.

    Args:
        array: the features, shape (N, d), float32.
        members: rows, shape (n,), int64.
        norms: of these rows, shape (n,), float64.
        centre: μ, shape (d,), float32.
        offset: written, shape (n, d), float32 or float64, which sums are in too.
        length: written, shape (n,), float64.
        bias: written, shape (n,), of the dtype of ``offset``.
    """
    dimension = array.shape[1]
    sums, mean = np.empty(_LANES, offset.dtype), centre.astype(offset.dtype)
    for place in range(len(members)):
        line, row, inverse = offset[place], array[members[place]], 1.0 / norms[place]
        for column in range(dimension):
            line[column] = np.float64(row[column]) * inverse
        for column in range(dimension):
            line[column] -= mean[column]
        bias[place] = _product(line, mean, sums)
        length[place] = np.sqrt(np.float64(_product(line, line, sums)))


@compiled
def write_bfloat16(offset: np.ndarray, bits: np.ndarray, left: np.ndarray) -> None:
    """Rows as bits of bfloat16, to the nearest, ties to even, and the length of what is left of them.

    Args:
        offset: shape (n, d), float32; what is left takes its place.
        bits: written, shape (n, d), int16; its rows may lie apart.
        left: written, shape (n,), float64.
    """
    sums, whole = np.empty(_LANES, np.float32), offset.view(np.uint32)
    upper = np.empty(offset.shape[1], np.uint32)
    there = upper.view(np.float32)
    for place in range(len(offset)):
        line, number, rounded = offset[place], whole[place], bits[place]
        # bfloat16 is the upper half of float32.
        for column in range(len(line)):
            half = np.uint32(0x7FFF) + ((number[column] >> np.uint32(16)) & np.uint32(1))
            upper[column] = (number[column] + half) & np.uint32(0xFFFF0000)
        for column in range(len(line)):
            rounded[column] = np.int16(upper[column] >> np.uint32(16))
        for column in range(len(line)):
            line[column] -= there[column]
        left[place] = np.sqrt(np.float64(_product(line, line, sums)))


@compiled
def write_lengths(rows: np.ndarray, length: np.ndarray) -> None:
    """Lengths of rows, shape (n, d), float32 or float64, which sums are in too; ``length``: shape (n,), float64."""
    sums = np.empty(_LANES, rows.dtype)
    for place in range(len(rows)):
        length[place] = np.sqrt(np.float64(_product(rows[place], rows[place], sums)))


@compiled
def _product(left: np.ndarray, right: np.ndarray, sums: np.ndarray) -> float:
    """The product of two rows; ``sums`` is room for running sums."""
    whole = len(left) // _LANES * _LANES
    sums[:] = 0.0
    for start in range(0, whole, _LANES):
        for lane in range(_LANES):
            sums[lane] += left[start + lane] * right[start + lane]
    for lane in range(len(left) - whole):
        sums[lane] += left[whole + lane] * right[whole + lane]
    half = _LANES
    while half > 1:
        half //= 2
        for lane in range(half):
            sums[lane] += sums[half + lane]
    return sums[0]
