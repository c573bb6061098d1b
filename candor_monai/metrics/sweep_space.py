"""The low-precision scores that preselect neighbours, and the proven bound on their error.

docs/exactness.md derives the bound; the names are those used there. With z = x/‖x‖ and a fixed centre μ, a = z_q − μ
and b = z_c − μ, the similarity of a query and a candidate is

    ⟨z_q, z_c⟩ = ⟨a, b⟩ + ⟨μ, b⟩ + ⟨z_q, μ⟩,

and the last term is the same for all candidates of a query, so the first two rank them. Centring makes the error
scale with ‖a‖·‖b‖, which is what keeps features packed in a narrow cone apart. ⟨μ, b⟩ is carried by three further
columns, its bfloat16 leading part, that of the rest, and that of what is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from . import whole_numbers
from .operand_rows import write_bfloat16, write_lengths, write_offsets
from .score_scan import score_room
from .similarity import FeatureRows, in_threads

_ROWS = 256
_CENTRE_ROWS = 1024
_EXTRA = 3
# Unit roundoffs.
_U16, _U32, _U64 = 2.0**-8, 2.0**-24, 2.0**-53

Numbers = np.ndarray | np.floating


def choose_precision(precision: str) -> str:
    """The precision of the sweep: ``"auto"`` is bfloat16 where the processor has units for its products, else float32.

    A precision whose products are not within the bound here and now (a narrower accumulator, or a global setting that
    lets float32 products be computed in less) becomes float64. Whole numbers are chosen by
    :func:`.space_choice.chosen_space`.

    >>> choose_precision("float64")
    'float64'
    """
    if precision == "auto":
        precision = "bfloat16" if has_bfloat16_units() else "float32"
    return precision if _within_bound(precision) else "float64"


def has_bfloat16_units() -> bool:
    """Whether products of bfloat16 have units of their own; in vector registers they are slower than float32."""
    supported = getattr(torch.cpu, "_is_amx_tile_supported", bool)
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported() and supported())


def _within_bound(precision: str) -> bool:
    """Try a product whose sums need the accumulator and whose factors need the precision that the bound assumes."""
    if precision == "float64":
        return True
    if precision == "int8":
        return whole_numbers.products_are_exact()
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    # 1 + 1,023 · 2⁻⁹: an accumulator of 8 bits stays at 1. A float32 factor of 1 + 2⁻¹² is lost in 8 or 10 bits.
    left = torch.full((128, 1024), 2.0**-9, dtype=dtype)
    left[:, 0] = 1
    right = torch.full((1024, 128), 1.0 if precision == "bfloat16" else 1 + 2.0**-12, dtype=dtype)
    exact = float((left[0].double() * right[:, 0].double()).sum())
    allowed = (_gamma(1024 + 8, _U32) + (_U16 if precision == "bfloat16" else 0.0)) * exact
    return bool((torch.mm(left, right).double() - exact).abs().max() <= allowed)


@dataclass(frozen=True)
class Operand:
    """Rows as they enter the matrix product, with what the error bound needs.

    Attributes:
        matrix: shape (n, d + 3), of the precision; whole numbers: shape (n, columns), int8.
        length: upper bound on ‖a‖ (or ‖b‖) of each row, shape (n,), float64.
        residual: upper bound on the distance from a to the row of the matrix, shape (n,), float64.
        shift: upper bound on |⟨μ, b⟩| of each row, shape (n,), float64.
        scale: what a row of whole numbers is multiplied by, shape (n,), float32; empty in other precisions.
        bias: ⟨μ, b⟩, shape (n,), float32; empty in other precisions, whose matrix holds it.
    """

    matrix: torch.Tensor
    length: np.ndarray
    residual: np.ndarray
    shift: np.ndarray
    scale: np.ndarray
    bias: np.ndarray

    def __len__(self) -> int:
        return len(self.matrix)

    def part(self, some: slice) -> Operand:
        """A view of rows that follow each other."""
        numbers = (self.length, self.residual, self.shift, self.scale, self.bias)
        return Operand(self.matrix[some], *(column[some] for column in numbers))

    def take(self, rows: np.ndarray) -> Operand:
        """The operand of some of the rows; a view where they follow each other."""
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all()):
            return self.part(slice(int(rows[0]), int(rows[-1]) + 1))
        taken = torch.from_numpy(raw_numbers(self.matrix).take(rows, axis=0)).view(self.matrix.dtype)
        of_whole = (column[rows] if len(column) else column for column in (self.scale, self.bias))
        return Operand(taken, self.length[rows], self.residual[rows], self.shift[rows], *of_whole)


class SweepSpace:
    """Scores of one precision around one centre.

    Args:
        rows: the features.
        members: rows whose mean (of at most 1,024 of them) is the centre; it changes the time only.
        precision: ``"int8"`` (whole numbers), ``"bfloat16"``, ``"float32"`` or ``"float64"``.
        centre: to use instead of that mean, shape (d,), float32.
    """

    def __init__(
        self, rows: FeatureRows, members: np.ndarray, precision: str, centre: np.ndarray | None = None
    ) -> None:
        self.rows = rows
        self.precision = precision
        #: That scores are stored in.
        self.dtype = {"bfloat16": torch.bfloat16, "float64": torch.float64}.get(precision, torch.float32)
        #: Relative error of a stored score against the sum it was rounded from.
        self.rounding = _U16 / (1 - _U16) if precision == "bfloat16" else 0.0
        self.centre = _mean(rows, members) if centre is None else centre
        self._centre_length = float(np.linalg.norm(self.centre.astype(np.float64))) * (1 + 1e-12)

    def candidates(self, members: np.ndarray) -> Operand:
        """Rows as candidates: (b, ⟨μ, b⟩ in three parts)."""
        return self._operand(members, True)

    def queries(self, members: np.ndarray) -> Operand:
        """Rows as queries: (a, 1, 1, 1)."""
        return self._operand(members, False)

    @property
    def row_bytes(self) -> int:
        """Memory of a row of an operand."""
        if self.precision == "int8":
            return whole_numbers.columns_of(self.rows.dimension) + 32
        return (self.rows.dimension + _EXTRA) * self.dtype.itemsize + 24

    @property
    def is_coarse(self) -> bool:
        """Whether many candidates that are no neighbours are within the bound."""
        return self.precision == "int8"

    def finer(self) -> SweepSpace:
        """A space whose bound leaves few candidates undecided: this one, or one of float32."""
        if not self.is_coarse:
            return self
        return SweepSpace(self.rows, np.empty(0, np.int64), choose_precision("float32"), self.centre)

    def room(self, rows: int, columns: int) -> torch.Tensor:
        """Room for scores, shape (rows, columns): whole numbers are written without gaps."""
        if self.precision == "int8":
            return torch.empty((rows, columns), dtype=self.dtype)
        return score_room(rows, columns, self.dtype)

    def scores(self, candidates: Operand, queries: Operand) -> torch.Tensor:
        """Scores, shape (candidates, queries): similarity less ⟨z_q, μ⟩, within :meth:`error` and ``rounding``."""
        out = self.room(len(candidates), len(queries))
        self.write_scores(candidates, queries, out)
        return out

    def write_scores(self, candidates: Operand, queries: Operand, out: torch.Tensor) -> None:
        """Write scores into room for them, or the first rows of it."""
        if self.precision == "int8":
            of_candidates = candidates.matrix, candidates.scale, candidates.bias
            whole_numbers.write_products(*of_candidates, queries.matrix, queries.scale, out)
        else:
            torch.mm(candidates.matrix, queries.matrix.T, out=out)

    def shifts(self, queries: np.ndarray) -> np.ndarray:
        """⟨z_q, μ⟩ of rows within 10⁻¹¹, shape of ``queries``, float64: what scores lack of similarities."""
        out = np.empty(len(queries))
        for start in range(0, len(queries), _ROWS):
            part = queries[start : start + _ROWS]
            out[start : start + _ROWS] = self.rows.array[part].astype(np.float64) @ self.centre.astype(np.float64)
        return out / self.rows.norms[queries]

    def error(self, candidates: Operand, queries: Operand) -> np.ndarray:
        """Bound on |score before it is stored − exact similarity + ⟨z_q, μ⟩| over all candidates, shape (queries,)."""
        if not len(candidates):
            return np.zeros(len(queries))
        size, off, shift = candidates.length.max(), candidates.residual.max(), candidates.shift.max()
        return self.bound(size, off, shift, queries.length, queries.residual)

    def bound(
        self, size: Numbers, off: Numbers, shift: Numbers, length: np.ndarray, residual: np.ndarray
    ) -> np.ndarray:
        """Bound on |score before it is stored − exact similarity + ⟨z_q, μ⟩|.

        Args:
            size: upper bound on ‖b‖, of one candidate or of all.
            off: upper bound on the distance from b to the row of the matrix.
            shift: upper bound on |⟨μ, b⟩|.
            length: upper bound on ‖a‖ of the query.
            residual: upper bound on the distance from a to the row of the matrix.
        """
        dimension = self.rows.dimension
        unit = _U64 if self.precision == "float64" else _U32
        gamma = _gamma(dimension + _EXTRA + 8, unit)
        stored = length + residual
        inner = residual * size + stored * off
        summed = gamma * (stored * (size + off) + 3 * shift)
        split = shift * 2.0**-23 if self.precision == "bfloat16" else shift * unit
        # ⟨μ, b⟩ is summed in the working precision, from a b that was rounded in it.
        bias = self._centre_length * (_gamma(dimension + 8, unit) * (size + off) + _base(unit) + unit * size)
        # The exact similarity is a float64 sum: its own distance from the real number.
        settled = 4 * _gamma(dimension + 32, _U64)
        return (inner + summed + split + bias + settled) * (1 + 1e-6) + 1e-30

    def _operand(self, members: np.ndarray, candidate: bool) -> Operand:
        count, dimension = len(members), self.rows.dimension
        whole = self.precision == "int8"
        unit = _U64 if self.precision == "float64" else _U32
        if whole:
            matrix = torch.empty((count, whole_numbers.columns_of(dimension)), dtype=torch.int8)
        else:
            matrix = torch.empty((count, dimension + _EXTRA), dtype=self.dtype)
        table = raw_numbers(matrix)
        length, residual, shift = np.empty(count), np.zeros(count), np.zeros(count)
        scale, biases = (np.zeros(count if whole else 0, np.float32) for _ in range(2))

        def fill(span: tuple[int, int]) -> None:
            offset = np.empty((_ROWS, dimension), np.float64 if self.precision == "float64" else np.float32)
            bias = np.empty(_ROWS, offset.dtype)
            for start in range(span[0], span[1], _ROWS):
                there = slice(start, min(start + _ROWS, span[1]))
                offset, bias = offset[: there.stop - start], bias[: there.stop - start]
                norms = self.rows.norms[members[there]]
                write_offsets(self.rows.array, members[there], norms, self.centre, offset, length[there], bias)
                if candidate:
                    shift[there] = np.abs(bias)
                    if whole:
                        biases[there] = bias
                    else:
                        self._split(bias, table[there, dimension:])
                elif not whole:
                    table[there, dimension:] = self._rounded(np.ones((1, 1), offset.dtype))
                if whole:
                    whole_numbers.write_rounded(offset, table[there], scale[there])
                    write_lengths(offset, residual[there])
                elif self.precision == "bfloat16":
                    write_bfloat16(offset, table[there, :dimension], residual[there])
                else:
                    table[there, :dimension] = offset

        in_threads(fill, count, _ROWS)
        slack = 1 + 2 * _gamma(dimension + 16, unit)
        # Normalising and centring round each element: at most 3 u of ‖z‖ = 1 and u of ‖a‖.
        base = _base(unit)
        lengths = length * slack + base
        mixed = _gamma(whole_numbers.steps_of_mixing(dimension), unit) if whole else 0.0
        residuals = residual * slack + base + (unit + mixed) * lengths
        return Operand(matrix, lengths, residuals, shift * slack, scale, biases)

    def _rounded(self, values: np.ndarray) -> np.ndarray:
        """Values of the working precision as the matrix holds them."""
        if self.precision != "bfloat16":
            return values
        # To the nearest, ties to even, by whole numbers: bfloat16 is the upper half of float32.
        bits = values.view(np.uint32)
        upper = bits >> np.uint32(16)
        upper &= np.uint32(1)
        upper += np.uint32(0x7FFF)
        upper += bits
        upper >>= np.uint32(16)
        return upper.astype(np.uint16).view(np.int16)

    def _split(self, bias: np.ndarray, columns: np.ndarray) -> None:
        """The leading part of each number, that of the rest, and that of what is left."""
        rest = bias.copy()
        for column in range(_EXTRA):
            columns[:, column] = part = self._rounded(rest)
            rest -= _single(part) if self.precision == "bfloat16" else part


def _mean(rows: FeatureRows, members: np.ndarray) -> np.ndarray:
    """Mean of at most 1,024 unit vectors, shape (d,), float32."""
    step = max(1, len(members) // _CENTRE_ROWS)
    sample = members[::step][:_CENTRE_ROWS]
    total = np.zeros(rows.dimension)
    for start in range(0, len(sample), _ROWS):
        part = sample[start : start + _ROWS]
        total += (rows.array[part] / rows.norms[part, None]).sum(axis=0)
    return (total / max(len(sample), 1)).astype(np.float32)


def raw_numbers(matrix: torch.Tensor) -> np.ndarray:
    """A NumPy view of a matrix or of scores: the bits of bfloat16 as int16."""
    return (matrix.view(torch.int16) if matrix.dtype == torch.bfloat16 else matrix).numpy()


def _single(bits: np.ndarray) -> np.ndarray:
    """The float32 numbers that bfloat16 bits stand for."""
    wide = bits.view(np.uint16).astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


def _base(unit: float) -> float:
    """Distance that normalising puts between the row in the working precision and z, ‖z‖ = 1."""
    return 4 * unit + 1e-12


def _gamma(terms: int, unit: float) -> float:
    """γ_m = m·u/(1 − m·u), the relative error of a sum of m terms in any order."""
    return terms * unit / (1 - terms * unit)
