"""What a weights folder states about its processor, in a card's words, and what to do when the card says otherwise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from candor_monai.utils import WeightsError, first_line, read_json

from .cards import EncoderCard, ProcessorCard

_RESAMPLE = {2: "bilinear", 3: "bicubic", "bilinear": "bilinear", "bicubic": "bicubic"}
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


def stated_processor(card: EncoderCard, folder: Path) -> ProcessorCard | None:
    """The processor that a folder's own config states, or None when it states none.

    Raises:
        WeightsError: the config is not JSON, or states what this package cannot do.
    """
    for name, reader in (
        ("preprocessor_config.json", from_transformers),
        ("open_clip_config.json", from_open_clip),
        ("config.json", from_timm),
    ):
        path = folder / name
        if not path.is_file():
            continue
        content = read_json(path, WeightsError)
        try:
            found = reader(content)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise WeightsError(f"{path}: states a processor that cannot be understood: {first_line(error)}") from error
        if found is not None:
            return found
    return None


def _interpolation(stated: Any) -> str:
    """Resampling in a card's words."""
    if stated not in _RESAMPLE:
        raise ValueError(f"resampling {stated!r} is none of {', '.join(map(str, _RESAMPLE))}")
    return _RESAMPLE[stated]


def from_transformers(content: Mapping[str, Any]) -> ProcessorCard | None:
    """``preprocessor_config.json`` of transformers, old keys and new.

    >>> from_transformers({"image_processor_type": "CLIPImageProcessor", "size": 224, "crop_size": 224}).resize
    'shortest'
    """
    kind = str(content.get("image_processor_type", content.get("feature_extractor_type", "")))
    clip_like = kind.startswith(("CLIP", "Bit"))
    size = content.get("size", {"shortest_edge": 224} if clip_like else {"height": 224, "width": 224})
    if isinstance(size, int):
        size = {"shortest_edge": size} if clip_like else {"height": size, "width": size}
    if "shortest_edge" in size:
        resize, side = "shortest", int(size["shortest_edge"])
    elif size["height"] == size["width"]:
        resize, side = "squash", int(size["height"])
    else:
        raise ValueError(f"size {size}")
    crop = content.get("crop_size", 224 if clip_like else None)
    if isinstance(crop, Mapping):
        crop = crop["height"]
    if not content.get("do_center_crop", clip_like):
        crop = None
    normalise = content.get("do_normalize", True)
    half = kind.startswith(("Siglip", "ViT"))
    mean = content.get("image_mean", (0.5,) * 3 if half else _CLIP_MEAN if clip_like else (0.485, 0.456, 0.406))
    std = content.get("image_std", (0.5,) * 3 if half else _CLIP_STD if clip_like else (0.229, 0.224, 0.225))
    resample = content.get("resample", 2 if kind.startswith(("ViT", "DINOv3")) else 3)
    resizing = content.get("do_resize", True)
    return ProcessorCard(
        size=side if resizing else None,
        resize=resize if resizing else "none",
        crop=None if crop is None else int(crop),
        interpolation=_interpolation(resample),
        mean=tuple(mean) if normalise else (0.0,) * 3,
        std=tuple(std) if normalise else (1.0,) * 3,
        scale=float(content.get("rescale_factor", 1 / 255)) if content.get("do_rescale", True) else 1.0,
        order="rescale_resize" if kind.startswith("DINOv3") else "resize_rescale",
        backend="torchvision" if kind.startswith("DINOv3") else "pil",
    )


def from_timm(content: Mapping[str, Any]) -> ProcessorCard | None:
    """``config.json`` of a timm repository, or a model's ``pretrained_cfg``; None for other configs."""
    config = content.get("pretrained_cfg", content)
    if not isinstance(config, Mapping) or "input_size" not in config or "mean" not in config:
        return None
    side = int(config["input_size"][-1])
    mode = config.get("crop_mode", "center")
    size = math.floor(side / float(config.get("crop_pct", 1.0)))
    if mode not in ("center", "squash"):
        raise ValueError(f"crop_mode {mode!r}")
    # timm squashes when cropping would change nothing but the shape, and otherwise keeps the aspect.
    return ProcessorCard(
        size=size,
        resize="shortest" if mode == "center" else "squash",
        crop=side if size != side or mode == "center" else None,
        interpolation=_interpolation(config.get("interpolation", "bicubic")),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        backend="timm",
    )


def from_open_clip(content: Mapping[str, Any]) -> ProcessorCard | None:
    """``preprocess_cfg`` of ``open_clip_config.json``, with open_clip's own defaults."""
    config = content.get("preprocess_cfg", {})
    size = config.get("size", content.get("model_cfg", {}).get("vision_cfg", {}).get("image_size", 224))
    if isinstance(size, list | tuple):
        if size[0] != size[-1]:
            raise ValueError(f"size {size}")
        size = size[0]
    mode = config.get("resize_mode", "shortest")
    if mode not in ("shortest", "squash"):
        raise ValueError(f"resize_mode {mode!r}")
    return ProcessorCard(
        size=int(size),
        resize=mode,
        crop=int(size) if mode == "shortest" else None,
        interpolation=_interpolation(config.get("interpolation", "bicubic")),
        mean=tuple(config.get("mean", _CLIP_MEAN)),
        std=tuple(config.get("std", _CLIP_STD)),
        backend="open_clip",
    )


def reconcile(
    card: EncoderCard, chosen: ProcessorCard | None, stated: ProcessorCard | None, named: bool = False
) -> tuple[ProcessorCard, list[str]]:
    """The processor to use, and how the folder's differs from it.

    Args:
        card: for messages.
        chosen: the card's processor, or one of its named ones.
        stated: the folder's, or None.
        named: the processor was asked for by name, so the folder's does not count.

    Raises:
        WeightsError: they differ and the card's policy is ``strict``, or there is none at all.
    """
    if chosen is None:
        if stated is None:
            raise WeightsError(
                f"encoder {card.name!r}: its card has no processor and its folder states none "
                "(preprocessor_config.json, open_clip_config.json or timm's config.json)."
            )
        return stated, []
    if stated is None or named:
        return chosen, []
    differences = [f"{key}: card {ours!r}, folder {theirs!r}" for key, ours, theirs in differing(chosen, stated)]
    if not differences or chosen.policy == "card":
        return chosen, differences
    if chosen.policy == "folder":
        return dataclasses.replace(stated, policy="folder"), differences
    raise WeightsError(
        f"encoder {card.name!r}: the folder states another processor than the card: {'; '.join(differences)}. If the "
        "folder is right, set processor.policy: folder in a card of your own; if the card is right, policy: card."
    )


def differing(chosen: ProcessorCard, stated: ProcessorCard) -> list[tuple[str, Any, Any]]:
    """Field, value of the card and value of the folder, of every number that differs between them."""
    pairs = []
    for key, ours in chosen.numbers().items():
        theirs = getattr(stated, key)
        if isinstance(ours, tuple):
            same = len(ours) == len(theirs) and all(abs(a - b) < 1e-6 for a, b in zip(ours, theirs, strict=True))
        elif isinstance(ours, float):
            same = abs(ours - theirs) < 1e-9
        else:
            same = ours == theirs
        if not same:
            pairs.append((key, ours, theirs))
    return pairs
