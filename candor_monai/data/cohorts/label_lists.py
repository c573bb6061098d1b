"""Labels written as a list in one cell: the set of names an image has."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ...utils import UserError
from ..label_policy import POSITIVE
from ..label_tables import line_of


def split_lists(column: pd.Series, separator: str) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """Cells split at a separator, outer spaces stripped.

    Returns:
        code of each row, shape (N,), and the distinct lists that the codes index.

    Raises:
        UserError: the separator is no text.
    """
    if not separator:
        raise UserError("list_separator must be the text between two names of a list, is blank.")
    own, texts = pd.factorize(column)
    return own, [tuple(part.strip() for part in str(t).split(separator) if part.strip()) for t in texts]


def literal_lists(column: pd.Series, where: str) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """Cells that hold a list as Python prints it, e.g. ``"['a', ' b']"``; outer spaces stripped, empty names dropped.

    Raises:
        UserError: a cell is not such a list; names table and row.

    >>> literal_lists(pd.Series(["['Mass', '']", "[]"]), "t.csv")
    (array([0, 1]), [('Mass',), ()])
    """
    own, texts = pd.factorize(column)
    lists = []
    for i, text in enumerate(texts):
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = None
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            row = int(np.flatnonzero(own == i)[0])
            raise UserError(f"{where}, {line_of(row)}: {str(text)[:60]!r} is not a list of names.")
        lists.append(tuple(v.strip() for v in value if v.strip()))
    return own, lists


def list_codes(
    lists: tuple[np.ndarray, list[tuple[str, ...]]],
    findings: Mapping[str, Sequence[str]],
    otherwise: int,
    *,
    known: set[str] | None = None,
    where: str = "",
) -> np.ndarray:
    """Codes of findings that are each a set of names: positive when the image's list holds one of them.

    Whole names are compared, never parts of them; a name that ends in ``*`` stands for all that begin with it.

    Args:
        lists: code of each row and the distinct lists, as above.
        findings: finding -> names.
        otherwise: code of an image whose list holds none of them.
        known: every name that may occur; None allows any.
        where: the table's name, for messages.

    Returns:
        shape (N, F), int8.

    Raises:
        UserError: a name is not known.

    >>> list_codes((np.array([0, 1]), [("mass", "cyst"), ("breast mass",)]), {"Mass": ["mass"]}, 0)
    array([[1],
           [0]], dtype=int8)
    """
    own, distinct = lists
    table = np.full((len(distinct), len(findings)), otherwise, dtype=np.int8)
    exact = [frozenset(n for n in names if not n.endswith("*")) for names in findings.values()]
    begins = [tuple(n[:-1] for n in names if n.endswith("*")) for names in findings.values()]
    for i, names in enumerate(distinct):
        if known is not None:
            for name in names:
                if name not in known:
                    row = int(np.flatnonzero(own == i)[0])
                    raise UserError(f"{where}, {line_of(row)}: {name!r} is not a label of this dataset.")
        for f in range(len(findings)):
            if not exact[f].isdisjoint(names) or (begins[f] and any(n.startswith(begins[f]) for n in names)):
                table[i, f] = POSITIVE
    return table[own]
