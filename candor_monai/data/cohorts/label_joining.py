"""From matched rows and images to a draft: ids, rejections with reasons, covariates, filters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ...utils import UserError
from ..file_index import split_suffix
from .covariates import Covariates, Filters
from .draft import Draft
from .label_reading import LabelTable, unmatched_keys
from .source import Source
from .table_join import BY_HEADER, Join
from .table_rows import describe_keys


def joined_draft(
    source: Source,
    labels: LabelTable,
    join: Join,
    images: Sequence[str],
    headers: pd.DataFrame | None,
    filters: Filters,
) -> Draft:
    """Draft of a cohort of one's own.

    The id of an image is its key in the table when joined by name; when joined by a header attribute it is the image's
    SOPInstanceUID, so that it is the same from a folder and from a PACS. A second copy of an instance is left out.

    Args:
        source: the dataset.
        labels: the label table.
        join: its rows matched with images.
        images: every image there is.
        headers: header of each DICOM image, or None when none were read.
        filters: DICOM keyword -> values to keep.
    """
    keys = labels.rows.keys.iloc[join.row].reset_index(drop=True)
    records = pd.DataFrame({"image_id": keys, "image": join.file}, dtype=object)
    draft = Draft(records, labels.rows.findings, labels.rows.codes[join.row], paths_checked=True)
    lookup = Covariates(
        labels.rows.table.iloc[join.row].reset_index(drop=True), headers, draft.records["image"], labels.name
    )
    if join.how in BY_HEADER:
        assert lookup.headers is not None
        uid = lookup.headers["SOPInstanceUID"].to_numpy(dtype=object)
        draft.records["image_id"] = np.where(uid == "", draft.records["image"], uid)
    labels.fill(draft, source, lookup)
    draft.notes["join"] = join.how
    _list_unmatched(source, draft, labels, join, images, headers)
    if headers is not None:
        copies = draft.records["image_id"].duplicated().to_numpy(dtype=bool)
        lookup.reject(draft, copies, "duplicate_image", "another file holds the same SOPInstanceUID")
        lookup.reject_unreadable(draft)
        lookup.filter(draft, filters)
        draft.notes["view_rules"] = lookup.view_rules()
    return draft


def _list_unmatched(
    source: Source, draft: Draft, labels: LabelTable, join: Join, images: Sequence[str], headers: pd.DataFrame | None
) -> None:
    """Rejections: rows that disagree, rows without an image, names that several files bear, files without a row."""
    rows, name = labels.rows, labels.name
    named = labels.row_name if join.how == "accession_number" else str
    odd = sorted(rows.contradictory)
    told = [f"its {rows.contradictory[k]} rows in {name} disagree" for k in odd]
    draft.add_rejected(list(map(named, odd)), None, "contradictory_rows", told)
    ambiguous = set(join.ambiguous)
    lost = unmatched_keys(rows, join.row, ambiguous)
    told = [f"{name} names it; {_why_lost(source, k) if join.how == 'path' else 'no image matches'}" for k in lost]
    draft.add_rejected(list(map(named, lost)), None, "no_image", told)
    message = "several files answer to this name; join by path"
    draft.add_rejected(list(map(named, sorted(ambiguous))), None, "ambiguous_file", message)
    claimed, bad = set(join.file), set(odd) | ambiguous
    if join.how in BY_HEADER and headers is not None and odd:
        contrary = headers["file"][headers[BY_HEADER[join.how]].isin(odd)].tolist()
        draft.add_rejected(contrary, contrary, "contradictory_rows", f"the rows of {name} about this file disagree")
        claimed |= set(contrary)
    idle = [f for f in images if f not in claimed and not _bears(f, bad)]
    draft.add_rejected(idle, idle, "no_label_row", f"no row of {name} is about this file")
    draft.notes["unmatched"] = {"rows without an image": len(lost), "files without a row": len(idle)}
    twice = draft.records["image"].duplicated(keep=False).to_numpy(dtype=bool)
    if twice.any():
        raise UserError(
            f"{name}: rows {describe_keys(draft.records.loc[twice, 'image_id'].tolist())} are about one file, "
            f"{draft.records.loc[twice, 'image'].iloc[0]}, when joined by {join.how}; "
            f"{'keep one of them' if join.how == 'path' else 'join by path'}."
        )


def _why_lost(source: Source, key: str) -> str:
    """What became of the path of a row, by a listing of its folder."""
    folder, _, base = key.replace("\\", "/").rpartition("/")
    if any(f"{folder}/".startswith(f"{link}/") for link in source.files.links):
        return "it lies behind a link to a folder, which is not followed"
    try:
        if base not in source.files.listing(folder):
            return "no image matches"
    except UserError:
        return "its folder cannot be listed"
    path = source.files.root / folder / base
    return f"it is {'a folder' if path.is_dir() else 'no image by its name' if path.is_file() else 'a link to nothing'}"


def _bears(file: str, keys: set[str]) -> bool:
    base = file.rpartition("/")[2]
    return bool(keys) and (file in keys or base in keys or split_suffix(base)[0] in keys)
