"""The label table of a cohort of one's own: its columns found, its values read, one row an image or a key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...utils import UserError, nearest
from ...utils.names import names_of
from ..label_policy import LabelValues
from ..label_tables import find_column, line_of
from .covariates import Covariates, is_keyword
from .draft import Draft
from .selection import selection_columns
from .source import Source
from .splits import normal_splits
from .table_join import BY_HEADER
from .table_rows import KeyedRows, likely_findings, list_rows, long_rows, wide_rows

IMAGE_COLUMNS = ("image", "path", "file", "filename", "file_name", "image_path", "image_id", "Image Index", "dicom_id")
ROLES = {
    "patient": ("patient_id", "PatientID", "patient", "subject_id", "Patient ID"),
    "site": ("site",),
    "split": ("split",),
    "view": ("view", "ViewPosition", "view_position", "View Position", "AP/PA"),
}


@dataclass
class LabelTable:
    """A label table and what its columns are for.

    Args:
        path: the table's file.
        columns: its columns.
        key: the column that says which image a row is about.
        order: that column, as the table has it.
        roles: patient, site, split, view -> column of the table or DICOM keyword; a role that nothing gives is absent.
        wanted: covariates asked for.
        rows: one row a key.
        site: name of the site when no column gives it.
        bins: covariate -> edges.
    """

    path: Path
    columns: list[str]
    key: str
    order: pd.Series
    roles: dict[str, str]
    wanted: list[str]
    rows: KeyedRows
    site: str
    bins: dict[str, Sequence[float]]

    @property
    def name(self) -> str:
        """The table's name, for messages."""
        return self.path.name

    @property
    def keywords(self) -> list[str]:
        """DICOM keywords that the headers must give, as the table has no such column."""
        asked = dict.fromkeys((*self.wanted, *self.bins, *self.roles.values()))
        return [name for name in asked if name not in self.columns and is_keyword(name)]

    def row_name(self, key: str) -> str:
        """How a row is named where its key is an identifier: by its number.

        Accession numbers identify an examination and stay out of what is written.
        """
        return f"{self.name} {line_of(int((self.order == key).to_numpy().argmax()))}"

    def fill(self, draft: Draft, source: Source, lookup: Covariates) -> None:
        """Give the draft its patient, site, split, view, the covariates asked for, and what blanks mean."""
        records, roles = draft.records, self.roles
        records["patient_id"] = lookup.role("patient", roles, "PatientID")
        records["site"] = lookup.get(roles["site"]) if "site" in roles else self.site
        if "split" in roles:
            records["split"] = normal_splits(lookup.get(roles["split"]).rename(roles["split"]), self.name)
        view = lookup.role("view", roles, "View")
        if view is not None:
            records["view"] = view
        for name in (*self.wanted, *self.bins, *selection_columns(self.columns, self.rows.findings)):
            if name not in records:
                records[name] = lookup.get(name)
        for name, edges in self.bins.items():
            if name in ("image_id", "image", "patient_id", "site", "split"):
                raise UserError(f"bins: {name!r} is no number to be replaced by an interval.")
            records[name] = lookup.binned(records[name], name, edges)
        if source.match_on is None:
            draft.match_on = tuple(c for c in ("site", "view") if c in records)
        draft.blank = "negative" if self.rows.not_mentioned else "exclude"
        draft.notes |= {
            "columns": {"image": self.key, **roles},
            "rows_merged": self.rows.merged,
            "rows_without_key": self.rows.blank_keys,
        }
        if self.rows.unknown:
            draft.notes["unknown_values"] = self.rows.unknown


def read_labels(
    source: Source,
    *,
    labels: str | None = None,
    findings: Sequence[str] | Mapping[str, str] | None = None,
    image_column: str | None = None,
    patient_column: str | None = None,
    site_column: str | None = None,
    split_column: str | None = None,
    view_column: str | None = None,
    site: str | None = None,
    covariates: Sequence[str] = (),
    bins: Mapping[str, Sequence[float]] | None = None,
    finding_column: str | None = None,
    value_column: str | None = None,
    list_column: str | None = None,
    list_separator: str = "|",
    positive_values: Sequence[Any] | None = None,
    negative_values: Sequence[Any] | None = None,
    uncertain_values: Sequence[Any] | None = None,
    blank_values: Sequence[Any] | None = None,
    unknown_values: str = "error",
    delimiter: str | None = None,
    encoding: str = "utf-8-sig",
) -> LabelTable:
    """Read the label table. These options are those of every cohort of one's own.

    Args:
        source: the dataset.
        labels: the table, relative to the dataset's folder or to the working directory, or absolute.
        findings: label columns (or finding -> column); in the long form, the findings wanted. None takes the task's.
        image_column: the column that names the image; None takes the first usual name that is there.
        patient_column, site_column, split_column, view_column: a column of the table or a DICOM keyword; None takes
            the first usual name that is there, and for patient and view what the DICOM headers say.
        site: name of the site when no column gives it; None takes the cohort's name.
        covariates: further columns or DICOM keywords to keep.
        bins: covariate -> edges; its number is replaced by the interval it falls into.
        finding_column, value_column: of the long form.
        list_column, list_separator: of the form with all findings of an image in one cell, e.g. ``Edema|Mass``.
        positive_values, negative_values, uncertain_values, blank_values: texts of each meaning.
        unknown_values: ``error`` or ``exclude``, for texts without a meaning.
        delimiter, encoding: of a text table.

    Raises:
        UserError: no table, a column that does not exist, a text that is no label.
    """
    path = _labels_path(source, labels)
    table = source.read(path, delimiter=delimiter, encoding=encoding)
    columns = [str(c) for c in table.columns]
    key = image_column_of(image_column, table, path)
    roles = {}
    given = {"patient": patient_column, "site": site_column, "split": split_column, "view": view_column}
    for role, named in given.items():
        name = named or next((n for n in ROLES[role] if n in columns), None)
        if name is not None:
            roles[role] = name
    wanted = list(dict.fromkeys((*(source.match_on or ()), *names_of(covariates))))
    _no_patients((*wanted, *(bins or {}), *(n for role, n in roles.items() if role != "patient")), roles.get("patient"))
    values = LabelValues.of(positive_values, negative_values, uncertain_values, blank_values, unknown_values)
    compared = [c for c in dict.fromkeys((*roles.values(), *wanted)) if c in columns]
    names = _findings(source, table, key, path, findings, values)
    if value_column is not None and finding_column is None:
        raise UserError("value_column belongs to the long form: name finding_column as well.")
    if finding_column is not None and list_column is not None:
        raise UserError("finding_column is of the long form, list_column of the list form: name one of them.")
    if finding_column is not None:
        rows = long_rows(table, key, finding_column, value_column, names, compared, path.name, values)
    elif list_column is not None:
        rows = list_rows(table, key, list_column, list_separator, names, compared, path.name)
    else:
        rows = wide_rows(table, key, names, compared, path.name, values)
    order = table[key].str.strip()
    return LabelTable(path, columns, key, order, roles, wanted, rows, site or source.name, dict(bins or {}))


def _no_patients(names: Iterable[str], patient: str | None) -> None:
    """Refuse patient ids as a covariate or a role of another kind: their values would be in every output."""
    for name in names:
        if name in (patient, "patient_id"):
            raise UserError(
                f"{name!r} holds patient ids: as a covariate, a site, a split or a view they would be in every output. "
                "Match by something that many patients share; images of one patient are kept apart without it."
            )


def image_column_of(given: str | None, table: pd.DataFrame, path: Path) -> str:
    """The column that names the image.

    Raises:
        UserError: the one given does not exist, none has a usual name, or two have the same.
    """
    columns = [str(c) for c in table.columns]
    if given is not None:
        if given not in columns:
            near = nearest(given, columns)
            hint = f" Did you mean {near!r}?" if near else ""
            raise UserError(f"{path.name} has no column {given!r}.{hint} It has {', '.join(columns)}.")
        return find_column(table, given, path)
    for name in (*IMAGE_COLUMNS, *BY_HEADER.values()):
        if name in columns:
            return find_column(table, name, path)
    raise UserError(
        f"{path.name}: none of its columns is called {', '.join(IMAGE_COLUMNS[:6])} …; name the one that says which "
        f"image a row is about with image_column. It has {', '.join(columns)}."
    )


def unmatched_keys(rows: KeyedRows, matched: np.ndarray, ambiguous: set[str]) -> list[str]:
    """Keys of rows that no image answers to."""
    hit = np.zeros(len(rows.keys), dtype=np.bool_)
    hit[matched] = True
    return [str(k) for k, m in zip(rows.keys, hit, strict=True) if not m and k not in ambiguous]


def _labels_path(source: Source, labels: str | None) -> Path:
    if labels is None:
        kinds = (".csv", ".tsv", ".parquet")
        there = [] if source.root is None else sorted(source.files.listing(""))
        tables = [name for name in there if name.lower().endswith(kinds)]
        hint = f" The folder holds {', '.join(tables[:6])}." if tables else ""
        raise UserError(f"cohort {source.name!r} needs --labels, the table of labels.{hint}")
    return source.named(labels)


def _findings(
    source: Source,
    table: pd.DataFrame,
    key: str,
    path: Path,
    findings: Sequence[str] | Mapping[str, str] | None,
    values: LabelValues,
) -> dict[str, str]:
    """Finding -> its name in the table."""
    if findings is None and source.task is not None and source.task.findings:
        findings = source.task.findings
    given = findings.items() if isinstance(findings, Mapping) else ((name, name) for name in names_of(findings))
    chosen = {str(finding): str(name) for finding, name in given}
    if not chosen:
        likely = [c for c in likely_findings(table, values) if c != key]
        hint = f" These columns hold labels only: {', '.join(likely[:20])}." if likely else ""
        raise UserError(f"cohort {source.name!r} needs --findings, the label columns of {path.name}.{hint}")
    return chosen
