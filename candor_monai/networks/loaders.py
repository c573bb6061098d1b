"""From a card to a backbone with its weights: one loader a library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from candor_monai.utils import UserError, WeightsError, first_line

from .backbones import Backbone, OpenClipBackbone
from .cards import EncoderCard, ProcessorCard
from .folder_processors import reconcile, stated_processor
from .image_models import build_timm, build_torchvision
from .locations import locate
from .open_clip_models import activation, build_open_clip
from .own_loaders import build_module, load_bundle, load_exported
from .transformers_models import build_transformers, load_transformers
from .weights import load_strict, materialise, read_state, select_state, weight_file


@dataclass(frozen=True)
class Loaded:
    """A backbone with its weights, the processor that goes with them, the folder and what is known of their origin."""

    backbone: Backbone
    processor: ProcessorCard
    folder: Path | None
    provenance: dict[str, Any]


def load_backbone(
    card: EncoderCard, weights_dir: str | Path | None = None, download: bool = True, processor: str | None = None
) -> Loaded:
    """The backbone of a card with its weights.

    Raises:
        WeightsError: the weights are missing, damaged or not those of the card.
        UserError: the card cannot be built.
    """
    folder, origin = locate(card, weights_dir, download)
    try:
        backbone, provenance = LOADERS[card.loader](card, folder)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # a folder of unknown origin makes libraries raise almost anything
        where = "" if folder is None else f" from {folder}"
        raise WeightsError(
            f"encoder {card.name!r} cannot be loaded{where}: {card.loader} stopped with {type(error).__name__}: "
            f"{first_line(error)}"
        ) from error
    chosen = card.processor_named(processor)
    stated = stated_processor(card, folder) if folder is not None else None
    settled, differences = reconcile(card, chosen, stated, named=processor is not None)
    return Loaded(
        backbone,
        settled,
        folder,
        {
            "weights": origin,
            "hub_id": card.hub_id,
            "revision": folder.name if folder is not None and origin.startswith("hub") else card.revision,
            "processor": processor or "card",
            "processor_backend": settled.backend,
            "processor_differences": differences,
            **provenance,
        },
    )


def build_backbone(card: EncoderCard, folder: Path | None = None) -> Backbone:
    """The backbone of a card without its weights; under ``torch.device("meta")`` it takes no memory.

    Raises:
        UserError: the library cannot build it from the card.
    """
    try:
        return BUILDERS[card.loader](card, folder)
    except UserError:
        raise
    except (TypeError, ValueError, KeyError, RuntimeError, AssertionError, AttributeError) as error:
        raise UserError(
            f"encoder {card.name!r}: {card.loader} cannot build {card.architecture or card.target or 'the model'!r} "
            f"from the card's kwargs or the folder's config: {first_line(error, 300)}"
        ) from error


def filled_backbone(card: EncoderCard, fill: Callable[[Backbone], None], folder: Path | None = None) -> Backbone:
    """The backbone of a card, built and filled with weights, without memory for the initial ones where that is safe.

    Args:
        card: the card.
        fill: puts the weights into the backbone that it is given.
        folder: folder of the weights, whose config the library may need.
    """

    def build() -> Backbone:
        return build_backbone(card, folder)

    if card.loader != "module":
        return materialise(build, fill)
    backbone = build()  # what anyone's constructor does on the meta device is not known
    fill(backbone)
    return backbone


def _load_state_file(card: EncoderCard, folder: Path | None) -> tuple[Backbone, dict[str, Any]]:
    """Loader of every library whose weights are one file of named tensors."""
    if folder is None:
        return _seeded(card), {} if card.seed is None else {"seed": card.seed}
    path, digest = weight_file(folder, card.files, card)
    state = select_state(read_state(path), card, path)

    def fill(backbone: Backbone) -> None:
        load_strict(backbone.inner, state, card, path, backbone.unneeded)

    backbone = filled_backbone(card, fill, folder)
    details = {"file": path.name, "file_sha256": digest}
    if isinstance(backbone, OpenClipBackbone):
        details["activation"] = activation(backbone)
    return backbone, details


def _seeded(card: EncoderCard) -> Backbone:
    """Initial weights of a fixed seed, without touching the program's own random state."""
    with torch.random.fork_rng(devices=[]):
        if card.seed is not None:
            torch.manual_seed(card.seed)
        return build_backbone(card)


BUILDERS: dict[str, Callable[[EncoderCard, Path | None], Backbone]] = {
    "transformers": build_transformers,
    "timm": build_timm,
    "open_clip": build_open_clip,
    "torchvision": build_torchvision,
    "module": build_module,
}

LOADERS: dict[str, Callable[[EncoderCard, Path | None], tuple[Backbone, dict[str, Any]]]] = {
    "transformers": load_transformers,
    "timm": _load_state_file,
    "open_clip": _load_state_file,
    "torchvision": _load_state_file,
    "module": _load_state_file,
    "exported": load_exported,
    "monai_bundle": load_bundle,
}
