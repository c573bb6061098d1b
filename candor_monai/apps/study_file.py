"""What a study is: encoders, cohorts, options and ablations, read from a file or from the command line, and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..data.cohorts.cards import load_card as load_cohort_card
from ..metrics.options import Options as MeasureOptions
from ..networks.cards import load_card as load_encoder_card
from ..utils.errors import UserError
from ..utils.names import unknown
from ..utils.resources import resource
from ..utils.typed import build
from ..utils.yaml_files import read_yaml
from .ablations import ABLATIONS
from .options import RunOptions, name_or_card, run_options
from .workflow import shipped_keys

# Keys that a cell must not inherit from the study that it is a part of.
NOT_INHERITED = ("encoders", "cohorts", "study", "ablations")
# What an entry of `cohorts` says beside overrides of its cells.
ENTRY_KEYS = ("label", "encoders", "ablations")


@dataclass(frozen=True)
class StudyFile:
    """A file of configs/studies, or of one's own.

    Args:
        name: of the study.
        title: in words.
        encoders: names or cards.
        cohorts: names or cards; or mappings with ``cohort``, overrides of its cells, and any of ``label`` (its name in
            files and tables), ``encoders`` (some of the study's) and ``ablations`` (instead of the study's).
        options: overrides of every cell.
        ablations: names of ablations.

    Raises:
        UserError: a list that names nothing.
    """

    name: str = "study"
    title: str = ""
    encoders: Sequence[str | Mapping[str, Any]] | None = None
    cohorts: Sequence[str | Mapping[str, Any]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    ablations: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for key in ("encoders", "cohorts"):
            if getattr(self, key) is not None and not getattr(self, key):
                raise UserError(f"{key} must name at least one; without the key the run's own is taken.")


@dataclass(frozen=True)
class StudyCohort:
    """One cohort of a study.

    Args:
        label: its name in files and tables.
        overrides: what its cells set: ``cohort`` and further keys.
        encoders: what is run on it.
        ablations: names of the ablations of its cells.
    """

    label: str
    overrides: dict[str, Any]
    encoders: tuple[Any, ...]
    ablations: tuple[str, ...] = ()


@dataclass(frozen=True)
class Study:
    """What is run.

    Args:
        name: of the study.
        encoders: names or cards.
        cohorts: what they are run on.
        options: overrides for every cell.
    """

    name: str
    encoders: tuple[Any, ...]
    cohorts: tuple[StudyCohort, ...]
    options: dict[str, Any]


@dataclass(frozen=True)
class StudyCell:
    """One encoder on one cohort of a study.

    Args:
        encoder: name or card.
        cohort: overrides that choose the cohort.
        folder: where its results go.
    """

    encoder: Any
    cohort: dict[str, Any]
    folder: Path

    @property
    def name(self) -> str:
        """Folder name of the cell."""
        return self.folder.name


def read_study(options: RunOptions) -> Study:
    """The study that the options name: a file, or lists of encoders and cohorts; what is given on the command line
    replaces what the file says.

    Every name, override and option is checked here, before any work.

    Raises:
        UserError: something unknown, of a wrong type, or empty; one line that names the file and the key.
    """
    file, content = "", StudyFile()
    if options.study is not None:
        path = _study_path(options.study)
        file, content = f"{path}: ", _file(read_yaml(path), str(path))
    encoders = tuple(options.encoders or content.encoders or (options.encoder,))
    entries = tuple(options.cohorts or content.cohorts or (options.cohort,))
    ablations = tuple(options.ablations or content.ablations or ())
    _checked_overrides(content.options, f"{file}options")
    study = Study(
        name=content.name,
        encoders=tuple(_encoder(encoder, f"{file}encoders" if file else "") for encoder in encoders),
        cohorts=tuple(_cohort(entry, encoders, ablations, file) for entry in entries),
        options=dict(content.options),
    )
    for cohort in study.cohorts:
        _read_options({**study.options, **cohort.overrides}, f"{file}cohort {cohort.label!r}")
    _told_apart([cohort.label for cohort in study.cohorts], f"{file}cohorts", "give one of them a `label`")
    _told_apart([encoder_name(e) for e in study.encoders], f"{file}encoders", "name it once")
    return study


def study_cells(study: Study, output_dir: Path) -> list[list[StudyCell]]:
    """The cells of each cohort."""
    return [
        [
            StudyCell(
                encoder, cohort.overrides, output_dir / "cells" / f"{safe(cohort.label)}--{safe(encoder_name(encoder))}"
            )
            for encoder in cohort.encoders
        ]
        for cohort in study.cohorts
    ]


def encoder_name(encoder: Any) -> str:
    """Name of an encoder that is named, or given by a card's path or by its content."""
    if isinstance(encoder, Mapping):
        return str(encoder.get("name", "encoder"))
    return encoder.stem if isinstance(encoder, Path) else str(encoder)


def safe(name: str) -> str:
    """A name as a folder can have it.

    >>> safe("chest, 2 sites/α")
    'chest__2_sites__'
    """
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def _file(said: Mapping[str, Any], where: str) -> StudyFile:
    """What was written, by its declared types; a key left empty is as good as absent."""
    return build(StudyFile, {key: value for key, value in said.items() if value is not None}, where, lenient=True)


def _study_path(study: Any) -> Path:
    if isinstance(study, Path):
        return study
    shipped = {path.stem: path for path in resource("configs", "studies").glob("*.yaml")}
    if str(study) not in shipped:
        raise unknown("study", str(study), shipped)
    return shipped[str(study)]


def _encoder(encoder: Any, where: str) -> Any:
    card = name_or_card("encoders", encoder)
    _told(lambda: load_encoder_card(card), where)  # type: ignore[arg-type]
    return card


def _cohort(entry: Any, encoders: Sequence[Any], ablations: Sequence[str], file: str) -> StudyCohort:
    given = dict(entry) if isinstance(entry, Mapping) and "cohort" in entry else {"cohort": entry}
    card = name_or_card("cohorts", given["cohort"])
    loaded = _told(lambda: load_cohort_card(card), f"{file}cohorts" if file else "")  # type: ignore[arg-type]
    label = str(given.get("label") or loaded.name)
    here = f"{file}cohort {label!r}"
    own = {key: given[key] for key in ENTRY_KEYS if key in given and key != "label"}
    if own:
        part = _file(own, here)
        if part.encoders:
            known = [encoder_name(encoder) for encoder in encoders]
            chosen = [encoder_name(encoder) for encoder in part.encoders]
            for name in chosen:
                if name not in known:
                    raise UserError(f"{here}: encoders: {unknown('encoder of this study', name, known)}")
            encoders = [encoder for encoder, name in zip(encoders, known, strict=True) if name in chosen]
        ablations = ablations if part.ablations is None else tuple(part.ablations)
    for name in ablations:
        if name not in ABLATIONS:
            raise UserError(f"{here}: ablations: {unknown('ablation', name, ABLATIONS)}")
    overrides = {key: value for key, value in given.items() if key not in ENTRY_KEYS}
    _checked_overrides(overrides, here)
    overrides["cohort"] = str(card) if isinstance(card, Path) else card
    cards = tuple(name_or_card("encoders", encoder) for encoder in encoders)
    return StudyCohort(label, overrides, cards, tuple(ablations))


def _checked_overrides(overrides: Mapping[str, Any], where: str) -> None:
    """Refuse keys that no option of a run has, and those that belong to the study itself."""
    known = shipped_keys() - {*NOT_INHERITED, "encoder", "output_dir"}
    for key in overrides:
        if key not in known:
            raise UserError(f"{where}: {unknown('option', str(key), known)}")


def _read_options(overrides: Mapping[str, Any], where: str) -> None:
    """Read the options among the overrides as a run will, so that a value that is none is told now."""
    known = {"memory_mb", *RunOptions.__dataclass_fields__, *MeasureOptions.__dataclass_fields__} - {"measure"}
    try:
        run_options(**{key: value for key, value in overrides.items() if key in known})
    except SystemExit as refused:
        raise UserError(f"{where}: {str(refused).removeprefix('candor_monai: ')}") from refused


def _told(read: Any, where: str) -> Any:
    """What ``read`` gives; its error with the place where it was written in front."""
    try:
        return read()
    except UserError as error:
        text = str(error)
        raise UserError(text if not where or text.startswith(where) else f"{where}: {text}") from error


def _told_apart(found: Sequence[str], where: str, how: str) -> None:
    folders = [safe(name) for name in found]
    for name, folder in zip(found, folders, strict=True):
        if folders.count(folder) > 1:
            raise UserError(f"{where}: {name!r} occurs twice (as a folder's name): {how}.")
