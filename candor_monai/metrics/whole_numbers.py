"""Rows as whole numbers of eight bits, whose products processors add up fastest and without an error.

A row t is held as s·q: q are whole numbers from −127 to 127, s is the row's own scale. Before that its elements are
mixed by a fixed orthogonal transformation, which leaves all products as they are: encoders often have a few elements
that are many times as large as the others, and s is set by the largest.

The product of two rows q is exact. It is checked all the same, against the product of each candidate with the sum of
all queries: the library's function is not part of its public interface.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from .compiled import compiled
from .similarity import in_threads

#: Sums of so many products of two numbers of 8 bits fit into 32 bits.
MOST_COLUMNS = 131_072
# Columns of a matrix are a multiple of this: products of one column came out wrong (torch 2.14).
_COLUMNS = 64
# float32 adds up so many products without an error.
_EXACT_COLUMNS = 1024
# Candidates that a thread turns into scores are a multiple of this.
_ROWS = 64
# Elements of a row that are mixed with others of their kind first, which processors do many at a time.
_APART = 16
# Below this a row counts as zero, and all of it as what was left out.
_LEAST = 1e-30


def columns_of(dimension: int) -> int:
    """Columns of the matrix that holds rows of so many elements: the rest is zero.

    >>> columns_of(70)
    128
    """
    return -(-dimension // _COLUMNS) * _COLUMNS


def steps_of_mixing(dimension: int) -> int:
    """Roundings that an element goes through when it is mixed and its whole number taken off, at most.

    Those of two transformations and their scales, and of s·q and the difference.
    """
    return 2 * (_block(dimension).bit_length() - 1 + 2) + 4


def has_fast_products() -> bool:
    """Whether the processor has instructions for products of 8 bits that do not saturate, and PyTorch uses them."""
    supported = getattr(torch.cpu, "_is_vnni_supported", None)
    return bool(torch.backends.mkldnn.is_available() and hasattr(torch, "_int_mm") and supported and supported())


@lru_cache(maxsize=1)
def products_are_exact() -> bool:
    """Try products of the largest numbers, which a narrower or saturating sum would get wrong."""
    signs = np.random.default_rng(0).choice([-1, 1], (2, 37, 4 * _COLUMNS))
    signs[:, 0] = 1
    left, right = (torch.from_numpy((127 * some).astype(np.int8)) for some in signs)
    out = torch.empty((37, 37), dtype=torch.int32)
    _product(left, right, out)
    return bool((out.numpy() == 127**2 * (signs[0] @ signs[1].T)).all())


def write_rounded(rows: np.ndarray, matrix: np.ndarray, scale: np.ndarray) -> None:
    """Mix rows and write them as whole numbers.

    Args:
        rows: shape (n, d), float32; what is left of them, mixed row less s·q, takes their place.
        matrix: q, written, shape (n, ``columns_of(d)``), int8.
        scale: s, written, shape (n,), float32.
    """
    dimension = rows.shape[1]
    block = _block(dimension)
    root = np.float32(block**-0.5)
    _write_rounded(rows, _signs(dimension), block, root, matrix, scale)


def write_products(
    candidates: torch.Tensor,
    scale: np.ndarray,
    bias: np.ndarray,
    queries: torch.Tensor,
    query_scale: np.ndarray,
    out: torch.Tensor,
) -> None:
    """Write s_c·s_q·⟨q_c, q_q⟩ + bias of each pair.

    Args:
        candidates: shape (n, columns), int8.
        scale: s of each candidate, shape (n,), float32.
        bias: of each candidate, shape (n,), float32.
        queries: shape (m, columns), int8.
        query_scale: s of each query, shape (m,), float32.
        out: shape (n, m), float32, contiguous.

    Raises:
        RuntimeError: a product is wrong.
    """
    if not out.numel():
        return
    bits = out.view(torch.int32)
    _product(candidates, queries, bits)
    table, ours = bits.numpy(), candidates.numpy()
    together = _column_sums(queries.numpy())
    wrong: list[int] = []

    def scaled(span: tuple[int, int]) -> None:
        some = slice(*span)
        row = _scale(table[some], ours[some], together, scale[some], bias[some], query_scale)
        if row >= 0:
            wrong.append(row + span[0])

    in_threads(scaled, len(table), _ROWS)
    if wrong:
        raise RuntimeError(
            f"row {min(wrong)} of a product of 8-bit numbers, shape {tuple(out.shape)}, is wrong on this machine: "
            "choose precision='float32', which does not use it"
        )


def _product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """left · rightᵀ as int32; where the processor has no fast one, as float32 numbers that are whole."""
    if has_fast_products():
        torch._int_mm(left, right.T, out=out)
        return
    out.zero_()
    for some, others in zip(left.split(_EXACT_COLUMNS, dim=1), right.split(_EXACT_COLUMNS, dim=1), strict=True):
        out += torch.mm(some.float(), others.float().T).to(torch.int32)


def _block(dimension: int) -> int:
    """Elements that are mixed at once, a power of two: the first so many, then the last so many.

    >>> _block(768), _block(1)
    (512, 1)
    """
    return 1 << (dimension.bit_length() - 1)


@lru_cache(maxsize=16)
def _signs(dimension: int) -> np.ndarray:
    """Fixed signs before each of both transformations, so that no pattern of features is one of theirs."""
    return np.random.default_rng(dimension).choice(np.array([-1, 1], np.float32), (2, dimension))


@compiled
def _write_rounded(
    rows: np.ndarray,
    signs: np.ndarray,
    block: int,
    root: np.float32,
    matrix: np.ndarray,
    scale: np.ndarray,
) -> None:
    dimension = rows.shape[1]
    bits, spare = rows.view(np.int32), np.empty(block, np.float32)
    for row in range(len(rows)):
        line, whole = rows[row], matrix[row]
        line *= signs[0]
        _mix(line[:block], spare, root)
        if block < dimension:
            line *= signs[1]  # or what is in both blocks would be turned back
            _mix(line[dimension - block :], spare, root)
        most = np.int32(0)  # numbers above zero compare as their bits do
        for column in range(dimension):
            most = np.int32(max(most, np.int32(bits[row, column] & np.int32(0x7FFFFFFF))))
        most_of_row = np.int32(most).view(np.float32)
        step, inverse = np.float32(0), np.float32(0)
        if most_of_row > _LEAST:
            step, inverse = most_of_row / np.float32(127), np.float32(127) / most_of_row
        scale[row] = step
        for column in range(dimension):
            whole[column] = np.int8(np.rint(line[column] * inverse))
        for column in range(dimension):
            line[column] -= step * np.float32(whole[column])
        whole[dimension:] = 0


@compiled
def _mix(line: np.ndarray, spare: np.ndarray, root: np.float32) -> None:
    """The Walsh–Hadamard transformation of a power of two of elements, in place, in some order, of length one."""
    length = len(line)
    apart = min(_APART, length)
    _transform(line, apart)
    for start in range(0, length, apart):
        for place in range(apart):
            spare[place * (length // apart) + start // apart] = line[start + place]
    _transform(spare, length // apart)  # what was close is far apart now
    for place in range(length):
        line[place] = spare[place] * root


@compiled
def _transform(line: np.ndarray, half: int) -> None:
    """Sums and differences of elements ``half`` apart, then twice as far, and so on; two steps at a time."""
    length = len(line)
    while 4 * half <= length:
        for start in range(0, length, 4 * half):
            first, second = line[start : start + half], line[start + half : start + 2 * half]
            third, fourth = line[start + 2 * half : start + 3 * half], line[start + 3 * half : start + 4 * half]
            for place in range(half):
                w, x = first[place] + second[place], first[place] - second[place]
                y, z = third[place] + fourth[place], third[place] - fourth[place]
                first[place], second[place], third[place], fourth[place] = w + y, x + z, w - y, x - z
        half *= 4
    while half < length:
        first, second = line[:half], line[half:]
        for place in range(half):
            first[place], second[place] = first[place] + second[place], first[place] - second[place]
        half *= 2


@compiled
def _column_sums(matrix: np.ndarray) -> np.ndarray:
    out = np.zeros(matrix.shape[1], np.int32)
    for row in range(len(matrix)):
        for column in range(matrix.shape[1]):
            out[column] += matrix[row, column]
    return out


@compiled
def _scale(
    table: np.ndarray,
    candidates: np.ndarray,
    together: np.ndarray,
    scale: np.ndarray,
    bias: np.ndarray,
    query_scale: np.ndarray,
) -> int:
    """Turn whole numbers into the bits of scores, in place; a row whose sum is wrong, or −1."""
    wrong = -1
    for row in range(len(table)):
        line, own = table[row], candidates[row]
        expected = np.int32(0)  # sums of 32 bits, which may run over: both in the same way
        for column in range(len(own)):
            expected = np.int32(expected + np.int32(own[column]) * together[column])
        total = np.int32(0)
        factor, add = scale[row], bias[row]
        for column in range(len(line)):
            number = line[column]
            total = np.int32(total + number)
            line[column] = np.float32(np.float32(number) * (factor * query_scale[column]) + add).view(np.int32)
        if total != expected:
            wrong = row
    return wrong
