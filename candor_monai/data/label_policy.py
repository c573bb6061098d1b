"""What a value in a label column means, and what uncertain and blank labels become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..utils import UserError, unknown
from .label_tables import line_of
from .tasks import BLANK
from .tasks import UNCERTAIN as UNCERTAIN_POLICIES

POSITIVE, NEGATIVE, UNCERTAIN, BLANKED, UNLABELLED = 1, 0, -1, -2, -3

MISSING_TEXTS = frozenset({"", "nan", "none", "null", "na", "n/a", "<na>"})
POSITIVE_TEXTS = frozenset({"1", "1.0", "true", "t", "yes", "y", "positive", "pos", "present"})
NEGATIVE_TEXTS = frozenset({"0", "0.0", "false", "f", "no", "n", "negative", "neg", "absent", "-0.0"})
UNCERTAIN_TEXTS = frozenset({"-1", "-1.0", "uncertain", "u", "equivocal", "possible"})


@dataclass(frozen=True)
class LabelValues:
    """The texts that mean positive, negative, uncertain and blank, compared in lower case without outer spaces.

    Args:
        positive, negative, uncertain, blank: texts of each meaning.
        unknown: what any other text is: ``"error"``, or ``"exclude"`` (unlabelled, counted and listed).

    Raises:
        UserError: a text has two meanings, or ``unknown`` is neither.
    """

    positive: frozenset[str] = POSITIVE_TEXTS
    negative: frozenset[str] = NEGATIVE_TEXTS
    uncertain: frozenset[str] = UNCERTAIN_TEXTS
    blank: frozenset[str] = MISSING_TEXTS
    unknown: str = "error"

    def __post_init__(self) -> None:
        if self.unknown not in ("error", "exclude"):
            raise unknown("value of unknown_values:", self.unknown, ("error", "exclude"))
        seen: dict[str, str] = {}
        for meaning in ("positive", "negative", "uncertain", "blank"):
            for text in getattr(self, meaning):
                if text in seen:
                    raise UserError(f"label value {text!r} is given as both {seen[text]} and {meaning}.")
                seen[text] = meaning

    @classmethod
    def of(
        cls,
        positive: Any = None,
        negative: Any = None,
        uncertain: Any = None,
        blank: Any = None,
        unknown: str = "error",
    ) -> LabelValues:
        """Values as a user names them, one or several; those named replace that meaning's and leave the others' texts.

        >>> LabelValues.of(positive="pos", negative=["neg", "none"]).meaning()["pos"]
        1
        """
        given = {"positive": positive, "negative": negative, "uncertain": uncertain, "blank": blank}
        named = {m: frozenset(_norm(t) for t in _several(v)) for m, v in given.items() if v is not None}
        taken = frozenset().union(*named.values()) if named else frozenset()
        default = cls()
        rest = {m: getattr(default, m) - taken for m in given if m not in named}
        return cls(**named, **rest, unknown=unknown)

    def meaning(self) -> dict[str, int]:
        """text -> code."""
        pairs = ((self.positive, POSITIVE), (self.negative, NEGATIVE), (self.uncertain, UNCERTAIN))
        return {t: code for texts, code in (*pairs, (self.blank, BLANKED)) for t in texts}


def _several(value: Any) -> tuple[Any, ...]:
    """One value, or several: a text is one value and not its letters."""
    return (value,) if isinstance(value, (str, int, float)) else tuple(value)


def label_codes(
    column: pd.Series, name: str, where: str, values: LabelValues | None = None, unknown: dict[str, int] | None = None
) -> np.ndarray:
    """Codes of a text column of labels.

    Args:
        column: texts, in the order of the table's rows.
        name: the column's name, for messages.
        where: the table's name, for messages.
        values: meaning of the texts; None takes the usual ones.
        unknown: counts texts without a meaning under ``"name: text"`` when ``values.unknown`` is ``"exclude"``.

    Returns:
        shape (N,), int8: 1, 0, -1 uncertain, -2 blank, -3 unlabelled.

    Raises:
        UserError: a text without a meaning; names table, column, row and value.

    >>> label_codes(pd.Series(["1.0", "0", "-1", "", "Yes"]), "Edema", "labels.csv")
    array([ 1,  0, -1, -2,  1], dtype=int8)
    """
    values = values or LabelValues()
    meaning = values.meaning()
    own, texts = pd.factorize(column)
    codes = np.full(len(texts) + 1, UNLABELLED, dtype=np.int8)
    codes[-1] = BLANKED  # pandas gives -1 to a missing value
    for i, text in enumerate(texts):
        code = meaning.get(_norm(text))
        if code is None:
            rows = np.flatnonzero(own == i)
            if values.unknown == "error":
                shown = str(text) if len(str(text)) <= 40 else f"{str(text)[:40]}…"
                raise UserError(
                    f"{where}, column {name!r}, {line_of(int(rows[0]))}: {shown!r} is not a label. Labels are 1, 0, "
                    f"-1 (uncertain) or blank, and yes/no, true/false, positive/negative; name other texts with "
                    f"positive_values, negative_values, uncertain_values or blank_values, or set "
                    f"unknown_values: exclude."
                )
            if unknown is not None:
                unknown[f"{name}: {text}"] = unknown.get(f"{name}: {text}", 0) + len(rows)
            code = UNLABELLED
        codes[i] = code
    return codes[own]


def apply_policy(
    codes: np.ndarray, findings: tuple[str, ...], uncertain: str, blank: str
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Labels from codes under a policy.

    Args:
        codes: shape (N, F), int8, as ``label_codes`` gives.
        findings: names of the columns.
        uncertain: ``"exclude"``, ``"positive"`` or ``"negative"``.
        blank: ``"negative"`` or ``"exclude"``.

    Returns:
        labels (N, F) int8 1/0/-1, uncertain (N, F) bool, and counts: the policy, and by finding what the codes were.

    Raises:
        UserError: an unknown policy.

    >>> codes = np.array([[1], [0], [-1], [-2]], np.int8)
    >>> labels, uncertain, counts = apply_policy(codes, ("F",), "exclude", "negative")
    >>> labels[:, 0], counts["labels"]["F"]
    (array([ 1,  0, -1,  0], dtype=int8), {'positive': 1, 'negative': 1, 'uncertain': 1, 'blank': 1, 'unlabelled': 0})
    """
    for key, value, known in (("uncertain", uncertain, UNCERTAIN_POLICIES), ("blank", blank, BLANK)):
        if value not in known:
            raise unknown(f"value of {key}:", str(value), known)
    becomes = {"exclude": -1, "positive": 1, "negative": 0}
    table = np.array([becomes[blank], becomes[uncertain], 0, 1], dtype=np.int8)  # codes -2, -1, 0, 1
    labels = np.full(codes.shape, -1, dtype=np.int8)
    known_codes = codes != UNLABELLED
    labels[known_codes] = table[codes[known_codes].astype(np.int64) + 2]
    meanings: Mapping[str, int] = {
        "positive": POSITIVE,
        "negative": NEGATIVE,
        "uncertain": UNCERTAIN,
        "blank": BLANKED,
        "unlabelled": UNLABELLED,
    }
    by_finding = {
        finding: {meaning: int((codes[:, f] == code).sum()) for meaning, code in meanings.items()}
        for f, finding in enumerate(findings)
    }
    return labels, codes == UNCERTAIN, {"uncertain": uncertain, "blank": blank, "labels": by_finding}


def _norm(text: Any) -> str:
    return str(text).strip().lower()
