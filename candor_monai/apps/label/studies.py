"""The images that are labelled, as a cohort: a folder's or a PACS's, with what their headers say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...data.cohort import Cohort
from ...data.cohorts import load_cohort
from ...data.cohorts.cards import load_card
from ...data.cohorts.registry import adapter_named, adapter_options
from ...data.dicomweb_reader import PacsReader
from ...utils import DecodeError, UserError
from ..opening import default_index_dir
from .conf import LabelOptions
from .labels import LabelStore


def open_studies(options: LabelOptions, access: dict[str, Any] | None = None) -> Cohort:
    """The datastore's images.

    Without ``--conf cohort`` they are all files of the folder that may be images, or all images of the PACS with one
    of the modalities; headers of DICOM files give patient and view. With it they are those of that cohort (its labels
    are those that were read elsewhere).

    Args:
        options: the app's.
        access: how to be let in by a PACS (:class:`~candor_monai.data.dicomweb_client.Access`).

    Raises:
        UserError: no image, an unknown cohort, or a PACS that stays away.
    """
    run = options.run
    given: dict[str, Any] = {"match_on": run.match_on, "site": options.site, "index_dir": str(default_index_dir())}
    named = run.cohort != type(run).__dataclass_fields__["cohort"].default
    if named:
        card = run.cohort
        given |= {"findings": run.findings, "keep_unlabelled": True}
    elif options.pacs:
        card = "dicomweb"
        given |= {"unlabelled": True, "modalities": options.modalities}
    else:
        card = "image_list"
        given |= {"headers": True}
    if options.pacs:
        cache = {"cache_dir": str(options.state_dir / "pacs"), "cache_gigabytes": options.cache_gigabytes}
        given |= {"url": options.studies, **(access or {}), **cache}
    known = adapter_options(adapter_named(load_card(card).adapter))
    usual = ("match_on", "keep_unlabelled", *(("findings",) if named else ()))
    chosen = {k: v for k, v in given.items() if v is not None and (k in known or k in usual)}
    folder = None if options.pacs else options.studies
    return load_cohort(card, folder, **{**chosen, **run.cohort_options})


def import_labels(cohort: Cohort, store: LabelStore) -> int:
    """Take over what a cohort's own table says of images that have no label yet; how many there were.

    A label that was saved here is never touched, whatever the table says.
    """
    known = store.labels()
    taken = 0
    for image_id, values in zip(cohort.records["image_id"], cohort.labels.tolist(), strict=True):
        said = {finding: value for finding, value in zip(cohort.findings, values, strict=True) if value >= 0}
        if said and image_id not in known:
            store.save(str(image_id), said, "imported")
            taken += 1
    return taken


def image_file(cohort: Cohort, row: int) -> Path:
    """The file of an image; of a PACS's image a kept copy, fetched where it is not there.

    Raises:
        DecodeError: the image is gone.
        UserError: it lies in an archive, or the PACS stays away.
    """
    if cohort.open_image is None:
        path = cohort.path(row)
        if not path.is_file():
            raise DecodeError("not_found", "the file is gone")
        return path
    if isinstance(cohort.open_image, PacsReader):
        return cohort.open_image.file(str(cohort.records["image"].iat[row]))
    content = cohort.source(row)
    if isinstance(content, Path):
        return content
    raise UserError(f"{cohort.image_id(row)}: lies in an archive and is not a file of its own.")


def series_of(cohort: Cohort) -> dict[str, list[str]]:
    """SeriesInstanceUID -> its images, of a PACS's images; empty for others."""
    found: dict[str, list[str]] = {}
    if isinstance(cohort.open_image, PacsReader):
        for image_id, image in zip(cohort.records["image_id"], cohort.records["image"], strict=True):
            found.setdefault(uids_of(str(image))["SeriesInstanceUID"], []).append(str(image_id))
    return found


def uids_of(image: str) -> dict[str, str]:
    """The UIDs in a PACS image's path.

    >>> uids_of("studies/1.2/series/3.4/instances/5.6")["SeriesInstanceUID"]
    '3.4'
    """
    _, study, _, series, _, instance = image.split("/")
    return {"StudyInstanceUID": study, "SeriesInstanceUID": series, "SOPInstanceUID": instance}
