"""Options of a run: what the command line gave, normalised, type-checked and told in the user's words.

MONAI and Fire change values on their way: ``a,b`` arrives as a tuple, ``false`` as a string, ``None`` not at all, and
``/data/study#1`` as ``/data/study::1``. Each option is read by a reader that undoes this and refuses what it cannot
read, naming the option.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..metrics.options import Options as MeasureOptions
from ..utils.errors import UserError
from ..utils.names import unknown
from ..utils.told import told_once

Reader = Callable[[str, Any], Any]
ORIGINAL = "original"


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in ("", "none", "null"))


def text(name: str, value: Any) -> str | None:
    """A word or path-like text; numbers that Fire made of it become text again."""
    if _missing(value):
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise UserError(f"--{name} must be text, got {value!r}.")
    return str(value)


def path(name: str, value: Any) -> Path | None:
    """A path; MONAI writes ``#`` as ``::`` in every value, which is undone unless the path with ``::`` is there."""
    if isinstance(value, Path):
        return value
    words = text(name, value)
    if words is None:
        return None
    if "::" in words and not Path(words).exists():
        words = words.replace("::", "#")
    return Path(words).expanduser()


def flag(name: str, value: Any) -> bool | None:
    """Yes or no, also as the words that Fire leaves as text."""
    if _missing(value):
        return None
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in ("true", "yes", "1", "on"):
        return True
    if word in ("false", "no", "0", "off"):
        return False
    raise UserError(f"--{name} must be true or false, got {value!r}.")


def whole(least: int) -> Reader:
    """A whole number of at least ``least``."""

    def read(name: str, value: Any) -> int | None:
        if _missing(value):
            return None
        try:
            number = int(value)
            if isinstance(value, bool) or number != float(value):
                raise ValueError
        except (TypeError, ValueError):
            raise UserError(f"--{name} must be a whole number, got {value!r}.") from None
        if number < least:
            raise UserError(f"--{name} must be at least {least}, got {number}.")
        return number

    return read


def number(least: float) -> Reader:
    """A number of at least ``least``."""

    def read(name: str, value: Any) -> float | None:
        if _missing(value):
            return None
        try:
            result = float(value)
            if isinstance(value, bool) or not result < float("inf"):
                raise ValueError
        except (TypeError, ValueError):
            raise UserError(f"--{name} must be a number, got {value!r}.") from None
        if not result >= least:
            raise UserError(f"--{name} must be at least {least:g}, got {result:g}.")
        return result

    return read


def pixels(name: str, value: Any) -> int | str | None:
    """Side of the canonical image in pixels, or ``original`` for the file's own size."""
    if isinstance(value, str) and value.strip().lower() == ORIGINAL:
        return ORIGINAL
    return whole(16)(name, value)


def choice(*known: str) -> Reader:
    """One of a few words."""

    def read(name: str, value: Any) -> str | None:
        word = text(name, value)
        if word is not None and word not in known:
            raise unknown(f"value for --{name}:", word, known)
        return word

    return read


def listed(name: str, value: Any) -> tuple[str, ...] | None:
    """Several words, one after the other: a list, Fire's tuple, or text with commas."""
    if _missing(value):
        return None
    if isinstance(value, str):
        value = [part.strip() for part in value.strip().strip("[]").split(",")]
        value = [part.strip("'\"") for part in value]
    if not isinstance(value, (list, tuple, set)):
        raise UserError(f"--{name} must be a list of names such as \"['a','b']\", got {value!r}.")
    result = tuple(str(part) for part in value if str(part))
    if not result:
        raise UserError(f"--{name} is an empty list; leave the option away to take the default.")
    return result


def names(name: str, value: Any) -> tuple[str, ...] | None:
    """Several names, each once, in the forms of :func:`listed`."""
    result = listed(name, value) or ()
    repeated = sorted({part for part in result if result.count(part) > 1})
    if repeated:
        raise UserError(f"--{name} names {repeated[0]!r} twice.")
    return result or None


def mapping(name: str, value: Any) -> dict[str, Any]:
    """Further options of an adapter or a card, as a mapping."""
    if _missing(value):
        return {}
    if not isinstance(value, Mapping):
        raise UserError(f"--{name} must be a mapping such as \"{{'a': 1}}\", got {value!r}.")
    return dict(value)


def name_or_card(name: str, value: Any) -> str | Path | dict[str, Any] | None:
    """A shipped card's name, a card file's path, or a card written out."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Path):
        return value
    words = text(name, value)
    if words is None:
        return None
    return path(name, words) if words.endswith((".yaml", ".yml")) or "/" in words else words


def cards(name: str, value: Any) -> tuple[Any, ...] | None:
    """Several cards, by name, path or written out."""
    if isinstance(value, (list, tuple)) and any(isinstance(part, Mapping) for part in value):
        return tuple(dict(part) if isinstance(part, Mapping) else str(part) for part in value)
    if isinstance(value, Mapping):
        return (dict(value),)
    return names(name, value)


def _option(read: Reader, default: Any = None) -> Any:
    return field(default=default, metadata={"read": read})


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What one evaluation runs on and with. Field names are the bundle's override keys; None means the default."""

    output_dir: Path = _option(path, Path("eval"))
    dataset_dir: Path | None = _option(path)
    feature_dir: Path | None = _option(path)
    weights_dir: Path | None = _option(path)
    key_file: Path | None = _option(path)
    cohort: str | Path | dict[str, Any] = _option(name_or_card, "calibration")
    cohort_options: dict[str, Any] = field(default_factory=dict, metadata={"read": mapping})
    task: str | None = _option(text)
    findings: tuple[str, ...] | None = _option(names)
    match_on: tuple[str, ...] | None = _option(names)
    encoder: str | Path | dict[str, Any] = _option(name_or_card, "marker")
    encoders: tuple[Any, ...] | None = _option(cards)
    cohorts: tuple[Any, ...] | None = _option(cards)
    study: str | Path | None = _option(name_or_card)
    ablations: tuple[str, ...] | None = _option(names)
    leave_out: Path | None = _option(path)
    feature_point: str | None = _option(choice("cls", "projected", "pooled", "mean_patch"))
    precision: str = _option(choice("float32", "bfloat16", "float16"), "float32")
    encoder_processor: str | None = _option(text)
    channels_last: bool = _option(flag, False)
    compile: bool = _option(flag, False)
    batch_size: int = _option(whole(1), 32)
    image_size: int | str = _option(pixels, 224)
    decode_workers: int | None = _option(whole(1))
    prefetch: int | None = _option(whole(1))
    pin_memory: bool | None = _option(flag)
    decode_memory_mb: int = _option(whole(256), 1024)
    decode_seconds: float = _option(number(0.1), 60.0)
    cache_mb: int = _option(whole(0), 2048)
    cache_disk_mb: int = _option(whole(0), 0)
    decoding: dict[str, Any] = field(default_factory=dict, metadata={"read": mapping})
    probe: bool = _option(flag, True)
    probe_split: str = _option(choice("publisher", "hash"), "publisher")
    train_site: str | None = _option(text)
    retention: bool = _option(flag, True)
    retention_fill: str = _option(choice("mean", "zero", "blur", "noise"), "mean")
    retention_masks: str = _option(choice("pixels", "components", "box"), "pixels")
    write_report: bool = _option(flag, True)
    report_images: bool = _option(flag, True)
    report_examples: int = _option(whole(0), 3)
    published: bool = _option(flag, False)
    progress: bool = _option(flag, True)
    measure: MeasureOptions = field(default_factory=MeasureOptions)

    @property
    def canonical_size(self) -> int | None:
        """Side of the canonical image in pixels; None keeps the file's own size."""
        return None if self.image_size == ORIGINAL else int(self.image_size)

    @property
    def first_decode_workers(self) -> int:
        """Decoding processes to begin with: as asked for, or two where there are cores for them."""
        return self.decode_workers or min(2, self.most_decode_workers)

    @property
    def most_decode_workers(self) -> int:
        """Cores of this machine that are this process's."""
        beside = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        return max(1, len(os.sched_getaffinity(0)) // beside)

    @property
    def features_folder(self) -> Path:
        """Where the feature store lies."""
        return self.feature_dir or self.output_dir / "features"


def whole_numbers(name: str, value: Any) -> tuple[int, ...] | None:
    """Several whole numbers, in the forms of :func:`names`."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    read = whole(0)
    parts = names(name, value)
    return None if parts is None else tuple(read(name, part) for part in parts)


_MEASURE_READERS: dict[str, Reader] = {
    "bool": flag,
    "bool | None": flag,
    "int": whole(0),
    "int | None": whole(0),
    "float": number(0.0),
    "float | None": number(0.0),
    "str": text,
    "str | None": text,
    "tuple[int, ...]": whole_numbers,
    "Mapping[str, float] | None": mapping,
}
# Options of a cohort's adapter that are paths.
_COHORT_PATHS = ("labels", "features", "feature_ids", "images", "index_dir", "vocabulary")
# Options of the measure whose name on the command line says more than the field's, or means something else there.
_ALIASES = {"sweep_precision": "precision"}


def _read(reader: Reader, name: str, value: Any, default: Any) -> Any:
    result = reader(name, value)
    return default if result is None else result


def measure_options(**values: Any) -> MeasureOptions:
    """The measure's options (:class:`candor_monai.metrics.options.Options`) from command-line values.

    Raises:
        UserError: an unknown option, or a value that is not of its type or range.
    """
    fields = {f.name: f for f in dataclasses.fields(MeasureOptions)}
    given = {}
    for name, value in values.items():
        if name not in fields:
            raise unknown("option", name, fields)
        if _missing(value):
            continue
        given[name] = _MEASURE_READERS[str(fields[name].type)](name, value)
    try:
        return MeasureOptions(**given)
    except (ValueError, TypeError) as error:
        raise UserError(f"options of the measure: {error}") from error


@told_once
def run_options(**values: Any) -> RunOptions:
    """Options of a run from the values of the bundle's keys.

    Keys are the fields of :class:`RunOptions` and of :class:`~candor_monai.metrics.options.Options`, ``memory_mb``
    for the measure's memory in MiB, and ``cohort_keys``: options of the cohort's adapter that have a key of their own
    in the bundle; those that are missing are left to the adapter.

    Raises:
        SystemExit: a value cannot be read, or a key is unknown; the message names the option.
    """
    own = {f.name: f for f in dataclasses.fields(RunOptions) if f.name != "measure"}
    measured = {f.name for f in dataclasses.fields(MeasureOptions)}
    taken: dict[str, Any] = {}
    measure: dict[str, Any] = {}
    for name, value in values.items():
        if name == "cohort_keys":
            continue
        if name in own:
            item = own[name]
            default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
            taken[name] = _read(item.metadata["read"], name, value, default)
        elif name in _ALIASES:
            measure[_ALIASES[name]] = value
        elif name in measured:
            measure[name] = value
        elif name == "memory_mb":
            size = whole(16)(name, value)
            if size is not None:
                measure["memory_bytes"] = size << 20
        else:
            raise unknown("option", name, [*own, *(measured - set(_ALIASES.values())), *_ALIASES, "memory_mb"])
    given = {key: value for key, value in (values.get("cohort_keys") or {}).items() if not _missing(value)}
    given |= taken.get("cohort_options", {})
    paths = {key: str(path(key, given[key])) for key in _COHORT_PATHS if isinstance(given.get(key), str)}
    taken["cohort_options"] = given | paths
    measured_as = measure_options(**measure)
    if measured_as.resamples < 2:  # of the heads and of retention as well, which have no other interval
        raise UserError(f"--resamples must be at least 2, got {measured_as.resamples}.")
    return RunOptions(**taken, measure=measured_as)
