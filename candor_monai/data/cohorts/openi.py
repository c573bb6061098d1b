"""Open-I, the Indiana University chest radiographs.

Labels are the ``major`` MeSH terms of the reports; a heading is the text before the first ``/`` and is compared
whole, and a name of the vocabulary with ``/`` is compared with the whole term. Reports with nothing but ``No Indexing``
or a remark on technical quality are unlabelled. The view in the DICOM headers is unreliable: it is taken from
``indiana_projections.csv`` (Frontal, Lateral) when that lies beside the reports, or from ``views_table``.
"""

from __future__ import annotations

import re
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ...utils import UserError
from ...utils.errors import first_line
from ..label_policy import NEGATIVE, POSITIVE, UNLABELLED
from ..label_tables import check_columns, check_unique, find_column
from .draft import Draft
from .source import Source

SAYS_NOTHING = frozenset({"No Indexing", "Technical Quality of Image Unsatisfactory"})
LARGEST_REPORT = 1 << 20
VIEWS = {"Frontal": "PA", "Lateral": "L"}


def read(source: Source, *, views_table: str | None = None) -> Draft:
    """Read the reports (folder, .tgz, or Kaggle's csv) and the images they name.

    Args:
        source: the dataset.
        views_table: a table with ``imageid`` and ``tsne-view`` or with ``filename`` and ``projection``; None takes
            indiana_projections.csv when it is there.
    """
    root = source.locate("ecgen-radiology", "NLMCXR_reports*", "indiana_reports.csv")
    findings = source.vocabulary.of("openi", source.findings("chest"))
    reports = list(_reports(source, root))
    if not reports:
        raise UserError(f"{root}: no report in ecgen-radiology/ or NLMCXR_reports.tgz. {source.card.obtain}")
    images = [(uid, image, _codes(terms, findings)) for uid, terms, names in reports for image in names]
    records = pd.DataFrame({"image_id": [i for _, i, _ in images]}, dtype=object)
    check_unique(records["image_id"], root, of="reports")
    records["image"] = _files(source, [(u, i) for u, i, _ in images])
    records["patient_id"] = [uid for uid, _, _ in images]
    records["site"] = "openi"
    records["view"] = _views(source, records["image_id"], views_table)
    codes = np.array([c for _, _, c in images], dtype=np.int8).reshape(len(images), len(findings))
    draft = Draft(records, tuple(findings), codes, suffixes=(".png", ".dcm", ".dcm.png"))
    draft.found = {"reports": len(reports), "images of reports": len(images)}
    draft.notes["reports_without_an_image"] = sum(not names for _, _, names in reports)
    return draft


def _codes(terms: Sequence[str], findings: Mapping[str, Sequence[str]]) -> list[int]:
    """Codes of one report's terms."""
    headings = {term.split("/", 1)[0].strip() for term in terms}
    if headings <= SAYS_NOTHING:
        return [UNLABELLED] * len(findings)
    whole = {term.strip() for term in terms}

    def named(name: str) -> bool:
        if name.endswith("*"):
            return any(term.startswith(name[:-1]) for term in whole)
        return name in (whole if "/" in name else headings)

    return [POSITIVE if any(map(named, names)) else NEGATIVE for names in findings.values()]


def _reports(source: Source, root: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """uid, MeSH terms and image ids of every report there is; never a range of numbers, as some do not exist."""
    folder = next((f for f in ("ecgen-radiology", "NLMCXR_reports/ecgen-radiology") if source.files.listing(f)), None)
    packed = next(
        (n for n in sorted(source.files.listing("")) if n.lower().startswith("nlmcxr_reports") and "." in n), None
    )
    if folder is not None:
        names = sorted((n for n in source.files.listing(folder) if n.lower().endswith(".xml")), key=_number)
        source.tables[folder] = len(names)
        for name in names:
            try:
                text = (root / folder / name).read_bytes()
            except OSError as error:
                raise UserError(f"{root / folder / name}: cannot be read: {error.strerror}.") from error
            yield _parse(text, f"{folder}/{name}")
    elif packed is not None:
        yield from _packed(root / packed)
    else:
        yield from _kaggle(source)


def _packed(path: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile() and member.name.lower().endswith(".xml"):
                    stream = archive.extractfile(member)
                    if stream is not None:  # one byte more than a report may have: such a one is refused, not left out
                        yield _parse(stream.read(LARGEST_REPORT + 1), member.name)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"{path}: cannot be read: {first_line(error)}.") from error


def _number(name: str) -> tuple[int, str]:
    stem = Path(name).stem
    return (int(stem) if stem.isdigit() else 1 << 30, name)


def _parse(text: bytes, where: str) -> tuple[str, list[str], list[str]]:
    if len(text) > LARGEST_REPORT or b"<!ENTITY" in text:
        raise UserError(f"{where}: not a report of Open-I.")
    try:
        tree = ElementTree.fromstring(text)
    except (ElementTree.ParseError, LookupError, ValueError, RecursionError) as error:  # also an encoding it names
        raise UserError(f"{where}: not well-formed XML ({error}).") from error
    uid = tree.find("uId")
    if uid is None or not uid.get("id"):
        raise UserError(f"{where}: the report has no uId.")
    terms = [major.text or "" for major in tree.iter("major")]
    return uid.get("id", ""), terms, [image.get("id", "") for image in tree.iter("parentImage") if image.get("id")]


def _kaggle(source: Source) -> Iterator[tuple[str, list[str], list[str]]]:
    """Kaggle's re-pack: terms joined by ``;``, images in the table of projections."""
    path = source.table_path("indiana_reports.csv*")
    reports = source.read(path)
    check_columns(reports, ("uid", "MeSH"), path)
    path = source.table_path("indiana_projections.csv*")
    images = source.read(path)
    check_columns(images, ("uid", "filename"), path)
    by_uid = {uid: rows["filename"].tolist() for uid, rows in images.groupby("uid")}
    for uid, mesh in zip(reports["uid"], reports["MeSH"], strict=True):
        terms = [term.strip() for term in mesh.split(";") if term.strip()]
        yield f"CXR{uid}", terms, [_id(name) for name in by_uid.get(uid, [])]


def _id(name: str) -> str:
    """An image's file name or id in the form that all sources share.

    >>> _id("1_IM-0001-4001.dcm.png"), _id("CXR1_1_IM-0001-4001")
    ('CXR1_IM-0001-4001', 'CXR1_IM-0001-4001')
    """
    for suffix in (".png", ".jpg", ".dcm"):
        name = name.removesuffix(suffix)
    name = name if name.startswith("CXR") else f"CXR{name}"
    return re.sub(r"^(CXR(\d+))_\2_", r"\1_", name)


def _files(source: Source, images: list[tuple[str, str]]) -> list[str]:
    """Where each image lies: flat PNGs, Kaggle's folder, or the DICOM files by report."""
    where: dict[str, str] = {}
    for folder in ("", "NLMCXR_png", "images", "images/images_normalized", "images_normalized", "png"):
        for name in source.files.listing(folder):
            if name.lower().endswith((".png", ".jpg", ".dcm")):
                where.setdefault(name, f"{folder}/{name}" if folder else name)
    dicom = next((f for f in ("NLMCXR_dcm", "dcm") if source.files.listing(f)), None)
    files = []
    for uid, image in images:
        short = _id(image).removeprefix("CXR")
        names = (f"{image}.png", f"{short}.dcm.png", f"{short}.png", f"{image}.dcm")
        found = next((where[name] for name in names if name in where), None)
        if found is None and dicom is not None:
            found = f"{dicom}/{uid.removeprefix('CXR')}/{short}.dcm"
        files.append(found or f"{image}.png")
    return files


def _views(source: Source, ids: pd.Series, table: str | None) -> pd.Series:
    if table is not None:
        path = source.table_path(chosen=table, option="views_table")
    else:
        found = source.find_table("indiana_projections.csv*")
        if found is None:
            return pd.Series([None] * len(ids), dtype=object)
        path = found
    rows = source.read(path)
    if "projection" in rows.columns:
        check_columns(rows, ("filename",), path)
        keys, views = rows["filename"], rows["projection"].map(VIEWS)
    else:
        keys, views = rows[find_column(rows, "imageid", path)], rows[find_column(rows, "tsne-view", path)]
    by_id = dict(zip(map(_id, keys), views, strict=True))
    return pd.Series([by_id.get(_id(image)) for image in ids], dtype=object)
