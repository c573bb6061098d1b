"""The datastore: images of a folder or a PACS, labels in the label desk's own files, nothing in MONAI Label's JSON."""

from __future__ import annotations

import io
import logging
import os
import tempfile
import threading
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from monailabel.interfaces.datastore import Datastore, DefaultLabelTag

from ....data.cohort import Cohort
from ....utils import DecodeError, UserError
from ..desk import LabelDesk, Saved
from ..readings import LARGEST_BYTES, parse_json
from ..studies import image_file, series_of, uids_of
from .answers import not_found, refused

logger = logging.getLogger(__name__)

FINAL = DefaultLabelTag.FINAL.value
STATUS_SECONDS = 1.0


@dataclass(frozen=True)
class Images:
    """The images that are served at one moment: a request looks at one of these, whatever is listed meanwhile.

    Args:
        cohort: the images.
        rows: image id -> its row in the cohort.
        series: of a PACS, SeriesInstanceUID of a series of one image -> that image.
    """

    cohort: Cohort
    rows: dict[str, int]
    series: dict[str, str]

    @classmethod
    def of(cls, cohort: Cohort) -> Images:
        """The images of a cohort."""
        rows = {str(image_id): row for row, image_id in enumerate(cohort.records["image_id"])}
        return cls(cohort, rows, {uid: images[0] for uid, images in series_of(cohort).items() if len(images) == 1})

    def known(self, image_id: Any) -> str:
        """The id of an image; for a PACS also the SeriesInstanceUID of a series of one image, which viewers use.

        Raises:
            HTTPException: 404: there is no such image.
        """
        if isinstance(image_id, str):
            if image_id in self.rows:
                return image_id
            if image_id in self.series:
                return self.series[image_id]
        shown = repr(image_id)
        raise not_found(f"there is no image {shown if len(shown) < 120 else shown[:120] + '…'} in this datastore")

    def row(self, image_id: Any) -> int:
        """The image's row in the cohort; HTTPException 404 where there is none."""
        return self.rows[self.known(image_id)]

    def path_told(self, image_id: Any) -> str:
        """Where the image is, without fetching it."""
        image = str(self.cohort.records["image"].iat[self.row(image_id)])
        return image if self.cohort.root is None else str(self.cohort.root / image)


class CandorDatastore(Datastore):
    """Images of a cohort; an image's label has its id, and ``final`` for its only tag.

    An image that is not known is answered with 404, a label that is none with 400.

    Args:
        name: the folder or address.
        cohort: the images.
        desk: labels, margins and marks.
        pacs: for a PACS, the options of the ``dicomweb`` adapter that lead to it.
    """

    def __init__(self, name: str, cohort: Cohort, desk: LabelDesk, pacs: dict[str, Any] | None = None) -> None:
        self._name = name
        self._pacs = pacs
        self._description = "images and labels of candor_monai"
        self.desk = desk
        self._last: dict[str, Saved] = {}
        self._status: tuple[float, dict[str, Any]] | None = None
        self._lock = threading.Lock()
        self.use(cohort)

    def use(self, cohort: Cohort) -> None:
        """Serve these images from now on."""
        images = Images.of(cohort)
        with self._lock:
            self.images, self._status = images, None

    @property
    def cohort(self) -> Cohort:
        """The cohort of the images that are served now."""
        return self.images.cohort

    def known(self, image_id: Any) -> str:
        """The id of an image that is served now; HTTPException 404 where there is none."""
        return self.images.known(image_id)

    # ---- images

    def name(self) -> str:
        return self._name

    def set_name(self, name: str) -> None:
        self._name = name

    def description(self) -> str:
        return self._description

    def set_description(self, description: str) -> None:
        self._description = description

    def list_images(self) -> list[str]:
        return list(self.images.rows)

    def get_labeled_images(self, label_tag: str | None = None, labels: list[str] | None = None) -> list[str]:
        return self.desk.labelled()

    def get_unlabeled_images(self, label_tag: str | None = None, labels: list[str] | None = None) -> list[str]:
        return self.desk.unlabelled()

    def get_image(self, image_id: str, params: Any = None) -> Any:
        return io.BytesIO(Path(self.get_image_uri(image_id)).read_bytes())

    def get_image_uri(self, image_id: str) -> str:
        """The image's file; of a PACS's image a kept copy, fetched where it is not there."""
        images = self.images
        try:
            return str(image_file(images.cohort, images.row(image_id)))
        except (DecodeError, UserError) as error:
            raise refused(error) from error

    def there(self, image_id: str) -> bool:
        """Whether the image is still one of these and its file still there; of a PACS's image, which only asking could
        tell, the latter is assumed."""
        images = self.images
        row = images.rows.get(image_id)
        return row is not None and (images.cohort.open_image is not None or images.cohort.path(row).is_file())

    def path_told(self, image_id: str) -> str:
        """Where the image is, without fetching it."""
        return self.images.path_told(image_id)

    def get_image_info(self, image_id: str) -> dict[str, Any]:
        """What a client may know of an image before it is read: no label and no margin."""
        images = self.images
        record = images.cohort.records.iloc[images.row(image_id)]
        info: dict[str, Any] = {"name": os.path.basename(str(record["image"])), "path": images.path_told(image_id)}
        if self._pacs is not None:
            info |= {**uids_of(str(record["image"])), "name": f"{info['name']}.dcm"}
        info |= {name: record[name] for name in ("site", "view") if isinstance(record.get(name), str)}
        return info

    def update_image_info(self, image_id: str, info: dict[str, Any]) -> None:
        """Nothing is kept: who was served what is in the label desk's own files already."""
        self.known(image_id)

    def add_image(self, image_id: str, image_filename: str, image_info: dict[str, Any]) -> str:
        raise refused(UserError("images come from the folder or PACS; put the file there and run the scoring method."))

    def remove_image(self, image_id: str) -> None:
        raise refused(UserError("images are not removed here; remove the file and run the scoring method."))

    # ---- labels

    def save_label(self, image_id: str, label_filename: str, label_tag: str, label_info: dict[str, Any]) -> str:
        """Save a reading: the file is JSON as docs/monai_label.md says.

        ``client_id`` and ``selected_by`` of the request's parameters count where the JSON does not say them.
        """
        image = self.known(image_id)
        if label_tag != FINAL:
            raise refused(UserError(f"label tag {label_tag!r}: labels here have the tag {FINAL!r} only."))
        try:
            with open(label_filename, "rb") as file:
                document = file.read(LARGEST_BYTES + 1)
            content = _with_parameters(document, label_info)
            saved = self.desk.save(image, content, client_id=_client(label_info))
        except UserError as error:
            raise refused(error) from error
        with self._lock:
            self._last[image] = saved
            self._status = None
        return image

    def last_saved(self, image_id: str) -> Saved | None:
        """What the latest save of an image did, once."""
        with self._lock:
            return self._last.pop(self.known(image_id), None)

    def remove_label(self, label_id: str, label_tag: str) -> None:
        image = self._label(label_id, label_tag)
        removed = self.desk.remove_label(image)
        self._status = None
        if not removed:
            raise not_found(f"image {image!r} has no label")

    def get_labels_by_image_id(self, image_id: str) -> dict[str, str]:
        image = self.known(image_id)
        return {FINAL: image} if self.desk.label(image) is not None else {}

    def get_label_by_image_id(self, image_id: str, tag: str) -> str:
        return self.get_labels_by_image_id(image_id).get(tag, "")

    def get_label(self, label_id: str, label_tag: str, params: Any = None) -> Any:
        uri = self.get_label_uri(label_id, label_tag)
        return io.BytesIO(Path(uri).read_bytes()) if uri else None

    def get_label_uri(self, label_id: str, label_tag: str) -> str:
        image = self._label(label_id, label_tag)
        return str(self.desk.label_path(image)) if self.desk.label(image) is not None else ""

    def get_label_info(self, label_id: str, label_tag: str) -> dict[str, Any]:
        label = self.desk.label(self._label(label_id, label_tag))
        if label is None:
            return {}
        current = label.current
        return {
            "name": self.desk.label_path(label.image_id).name,
            "findings": dict(current.findings),
            "selected_by": current.selected_by,
            "client_id": current.client_id,
            "time": current.time,
            "readings": len(label.readings),
        }

    def update_label_info(self, label_id: str, label_tag: str, info: dict[str, Any]) -> None:
        raise refused(UserError("a label's information is its readings; save a new label to change it."))

    def _label(self, label_id: str, label_tag: str) -> str:
        if label_tag != FINAL:
            raise not_found(f"there is no label with tag {label_tag!r}; the only tag is {FINAL!r}")
        return self.known(label_id)

    # ---- the whole

    def datalist(self) -> list[dict[str, Any]]:
        images = self.images
        labelled = [image for image in self.desk.labelled() if image in images.rows]
        return [{"image": images.path_told(i), "label": str(self.desk.label_path(i))} for i in labelled]

    def get_dataset_archive(self, limit_cases: int | None) -> str:
        """The labels as a cohort (a table of labels and ``cohort.yaml``) in a ZIP file; no images."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                card = self.desk.export(folder, self._pacs)
            except UserError as error:
                raise refused(error) from error
            # the card is used elsewhere: its table lies beside it, and is named with --labels
            content = yaml.safe_load(card.read_text(encoding="utf-8"))
            content["options"]["labels"] = Path(content["options"]["labels"]).name
            card.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")
            handle, path = tempfile.mkstemp(suffix=".zip")
            with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for part in sorted(Path(folder).rglob("*")):
                    if part.is_file():
                        archive.write(part, part.relative_to(folder))
        return path

    def refresh(self) -> None:
        self.desk.refresh()

    def status(self) -> dict[str, Any]:
        status = self._counted()
        completed = int(status.get("labelled", 0))
        return {
            "total": len(self.images.rows),
            "completed": completed,
            "label_tags": {FINAL: completed},
            "candor": status,
        }

    def _counted(self) -> dict[str, Any]:
        """The desk's counts, asked for with every request; what other processes do shows a second late."""
        counted = self._status
        if counted is None or time.monotonic() - counted[0] > STATUS_SECONDS:
            self._status = counted = time.monotonic(), self.desk.status()
        return counted[1]

    def json(self) -> dict[str, Any]:
        """All images in the form of MONAI Label's own file."""
        labelled = set(self.desk.labelled())
        objects = {}
        for image in self.images.rows:
            labels = {FINAL: {"ext": ".json", "info": self.get_label_info(image, FINAL)}} if image in labelled else {}
            objects[image] = {"image": {"ext": "", "info": self.get_image_info(image)}, "labels": labels}
        return {"name": self._name, "description": self._description, "objects": objects}


def _client(info: dict[str, Any]) -> str | None:
    client = info.get("client_id")
    return client if isinstance(client, str) else None


def _with_parameters(document: bytes, info: dict[str, Any]) -> Any:
    """The document, with ``selected_by`` of the request's parameters where it says none itself."""
    selected = info.get("selected_by")
    if selected is None:
        return document
    content = parse_json(document, "the label")
    return {"selected_by": selected, **content} if isinstance(content, dict) else document
