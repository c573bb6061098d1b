"""The similarity of two images: a float64 dot product summed in one fixed order, divided by both norms.

The product of two float32 numbers is exact in float64. The products are added in 64 running sums (sum j takes
elements j, j + 64, j + 128, … in ascending order), and the 64 sums are halved: the second half is added to the
first until one is left. Only element-wise multiplication and addition are used, which IEEE 754 fixes to the bit, so a
similarity depends on its two rows alone: not on a BLAS, on threads, or on the pairs computed beside it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from .compiled import compiled

LANES = 64
# Pairs that a thread computes are a multiple of this.
_PAIRS = 128
_CACHED_BYTES = 2**20


def fixed_order_dot(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Row-wise float64 dot product, summed in the fixed order.

    Args:
        left: shape (P, d), float32.
        right: shape (P, d), float32.

    Returns:
        shape (P,), float64.

    Raises:
        ValueError: the shapes differ, or a dtype is not float32.

    >>> fixed_order_dot(np.float32([[1, 2]]), np.float32([[3, 4]]))
    array([11.])
    """
    if left.shape != right.shape or left.ndim != 2:
        raise ValueError(f"left has shape {left.shape}, right {right.shape}: both must be (pairs, dimension)")
    for name, rows in (("left", left), ("right", right)):
        if rows.dtype != np.float32:
            raise ValueError(f"{name} has dtype {rows.dtype}, not float32")
    out, every = np.empty(len(left)), np.arange(len(left))
    ours, theirs = (_read_only(np.ascontiguousarray(rows)) for rows in (left, right))
    _write_similarities(ours, every, theirs, every, np.ones(len(left)), every, out)
    return out


@compiled
def _write_similarities(
    ours: np.ndarray,
    left: np.ndarray,
    theirs: np.ndarray,
    right: np.ndarray,
    norms: np.ndarray,
    pairs: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write the product of row ``left[p]`` of ours and row ``right[p]`` of theirs over both norms, of some pairs p.

    Args:
        ours, theirs: shapes (N, d) and (M, d), float32.
        left, right: rows of every pair, int64.
        norms: of the rows of either, float64.
        pairs: those that are computed, int64.
        out: of every pair, float64, written.
    """
    width = ours.shape[1]
    whole = width // LANES * LANES
    sums = np.empty(LANES)
    for pair in pairs:
        one, other = ours[left[pair]], theirs[right[pair]]
        sums[:] = 0.0
        for start in range(0, whole, LANES):
            for lane in range(LANES):
                sums[lane] += np.float64(one[start + lane]) * np.float64(other[start + lane])
        for lane in range(width - whole):
            sums[lane] += np.float64(one[whole + lane]) * np.float64(other[whole + lane])
        half = LANES
        while half > 1:
            half //= 2
            for lane in range(half):
                sums[lane] += sums[half + lane]
        out[pair] = sums[0] / (norms[left[pair]] * norms[right[pair]])


def _read_only(rows: np.ndarray) -> np.ndarray:
    """A view that cannot be written to: a compiled loop is made for read-only arrays, and for others anew."""
    view = rows.view()
    view.flags.writeable = False
    return view


class FeatureRows:
    """Checked feature rows, and exact similarities between them.

    Args:
        features: shape (N, d), float32; an array or a memory map. It is read in blocks and never copied whole.
        name: what error messages call it.

    Raises:
        ValueError: not two-dimensional, not float32, no column, or a row that is NaN, infinite or of zero norm; the
            message names the first such row.

    >>> rows = FeatureRows(np.float32([[1, 0], [1, 1]]))
    >>> rows.similarities([0, 0], [0, 1]).round(6).tolist()
    [1.0, 0.707107]
    """

    def __init__(self, features: Any, name: str = "features") -> None:
        if isinstance(features, torch.Tensor):
            features = features.detach().cpu().numpy()
        if not isinstance(features, np.ndarray):
            raise ValueError(f"{name} is {type(features).__name__}: an array of shape (images, dimension) is needed")
        if isinstance(features, np.ma.MaskedArray):
            raise ValueError(f"{name} is a masked array, whose mask would be ignored: leave masked images out")
        if features.ndim != 2 or features.shape[1] < 1:
            raise ValueError(f"{name} has shape {features.shape}: (images, dimension) is needed")
        if features.dtype != np.float32:
            raise ValueError(f"{name} has dtype {features.dtype}: float32 is needed")
        # A memory map without its subclass, whose every slice costs microseconds.
        self.array = _read_only(np.asarray(features))
        every = np.arange(len(self))
        squares = np.empty(len(self))
        self._write(every, every, np.ones(len(self)), every, squares)
        #: The root of the dot product of each row with itself in the fixed order, shape (N,), float64.
        self.norms = np.sqrt(squares)
        _check_norms(self.norms, name)
        self._codes: dict[bytes, int] = {}
        self._next_code = itertools.count()  # two threads never take the same
        self._code = np.full(len(features), -1, np.int64)

    def __len__(self) -> int:
        return len(self.array)

    @property
    def dimension(self) -> int:
        """d, the number of columns."""
        return int(self.array.shape[1])

    def codes(self, rows: np.ndarray) -> np.ndarray:
        """Numbers of rows that are equal when, and only when, the rows are the same to the bit, int64."""
        for row in np.unique(rows[self._code[rows] < 0]):
            digest = hashlib.blake2b(np.ascontiguousarray(self.array[row]).tobytes(), digest_size=32).digest()
            self._code[row] = self._codes.setdefault(digest, next(self._next_code))
        return self._code[rows]

    def similarities(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Exact similarities of pairs of rows.

        Args:
            left: P rows, int64.
            right: P rows, int64.

        Returns:
            shape (P,), float64.

        Raises:
            IndexError: there is no such row.
            ValueError: the shapes differ.
        """
        left = np.ascontiguousarray(left, np.int64)
        right = np.ascontiguousarray(right, np.int64)
        if left.shape != right.shape or left.ndim != 1:
            raise ValueError(f"left has shape {left.shape}, right {right.shape}: both must be (pairs,)")
        for rows in (left, right):  # compiled code does not look for wrong rows
            if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
                wrong = rows[(rows < 0) | (rows >= len(self))][0]
                raise IndexError(f"row {wrong}: there are {len(self)} rows")
        # Block by block of the right rows, which then stay in a cache.
        block = max(1, _CACHED_BYTES // (4 * self.dimension), -(-len(self) // 2**16))
        pairs = np.argsort((right // block).astype(np.uint16), kind="stable")
        out = np.empty(len(left))
        self._write(left, right, self.norms, pairs, out)
        return out

    def _write(
        self, left: np.ndarray, right: np.ndarray, norms: np.ndarray, pairs: np.ndarray, out: np.ndarray
    ) -> None:
        """Write the products of pairs of rows over these norms, in the order of ``pairs``."""

        def write(span: tuple[int, int]) -> None:
            _write_similarities(self.array, left, self.array, right, norms, pairs[slice(*span)], out)

        in_threads(write, len(pairs), _PAIRS)


def checked_unit(features: np.ndarray, name: str) -> np.ndarray:
    """Rows divided by their norms, in float64; for values that need not be those of :class:`FeatureRows` to the bit.

    Args:
        features: shape (n, d).
        name: what error messages call it.

    Raises:
        ValueError: not two-dimensional, or a row is zero or not finite; names the first such row.
    """
    values = np.asarray(features, dtype=np.float64)
    if values.ndim != 2:
        raise ValueError(f"{name} has shape {values.shape}: (rows, dimension) is needed")
    norms = np.sqrt((values**2).sum(axis=1))
    wrong = np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))
    if len(wrong):
        raise ValueError(f"{name}[{wrong[0]}] is zero or not finite")
    return values / norms[:, None]


def unit_rows(features: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Some rows, known to be finite and not zero, divided by their norms, float64."""
    taken = np.asarray(features[rows], dtype=np.float64)
    return taken / np.sqrt(np.einsum("nd,nd->n", taken, taken))[:, None]


def in_threads(fill: Callable[[tuple[int, int]], None], count: int, block: int) -> None:
    """Call ``fill`` on spans of ``range(count)``, in as many threads as PyTorch uses; short work in one.

    NumPy and compiled loops give the interpreter's lock back while they compute. Threads that do not wait for each
    other at every step lose nothing on a busy machine, where parallel operations on small blocks do.
    """
    workers = torch.get_num_threads()
    share = -(-count // (workers * block)) * block
    if workers == 1 or share < 16 * block:
        fill((0, count))
        return
    spans = [(start, min(start + share, count)) for start in range(0, count, share)]
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(fill, spans))


def _check_norms(norms: np.ndarray, name: str) -> None:
    wrong = np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))
    if len(wrong):
        row = int(wrong[0])
        what = "is all zero" if norms[row] == 0 else "holds a NaN or an infinite value"
        raise ValueError(f"{name}[{row}] {what}: reject the image before scoring")
