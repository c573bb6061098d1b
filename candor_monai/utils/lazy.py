"""Lazy attributes for packages (PEP 562): a name is imported from its module when it is first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_attributes(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose public names live in its modules.

    Args:
        package: the package's ``__name__``.
        names: public name -> module of the package that defines it.

    Returns:
        the two functions, to be assigned at module level.

    >>> getter, lister = lazy_attributes("candor_monai.utils", {"nearest": "names"})
    >>> lister()
    ['nearest']
    >>> getter("nearest")("blnd", ["blind", "marker"])
    'blind'
    """
    modules = frozenset(names.values())

    def getter(name: str) -> Any:
        if name in names:
            value = getattr(importlib.import_module(f"{package}.{names[name]}"), name)
            setattr(sys.modules[package], name, value)
            return value
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getter, lambda: sorted(names)
