"""Images without a label table: what their DICOM headers say of patient, view and other covariates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ...utils.names import names_of
from .covariates import Covariates, is_keyword
from .draft import Draft
from .source import Source


def header_keywords(source: Source, covariates: Sequence[str] | str | None) -> list[str]:
    """DICOM keywords among the covariates asked for and those to be matched on."""
    return [name for name in _wanted(source, covariates) if is_keyword(name)]


def unlabelled_draft(
    source: Source,
    image_ids: Sequence[str],
    images: Sequence[str],
    headers: pd.DataFrame,
    *,
    covariates: Sequence[str] | str | None = None,
    site: str | None = None,
    filters: Mapping[str, Sequence[str] | None] | None = None,
) -> Draft:
    """Draft of images that nobody has labelled.

    Args:
        source: the dataset.
        image_ids, images: id and path of each image.
        headers: header of each DICOM file among them, as ``header_index`` gives it; none for other files.
        covariates: DICOM keywords to keep.
        site: name of the site; None takes the cohort's name.
        filters: DICOM keyword -> values to keep, of DICOM files.
    """
    records = pd.DataFrame({"image_id": list(image_ids), "image": list(images)}, dtype=object)
    draft = Draft(records, (), np.empty((len(records), 0), dtype=np.int8), paths_checked=True)
    lookup = Covariates(pd.DataFrame(index=range(len(records))), headers, draft.records["image"], source.name)
    draft.records["patient_id"] = lookup.get("PatientID", identifying=True)
    draft.records["site"] = site or source.name
    draft.records["view"] = lookup.get("View")
    for name in _wanted(source, covariates):
        if name not in draft.records:
            draft.records[name] = lookup.get(name)
    draft.match_on = ("site", "view")
    draft.notes["view_rules"] = lookup.view_rules()
    copies = draft.records["image_id"].duplicated().to_numpy(dtype=bool)
    lookup.reject(draft, copies, "duplicate_image", "another file holds the same SOPInstanceUID")
    lookup.reject_unreadable(draft)
    if filters:
        lookup.filter(draft, filters)
    return draft


def _wanted(source: Source, covariates: Sequence[str] | str | None) -> list[str]:
    return list(dict.fromkeys((*(source.match_on or ()), *names_of(covariates))))
