"""A cohort on a PACS: QIDO-RS search, attributes by WADO-RS metadata, pixels by WADO-RS when they are needed.

Nothing is written to the PACS. The images are those that a label table names by SOPInstanceUID or AccessionNumber, or
all that a search finds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from ...utils import DecodeError, UserError, unknown
from ...utils.atomic import atomic_write
from ...utils.names import names_of
from ..dicomweb_client import STUDY, Access, DicomWebClient, Patience, attribute, is_uid
from ..dicomweb_reader import PacsReader
from ..header_reading import DERIVED, KEYWORDS
from ..radiograph_view import view_of
from .covariates import header_filters
from .draft import Draft
from .drawing import number, whole
from .label_joining import joined_draft
from .label_reading import LabelTable, read_labels
from .registry import passes_on
from .source import Source
from .table_join import BY_HEADER, choose_join, join_by_header
from .unlabelled import header_keywords, unlabelled_draft

VERSION = "2"  # of what is kept of a study
INSTANCES = "00201208"  # NumberOfStudyRelatedInstances


@passes_on(read_labels)
def read(
    source: Source,
    *,
    url: str | None = None,
    join_on: str = "auto",
    search_by: str = "auto",
    modalities: Sequence[str] | None = None,
    sop_classes: Sequence[str] | None = None,
    body_parts: Sequence[str] | None = None,
    study_date: str | None = None,
    token_env: str | None = None,
    token_file: str | None = None,
    user: str | None = None,
    password_env: str | None = None,
    password_file: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    ca_bundle: str | None = None,
    allow_http: bool = False,
    concurrency: int = 4,
    timeout: float = 30.0,
    retry_seconds: float = 120.0,
    cache_dir: str | None = None,
    cache_gigabytes: float = 20.0,
    unlabelled: bool = False,
    **label_options: Any,
) -> Draft:
    """Join a table of labels with the images of a PACS.

    Args:
        source: the dataset; its folder, when named, is what the label table's path starts from.
        url: root of the DICOMweb service.
        join_on: ``sop_instance_uid``, ``accession_number``, or ``auto`` (by the name of the key column).
        search_by: ``accession`` (one search an accession number of the table), ``query`` (by modality and date), or
            ``auto``: ``accession`` when the table is joined by it.
        modalities, body_parts, study_date: what is searched for (``study_date`` as ``20200101-20201231``); the first
            two, and ``sop_classes``, also rule out single images.
        token_env, token_file, user, password_env, password_file, certificate, key, ca_bundle, allow_http: as in
            ``Access``; secrets themselves are never options.
        concurrency: requests at once.
        timeout, retry_seconds: as in ``Patience``.
        cache_dir, cache_gigabytes: folder that keeps attributes and files that were fetched, and its size for files.
        unlabelled: take every image found by ``modalities``, ``body_parts`` and ``study_date``, without a label table.
        label_options: as for ``read_labels``; with ``unlabelled``, ``covariates`` and ``site`` alone.
    """
    if url is None:
        raise UserError(f"cohort {source.name!r} needs --dataset_dir or --labels, and url, the address of the PACS.")
    if source.dataset_dir is not None and source.dataset_dir.is_dir():
        source.at(source.dataset_dir)
    labels, how, where = None, "", "the search"
    if not unlabelled:
        labels = read_labels(source, **label_options)
        how, where = choose_join(join_on, labels.key), labels.name
        if how not in BY_HEADER:
            raise UserError(
                f"{labels.name}: images of a PACS are joined by sop_instance_uid or accession_number; name the way "
                f"with join_on, and the column with image_column."
            )
    elif label_options.get("labels") is not None:
        raise UserError("unlabelled: true takes no label table: leave --labels out.")
    access = Access(
        token_env, token_file, user, password_env, password_file, certificate, key, ca_bundle,
        allow_http,
    )  # fmt: skip
    client = DicomWebClient(
        url, access, Patience(number(timeout, "timeout", 0.1), number(retry_seconds, "retry_seconds", 0))
    )
    threads = whole(concurrency, "concurrency", 1)
    cache = None if cache_dir is None else Path(cache_dir).expanduser()
    if labels is None:
        keywords = header_keywords(source, label_options.get("covariates"))
        searches = _queries(modalities, body_parts, study_date)
    else:
        keywords = labels.keywords
        searches = _searches(labels, how, search_by, modalities, body_parts, study_date)
    attributes = _Attributes(client, tuple(sorted({*KEYWORDS, *keywords})), cache)
    with ThreadPoolExecutor(threads, thread_name_prefix="dicomweb") as pool:
        found = pool.map(lambda filters: list(map(_named, client.studies(**filters))), searches)
        studies = dict(sorted({study: number for studies in found for study, number in studies}.items()))
        answers = list(pool.map(attributes, studies, studies.values()))
    rows = [row for answer in answers for row in answer.rows]
    lost = [row for answer in answers for row in answer.lost]
    if not rows:
        told = "".join(f"; {name}: {reason}" for name, reason, _ in lost[:1])
        raise UserError(
            f"the PACS holds none of the images that {where} names ({len(studies):,} studies found, {len(lost):,} of "
            f"them or their images cannot be used{told})."
        )
    headers = pd.DataFrame(rows, dtype=object).drop_duplicates("file").reset_index(drop=True)
    filters = header_filters(modalities, sop_classes, body_parts)
    if labels is None:
        asked = {name: label_options.get(name) for name in ("covariates", "site")}
        ids = headers["SOPInstanceUID"].tolist()
        draft = unlabelled_draft(source, ids, headers["file"].tolist(), headers, filters=filters, **asked)
    else:
        join = join_by_header(labels.rows.keys, headers, how, labels.name)
        draft = joined_draft(source, labels, join, headers["file"].tolist(), headers, filters)
    draft.open_image = PacsReader(
        client,
        threads,
        None if cache is None else cache / "files",
        int(number(cache_gigabytes, "cache_gigabytes", 0) * (1 << 30)),
    )
    for name, reason, message in lost:
        draft.add_rejected([name], [name], reason, message, stage="header")
    gone = sum(reason == "gone" for _, reason, _ in lost)
    draft.notes["pacs"] = {"studies": len(studies), "images": len(headers), "studies_gone": gone}
    return draft


def _named(study: Mapping[str, Any]) -> tuple[str, str]:
    """UID of a study that a search found, and how many images it says that it has (``""``: it does not say)."""
    return attribute(study, STUDY), attribute(study, INSTANCES)


def _searches(
    labels: LabelTable,
    how: str,
    search_by: str,
    modalities: Sequence[str] | None,
    body_parts: Sequence[str] | None,
    study_date: str | None,
) -> list[dict[str, str]]:
    """Filters of each search for studies."""
    if search_by not in ("auto", "accession", "query"):
        raise unknown("value of search_by:", search_by, ("auto", "accession", "query"))
    common = {"StudyDate": str(study_date)} if study_date else {}
    if search_by == "accession" or (search_by == "auto" and how == "accession_number"):
        if how != "accession_number":
            raise UserError("search_by: accession needs the table joined by accession_number.")
        # a number that holds a wildcard would find other examinations
        numbers = [key for key in labels.rows.keys if not set(key) & set("*?\\")]
        return [{**common, "AccessionNumber": number} for number in numbers]
    return _queries(modalities, body_parts, study_date)


def _queries(
    modalities: Sequence[str] | None, body_parts: Sequence[str] | None, study_date: str | None
) -> list[dict[str, str]]:
    """Filters of each search by modality, body part and date."""
    common = {"StudyDate": str(study_date)} if study_date else {}
    searches = [{**common, "ModalitiesInStudy": m} for m in names_of(modalities)] or [common]
    return [{**s, "BodyPartExamined": b} for s in searches for b in names_of(body_parts)] or searches


class _Study(NamedTuple):
    """The images of a study as the rows of a header index; and what is lost of it: name, reason code, message."""

    rows: list[dict[str, str]]
    lost: list[tuple[str, str, str]]


class _Attributes:
    """Attributes of the images of a study."""

    def __init__(self, client: DicomWebClient, keywords: tuple[str, ...], cache: Path | None) -> None:
        from pydicom.datadict import tag_for_keyword

        self.client, self.keywords = client, keywords
        self.tags = {k: f"{tag_for_keyword(k) or 0:08X}" for k in keywords}
        key = "\x00".join((VERSION, client.url, *keywords))
        name = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
        self.folder = None if cache is None else cache / "attributes" / name
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def __call__(self, study: str, number: str = "") -> _Study:
        """What is kept of a study, if it has still as many images as then; else what the server says."""
        name = f"studies/{study}" if is_uid(study) else "a study without a UID"
        path = None if self.folder is None or not is_uid(study) else self.folder / f"{study}.json"
        kept = None if path is None else _kept(path, number)
        if kept is not None:
            return kept
        try:
            rows = [self._row(instance) for instance in self.client.metadata(study)]
        except DecodeError as error:  # deleted between search and retrieval, or not to be had
            return _Study([], [(name, error.reason, str(error))])
        nameless = [(name, "malformed", "the server names one of its images without UIDs") for row in rows if not row]
        answer = _Study(sorted((row for row in rows if row), key=lambda row: row["file"]), nameless)
        if path is not None:
            content = {"number": number, "rows": answer.rows, "lost": answer.lost}
            atomic_write(path, json.dumps(content), 0o600)
        return answer

    def _row(self, instance: Mapping[str, Any]) -> dict[str, str]:
        row = {keyword: attribute(instance, tag) for keyword, tag in self.tags.items()} | dict.fromkeys(DERIVED, "")
        codes = instance.get("00540220")  # ViewCodeSequence
        values = codes.get("Value") if isinstance(codes, Mapping) else None
        if isinstance(values, list) and values and isinstance(values[0], Mapping):
            row["ViewCode"], row["ViewCodeMeaning"] = attribute(values[0], "00080100"), attribute(values[0], "00080104")
        row["TransferSyntaxUID"] = attribute(instance, "00083002")  # AvailableTransferSyntaxUID
        parts = (row["StudyInstanceUID"], row["SeriesInstanceUID"], row["SOPInstanceUID"])
        if not all(map(is_uid, parts)):
            return {}
        row["View"], row["ViewRule"] = view_of(row)
        return row | {"file": "studies/{}/series/{}/instances/{}".format(*parts), "reason": "", "message": ""}


def _kept(path: Path, number: str) -> _Study | None:
    """What an earlier run kept of a study; None where there is nothing, it cannot be read, or images came or went."""
    try:
        content = json.loads(path.read_bytes())
        if content["number"] == number:
            return _Study(list(content["rows"]), [(str(n), str(r), str(m)) for n, r, m in content["lost"]])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # as good as absent: asked for again
    return None
