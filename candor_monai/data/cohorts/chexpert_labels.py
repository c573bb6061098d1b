"""Tables in the form of the CheXpert labeller: one column a finding; 1, 0, -1 (uncertain), blank (not mentioned)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ...utils import UserError
from ..label_policy import label_codes
from ..label_tables import find_column

COLUMNS = (
    "No Finding",
    "Enlarged Cardiomediastinum",
    "Cardiomegaly",
    "Lung Opacity",
    "Lung Lesion",
    "Edema",
    "Consolidation",
    "Pneumonia",
    "Atelectasis",
    "Pneumothorax",
    "Pleural Effusion",
    "Pleural Other",
    "Fracture",
    "Support Devices",
)


def columns_for(findings: Sequence[str], dataset: str) -> tuple[str, ...]:
    """The findings of a task that such a table has, in the task's order.

    Raises:
        UserError: it has none of them.

    >>> columns_for(["Edema", "Hernia"], "chexpert")
    ('Edema',)
    """
    chosen = tuple(f for f in findings if f in COLUMNS)
    if not chosen:
        raise UserError(f"{dataset} has none of {', '.join(findings)}; it has {', '.join(COLUMNS)}.")
    return chosen


def chexpert_codes(
    table: pd.DataFrame, findings: Sequence[str], path: Path, other_names: Mapping[str, str] | None = None
) -> np.ndarray:
    """Codes of the findings, shape (N, F), int8, as in label_policy.

    Args:
        table: texts.
        findings: names of columns.
        path: the table, for messages.
        other_names: finding -> the name that some releases give its column.

    Raises:
        UserError: a column is not there or a value is not a label.
    """
    codes = np.empty((len(table), len(findings)), dtype=np.int8)
    for f, finding in enumerate(findings):
        other = (other_names or {}).get(finding)
        column = find_column(table, finding, path, [other] if other else [])
        codes[:, f] = label_codes(table[column], column, path.name)
    return codes
