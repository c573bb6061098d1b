"""Image towers of open_clip and of CONCH, without their text towers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from candor_monai.utils import UserError, WeightsError, read_json

from .backbones import Backbone, ConchBackbone, OpenClipBackbone
from .cards import EncoderCard


def build_open_clip(card: EncoderCard, folder: Path | None) -> Backbone:
    """The image tower of the folder's config, else of the card's kwargs, else of open_clip's model of that name."""
    if card.architecture == "conch":
        return _build_conch(card)
    from open_clip.model import _build_vision_tower

    config = open_clip_config(card, folder)
    visual = _build_vision_tower(
        int(config["embed_dim"]), dict(config["vision_cfg"]), quick_gelu=bool(config.get("quick_gelu", False))
    )
    return OpenClipBackbone(visual, tuple(card.points), card.prefix_tokens)


def open_clip_config(card: EncoderCard, folder: Path | None) -> dict[str, Any]:
    """The model's config: the folder's where it states one (activation and all), else the card's."""
    from open_clip import get_model_config

    path = folder / "open_clip_config.json" if folder is not None else None
    config: dict[str, Any] | None = None
    if path is not None and path.is_file():
        config = read_json(path, WeightsError).get("model_cfg")
        if not isinstance(config, dict) or not isinstance(config.get("vision_cfg"), dict) or "embed_dim" not in config:
            raise WeightsError(f"{path}: not an open_clip config: model_cfg must hold embed_dim and vision_cfg.")
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
    """CONCH, which no library holds: timm's ViT under open_clip's attention pooler."""
    from timm.models.vision_transformer import VisionTransformer

    kwargs = dict(card.kwargs)
    heads, dimension = kwargs.pop("pooler_heads", 8), card.points["projected"]
    trunk = VisionTransformer(**{"num_classes": 0, "dynamic_img_size": True, **kwargs})
    return ConchBackbone(trunk, trunk.embed_dim, dimension, heads)


def activation(tower: nn.Module) -> str:
    """Which activation the tower uses, by class name: QuickGELU or GELU."""
    names = {type(m).__name__ for m in tower.modules() if "GELU" in type(m).__name__}
    return "+".join(sorted(names)) or "none"
