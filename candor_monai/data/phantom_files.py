"""The calibration cohort on disk: phantoms as real DICOM files, with a table of labels and one of boxes."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from candor_monai.utils.atomic import atomic_write
from candor_monai.utils.errors import UserError

from .cohort import BOX_COLUMNS
from .phantom import VIEWS, Marker, add_marker, backgrounds, random_marker

VERSION = 1  # raised when the same seed gives other images
# One of the seeds with which the blind encoder's D is near 1/2 for both findings, as it is on average; with others it
# spreads as its interval says (SD 0.05 and 0.06). The experiment of apps/calibration.py measures the average.
SEED = 8
SIDE = 256
SITES = ("north", "south")
FINDINGS = {"common_marker": "horizontal", "rare_marker": "vertical"}
PER_GROUP = {"images": 140, "common_marker": 45, "rare_marker": 22}
LABEL_COLUMNS = ["image", "image_id", "patient_id", "site", "view", *FINDINGS]
LABELS, BOXES, COMPLETE = "labels.csv", "boxes.csv", "complete.json"
DX_IMAGE = "1.2.840.10008.5.1.4.1.1.1.1"
EXPLICIT, IMPLICIT, DEFLATED = "1.2.840.10008.1.2.1", "1.2.840.10008.1.2", "1.2.840.10008.1.2.1.99"
RLE, JPEG_LS, JPEG_2000 = "1.2.840.10008.1.2.5", "1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.90"
TRANSFER_SYNTAXES = (EXPLICIT, IMPLICIT, DEFLATED, RLE, JPEG_LS, JPEG_2000)


@dataclass(frozen=True)
class PhantomImage:
    """One image of the cohort as planned.

    Args:
        image_id, patient_id, site, view: as in the table.
        finding: the finding it shows, or None.
        marker: the marker that makes it.
        photometric: ``MONOCHROME1`` or ``MONOCHROME2``.
        transfer_syntax: UID.
    """

    image_id: str
    patient_id: str
    site: str
    view: str
    finding: str | None
    marker: Marker | None
    photometric: str
    transfer_syntax: str

    @property
    def path(self) -> str:
        """Path of its file, relative to the cohort's folder."""
        return f"images/{self.site}/{self.patient_id}/{self.image_id}.dcm"


def phantom_folder(folder: str | Path, seed: int = SEED) -> Path:
    """The cohort's folder, written when it is not there yet; whole or not at all.

    Args:
        folder: where it is, or shall be.
        seed: of everything in it.

    Raises:
        UserError: the folder holds something else or another seed's cohort, or cannot be written.
    """
    folder = Path(folder)
    wanted = {"version": VERSION, "seed": seed}
    if "\0" in str(folder):
        raise UserError(f"{str(folder)!r}: there is no such folder: no path holds the character NUL.")
    if phantom_complete(folder):
        found = _stated(folder / COMPLETE)
        if found != wanted:
            raise UserError(
                f"{folder} holds a calibration cohort of seed {found.get('seed')}, version {found.get('version')}; "
                f"wanted: seed {seed}, version {VERSION}. Choose another --dataset_dir, or remove the folder."
            )
        return folder
    if os.path.lexists(folder) and (not os.path.isdir(folder) or any(folder.iterdir())):
        raise UserError(
            f"{folder} is not empty and holds no calibration cohort. Choose another --dataset_dir, or leave it out."
        )
    building = folder.parent / f".{folder.name}.{os.getpid()}.tmp"
    try:
        building.mkdir(parents=True)
        write_phantoms(building, seed)
        atomic_write(building / COMPLETE, json.dumps(wanted) + "\n")
        os.replace(building, folder)
    except OSError as error:
        if phantom_complete(folder) and _stated(folder / COMPLETE) == wanted:
            return folder  # another process was quicker
        raise UserError(f"{folder}: the calibration cohort cannot be written: {error.strerror}.") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def plan_phantoms(seed: int = SEED) -> list[PhantomImage]:
    """Who is in the cohort: two sites × two views, patients with one to three images, two exclusive findings."""
    rng = np.random.default_rng([VERSION, seed, 1])
    planned: list[PhantomImage] = []
    for site in SITES:
        views = _patients(rng, site)
        for view in VIEWS:
            owners = [patient for patient, own in views for of in own if of == view][: PER_GROUP["images"]]
            shown: list[str | None] = [None] * len(owners)
            places = rng.permutation(len(owners)).tolist()
            for finding in FINDINGS:
                for _ in range(PER_GROUP[finding]):
                    shown[places.pop()] = finding
            for patient, found in zip(owners, shown, strict=True):
                number = len(planned)
                planned.append(
                    PhantomImage(
                        image_id=f"img{number:04d}",
                        patient_id=patient,
                        site=site,
                        view=view,
                        finding=found,
                        marker=random_marker(rng, FINDINGS[found]) if found else None,
                        photometric=("MONOCHROME2", "MONOCHROME1")[int(rng.random() < 0.5)],
                        transfer_syntax=TRANSFER_SYNTAXES[int(rng.integers(len(TRANSFER_SYNTAXES)))],
                    )
                )
    return planned


def phantom_pixels(image: PhantomImage, number: int, seed: int = SEED) -> np.ndarray:
    """The image as displayed.

    Args:
        image: from :func:`plan_phantoms`.
        number: its place there; every image has its own stream of random numbers.
        seed: the cohort's.

    Returns:
        shape (256, 256), uint16, 12 bits, where white is 4095.
    """
    rng = np.random.default_rng([VERSION, seed, 2, number])
    pixels = backgrounds(rng, 1, SIDE, image.view)[0]
    if image.site == SITES[1]:
        pixels = 0.05 + 0.9 * pixels
    if image.marker is not None:
        add_marker(pixels, image.marker)
    return np.rint(pixels * 4095).astype(np.uint16)


def phantom_complete(folder: str | Path) -> bool:
    """Whether the cohort has been written into the folder."""
    return os.path.isfile(Path(folder) / COMPLETE)


def phantom_tables(planned: list[PhantomImage]) -> tuple[list[list[Any]], list[list[Any]]]:
    """Rows of the table of labels and of the table of boxes, as :data:`LABEL_COLUMNS` and :data:`BOX_COLUMNS` say."""
    labels, boxes = [], []
    for image in planned:
        shown = [int(image.finding == finding) for finding in FINDINGS]
        labels.append([image.path, image.image_id, image.patient_id, image.site, image.view, *shown])
        if image.marker is not None:
            boxes.append([image.image_id, image.finding, *image.marker.box(SIDE), SIDE, SIDE])
    return labels, boxes


def write_phantoms(folder: Path, seed: int = SEED) -> None:
    """Write every file and both tables into an empty folder."""
    planned = plan_phantoms(seed)
    for number, image in enumerate(planned):
        path = folder / image.path
        path.parent.mkdir(parents=True, exist_ok=True)
        _save(dicom_dataset(image, phantom_pixels(image, number, seed), seed), path)
    labels, boxes = phantom_tables(planned)
    _table(folder / LABELS, LABEL_COLUMNS, labels)
    _table(folder / BOXES, BOX_COLUMNS, boxes)


def dicom_dataset(image: PhantomImage, displayed: np.ndarray, seed: int = SEED) -> Any:
    """A DICOM data set of digital radiography.

    Args:
        image: its plan.
        displayed: shape (rows, columns), uint16, 12 bits, where white is 4095.
        seed: the cohort's; unique identifiers follow from it.
    """
    import pydicom
    from pydicom.dataset import FileMetaDataset
    from pydicom.encaps import encapsulate
    from pydicom.uid import UID

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = UID(DX_IMAGE)
    meta.MediaStorageSOPInstanceUID = _uid(seed, "image", image.image_id)
    meta.TransferSyntaxUID = UID(image.transfer_syntax)
    dataset = pydicom.Dataset()
    dataset.file_meta = meta
    dataset.SOPClassUID = DX_IMAGE
    dataset.SOPInstanceUID = meta.MediaStorageSOPInstanceUID
    dataset.StudyInstanceUID = _uid(seed, "study", image.image_id)
    dataset.SeriesInstanceUID = _uid(seed, "series", image.image_id)
    dataset.PatientID, dataset.PatientName = image.patient_id, f"Phantom^{image.patient_id}"
    dataset.PatientBirthDate = dataset.PatientSex = dataset.StudyDate = dataset.StudyTime = ""
    dataset.AccessionNumber = dataset.StudyID = dataset.ReferringPhysicianName = ""
    dataset.SeriesNumber = dataset.InstanceNumber = 1
    dataset.Modality, dataset.BodyPartExamined = "DX", "CHEST"
    dataset.ViewPosition, dataset.InstitutionName = image.view, image.site
    dataset.Rows, dataset.Columns = displayed.shape
    dataset.SamplesPerPixel, dataset.PixelRepresentation = 1, 0
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 12, 11
    dataset.PhotometricInterpretation = image.photometric
    dataset.WindowCenter, dataset.WindowWidth = 2048, 4096
    stored = displayed if image.photometric == "MONOCHROME2" else (4095 - displayed).astype(np.uint16)
    encode = _ENCODERS.get(image.transfer_syntax)
    if encode is None:
        dataset.PixelData = stored.astype("<u2").tobytes()
    else:
        dataset.PixelData = encapsulate([encode(stored)])
        dataset["PixelData"].is_undefined_length = True
    dataset["PixelData"].VR = "OB" if encode is not None else "OW"
    return dataset


def _rle(stored: np.ndarray) -> bytes:
    from rle.utils import encode_pixel_data

    rows, columns = stored.shape
    encoded = encode_pixel_data(
        stored.astype("<u2").tobytes(),
        byteorder="<",
        rows=rows,
        columns=columns,
        samples_per_pixel=1,
        bits_allocated=16,
        number_of_frames=1,
    )
    return bytes(encoded)


def _jpeg_ls(stored: np.ndarray) -> bytes:
    from jpeg_ls import encode_array

    return bytes(encode_array(stored))


def _jpeg_2000(stored: np.ndarray) -> bytes:
    from openjpeg.utils import encode_array

    return bytes(encode_array(stored, bits_stored=12, photometric_interpretation=2))


_ENCODERS: dict[str, Callable[[np.ndarray], bytes]] = {RLE: _rle, JPEG_LS: _jpeg_ls, JPEG_2000: _jpeg_2000}


def _save(dataset: Any, path: Path) -> None:
    import pydicom

    implicit = dataset.file_meta.TransferSyntaxUID == IMPLICIT
    if int(pydicom.__version__.split(".")[0]) >= 3:
        dataset.save_as(path, enforce_file_format=True, implicit_vr=implicit, little_endian=True)
    else:
        dataset.is_implicit_VR, dataset.is_little_endian = implicit, True
        dataset.save_as(path, write_like_original=False)


def _patients(rng: np.random.Generator, site: str) -> list[tuple[str, list[str]]]:
    """Patients of a site with the views of their images, until every view is full."""
    patients: list[tuple[str, list[str]]] = []
    left = dict.fromkeys(VIEWS, PER_GROUP["images"])
    while any(left.values()):
        own = []
        for _ in range(int(rng.choice([1, 2, 3], p=[0.6, 0.28, 0.12]))):
            view = VIEWS[int(rng.integers(len(VIEWS)))]
            if left[view]:
                left[view] -= 1
                own.append(view)
        if own:
            patients.append((f"{site[0].upper()}{len(patients):03d}", own))
    return patients


def _uid(seed: int, *parts: str) -> Any:
    from pydicom.uid import UID

    digest = hashlib.sha256("/".join(("candor_monai", str(VERSION), str(seed), *parts)).encode()).digest()
    return UID(f"2.25.{int.from_bytes(digest[:16], 'big')}")


def _table(path: Path, header: Sequence[str], rows: list[list[Any]]) -> None:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8")


def _stated(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
