"""The few DICOM attributes that a cohort is made from, read as short texts."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from ..utils import DecodeError
from .archives import read_member, split_archive

KEYWORDS = (
    "SOPClassUID",
    "SOPInstanceUID",
    "StudyInstanceUID",
    "SeriesInstanceUID",
    "AccessionNumber",
    "PatientID",
    "PatientSex",
    "PatientAge",
    "Modality",
    "BodyPartExamined",
    "ViewPosition",
    "PatientOrientation",
    "PatientPosition",
    "ImageLaterality",
    "Laterality",
    "PresentationIntentType",
    "InstitutionName",
    "StationName",
    "Manufacturer",
    "ManufacturerModelName",
    "DetectorType",
    "DetectorManufacturerName",
    "SoftwareVersions",
    "KVP",
    "XRayTubeCurrent",
    "ExposureTime",
    "DistanceSourceToDetector",
    "PhotometricInterpretation",
    "BitsStored",
    "Rows",
    "Columns",
    "NumberOfFrames",
    "ImagerPixelSpacing",
    "SeriesDescription",
    "ProtocolName",
)
VIEW_CODE = "ViewCodeSequence"
DERIVED = ("ViewCode", "ViewCodeMeaning", "TransferSyntaxUID")
LONGEST = 256
LARGEST_PLAIN = 1 << 31  # bytes; headers of larger files are still short, but nothing larger is a radiograph


class HeaderError(Exception):
    """One file's header cannot be used; ``reason`` is a code."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def read_header(path: str, keywords: Sequence[str] = KEYWORDS) -> dict[str, str]:
    """Attributes of one file as texts; absent ones are ``""``, several values are joined by a backslash.

    Never reads pixels. Person names are not among the attributes. Memory is the caller's to bound (header_pool). A file
    that is an image of another format by its content, whatever its name, has no attributes: all are ``""``.

    Args:
        path: the file.
        keywords: DICOM keywords of attributes that are not sequences.

    Raises:
        HeaderError: not DICOM, cut off, nested too deeply, or not to be opened.
    """
    import pydicom
    from pydicom.errors import InvalidDicomError

    tags: list[Any] = [*keywords, VIEW_CODE]
    try:
        source = _opened(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                dataset = pydicom.dcmread(source, stop_before_pixels=True, specific_tags=tags)
            except InvalidDicomError:
                if _is_other_image(source):
                    return dict.fromkeys((*keywords, *DERIVED), "")
                dataset = _without_preamble(source, tags)
            return _texts(dataset, keywords)
    except HeaderError:
        raise
    except OSError as error:
        raise HeaderError("unreadable", f"the file cannot be read: {error.strerror or 'truncated'}") from error
    except RecursionError as error:
        raise HeaderError("malformed", "sequences are nested too deeply") from error
    except MemoryError as error:
        raise HeaderError("too_large", "the header does not fit the memory limit") from error
    except Exception as error:  # pydicom raises many kinds on malformed bytes
        raise HeaderError("malformed", f"the header cannot be read ({type(error).__name__})") from error


def _opened(path: str) -> str | io.BytesIO:
    """A file's path, or the bytes of a member of an archive."""
    if not os.path.exists(path):
        parts = split_archive(Path(path))
        if parts is not None:
            try:
                return io.BytesIO(read_member(*parts))
            except DecodeError as error:
                raise HeaderError(error.reason, str(error)) from error
    if os.path.getsize(path) > LARGEST_PLAIN:
        raise HeaderError("too_large", "the file is larger than 2 GiB")
    return path


def _is_other_image(source: str | io.BytesIO) -> bool:
    """Whether a file's first bytes are those of a PNG, JPEG, TIFF or NIfTI, which decoding can read."""
    from .nifti_files import is_nifti
    from .raster_files import raster_format

    with _stream(source) as stream:
        start = stream.read(1 << 12)
    return raster_format(start) is not None or is_nifti(start)


def _stream(source: str | io.BytesIO) -> IO[bytes]:
    return open(source, "rb") if isinstance(source, str) else io.BytesIO(source.getbuffer())


def _without_preamble(source: str | io.BytesIO, tags: list[Any]) -> Any:
    """Files without the 128-byte preamble: accepted when they hold an object or an image."""
    import pydicom

    with _stream(source) as stream:
        start = stream.read(8)
    # the first element of a file without preamble is of group 0002 or 0008
    if start[:2] not in (b"\x02\x00", b"\x08\x00", b"\x00\x08"):
        raise HeaderError("not_dicom", "the file is not DICOM")
    if not isinstance(source, str):
        source.seek(0)
    dataset = pydicom.dcmread(source, stop_before_pixels=True, specific_tags=tags, force=True)
    if "SOPClassUID" not in dataset and "Rows" not in dataset:
        raise HeaderError("not_dicom", "the file is not DICOM")
    return dataset


def read_dicomdir(path: str) -> list[str]:
    """Files that a DICOMDIR refers to, relative to its folder.

    Raises:
        HeaderError: as for ``read_header``.
    """
    import pydicom

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dataset = pydicom.dcmread(path)
            records = dataset.get("DirectoryRecordSequence") or []
            named = [record.get("ReferencedFileID") for record in records]
    except Exception as error:  # pydicom raises many kinds on malformed bytes
        raise HeaderError("malformed", f"the DICOMDIR cannot be read ({type(error).__name__})") from error
    return ["/".join([n] if isinstance(n, str) else list(map(str, n))) for n in named if n]


def _texts(dataset: Any, keywords: Sequence[str]) -> dict[str, str]:
    header = {keyword: _text(dataset, keyword) for keyword in keywords}
    codes = dataset.get(VIEW_CODE)
    first = codes[0] if codes else None
    header["ViewCode"] = "" if first is None else _text(first, "CodeValue")
    header["ViewCodeMeaning"] = "" if first is None else _text(first, "CodeMeaning")
    meta = getattr(dataset, "file_meta", None)
    header["TransferSyntaxUID"] = "" if meta is None else _text(meta, "TransferSyntaxUID")
    return header


def _text(dataset: Any, keyword: str) -> str:
    """One attribute as a text; a value that cannot be parsed is as good as absent."""
    try:
        value = dataset.get(keyword)
    except Exception:  # a malformed value of one attribute must not lose the others
        return ""
    if value is None:
        return ""
    several = not isinstance(value, str | bytes) and hasattr(value, "__iter__")
    text = "\\".join(str(v) for v in value) if several else str(value)
    return text.strip().strip("\x00").strip()[:LONGEST]
