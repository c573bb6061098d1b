"""Image models of timm and torchvision, without their classifiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from candor_monai.utils import UserError, unknown

from .backbones import Backbone, DenseNetBackbone, FlairBackbone, TimmBackbone, TorchvisionBackbone
from .cards import EncoderCard


def build_timm(card: EncoderCard, folder: Path | None) -> Backbone:
    """A timm model by name; layers may be named as timm.layers or torch.nn name them."""
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
    prefix = getattr(model, "num_prefix_tokens", None)
    if card.prefix_tokens is not None and prefix != card.prefix_tokens:
        raise UserError(f"encoder {card.name!r}: prefix_tokens is {card.prefix_tokens}, timm's {name!r} has {prefix}.")
    return TimmBackbone(model, tuple(card.points), prefix, _classifier(model) if not kwargs["num_classes"] else ())


def _classifier(model: Any) -> tuple[str, ...]:
    """Beginnings of the classifier's keys, as timm names them."""
    names = (getattr(model, "pretrained_cfg", None) or {}).get("classifier") or ()
    return tuple(f"{name}." for name in ((names,) if isinstance(names, str) else names))


def _layer(name: str) -> Any:
    import timm.layers

    found = getattr(timm.layers, name, None) or getattr(nn, name, None)
    if found is None:
        raise UserError(f"layer {name!r} is neither in timm.layers nor in torch.nn.")
    return found


def build_torchvision(card: EncoderCard, folder: Path | None) -> Backbone:
    """A torchvision model by name; ``in_channels`` and ``head: flair`` beside torchvision's own kwargs."""
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
        return DenseNetBackbone(model, ("classifier.",))
    for attribute in ("fc", "classifier", "heads", "head"):
        if hasattr(model, attribute):
            setattr(model, attribute, nn.Identity())
            return TorchvisionBackbone(model, (f"{attribute}.",))
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
