"""Backbones: each library's model behind one call, ``backbone(x, point)``, that gives the feature at a named point."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from candor_monai.utils import unknown


class Backbone(nn.Module):
    """A model that gives features at named points.

    Shapes:
        x: (B, C, H, W) float, processed. ``forward(x, point)``: (B, d). ``tokens(x)``: (B, prefix + patches, width).

    Args:
        points: feature points this model has.
        prefix_tokens: tokens before the patch tokens, or None when the model has no tokens.
        unneeded: beginnings of the keys of parts that were taken away, such as a classifier.
    """

    def __init__(
        self, points: tuple[str, ...], prefix_tokens: int | None = None, unneeded: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self.points = points
        self.prefix_tokens = prefix_tokens
        self.unneeded = unneeded

    @property
    def inner(self) -> nn.Module:
        """The module whose own names the publisher's keys have."""
        return self

    def forward(self, x: Tensor, point: str) -> Tensor:
        raise NotImplementedError

    def tokens(self, x: Tensor) -> Tensor:
        """All tokens after the model's last norm."""
        raise NotImplementedError(f"{type(self).__name__} has no tokens")

    def mean_patch(self, tokens: Tensor) -> Tensor:
        """Mean of the patch tokens alone: class and register tokens are skipped."""
        return tokens[:, self.prefix_tokens or 0 :].mean(dim=1)


class _Wrapped(Backbone):
    """A backbone around one model, whose keys are the model's; other arguments as :class:`Backbone`'s."""

    def __init__(
        self, model: Any, points: tuple[str, ...], prefix_tokens: int | None = None, unneeded: tuple[str, ...] = ()
    ) -> None:
        super().__init__(points, prefix_tokens, unneeded)
        self.model: Any = model

    @property
    def inner(self) -> nn.Module:
        return self.model


class TransformersBackbone(_Wrapped):
    """A vision model of transformers.

    ``cls`` is the first token after the last norm (never ``pooler_output``, which some checkpoints lack). ``pooled``
    is the model's own attention pooling (SigLIP). ``projected`` is the image embedding after the projection (CLIP).
    CLIP's last norm is applied to the class token only by the library; for ``tokens`` it is applied to all of them.
    """

    def forward(self, x: Tensor, point: str) -> Tensor:
        out = self.model(pixel_values=x)
        if point == "cls":
            return self._normed(out.last_hidden_state[:, :1])[:, 0]
        if point == "projected":
            return out.image_embeds
        if point == "pooled":
            return torch.flatten(out.pooler_output, 1)
        return self.mean_patch(self._normed(out.last_hidden_state))

    def tokens(self, x: Tensor) -> Tensor:
        return self._normed(self.model(pixel_values=x).last_hidden_state)

    def _normed(self, hidden: Tensor) -> Tensor:
        inner = getattr(self.model, "vision_model", self.model)
        late = hasattr(self.model, "visual_projection") and hasattr(inner, "post_layernorm")
        return inner.post_layernorm(hidden) if late else hidden


class TimmBackbone(_Wrapped):
    """A model of timm: ``cls`` and ``mean_patch`` of its tokens, or ``pooled`` by its own head without classifier."""

    def forward(self, x: Tensor, point: str) -> Tensor:
        hidden = self.model.forward_features(x)
        if point == "pooled":
            return self.model.forward_head(hidden, pre_logits=True)
        return hidden[:, 0] if point == "cls" else self.mean_patch(hidden)

    def tokens(self, x: Tensor) -> Tensor:
        return self.model.forward_features(x)


class OpenClipBackbone(Backbone):
    """The image tower of an open_clip model; ``projected`` is what its ``encode_image`` gives, unnormalised."""

    def __init__(self, visual: Any, points: tuple[str, ...], prefix_tokens: int | None) -> None:
        super().__init__(points, prefix_tokens)
        self.visual: Any = visual

    @property
    def inner(self) -> nn.Module:
        return self.visual

    def forward(self, x: Tensor, point: str) -> Tensor:
        if point == "projected":
            out = self.visual(x)
            return out[0] if isinstance(out, tuple) else out
        return self.mean_patch(self.tokens(x))

    def tokens(self, x: Tensor) -> Tensor:
        if hasattr(self.visual, "trunk"):
            return self.visual.trunk.forward_features(x)
        # open_clip's own output_tokens leaves the class token out; its last norm sees all of them.
        seen: list[Tensor] = []
        hook = self.visual.ln_post.register_forward_hook(lambda module, args, output: seen.append(output))
        try:
            self.visual(x)
        finally:
            hook.remove()
        if not seen or seen[0].ndim != 3:
            raise NotImplementedError("this open_clip model pools before its last norm: it gives no tokens")
        return seen[0]


class ConchBackbone(Backbone):
    """CONCH's image tower: ViT-B/16, attention pooling with one query, norm, projection, unit length.

    The publisher's names are kept: ``trunk``, ``attn_pool_contrast``, ``ln_contrast``, ``proj_contrast``. The pooler
    that serves captions only is not built.
    """

    def __init__(self, trunk: Any, width: int = 768, dimension: int = 512, heads: int = 8) -> None:
        from open_clip.transformer import AttentionalPooler

        super().__init__(("projected", "mean_patch"), prefix_tokens=1)
        self.trunk: Any = trunk
        self.attn_pool_contrast = AttentionalPooler(dimension, width, n_head=heads, n_queries=1)
        self.ln_contrast = nn.LayerNorm(dimension)
        self.proj_contrast = nn.Parameter(torch.randn(dimension, dimension) * dimension**-0.5)

    def forward(self, x: Tensor, point: str) -> Tensor:
        tokens = self.tokens(x)
        if point == "mean_patch":
            return self.mean_patch(tokens)
        pooled = self.ln_contrast(self.attn_pool_contrast(tokens)[:, 0])
        return F.normalize(pooled @ self.proj_contrast, dim=-1)

    def tokens(self, x: Tensor) -> Tensor:
        return self.trunk.forward_features(x)


class FlairBackbone(Backbone):
    """FLAIR's image tower: ResNet-50, unit length, linear projection without bias, unit length."""

    def __init__(self, model: Any, dimension: int = 512) -> None:
        super().__init__(("projected", "pooled"))
        width = model.fc.in_features
        model.fc = nn.Identity()
        self.model: Any = model
        self.projection_head_vision = nn.ModuleDict({"projection": nn.Linear(width, dimension, bias=False)})

    def forward(self, x: Tensor, point: str) -> Tensor:
        pooled = self.model(x)
        if point == "pooled":
            return pooled
        return F.normalize(self.projection_head_vision["projection"](F.normalize(pooled, dim=1)), dim=1)


class _Pooled(_Wrapped):
    """A model with one feature: ``pooled``."""

    def __init__(self, model: Any, unneeded: tuple[str, ...] = ()) -> None:
        super().__init__(model, ("pooled",), None, unneeded)


class DenseNetBackbone(_Pooled):
    """A torchvision DenseNet: its last feature map, rectified and averaged over the image."""

    def forward(self, x: Tensor, point: str) -> Tensor:
        return F.relu(self.model.features(x)).mean(dim=(2, 3))


class TorchvisionBackbone(_Pooled):
    """A torchvision classifier whose last layer has been taken away."""

    def forward(self, x: Tensor, point: str) -> Tensor:
        return torch.flatten(self.model(x), 1)


class CallableBackbone(_Wrapped):
    """Anyone's own model: what it returns is the feature (B, d), or tokens (B, n, d), or a map (B, d, h, w).

    Args:
        model: called with the processed images; may return a tensor, or a tuple, list or dict that ``output`` indexes.
        points: feature points of the card.
        prefix_tokens: tokens before the patch tokens, or None.
        output: index or key of the feature in what the model, or its layer, returns.
        layer: dotted name of the submodule whose output holds the feature, when it is not the model's own output.

    Raises:
        UserError: the model has no such layer.
    """

    def __init__(
        self,
        model: Any,
        points: tuple[str, ...],
        prefix_tokens: int | None = None,
        output: int | str | None = None,
        layer: str | None = None,
    ) -> None:
        super().__init__(model, points, prefix_tokens)
        self.output = output
        self.layer = layer
        if layer is not None:
            names = dict(self.model.named_modules())
            if layer not in names:
                raise unknown("layer", layer, [name for name in names if name])

    def forward(self, x: Tensor, point: str) -> Tensor:
        out = self._out(x)
        if out.ndim == 2:
            return out
        if out.ndim == 4:
            return out.mean(dim=(2, 3))
        return out[:, 0] if point == "cls" else self.mean_patch(out)

    def tokens(self, x: Tensor) -> Tensor:
        out = self._out(x)
        if out.ndim != 3:
            raise NotImplementedError("this model returns no tokens")
        return out

    def _out(self, x: Tensor) -> Tensor:
        out = self.model(x) if self.layer is None else self._layer_out(x, self.layer)
        if self.output is not None:
            out = out[self.output]
        plain = isinstance(out, Tensor) and out.layout == torch.strided and not out.is_complex()
        if not plain or out.ndim not in (2, 3, 4):
            what = f"{tuple(out.shape)} {out.dtype} {out.layout}" if isinstance(out, Tensor) else type(out).__name__
            raise TypeError(
                "the model must return a dense real tensor (B, d), (B, tokens, d) or (B, d, h, w); it returned "
                f"{what}. kwargs.output picks one of several outputs, kwargs.layer an inner layer."
            )
        return out

    def _layer_out(self, x: Tensor, layer: str) -> Any:
        seen: list[Any] = []

        def keep(module: nn.Module, args: Any, output: Any) -> None:
            # A copy: layers that follow may write into it (ReLU in place).
            seen.append(output.clone() if isinstance(output, Tensor) else output)

        hook = self.model.get_submodule(layer).register_forward_hook(keep)
        try:
            self.model(x)
        finally:
            hook.remove()
        if not seen:
            raise TypeError(f"layer {layer!r} is not used in the model's forward pass")
        return seen[-1]
