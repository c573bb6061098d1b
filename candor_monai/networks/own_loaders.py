"""Anyone's own encoder: a module by dotted name, an exported program, or the network of a MONAI bundle."""

from __future__ import annotations

import importlib
import json
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from candor_monai.utils import UserError, WeightsError, first_line, read_json, read_yaml

from .backbones import Backbone, CallableBackbone
from .cards import EncoderCard
from .weights import load_strict, read_state, select_state, weight_file

_LARGEST_CONFIG = 64 << 20  # bytes of the list of tensors in an exported program


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
        WeightsError: the file is not one, is damaged, or holds pickled objects, which are not loaded.
    """
    if folder is None:
        raise UserError(f"encoder {card.name!r}: loader 'exported' needs folder: where its .pt2 file is.")
    path, digest = weight_file(folder, card.files or ("model.pt2",), card)
    _refuse_pickles(path)
    try:
        program = torch.export.load(path)
    except Exception as error:  # torch raises many kinds for a damaged program
        raise WeightsError(f"{path}: not an exported program of this torch, or damaged: {first_line(error)}") from error
    backbone = CallableBackbone(
        _Exported(program.module()), tuple(card.points), card.prefix_tokens, card.kwargs.get("output")
    )
    return backbone, {"file": path.name, "file_sha256": digest}


def _refuse_pickles(path: Path) -> None:
    """torch unpickles whatever an archive marks as pickled; plain tensors are not, and nothing else is needed."""
    try:
        with zipfile.ZipFile(path) as archive:
            older = any(name.endswith("serialized_exported_program.json") for name in archive.namelist())
            configs = [
                info
                for info in archive.infolist()
                if info.filename.endswith(("_weights_config.json", "_constants_config.json"))
            ]
            if any(info.file_size > _LARGEST_CONFIG for info in configs):
                raise ValueError(f"a config of more than {_LARGEST_CONFIG} bytes")
            entries = [e for info in configs for e in json.loads(archive.read(info))["config"].values()]
        pickled = [str(e.get("path_name")) for e in entries if e.get("use_pickle", True)]
    except Exception as error:  # whatever the zip and JSON libraries make of a damaged or hostile archive
        raise WeightsError(
            f"{path}: not an exported program (torch.export.save), or damaged: {first_line(error)}"
        ) from error
    if older:
        raise WeightsError(f"{path}: an exported program in an older format; save it again with torch 2.8 or later.")
    if not configs:
        raise WeightsError(
            f"{path}: a zip archive, but not an exported program (torch.export.save); a TorchScript program or a file "
            "of weights needs another loader."
        )
    if pickled:
        raise WeightsError(
            f"{path}: holds pickled objects ({', '.join(pickled[:5])}), which could run code and are not loaded; "
            "export the model with plain tensors only."
        )


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
