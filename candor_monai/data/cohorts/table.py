"""A hospital's own: a folder of DICOM or image files and a table of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...utils import UserError, nearest
from ..archives import ArchiveReader
from ..header_index import header_index
from ..header_pool import read_dicomdirs
from ..label_policy import LabelValues
from .covariates import Covariates, is_keyword
from .draft import Draft, with_rejected
from .loading import names_of
from .source import Source
from .splits import normal_splits
from .table_files import ImageFiles
from .table_join import BY_HEADER, Join, choose_join, join_by_header, join_by_name
from .table_rows import KeyedRows, describe_keys, likely_findings, long_rows, wide_rows

IMAGE_COLUMNS = ("image", "path", "file", "filename", "file_name", "image_path", "image_id", "Image Index", "dicom_id")
ROLES = {
    "patient": ("patient_id", "PatientID", "patient", "subject_id", "Patient ID"),
    "site": ("site",),
    "split": ("split",),
    "view": ("view", "ViewPosition", "view_position", "View Position", "AP/PA"),
}


def read(
    source: Source,
    *,
    labels: str | None = None,
    findings: Sequence[str] | Mapping[str, str] | None = None,
    image_column: str | None = None,
    join_on: str = "auto",
    patient_column: str | None = None,
    site_column: str | None = None,
    split_column: str | None = None,
    view_column: str | None = None,
    site: str | None = None,
    covariates: Sequence[str] = (),
    bins: Mapping[str, Sequence[float]] | None = None,
    finding_column: str | None = None,
    value_column: str | None = None,
    positive_values: Sequence[Any] | None = None,
    negative_values: Sequence[Any] | None = None,
    uncertain_values: Sequence[Any] | None = None,
    blank_values: Sequence[Any] | None = None,
    unknown_values: str = "error",
    delimiter: str | None = None,
    encoding: str = "utf-8-sig",
    modalities: Sequence[str] | None = None,
    sop_classes: Sequence[str] | None = None,
    body_parts: Sequence[str] | None = None,
    index_dir: str | None = None,
    header_workers: int = 2,
) -> Draft:
    """Join a table of labels with the files of a folder.

    Args:
        source: the dataset.
        labels: the table, relative to the dataset's folder or to the working directory, or absolute.
        findings: label columns (or finding -> column); in the long form, the findings wanted. None takes the task's.
        image_column: the column that names the image; None takes the first usual name that is there.
        join_on: ``path``, ``file_name``, ``stem``, ``sop_instance_uid``, ``accession_number``, or ``auto``.
        patient_column, site_column, split_column, view_column: a column of the table or a DICOM keyword; None takes
            the first usual name that is there, and for patient and view what the DICOM headers say.
        site: name of the site when no column gives it.
        covariates: further columns or DICOM keywords to keep.
        bins: covariate -> edges; its number is replaced by the interval it falls into.
        finding_column, value_column: of the long form.
        positive_values, negative_values, uncertain_values, blank_values: texts of each meaning.
        unknown_values: ``error`` or ``exclude``, for texts without a meaning.
        delimiter, encoding: of a text table.
        modalities, sop_classes, body_parts: keep DICOM files with these values only.
        index_dir: folder in which the index of DICOM headers is kept.
        header_workers: processes that read headers.
    """
    root = source.need_dataset_dir()
    if not root.is_dir():
        raise UserError(f"{root}: there is no such folder. Set --dataset_dir to the folder that holds the images.")
    source.at(root)
    path = labels_path(source, labels)
    table = source.read(path, delimiter=delimiter, encoding=encoding)
    columns = [str(c) for c in table.columns]
    key = image_column_of(image_column, columns, path)
    roles = roles_of(columns, patient_column, site_column, split_column, view_column)
    wanted = list(source.match_on or ()) + [c for c in names_of(covariates) if c not in (source.match_on or ())]
    values = LabelValues.of(positive_values, negative_values, uncertain_values, blank_values, unknown_values)
    compared = [c for c in dict.fromkeys((*roles.values(), *wanted)) if c in columns]
    rows = label_rows(source, table, key, path, findings, finding_column, value_column, compared, values)

    files = ImageFiles(source.files, path)
    how = choose_join(join_on, key)
    header_needs = [c for c in (*wanted, *roles.values()) if c not in columns and is_keyword(c)]
    filters = {"Modality": modalities, "SOPClassUID": sop_classes, "BodyPartExamined": body_parts}
    headers: pd.DataFrame | None = None

    def read_headers(of: Sequence[str]) -> pd.DataFrame:
        return header_index(root, of, keywords=header_needs, index_dir=index_dir, workers=int(header_workers))

    if how in BY_HEADER:
        headers = read_headers(files.dicom)
        join = join_by_header(rows.keys, headers, how, path.name)
    else:
        join = join_by_name(rows.keys, files.all, how, path.name, source.allow_outside)
    joined = set(join.file)
    dicom = [file for file in files.dicom if file in joined]
    from_headers = bool(header_needs) or any(filters.values()) or (bool(dicom) and not roles.get("view"))
    if headers is None and dicom and from_headers:
        headers = read_headers(dicom)

    draft = _draft(rows, join)
    _list_unmatched(draft, rows, join, files, path)
    lookup = Covariates(rows.table.iloc[join.row].reset_index(drop=True), headers, draft.records["image"], path.name)
    _fill(draft, source, roles, wanted, site, bins, lookup, how)
    if headers is not None:
        lookup.reject_unreadable(draft)
        lookup.filter(draft, filters)
        draft.notes["view_rules"] = lookup.view_rules()
    if rows.unknown:
        draft.notes["unknown_values"] = rows.unknown
    draft.notes |= {
        "join": join.how,
        "columns": {"image": key, **{role: name for role, name in roles.items() if name}},
        "rows_merged": rows.merged,
        "rows_without_key": rows.blank_keys,
        "other_files": files.others,
        "unreadable_folders": files.unreadable,
        "unreadable_archives": files.bad_archives,
    }
    if files.archived:
        draft.open_image = ArchiveReader(root)
    if headers is not None and files.dicomdirs:
        draft.notes["dicomdir"] = _dicomdir_counts(root, files)
    draft.blank = "negative" if rows.not_mentioned else "exclude"
    return draft


def labels_path(source: Source, labels: str | None) -> Path:
    if labels is None:
        assert source.root is not None
        tables = sorted(n for n in source.files.listing("") if n.lower().endswith((".csv", ".tsv", ".parquet")))
        hint = f" The folder holds {', '.join(tables[:6])}." if tables else ""
        raise UserError(f"cohort {source.name!r} needs --labels, the table of labels.{hint}")
    path = source.find_table(chosen=str(labels))
    assert path is not None
    return path if path.is_file() or not Path(labels).is_file() else Path(labels).resolve()


def image_column_of(given: str | None, columns: Sequence[str], path: Path) -> str:
    if given is not None:
        if given not in columns:
            raise _no_column(given, columns, path)
        return given
    for name in (*IMAGE_COLUMNS, *BY_HEADER.values()):
        if name in columns:
            return name
    raise UserError(
        f"{path.name}: none of its columns is called {', '.join(IMAGE_COLUMNS[:6])} …; name the one that says which "
        f"image a row is about with image_column. It has {', '.join(columns)}."
    )


def _no_column(name: str, columns: Sequence[str], path: Path) -> UserError:
    near = nearest(name, columns)
    hint = f" Did you mean {near!r}?" if near else ""
    return UserError(f"{path.name} has no column {name!r}.{hint} It has {', '.join(columns)}.")


def roles_of(
    columns: Sequence[str], patient: str | None, site: str | None, split: str | None, view: str | None
) -> dict[str, str]:
    """Role -> column of the table or DICOM keyword; a role that nothing gives is absent."""
    roles = {}
    for role, given in (("patient", patient), ("site", site), ("split", split), ("view", view)):
        name = given or next((n for n in ROLES[role] if n in columns), None)
        if name is not None:
            roles[role] = name
    return roles


def label_rows(
    source: Source,
    table: pd.DataFrame,
    key: str,
    path: Path,
    findings: Sequence[str] | Mapping[str, str] | None,
    finding_column: str | None,
    value_column: str | None,
    compared: list[str],
    values: LabelValues,
) -> KeyedRows:
    if findings is None and source.task is not None and source.task.findings:
        findings = source.task.findings
    if findings is None:
        likely = [c for c in likely_findings(table, values) if c != key]
        hint = f" These columns hold labels only: {', '.join(likely[:20])}." if likely else ""
        raise UserError(f"cohort {source.name!r} needs --findings, the label columns of {path.name}.{hint}")
    if finding_column is not None:
        wanted = list(findings) if isinstance(findings, Mapping) else list(names_of(findings))
        return long_rows(table, key, finding_column, value_column, wanted, compared, path.name, values)
    if value_column is not None:
        raise UserError("value_column belongs to the long form: name finding_column as well.")
    mapping = dict(findings) if isinstance(findings, Mapping) else {f: f for f in names_of(findings)}
    return wide_rows(table, key, mapping, compared, path.name, values)


def _draft(rows: KeyedRows, join: Join) -> Draft:
    keys = rows.keys.iloc[join.row].reset_index(drop=True)
    by_header = join.how in BY_HEADER
    records = pd.DataFrame({"image_id": join.file if by_header else keys, "image": join.file}, dtype=object)
    return Draft(records, rows.findings, rows.codes[join.row], paths_checked=True)


def _list_unmatched(draft: Draft, rows: KeyedRows, join: Join, files: ImageFiles, path: Path) -> None:
    """Rejections: rows that disagree, rows without an image, names that several files bear, files without a row."""
    contradictory = sorted(rows.contradictory)
    rejected = with_rejected(
        draft.rejected,
        contradictory,
        [""] * len(contradictory),
        "contradictory_rows",
        [f"its {rows.contradictory[k]} rows in {path.name} disagree" for k in contradictory],
    )
    ambiguous = set(join.ambiguous)
    matched = np.zeros(len(rows.keys), dtype=np.bool_)
    matched[join.row] = True
    lost = [k for k, m in zip(rows.keys, matched, strict=True) if not m and k not in ambiguous]
    rejected = with_rejected(rejected, lost, [""] * len(lost), "no_image", f"{path.name} names it; no file matches")
    several = sorted(ambiguous)
    rejected = with_rejected(
        rejected, several, [""] * len(several), "ambiguous_file", "several files answer to this name; join by path"
    )
    claimed = set(join.file)
    bad = set(contradictory) | ambiguous
    idle = [f for f in files.all if f not in claimed and not _named(f, bad)]
    rejected = with_rejected(rejected, idle, idle, "no_label_row", f"no row of {path.name} is about this file")
    draft.rejected = rejected
    draft.notes["unmatched"] = {
        "rows without an image": len(lost),
        "files without a row": len(idle),
        "examples": describe_keys(lost) if lost else "",
    }
    twice = draft.records["image"].duplicated(keep=False).to_numpy(dtype=bool)
    if twice.any() and join.how not in BY_HEADER:
        raise UserError(
            f"{path.name}: rows {describe_keys(draft.records.loc[twice, 'image_id'].tolist())} are about one file, "
            f"{draft.records.loc[twice, 'image'].iloc[0]}, when joined by {join.how}; join by path."
        )


def _dicomdir_counts(root: Path, files: ImageFiles) -> dict[str, int]:
    """How many files the DICOMDIRs refer to, and how many of these are not there: a medium copied in part."""
    there = {name.lower() for name in files.all}
    named = absent = unreadable = 0
    answers = read_dicomdirs([str(root / name) for name in files.dicomdirs])
    for name, answer in zip(files.dicomdirs, answers, strict=True):
        folder = name.rpartition("/")[0]
        unreadable += bool(answer.reason)
        named += len(answer.files)
        absent += sum((f"{folder}/{file}" if folder else file).lower() not in there for file in answer.files)
    return {"files": named, "files not there": absent, "unreadable": unreadable}


def _named(file: str, keys: set[str]) -> bool:
    base = file.rpartition("/")[2]
    return bool(keys) and (file in keys or base in keys or base.rpartition(".")[0] in keys)


def _fill(
    draft: Draft,
    source: Source,
    roles: dict[str, str],
    wanted: list[str],
    site: str | None,
    bins: Mapping[str, Sequence[float]] | None,
    lookup: Covariates,
    how: str,
) -> None:
    """Patient, site, split, view and the covariates asked for."""
    records = draft.records
    records["patient_id"] = lookup.role("patient", roles, "PatientID")
    records["site"] = lookup.get(roles["site"]) if "site" in roles else (site or source.name)
    if "split" in roles:
        records["split"] = normal_splits(lookup.get(roles["split"]).rename(roles["split"]), lookup.where)
    view = lookup.role("view", roles, "View")
    if view is not None:
        records["view"] = view
    for name in wanted:
        if name not in records:
            records[name] = lookup.get(name)
    for name, edges in (bins or {}).items():
        if name not in records:
            records[name] = lookup.get(name)
        records[name] = lookup.binned(records[name], name, edges)
    if source.match_on is None:
        draft.match_on = tuple(c for c in ("site", "view") if c in records)
        draft.notes["match_on"] = "not set: matched on what is recorded of site and view"
