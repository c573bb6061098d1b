"""A publisher's names of its splits, brought to ``train``, ``val`` and ``test``."""

from __future__ import annotations

import pandas as pd

from ...utils import UserError
from ..label_tables import line_of

NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validate": "val",
    "validation": "val",
    "dev": "val",
    "tune": "val",
    "test": "test",
    "testing": "test",
    "holdout": "test",
}


def normal_splits(column: pd.Series, where: str) -> pd.Series:
    """Splits of a text column; blanks are missing.

    Raises:
        UserError: a text that is none of the names; names table, column, row and value.

    >>> normal_splits(pd.Series(["Training", "test", ""]), "t.csv").tolist()
    ['train', 'test', None]
    """
    own, texts = pd.factorize(column.fillna(""))
    values: list[str | None] = []
    for i, text in enumerate(texts):
        name = str(text).strip().lower()
        if name and name not in NAMES:
            row = int((own == i).argmax())
            raise UserError(
                f"{where}, column {column.name!r}, {line_of(row)}: {str(text)[:40]!r} is not a split. Splits are "
                f"{', '.join(NAMES)} or blank."
            )
        values.append(NAMES.get(name))
    return pd.Series([values[code] for code in own], index=column.index, dtype=object)
