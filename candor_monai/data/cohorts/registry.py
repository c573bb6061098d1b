"""Adapters by name: a function that reads one dataset's tables into a draft."""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from ...utils import unknown
from .draft import Draft

Adapter = Callable[..., Draft]

SHIPPED = (
    "aptos",
    "calibration",
    "chexpert",
    "cub_200_2011",
    "ddi",
    "dicomweb",
    "fairvision",
    "features",
    "fgvc_aircraft",
    "fitzpatrick17k",
    "idrid",
    "image_list",
    "isic2019",
    "messidor2",
    "mimic_cxr",
    "ms_cxr",
    "nct_crc",
    "nih_cxr",
    "openi",
    "padchest",
    "pcam",
    "pooled",
    "rsna",
    "table",
    "vindr_cxr",
    "vindr_mammo",
    "vindr_pcxr",
)

_registered: dict[str, Adapter] = {}
_passed_on: dict[Callable[..., Any], Callable[..., Any]] = {}


def register_adapter(name: str, adapter: Adapter) -> None:
    """Add an adapter: ``adapter(source, **options) -> Draft``. A card names it with ``adapter: <name>``.

    Args:
        name: not the name of a shipped adapter.
        adapter: its keyword arguments are its options.

    Raises:
        ValueError: the name is taken by a shipped adapter.
    """
    if name in SHIPPED:
        raise ValueError(f"{name!r} is a shipped adapter")
    _registered[name] = adapter


def adapter_named(name: str) -> Adapter:
    """The adapter of that name.

    Raises:
        UserError: unknown; names the nearest.
    """
    if name in _registered:
        return _registered[name]
    if name not in SHIPPED:
        raise unknown("cohort adapter", name, (*SHIPPED, *_registered))
    module = importlib.import_module(f"{__package__}.{name}")
    adapter: Adapter = module.read
    return adapter


def adapter_options(adapter: Callable[..., Any]) -> Mapping[str, Any]:
    """Names and defaults of an adapter's options, and of those that it passes on."""
    parameters = inspect.signature(adapter).parameters.values()
    own = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    return {**own, **(adapter_options(_passed_on[adapter]) if adapter in _passed_on else {})}


def adapter_types(adapter: Callable[..., Any]) -> Mapping[str, Any]:
    """Declared types of an adapter's options, and of those that it passes on; options without one are absent."""
    try:
        own = typing.get_type_hints(adapter)
    except NameError:  # an adapter of the user's, whose types are imported for type checkers only
        own = {}
    return {**own, **(adapter_types(_passed_on[adapter]) if adapter in _passed_on else {})}


def passes_on(function: Callable[..., Any]) -> Callable[[Adapter], Adapter]:
    """Declares that an adapter hands its ``**options`` to ``function``, whose options are then its own too."""

    def declare(adapter: Adapter) -> Adapter:
        _passed_on[adapter] = function
        return adapter

    return declare
