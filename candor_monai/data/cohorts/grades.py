"""Grades of retinopathy brought to one finding: referable from grade 2 on."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...utils import UserError
from ..label_policy import MISSING_TEXTS, NEGATIVE, POSITIVE, UNLABELLED
from ..label_tables import line_of

REFERABLE = 2
HIGHEST = 4


def grade_codes(column: pd.Series, where: str) -> np.ndarray:
    """Codes of a column of grades 0 to 4, shape (N,), int8; a blank is unlabelled.

    Raises:
        UserError: a value that is no grade; names table, column, row and value.

    >>> grade_codes(pd.Series(["0", "2", "4.0", ""]), "t.csv")
    array([ 0,  1,  1, -3], dtype=int8)
    """
    blank = column.str.strip().str.lower().isin(MISSING_TEXTS).to_numpy(dtype=bool)
    number = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    odd = ~blank & ~(np.isin(number, np.arange(HIGHEST + 1)))
    if odd.any():
        row = int(odd.argmax())
        raise UserError(f"{where}, column {column.name!r}, {line_of(row)}: {column.iloc[row]!r} is not a grade 0 to 4.")
    return np.where(blank, UNLABELLED, np.where(number >= REFERABLE, POSITIVE, NEGATIVE)).astype(np.int8)
