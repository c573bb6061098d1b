"""Vision models of transformers: built from a card's config, loaded by the library with its renaming of old keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from candor_monai.utils import UserError, WeightsError, first_line, read_json

from .backbones import Backbone, TransformersBackbone
from .cards import EncoderCard
from .weights import complain, open_safetensors, source_of, weight_file

_MOST_LAYERS = 10_000
# The names under which the library looks for weights, whatever a card says.
_READ = ("model.safetensors", "pytorch_model.bin")
# Parts of image–text and pretraining checkpoints that an image encoder does not need.
_NOT_THE_IMAGE_SIDE = re.compile(
    r"^(text_model|text_projection|logit_scale|logit_bias|decoder|classifier|head\.|pooler|(vit|model)\.pooler|mask_token)"
)


def build_transformers(card: EncoderCard, folder: Path | None) -> Backbone:
    """The model of a card without weights."""
    model_class = _model_class(card)
    config = _config(card, folder, model_class)
    return _wrap(card, model_class(config, **_constructor(card)))


def load_transformers(card: EncoderCard, folder: Path | None) -> tuple[Backbone, dict[str, Any]]:
    """The model of a folder in the hub's layout: config.json and model.safetensors or pytorch_model.bin.

    Raises:
        WeightsError: another architecture, or missing, unexpected or misshapen keys on the image side.
    """
    if folder is None:
        raise UserError(f"encoder {card.name!r}: loader 'transformers' needs weights.")
    model_class = _model_class(card)
    config = _config(card, folder, model_class)
    path, digest = weight_file(folder, (*card.files, *(f"{name}.index.json" for name in card.files)), card)
    if path.name.removesuffix(".index.json") not in _READ:
        raise WeightsError(
            f"{path}: transformers reads {' or '.join(_READ)} alone, and would take another file than this; rename it, "
            f"and name it in files of encoder {card.name!r}."
        )
    if path.suffix == ".json":
        _check_index(path)
    if path.suffix == ".safetensors":  # damage that the library would report in its own words is found here
        with open_safetensors(path):
            pass
    options: dict[str, Any] = {
        "config": config,
        "local_files_only": True,
        "output_loading_info": True,
        "dtype": torch.float32,
        "use_safetensors": path.name.endswith((".safetensors", ".safetensors.index.json")),
        **_constructor(card),
    }
    try:
        with _quiet():
            model, info = model_class.from_pretrained(str(folder), **options)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, ImportError) as error:
        raise WeightsError(
            f"{path}: cannot be loaded as {card.title} (encoder {card.name!r}): "
            f"{first_line(error, 300)}. Expected: {source_of(card)}."
        ) from error
    complain(
        card,
        path,
        missing=sorted(info["missing_keys"]),
        unexpected=sorted(key for key in info["unexpected_keys"] if not _NOT_THE_IMAGE_SIDE.match(key)),
        shapes=[str(key) for key in info.get("mismatched_keys", ())],
    )
    _own_memory(model)
    return _wrap(card, model), {"file": path.name, "file_sha256": digest, "activation": _activation(config)}


def _check_index(path: Path) -> None:
    """The list of a checkpoint in several parts names parts that lie beside it.

    Raises:
        WeightsError: it is no such list, or a part is missing.
    """
    content = read_json(path, WeightsError)
    parts = content.get("weight_map")
    if not isinstance(parts, dict) or not parts or not isinstance(content.get("metadata"), dict):
        raise WeightsError(f"{path}: not the list of a checkpoint's parts: it needs metadata and weight_map.")
    for part in sorted({str(name) for name in parts.values()}):
        if "/" in part or "\\" in part or not (path.parent / part).is_file():
            raise WeightsError(f"{path}: names the part {part!r}, which does not lie beside it; copy it too.")


def _own_memory(model: nn.Module) -> None:
    """Move the weights out of the mapped file: it may change, and how a tensor lies in it decides last bits."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()


def _activation(config: Any) -> str:
    return str(getattr(config, "hidden_act", "none"))


def _wrap(card: EncoderCard, model: nn.Module) -> Backbone:
    return TransformersBackbone(model, tuple(card.points), card.prefix_tokens)


def _model_class(card: EncoderCard) -> Any:
    import transformers

    found = getattr(transformers, str(card.architecture), None)
    if found is None or not hasattr(found, "from_pretrained"):
        raise UserError(f"encoder {card.name!r}: transformers has no model class {card.architecture!r}.")
    return found


def _constructor(card: EncoderCard) -> dict[str, Any]:
    """ViT's pooler is not part of most checkpoints and would be random."""
    return {"add_pooling_layer": False} if card.architecture == "ViTModel" else {}


def _config(card: EncoderCard, folder: Path | None, model_class: Any) -> Any:
    """The config of the folder, which must agree with the card's; without a folder the card's own."""
    import transformers

    config_class = getattr(model_class, "config_class", None)
    if folder is None or not (folder / "config.json").is_file():
        if config_class is None or (folder is not None and not card.kwargs):
            raise WeightsError(f"encoder {card.name!r}: {folder} holds no config.json.")
        return config_class(**card.kwargs)
    path = folder / "config.json"
    stated = read_json(path, WeightsError)
    if stated.get("auto_map"):
        raise WeightsError(
            f"{path}: this model needs code of its own (auto_map), which is never run; use an architecture that "
            "transformers itself has."
        )
    if config_class is None:
        return transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True)
    own = config_class.model_type
    if "vision_config" in stated:
        if not isinstance(stated["vision_config"], dict):
            raise WeightsError(f"{path}: vision_config must be a mapping, is {stated['vision_config']!r:.40}.")
        vision = dict(stated["vision_config"])
        if "projection_dim" in stated:
            vision["projection_dim"] = stated["projection_dim"]
        vision.setdefault("model_type", own)
    else:
        vision = stated
    kind = vision.get("model_type", stated.get("model_type"))
    if kind != own and (kind, own) not in (("vit", "vit_mae"), ("vit_mae", "vit")):
        raise WeightsError(
            f"{path}: a model of type {kind!r}; encoder {card.name!r} is of type {own!r}. Expected: {source_of(card)}."
        )
    _check_architecture(card, path, {key: vision.get(key, value) for key, value in card.kwargs.items()})
    layers = vision.get("num_hidden_layers", 0)
    if isinstance(layers, int | float) and layers > _MOST_LAYERS:  # a config alone holds a name for each
        raise WeightsError(f"{path}: num_hidden_layers {layers} is more than any encoder has.")
    try:
        config = config_class.from_dict({k: v for k, v in vision.items() if k not in ("model_type", "architectures")})
    except Exception as error:  # whatever the library's validation raises
        raise WeightsError(f"{path}: not a config of type {own!r}: {first_line(error, 300)}") from error
    _check_architecture(card, path, {key: getattr(config, key, None) for key in card.kwargs})
    return config


def _check_architecture(card: EncoderCard, path: Path, found: Mapping[str, Any]) -> None:
    """Refuse a config whose numbers are not the card's.

    Raises:
        WeightsError: names those that differ.
    """
    wrong = [
        f"{key} {found[key]!r:.40} instead of {value!r}" for key, value in card.kwargs.items() if found[key] != value
    ]
    if wrong:
        raise WeightsError(
            f"{path}: another architecture than encoder {card.name!r}: {', '.join(wrong)}. Expected: {source_of(card)}."
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' own report of keys and its progress bar: what matters is checked and said by us."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
