"""Options of the MONAI Label app: what ``--conf key value`` gave, as text, read and checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ...utils import UserError, first_line, unknown
from .. import options as readers
from ..options import RunOptions, run_options

PACS_MODALITIES = ("CR", "DX", "MG")
IMAGES_A_BLOCK = 8

# Options of an evaluation that mean the same here.
_RUN = (
    "encoder", "findings", "match_on", "weights_dir", "feature_dir", "key_file", "cohort", "cohort_options",
    "feature_point", "precision", "encoder_processor", "batch_size", "image_size", "decode_workers",
    "decode_memory_mb", "decode_seconds", "decoding", "k", "seed", "max_candidates", "sets",
)  # fmt: skip
_WRITTEN = ("cohort_options", "decoding")  # as YAML
_LISTS = ("findings", "match_on", "modalities")
_OWN: dict[str, readers.Reader] = {
    "state_dir": readers.path,
    "heads": readers.path,
    "device": readers.text,
    "site": readers.text,
    "modalities": readers.names,
    "reserve_minutes": readers.number(0.0),
    "recent_hours": readers.number(0.0),
    "cache_gigabytes": readers.number(0.0),
}
# Read by MONAI Label itself.
_SERVER = ("server_mode", "auth_token")


@dataclass(frozen=True)
class LabelOptions:
    """What the app serves and how.

    Args:
        studies: the folder of images, or the address of a DICOMweb service.
        run: encoder, findings, matching, decoding and the measure, as in an evaluation.
        state_dir: where labels, margins, marks and (unless ``feature_dir`` says otherwise) features lie.
        heads: heads file of the encoder, or None.
        device: where the encoder runs; None takes a GPU where there is one.
        site: name of the site; None takes that of the cohort.
        modalities: of the images of a PACS.
        reserve_seconds, recent_seconds: see :class:`~candor_monai.apps.label.served.Served`.
        cache_gigabytes: most that is kept of a PACS's files.
    """

    studies: str
    run: RunOptions
    state_dir: Path
    heads: Path | None = None
    device: str | None = None
    site: str | None = None
    modalities: tuple[str, ...] = PACS_MODALITIES
    reserve_seconds: float = 1800.0
    recent_seconds: float = 43200.0
    cache_gigabytes: float = 20.0

    @property
    def pacs(self) -> bool:
        """Whether the images are on a DICOMweb service."""
        return is_address(self.studies)

    @property
    def features_folder(self) -> Path:
        """Where the feature store lies."""
        return self.run.feature_dir or self.state_dir / "features"


def is_address(studies: str) -> bool:
    """Whether studies are named by an address.

    >>> is_address("https://pacs.example/dicom-web"), is_address("/data/chest")
    (True, False)
    """
    return studies.startswith(("http://", "https://"))


def label_options(studies: str, app_dir: str | Path, conf: Mapping[str, Any]) -> LabelOptions:
    """Options from the command line of ``monailabel start_server``.

    Args:
        studies: ``--studies``.
        app_dir: ``--app``; holds the state of a PACS's images, of a folder's images it lies beside the folder.
        conf: ``--conf``; values are text.

    Raises:
        UserError: an unknown key, a value that cannot be read, or ``encoder`` or ``findings`` missing.
    """
    for key in conf:
        if key not in (*_RUN, *_OWN, *_SERVER):
            raise unknown("--conf key", key, (*_RUN, *_OWN))
    for key in ("encoder", "findings"):
        if not str(conf.get(key) or "").strip():
            example = "rad_dino" if key == "encoder" else "\"['Edema','Pneumothorax']\""
            raise UserError(f"--conf {key} is needed, as in: --conf {key} {example}")
    values = {key: _written(key, value) for key, value in conf.items()}
    given = {key: value for key, value in values.items() if key in _RUN}
    given.setdefault("batch_size", IMAGES_A_BLOCK)
    unmatched = given.get("match_on") in ([], ())
    if unmatched:  # written so on purpose: all images are one group
        del given["match_on"]
    own = {key: read(key, values.get(key)) for key, read in _OWN.items()}
    try:
        run = run_options(**given)
        run = replace(run, match_on=()) if unmatched else run
    except SystemExit as error:  # run_options tells a mistake as the command line does
        raise UserError(str(error.code).removeprefix("candor_monai: ").replace("--", "--conf ", 1)) from error
    state = own["state_dir"] or default_state_dir(studies, app_dir)
    return LabelOptions(
        studies=studies.rstrip("/") if is_address(studies) else studies,
        run=run,
        state_dir=Path(os.path.abspath(state)),
        heads=own["heads"],
        device=own["device"],
        site=own["site"],
        modalities=own["modalities"] or PACS_MODALITIES,
        reserve_seconds=60.0 * _or(own["reserve_minutes"], 30.0),
        recent_seconds=3600.0 * _or(own["recent_hours"], 12.0),
        cache_gigabytes=_or(own["cache_gigabytes"], 20.0),
    )


def default_state_dir(studies: str, app_dir: str | Path) -> Path:
    """Beside the folder of images; for a PACS, in the app's folder.

    >>> str(default_state_dir("/data/chest", "/srv/app")), str(default_state_dir("http://pacs:80/web", "/srv/app"))
    ('/data/chest.labels', '/srv/app/labels/pacs_80_web')
    """
    if is_address(studies):
        name = "".join(c if c.isalnum() else "_" for c in studies.split("://", 1)[1].rstrip("/"))
        return Path(app_dir) / "labels" / name
    folder = Path(os.path.abspath(studies))
    return folder.with_name(f"{folder.name}.labels")


def _written(name: str, value: Any) -> Any:
    """Mappings, and lists in brackets, as YAML (which Python's and JSON's nearly always are); other text as it is."""
    if not isinstance(value, str) or not (name in _WRITTEN or (name in _LISTS and value.strip().startswith("["))):
        return value
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError as error:
        example = '"{labels: table.csv}"' if name in _WRITTEN else "\"['site','view']\""
        raise UserError(f"--conf {name} must be written as {example}: {first_line(error)}") from error


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
