"""CANDOR for MONAI: how well a frozen encoder's feature space separates a finding, before any head is trained.

Sub-packages load on first use, so that ``import candor_monai`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from ._version import __version__

_SUBPACKAGES = ("apps", "data", "handlers", "inferers", "metrics", "networks", "transforms", "utils", "visualize")

__all__ = ["__version__", *_SUBPACKAGES]


def __getattr__(name: str) -> ModuleType:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
