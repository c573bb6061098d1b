"""What a bundle run checks before any work: MONAI itself lets a mistyped key or run id pass in silence."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from ..utils.errors import UserError
from ..utils.names import unknown
from ..utils.resources import resource
from ..utils.told import told_once
from ..utils.yaml_files import read_yaml
from .options import RunOptions

# Any of these makes the whole job a study of several encoders or cohorts.
STUDY_KEYS = ("encoders", "cohorts", "study", "ablations")
_REFERENCE = re.compile(r"[@%]((?:[A-Za-z_][\w]*)(?:(?:::|#)\w+)*)")


def running_workflow() -> Any:
    """The :class:`monai.bundle.ConfigWorkflow` whose expression is being evaluated, found on the call stack.

    Raises:
        UserError: there is none.
    """
    from monai.bundle import ConfigWorkflow

    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, ConfigWorkflow):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    raise UserError("check_run is an item of a bundle's `initialize` list: no running bundle workflow was found.")


@lru_cache(maxsize=1)
def shipped_keys() -> frozenset[str]:
    """Top-level keys that the shipped bundles' config files declare."""
    keys: set[str] = set()
    for config in sorted(resource("bundles").glob("*/configs/*.yaml")):
        if not config.name.startswith("tracking_"):
            keys.update(key.lstrip("+") for key in read_yaml(config))
    return frozenset(keys)


def tracking_keys() -> frozenset[str]:
    """Top-level keys that MONAI's experiment tracking reads or writes."""
    from monai.bundle.utils import DEFAULT_EXP_MGMT_SETTINGS

    known: dict[str, dict[str, Any]] = DEFAULT_EXP_MGMT_SETTINGS
    keys: set[str] = set()
    for settings in known.values():
        keys.update(settings["configs"], settings["handlers_id"])
    return frozenset(keys)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)


def referenced_keys(config: dict[str, Any]) -> frozenset[str]:
    """Top-level keys that some ``@key`` or ``%key`` of a config refers to.

    >>> sorted(referenced_keys({"a": "$@b + '/c'", "d": {"e": "@f::g", "h": ["%i"]}}))
    ['b', 'f', 'i']
    """
    found = (match for words in _texts(config) for match in _REFERENCE.findall(words))
    return frozenset(re.split(r"::|#", name)[0] for name in found)


def unknown_keys(config: dict[str, Any]) -> list[str]:
    """Top-level keys of a merged config that nothing declares or refers to: mistyped overrides."""
    known = shipped_keys() | tracking_keys() | referenced_keys(config) | {"_meta_", "imports"}
    return [key for key in config if key not in known]


def check_keys(config: dict[str, Any]) -> None:
    """Refuse overrides that nothing reads.

    Raises:
        UserError: names the first such key and the nearest known one.
    """
    for key in unknown_keys(config):
        known = (shipped_keys() | tracking_keys()) - {"_meta_"}
        raise unknown("option", f"--{key}", [f"--{name}" for name in known])


def check_run_id(run_id: str, run_ids: Iterable[str], config: dict[str, Any]) -> None:
    """Refuse a run id that would run nothing: MONAI takes any key of the config and exits with success.

    Raises:
        UserError: names the nearest run id.
    """
    known = [name for name in run_ids if name in config]
    if run_id not in known:
        raise unknown("run id", run_id, known)


@told_once
def check_run(run_ids: Sequence[str]) -> None:
    """First item of a bundle's ``initialize``: overrides and run id are known, or the run ends here.

    Args:
        run_ids: what may be run from these config files.

    Raises:
        SystemExit: an unknown override or run id, in a few lines that name the nearest known one.
    """
    workflow = running_workflow()
    config = workflow.parser.config
    check_keys(config)
    check_run_id(str(workflow.run_id), run_ids, config)
    if workflow.run_id in ("run", "candor_eval") and any(config.get(key) is not None for key in STUDY_KEYS):
        workflow.run_id = "run_study"


@told_once
def check_names(options: RunOptions) -> None:
    """What the options name (encoders, cohorts, task, study, ablations) is known, or the run ends here.

    Raises:
        SystemExit: names the nearest known one.
    """
    from ..data.tasks import load_task
    from .study_file import read_study

    read_study(options)  # one encoder on one cohort is the smallest
    if options.task is not None:
        load_task(options.task)
