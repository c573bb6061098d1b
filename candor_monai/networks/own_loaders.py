"""Anyone's own encoder: a module by dotted name, an exported program, or the network of a MONAI bundle."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from candor_monai.utils import UserError, WeightsError, first_line, read_json, read_yaml

from .backbones import Backbone, CallableBackbone
from .cards import EncoderCard
from .exported_programs import check_program
from .weights import load_strict, read_state, select_state, weight_file


def build_module(card: EncoderCard, folder: Path | None) -> Backbone:
    """The module that ``target`` gives when called with the card's kwargs (but ``output`` and ``layer``)."""
    kwargs = dict(card.kwargs)
    output, layer = kwargs.pop("output", None), kwargs.pop("layer", None)
    module_name, _, attribute = str(card.target).rpartition(".")
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # whatever the imported module itself raises
        raise UserError(
            f"encoder {card.name!r}: target {card.target!r} cannot be imported: {first_line(error)}"
        ) from error
    model = factory(**kwargs)
    if isinstance(model, Backbone):
        return model
    if not isinstance(model, nn.Module):
        raise UserError(
            f"encoder {card.name!r}: target {card.target!r} must give a torch.nn.Module, gave {type(model).__name__}."
        )
    return CallableBackbone(model, tuple(card.points), card.prefix_tokens, output, layer)


def load_exported(card: EncoderCard, folder: Path | None) -> tuple[Backbone, dict[str, Any]]:
    """An exported program, ``torch.export.save``'s .pt2 file.

    Raises:
        WeightsError: the file is not one, is damaged, or holds what could run code (:mod:`.exported_programs`).
    """
    if folder is None:
        raise UserError(f"encoder {card.name!r}: loader 'exported' needs folder: where its .pt2 file is.")
    path, digest = weight_file(folder, card.files or ("model.pt2",), card)
    check_program(path)
    try:
        program = torch.export.load(path)
    except Exception as error:  # torch raises many kinds for a damaged program
        raise WeightsError(f"{path}: not an exported program of this torch, or damaged: {first_line(error)}") from error
    backbone = CallableBackbone(
        _Exported(program.module()), tuple(card.points), card.prefix_tokens, card.kwargs.get("output")
    )
    return backbone, {"file": path.name, "file_sha256": digest}


class _Exported(nn.Module):
    """An exported program as a module: it has no training mode to switch."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def train(self, mode: bool = True) -> _Exported:
        for module in self.modules():
            module.training = False
        return self

    def forward(self, x: Tensor) -> Any:
        return self.program(x)


def load_bundle(card: EncoderCard, folder: Path | None) -> tuple[Backbone, dict[str, Any]]:
    """``network_def`` of a MONAI bundle's inference config, with its ``models/model.pt``.

    A bundle's config is code: whoever names a bundle in a card runs what its ``network_def`` says.
    """
    if folder is None:
        raise UserError(f"encoder {card.name!r}: loader 'monai_bundle' needs folder: the bundle's root.")
    from monai.bundle import ConfigParser

    configs = [folder / "configs" / f"inference{ending}" for ending in (".json", ".yaml", ".yml")]
    config = next((path for path in configs if path.is_file()), None)
    if config is None:
        raise UserError(f"encoder {card.name!r}: {folder}/configs holds no inference.json or inference.yaml.")
    parser = ConfigParser(read_json(config) if config.suffix == ".json" else read_yaml(config))
    parser["bundle_root"] = str(folder)
    name = str(card.kwargs.get("network", "network_def"))
    try:
        model = parser.get_parsed_content(name)
    except Exception as error:  # whatever the bundle's own config raises
        why = first_line(error) if error.__cause__ is None else f"{first_line(error)} ({first_line(error.__cause__)})"
        raise UserError(f"{config}: {name} cannot be built: {why}") from error
    if not isinstance(model, nn.Module):
        raise UserError(f"{config}: {name} must give a torch.nn.Module, gave {type(model).__name__}.")
    path, digest = weight_file(folder, card.files or ("models/model.pt",), card)
    load_strict(model, select_state(read_state(path), card, path), card, path)
    backbone = CallableBackbone(
        model, tuple(card.points), card.prefix_tokens, card.kwargs.get("output"), card.kwargs.get("layer")
    )
    return backbone, {"file": path.name, "file_sha256": digest, "config": config.name}
