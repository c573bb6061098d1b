"""The similarity of two images: a float64 dot product summed in one fixed order, divided by both norms.

The product of two float32 numbers is exact in float64. The products are added in 64 running sums (sum j takes
elements j, j + 64, j + 128, … in ascending order), and the 64 sums are halved: the second half is added to the
first until one is left. Only element-wise multiplication and addition are used, which IEEE 754 fixes to the bit, so a
similarity depends on its two rows alone: not on a BLAS, on threads, or on the pairs computed beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

LANES = 64
# Pairs computed together.
_PAIRS = 128
# So many times as many are halved together.
_BATCHES = 8
_NORMS = 1024
_ROWS = 8192


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
    out = np.empty(len(left))
    _Products(left.shape[1]).fill(out, lambda there: (left[there], right[there]))
    return out


class _Products:
    """Products of many pairs of rows, in buffers that stay in a second-level cache.

    Element j + 64·p of a row lies in part p and lane j, so that every step is one operation on long vectors: few
    operations, so that threads seldom wait for the interpreter's lock. What a last part lacks is 0, and changes no sum.
    """

    def __init__(self, width: int) -> None:
        self._whole = width // LANES
        parts = -(-width // LANES)
        self._left, self._right = np.zeros((2, parts, _PAIRS, LANES))
        self._sums = np.empty((LANES, _PAIRS * _BATCHES))

    def fill(self, out: np.ndarray, rows: Callable[[slice], tuple[np.ndarray, np.ndarray]]) -> None:
        """Write the products of all pairs.

        Args:
            out: shape (pairs,), float64.
            rows: some pairs -> their rows, each of shape (pairs, d), float32; the left ones (1, d) where they are all
                the same.
        """
        together = self._sums.shape[1]
        for first in range(0, len(out), together):
            last = min(first + together, len(out))
            for start in range(first, last, _PAIRS):
                there = slice(start, min(start + _PAIRS, last))
                left, right = rows(there)
                products = self._spread(right, self._right)
                np.multiply(self._spread(left, self._left), products, out=products)
                np.copyto(self._sums[:, start - first : there.stop - first], np.add.reduce(products, axis=0).T)
            # Halved along the first axis, where each step is one long vector addition.
            lanes, half = self._sums[:, : last - first], LANES
            while half > 1:
                half //= 2
                np.add(lanes[:half], lanes[half : 2 * half], out=lanes[:half])
            out[first:last] = lanes[0]

    def _spread(self, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Rows as float64, shape (parts, rows, lanes)."""
        count, whole = len(rows), self._whole
        parts = rows[:, : whole * LANES].reshape(count, whole, LANES)
        np.copyto(out[:whole, :count], parts.transpose(1, 0, 2))
        rest = rows.shape[1] - whole * LANES
        if rest:
            out[whole, :count, :rest] = rows[:, whole * LANES :]
        return out[:, :count]


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
        self.array = np.asarray(features)
        #: Norms to a relative 1e-12, shape (N,), float64: for preselection, never for a result.
        self.rough_norms = _checked_norms(features, name)
        self._norms = np.full(len(features), np.nan)
        self._codes: dict[bytes, int] = {}
        self._code = np.full(len(features), -1, np.int64)

    def __len__(self) -> int:
        return len(self.array)

    @property
    def dimension(self) -> int:
        """d, the number of columns."""
        return int(self.array.shape[1])

    def norms(self, rows: np.ndarray) -> np.ndarray:
        """Norms of rows, the root of the dot product with itself in the fixed order, shape of ``rows``, float64."""
        missing = np.unique(rows[np.isnan(self._norms[rows])])
        for start in range(0, len(missing), _NORMS):
            part = missing[start : start + _NORMS]
            taken = self.array[part]
            self._norms[part] = np.sqrt(fixed_order_dot(taken, taken))
        return self._norms[rows]

    def codes(self, rows: np.ndarray) -> np.ndarray:
        """Numbers of rows that are equal when, and only when, the rows are the same to the bit, int64."""
        for row in np.unique(rows[self._code[rows] < 0]):
            digest = hashlib.blake2b(np.ascontiguousarray(self.array[row]).tobytes(), digest_size=32).digest()
            self._code[row] = self._codes.setdefault(digest, len(self._codes))
        return self._code[rows]

    def similarities(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Exact similarities of pairs of rows.

        Args:
            left: P rows, int64.
            right: P rows, int64.

        Returns:
            shape (P,), float64.
        """
        left = np.asarray(left, np.int64)
        right = np.asarray(right, np.int64)
        scale = self.norms(left) * self.norms(right)
        out = np.empty(len(left))

        def fill(span: tuple[int, int]) -> None:
            taken = np.empty((2, _PAIRS, self.dimension), np.float32)

            def rows(there: slice) -> tuple[np.ndarray, np.ndarray]:
                one, other = left[span[0] + there.start : span[0] + there.stop], right[span[0] :][there]
                # Pairs come by query, so that often all of them have the same left row.
                one = one[:1] if bool((one == one[0]).all()) else one
                for some, room in zip((one, other), taken, strict=True):
                    np.take(self.array, some, axis=0, out=room[: len(some)], mode="clip")
                return taken[0, : len(one)], taken[1, : len(other)]

            _Products(self.dimension).fill(out[span[0] : span[1]], rows)

        in_threads(fill, len(left), _PAIRS)
        return out / scale


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

    NumPy gives the interpreter's lock back while it computes. Threads that do not wait for each other at every step
    lose nothing on a busy machine, where parallel operations on small blocks do.
    """
    workers = torch.get_num_threads()
    share = -(-count // (workers * block)) * block
    if workers == 1 or share < 16 * block:
        fill((0, count))
        return
    spans = [(start, min(start + share, count)) for start in range(0, count, share)]
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(fill, spans))


def _checked_norms(features: np.ndarray, name: str) -> np.ndarray:
    norms = np.empty(len(features))
    for start in range(0, len(features), _ROWS):
        block = features[start : start + _ROWS]
        for row in range(0, len(block), 512):
            wide = block[row : row + 512].astype(np.float64)
            norms[start + row : start + row + len(wide)] = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    wrong = np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))
    if len(wrong):
        row = int(wrong[0])
        what = "is all zero" if norms[row] == 0 else "holds a NaN or an infinite value"
        raise ValueError(f"{name}[{row}] {what}: reject the image before scoring")
    return norms
