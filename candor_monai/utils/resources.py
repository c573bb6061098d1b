"""Where the shipped bundles and configs are: inside the package in a wheel, beside it in a checkout."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from .errors import UserError

KINDS = ("bundles", "configs")


def resource(kind: str, *parts: str) -> Path:
    """Path of a shipped file or folder.

    Args:
        kind: ``"bundles"`` or ``"configs"``.
        parts: path below it.

    Raises:
        ValueError: ``kind`` is neither.
        UserError: the file is not there.

    >>> resource("configs", "encoders").name
    'encoders'
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {KINDS}, got {kind!r}")
    package = Path(str(files("candor_monai")))
    for root in (package / kind, package.parent / kind):
        if root.is_dir():
            path = root.joinpath(*parts)
            if path.exists():
                return path
            raise UserError(f"{'/'.join((kind, *parts))} is not part of this installation ({root} was searched).")
    raise UserError(f"this installation of candor_monai carries no {kind}/ folder: install the wheel or a checkout.")


def bundle_config(name: str = "evaluate.yaml", bundle: str = "candor_eval") -> str:
    """Path of a shipped bundle's config file, as ``--config_file`` takes it."""
    return str(resource("bundles", bundle, "configs", name))
