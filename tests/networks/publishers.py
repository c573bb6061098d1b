"""Small encoders with random weights, saved as each publisher saves the real one: file names, key names, configs.

Every small encoder is the card's own class with fewer and narrower layers; input size, patches, prefix tokens and
activation stay. The features they must give are computed by the publisher's whole model, not by this package.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from candor_monai.networks.cards import EncoderCard, load_card
from tests.networks.test_processors import CLIP, PUBLISHED, TIMM

Feature = Callable[[Tensor], Tensor]

_TRANSFORMERS = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
_DINOV2 = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def publish(name: str, root: Path) -> tuple[EncoderCard, Feature]:
    """Write ``root/<name>/`` and give the small encoder's card and its feature of processed images."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    card = load_card(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(name))
        if card.loader == "transformers":
            return _publish_transformers(card, folder)
        return _PUBLISHERS[name](card, folder)


def _with(card: EncoderCard, kwargs: dict, points: dict[str, int]) -> EncoderCard:
    return dataclasses.replace(
        card,
        kwargs={**card.kwargs, **kwargs},
        points=points,
        dimension=points[card.feature_point],
        golden=None,
        sha256=None,
        parameters=None,
    )


def _publish_transformers(card: EncoderCard, folder: Path) -> tuple[EncoderCard, Feature]:
    import transformers

    (folder / "preprocessor_config.json").write_text(json.dumps(PUBLISHED[card.name]))
    text = {**_TRANSFORMERS, "vocab_size": 99}
    if card.architecture == "CLIPVisionModelWithProjection":
        small = _with(card, {**_TRANSFORMERS, "projection_dim": 16}, {"projected": 16, "cls": 32, "mean_patch": 32})
        vision = {k: v for k, v in small.kwargs.items() if k != "projection_dim"}
        config = transformers.CLIPConfig(vision_config=vision, text_config=text, projection_dim=16)
        model = transformers.CLIPModel(config)

        def feature(x: Tensor) -> Tensor:
            return model.visual_projection(model.vision_model(pixel_values=x).pooler_output)

    elif card.architecture == "SiglipVisionModel":
        small = _with(card, _TRANSFORMERS, {"pooled": 32, "mean_patch": 32})
        model = transformers.SiglipModel(transformers.SiglipConfig(vision_config=dict(small.kwargs), text_config=text))

        def feature(x: Tensor) -> Tensor:
            return model.get_image_features(pixel_values=x).pooler_output

    else:
        kwargs = _DINOV2 if card.architecture == "Dinov2Model" else _TRANSFORMERS
        small = _with(card, kwargs, {"cls": 32, "mean_patch": 32})
        whole = getattr(transformers, str(card.architecture))
        model = whole(whole.config_class(**small.kwargs))

        def feature(x: Tensor) -> Tensor:
            return model(pixel_values=x).last_hidden_state[:, 0]

    _shake(model)
    model.save_pretrained(folder)
    return small, torch.no_grad()(feature)


def _shake(model: nn.Module) -> None:
    """Random values in every parameter: initial ones and zeros would hide a wrong or missing key."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    for name, buffer in model.named_buffers():
        if "running_var" in name:
            buffer.uniform_(0.5, 2)
        elif "running_mean" in name:
            buffer.normal_()
    model.eval()


def _publish_timm(card: EncoderCard, folder: Path) -> tuple[EncoderCard, Feature]:
    import timm
    from timm.layers import SwiGLUPacked

    small = _with(card, {"embed_dim": 32, "depth": 2, "num_heads": 2}, {"cls": 32, "mean_patch": 32})
    layers = {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU} if "mlp_layer" in small.kwargs else {}
    model = timm.create_model(str(card.architecture), **{**small.kwargs, **layers})
    _shake(model)
    (folder / "config.json").write_text(
        json.dumps({"architecture": card.architecture, "num_classes": 0, "pretrained_cfg": TIMM[card.name]})
    )
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return small, torch.no_grad()(lambda x: model.forward_features(x)[:, 0])


def _publish_retfound(card: EncoderCard, folder: Path) -> tuple[EncoderCard, Feature]:
    """A masked autoencoder's training checkpoint: encoder, decoder and pickled arguments."""
    import timm

    small = _with(card, {"embed_dim": 32, "depth": 2, "num_heads": 2}, {"cls": 32, "mean_patch": 32})
    model = timm.create_model(str(card.architecture), **small.kwargs)
    _shake(model)
    extra = {"mask_token": torch.zeros(1, 1, 8), "decoder_pos_embed": torch.zeros(1, 197, 8)}
    extra["decoder_blocks.0.norm1.weight"] = torch.ones(8)
    content = {"model": {**model.state_dict(), **extra}, "args": argparse.Namespace(lr=1e-3), "epoch": 799}
    torch.save(content, folder / "RETFound_mae_natureCFP.pth")
    return small, torch.no_grad()(lambda x: model.forward_features(x)[:, 0])


def _publish_open_clip(card: EncoderCard, folder: Path) -> tuple[EncoderCard, Feature]:
    from open_clip.model import CLIP as OpenClip

    text = {"context_length": 8, "vocab_size": 99, "width": 32, "heads": 2, "layers": 1}
    if card.name == "biomedclip":
        vision = {**card.kwargs["vision_cfg"], "timm_model_name": "vit_tiny_patch16_224"}
        config = {"embed_dim": 24, "vision_cfg": vision}
        small = _with(card, config, {"projected": 24, "mean_patch": 192})
        # The hub's file names a BERT as text tower, which must never be asked for.
        stated = {**config, "text_cfg": {"hf_model_name": "microsoft/not-to-be-asked", "hf_proj_type": "mlp"}}
    else:
        vision = {"image_size": 224, "layers": 2, "width": 64, "patch_size": 16}
        config = {"embed_dim": 24, "vision_cfg": vision, "quick_gelu": True}
        small = _with(card, {}, {"projected": 24, "mean_patch": 64})
        stated = {**config, "text_cfg": text}
    model = OpenClip(**{**config, "text_cfg": text})
    _shake(model)
    preprocess = {"size": 224, "mean": CLIP[0], "std": CLIP[1], "interpolation": "bicubic", "resize_mode": "shortest"}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": stated, "preprocess_cfg": preprocess}))
    if card.files[0].endswith(".bin"):
        torch.save(model.state_dict(), folder / card.files[0])
    else:
        save_file(model.state_dict(), folder / card.files[0])
    return small, torch.no_grad()(lambda x: model.encode_image(x))


class _ConchVisual(nn.Module):
    """CONCH's image side with its second, unused pooler, written from the published description."""

    def __init__(self, width: int, dimension: int, kwargs: dict) -> None:
        from open_clip.transformer import AttentionalPooler
        from timm.models.vision_transformer import VisionTransformer

        super().__init__()
        self.trunk = VisionTransformer(num_classes=0, dynamic_img_size=True, **kwargs)
        self.attn_pool_contrast = AttentionalPooler(dimension, width, n_head=8, n_queries=1)
        self.ln_contrast = nn.LayerNorm(dimension)
        self.proj_contrast = nn.Parameter(torch.empty(dimension, dimension))
        self.attn_pool_caption = AttentionalPooler(dimension, width, n_head=8, n_queries=4)
        self.ln_caption = nn.LayerNorm(dimension)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.attn_pool_contrast(self.trunk.forward_features(x))[:, 0]
        projected = self.ln_contrast(pooled) @ self.proj_contrast
        return projected / projected.norm(dim=-1, keepdim=True)


def _publish_conch(card: EncoderCard, folder: Path) -> tuple[EncoderCard, Feature]:
    small = _with(card, {"embed_dim": 64, "depth": 2, "num_heads": 2}, {"projected": 32, "mean_patch": 64})
    kwargs = {k: v for k, v in small.kwargs.items() if k != "pooler_heads"}
    whole = nn.Module()
    whole.visual = _ConchVisual(64, 32, kwargs)
    whole.text = nn.Linear(2, 2)
    whole.logit_scale = nn.Parameter(torch.tensor(1.0))
    _shake(whole)
    torch.save(whole.state_dict(), folder / "pytorch_model.bin")
    return small, torch.no_grad()(whole.visual)


def _publish_flair(card: EncoderCard, folder: Path) -> tuple[EncoderCard, Feature]:
    from torchvision.models import resnet50

    whole, vision, head = nn.Module(), nn.Module(), nn.Module()
    vision.model = resnet50(weights=None)
    vision.model.fc = nn.Identity()
    head.projection = nn.Linear(2048, 512, bias=False)
    vision.projection_head_vision = head
    whole.vision_model = vision
    whole.text_model = nn.Linear(2, 2)
    _shake(whole)
    for module in vision.model.modules():  # 50 random layers overflow unless each keeps its scale
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    save_file(whole.state_dict(), folder / "model.safetensors")

    def feature(x: Tensor) -> Tensor:
        pooled = vision.model(x)
        projected = head.projection(pooled / pooled.norm(dim=1, keepdim=True))
        return projected / projected.norm(dim=1, keepdim=True)

    return dataclasses.replace(card, sha256=None), torch.no_grad()(feature)


def _publish_xrv(card: EncoderCard, folder: Path) -> tuple[EncoderCard, Feature]:
    """As ``convert`` writes it: the publisher's own names in a safetensors file."""
    from torchvision.models import densenet121

    model = densenet121(weights=None, num_classes=18)
    model.features.conv0 = nn.Conv2d(1, 64, 7, 2, 3, bias=False)
    _shake(model)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    state = {**model.state_dict(), "op_threshs": torch.full((18,), 0.5)}
    save_file(state, folder / "model.safetensors")

    def feature(x: Tensor) -> Tensor:
        hidden = torch.relu(model.features(x))
        return torch.nn.functional.adaptive_avg_pool2d(hidden, 1).flatten(1)

    return card, torch.no_grad()(feature)


_PUBLISHERS: dict[str, Callable[[EncoderCard, Path], tuple[EncoderCard, Feature]]] = {
    **dict.fromkeys(("uni", "uni2", "virchow", "virchow2", "prov_gigapath"), _publish_timm),
    "retfound_nature_cfp": _publish_retfound,
    "biomedclip": _publish_open_clip,
    "dermlip": _publish_open_clip,
    "conch": _publish_conch,
    "flair": _publish_flair,
    "densenet121_xrv": _publish_xrv,
}

PUBLISHABLE = sorted([*_PUBLISHERS, *PUBLISHED])
