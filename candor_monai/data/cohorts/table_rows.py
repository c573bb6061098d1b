"""Rows of a label table brought together by key: wide or long form, rows that agree merged, rows that do not named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ...utils import UserError, nearest
from ..label_policy import BLANKED, MISSING_TEXTS, NEGATIVE, POSITIVE, UNCERTAIN, LabelValues, label_codes
from ..label_tables import find_column
from .label_lists import list_codes, split_lists


@dataclass
class KeyedRows:
    """One row a key.

    Args:
        table: the first of each key's rows, with all columns.
        keys: the key of each row, unique, never blank.
        findings: names of the F label columns.
        codes: shape (N, F), int8, as in label_policy.
        contradictory: keys whose rows disagree, with the number of rows; they are not among the others.
        merged: rows that repeated another one.
        blank_keys: rows without a key.
        unknown: values without a meaning, by count.
        not_mentioned: whether a blank of this table means "not mentioned" (``is_chexpert_style``).
    """

    table: pd.DataFrame
    keys: pd.Series
    findings: tuple[str, ...]
    codes: np.ndarray
    contradictory: dict[str, int]
    merged: int
    blank_keys: int
    unknown: dict[str, int]
    not_mentioned: bool


def wide_rows(
    table: pd.DataFrame,
    key: str,
    findings: Mapping[str, str],
    compared: Sequence[str],
    where: str,
    values: LabelValues,
) -> KeyedRows:
    """One column a finding.

    Args:
        table: texts.
        key: the column that says which image a row is about.
        findings: finding -> column.
        compared: further columns in which rows of one key must agree.
        where: the table's name.
        values: meaning of the texts.

    Raises:
        UserError: a column is not there, or a text is not a label.
    """
    find_column(table, key, where)
    unknown: dict[str, int] = {}
    codes = np.empty((len(table), len(findings)), dtype=np.int8)
    for f, column in enumerate(findings.values()):
        find_column(table, column, where)
        codes[:, f] = label_codes(table[column], column, where, values, unknown)
    return _by_key(table, table[key].str.strip(), tuple(findings), codes, compared, unknown, is_chexpert_style(codes))


def long_rows(
    table: pd.DataFrame,
    key: str,
    finding_column: str,
    value_column: str | None,
    findings: Mapping[str, str],
    compared: Sequence[str],
    where: str,
    values: LabelValues,
) -> KeyedRows:
    """One row a finding; ``findings`` maps each to its name in the table.

    Without a value column a row says that the finding is present, and a finding that none of an image's rows names is
    absent. With one, a finding that none of an image's rows names is blank. Rows that name other findings count as
    rows of their image. A finding given twice for an image with different values makes the image contradictory.

    Raises:
        UserError: a column is not there, a text is not a label, or no row names one of the findings.
    """
    for column in (key, finding_column, *([value_column] if value_column else [])):
        find_column(table, column, where)
    names = table[finding_column].str.strip()
    _check_named(findings, set(names), f"{where}, column {finding_column!r}: no row")
    unknown: dict[str, int] = {}
    if value_column is None:
        row_codes = np.full(len(table), POSITIVE, dtype=np.int8)
    else:
        row_codes = label_codes(table[value_column], value_column, where, values, unknown)
    keys = table[key].str.strip()
    own, unique = pd.factorize(keys)
    codes = np.full((len(unique), len(findings)), NEGATIVE if value_column is None else BLANKED, dtype=np.int8)
    odd = np.zeros(len(unique), dtype=np.int64)
    for f, name in enumerate(findings.values()):
        rows = np.flatnonzero((names == name).to_numpy(dtype=bool))
        low, high = np.full(len(unique), 127, np.int8), np.full(len(unique), -128, np.int8)
        np.minimum.at(low, own[rows], row_codes[rows])
        np.maximum.at(high, own[rows], row_codes[rows])
        given = high > -128
        codes[given, f] = high[given]
        odd += np.where(given & (low != high), np.bincount(own[rows], minlength=len(unique)), 0)
    first = np.unique(own, return_index=True)[1]
    style = bool((row_codes == UNCERTAIN).any())
    merged = _by_key(table.iloc[first], keys.iloc[first], tuple(findings), codes, [], unknown, style)
    differing = _differing(table, own, compared)
    for i in np.flatnonzero((odd > 0) | differing).tolist():
        if unique[i]:
            merged.contradictory[str(unique[i])] = int(max(odd[i], 2))
    kept = ~merged.keys.isin(merged.contradictory).to_numpy(dtype=bool)
    merged.table = merged.table[kept].reset_index(drop=True)
    merged.keys = merged.keys[kept].reset_index(drop=True)
    merged.codes = merged.codes[kept]
    return merged


def list_rows(
    table: pd.DataFrame,
    key: str,
    column: str,
    separator: str,
    findings: Mapping[str, str],
    compared: Sequence[str],
    where: str,
) -> KeyedRows:
    """All findings of an image in one cell; those that it does not name are absent, a blank cell is blank.

    Raises:
        UserError: a column is not there, or no cell names one of the findings.
    """
    for name in (key, column):
        find_column(table, name, where)
    lists = split_lists(table[column], separator)
    _check_named(findings, {name for names in lists[1] for name in names}, f"{where}, column {column!r}: no cell")
    codes = list_codes(lists, {f: (n,) for f, n in findings.items()}, NEGATIVE)
    codes[table[column].str.strip().str.lower().isin(MISSING_TEXTS).to_numpy(dtype=bool)] = BLANKED
    return _by_key(table, table[key].str.strip(), tuple(findings), codes, compared, {}, False)


def _check_named(findings: Mapping[str, str], named: set[str], nothing: str) -> None:
    """Each finding is named somewhere: one that is mistyped would be absent everywhere."""
    for name in findings.values():
        if name not in named:
            near = nearest(name, named)
            hint = f"Did you mean {near!r}?" if near else f"Named are {', '.join(sorted(named - {''})[:12])}."
            raise UserError(f"{nothing} names {name!r}. {hint}")


def is_chexpert_style(codes: np.ndarray) -> bool:
    """Whether blanks of a table mean "not mentioned": it has uncertain labels, or a column with positives, blanks
    and not one negative.

    >>> is_chexpert_style(np.array([[1], [0], [-2]], np.int8)), is_chexpert_style(np.array([[1], [-2]], np.int8))
    (False, True)
    """
    if (codes == UNCERTAIN).any():
        return True
    sparse = (codes == POSITIVE).any(axis=0) & (codes == BLANKED).any(axis=0) & ~(codes == NEGATIVE).any(axis=0)
    return bool(sparse.any())


def likely_findings(table: pd.DataFrame, values: LabelValues) -> list[str]:
    """Columns that hold labels and nothing else, for a message that proposes them."""
    meaning = values.meaning()
    likely = []
    for column in table.columns:
        texts = {str(t).strip().lower() for t in table[column].unique()}
        if texts <= meaning.keys() and any(meaning[t] == POSITIVE for t in texts):
            likely.append(str(column))
    return likely


def _by_key(
    table: pd.DataFrame,
    keys: pd.Series,
    findings: tuple[str, ...],
    codes: np.ndarray,
    compared: Sequence[str],
    unknown: dict[str, int],
    not_mentioned: bool,
) -> KeyedRows:
    filled = (keys != "").to_numpy(dtype=bool)
    blank_keys = int((~filled).sum())
    table, keys, codes = table[filled], keys[filled], codes[filled]
    own, unique = pd.factorize(keys)
    first = np.unique(own, return_index=True)[1]
    contradictory: dict[str, int] = {}
    merged = 0
    if len(first) < len(table):
        reference = first[own]
        differing = _differing(table, own, compared)
        rows = np.flatnonzero((codes != codes[reference]).any(axis=1))
        differing[own[rows]] = True
        sizes = np.bincount(own, minlength=len(unique))
        contradictory = {str(unique[i]): int(sizes[i]) for i in np.flatnonzero(differing).tolist()}
        merged = int((sizes[~differing] - 1).sum())
        first = first[~differing]
    first = np.sort(first)
    return KeyedRows(
        table.iloc[first].reset_index(drop=True),
        keys.iloc[first].reset_index(drop=True),
        findings,
        codes[first],
        contradictory,
        merged,
        blank_keys,
        unknown,
        not_mentioned,
    )


def _differing(table: pd.DataFrame, own: np.ndarray, compared: Sequence[str]) -> np.ndarray:
    """Whether the rows of each key differ in one of the columns compared, shape (keys,), bool."""
    count = int(own.max()) + 1 if len(own) else 0
    differing = np.zeros(count, dtype=np.bool_)
    first = np.unique(own, return_index=True)[1] if len(own) else np.empty(0, np.int64)
    for column in compared:
        values, _ = pd.factorize(table[column].str.strip())
        rows = np.flatnonzero(values != values[first][own])
        differing[own[rows]] = True
    return differing


def describe_keys(keys: Sequence[str], n: int = 3) -> str:
    """A few keys, for messages."""
    return ", ".join(repr(k[:60]) for k in list(keys)[:n]) + (" …" if len(keys) > n else "")
