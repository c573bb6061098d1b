"""Backbones: which of a model's outputs is the feature."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from candor_monai.networks.backbones import (
    Backbone,
    CallableBackbone,
    DenseNetBackbone,
    OpenClipBackbone,
    TimmBackbone,
    TransformersBackbone,
)
from candor_monai.utils import UserError

X = torch.zeros(2, 3, 4, 4)
TOKENS = torch.arange(2 * 4 * 3, dtype=torch.float32).view(2, 4, 3)


class Fixed(nn.Module):
    """Returns what it was made with."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        return self.value


def test_smallest_example_by_hand():
    # Tokens [9, 1, 3] of one image, one of them a prefix: cls 9, mean of the patches (1 + 3) / 2 = 2.
    tokens = torch.tensor([[[9.0], [1.0], [3.0]]])
    backbone = CallableBackbone(Fixed(tokens), ("cls", "mean_patch"), prefix_tokens=1)
    assert backbone(X[:1], "cls").tolist() == [[9]]
    assert backbone(X[:1], "mean_patch").tolist() == [[2]]
    assert backbone.tokens(X[:1]).shape == (1, 3, 1)


@pytest.mark.parametrize("prefix,expected", [(0, TOKENS.mean(1)), (1, TOKENS[:, 1:].mean(1)), (3, TOKENS[:, 3])])
def test_prefix_tokens_are_skipped(prefix, expected):
    backbone = CallableBackbone(Fixed(TOKENS), ("mean_patch",), prefix_tokens=prefix)
    torch.testing.assert_close(backbone(X, "mean_patch"), expected)


def test_maps_are_averaged_and_vectors_kept():
    grid = torch.arange(2 * 3 * 2 * 2, dtype=torch.float32).view(2, 3, 2, 2)
    assert torch.equal(CallableBackbone(Fixed(grid), ("pooled",))(X, "pooled"), grid.mean((2, 3)))
    assert torch.equal(CallableBackbone(Fixed(grid[..., 0, 0]), ("pooled",))(X, "pooled"), grid[..., 0, 0])


@pytest.mark.parametrize("output,value", [(1, (0, TOKENS)), ("last", {"last": TOKENS})])
def test_one_of_several_outputs(output, value):
    assert torch.equal(CallableBackbone(Fixed(value), ("cls",), 1, output)(X, "cls"), TOKENS[:, 0])


@pytest.mark.parametrize("value", [(1, 2), torch.zeros(3), {"a": TOKENS}, torch.zeros(1, 1, 1, 1, 1)])
def test_other_outputs_are_refused(value):
    with pytest.raises(TypeError, match=r"kwargs\.output picks"):
        CallableBackbone(Fixed(value), ("cls",))(X, "cls")


def test_inner_layer_before_a_later_one_writes_into_it():
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 5), nn.ReLU(inplace=True), nn.Linear(5, 2))
    x = torch.randn(3, 3, 4, 4)
    backbone = CallableBackbone(model, ("pooled",), layer="1")
    with torch.no_grad():
        assert torch.equal(backbone(x, "pooled"), model[1](x.flatten(1)))
    assert not model[1]._forward_hooks
    with pytest.raises(UserError, match="unknown layer 'head'"):
        CallableBackbone(model, ("pooled",), layer="head")


def test_unused_layer():
    model = nn.Sequential(nn.Flatten())
    model.spare = nn.Identity()
    model.forward = lambda x: x.flatten(1)
    with pytest.raises(TypeError, match="not used"):
        CallableBackbone(model, ("pooled",), layer="spare")(X, "pooled")


def test_transformers_points():
    class Model(nn.Module):
        def forward(self, pixel_values):
            return SimpleNamespace(last_hidden_state=TOKENS, pooler_output=TOKENS[:, 3], image_embeds=TOKENS[:, 2] * 10)

    backbone = TransformersBackbone(Model(), ("cls", "pooled", "projected", "mean_patch"), 2)
    assert torch.equal(backbone(X, "cls"), TOKENS[:, 0])
    assert torch.equal(backbone(X, "pooled"), TOKENS[:, 3])
    assert torch.equal(backbone(X, "projected"), TOKENS[:, 2] * 10)
    assert torch.equal(backbone(X, "mean_patch"), TOKENS[:, 2:].mean(1))


def test_clip_norms_every_token_for_mean_patch():
    """The library norms the class token alone; the mean of patches is taken after the same norm."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.visual_projection = nn.Identity()
            self.vision_model = nn.Module()
            self.vision_model.post_layernorm = nn.LayerNorm(3)

        def forward(self, pixel_values):
            return SimpleNamespace(last_hidden_state=TOKENS)

    model = Model()
    expected = model.vision_model.post_layernorm(TOKENS)
    backbone = TransformersBackbone(model, ("cls", "mean_patch"), 1)
    torch.testing.assert_close(backbone(X, "mean_patch"), expected[:, 1:].mean(1))
    torch.testing.assert_close(backbone(X, "cls"), expected[:, 0])


def test_timm_points():
    class Model(nn.Module):
        def forward_features(self, x):
            return TOKENS

        def forward_head(self, x, pre_logits):
            assert pre_logits
            return x[:, 1]

    backbone = TimmBackbone(Model(), ("cls", "pooled", "mean_patch"), 1)
    assert torch.equal(backbone(X, "cls"), TOKENS[:, 0])
    assert torch.equal(backbone(X, "pooled"), TOKENS[:, 1])
    assert torch.equal(backbone(X, "mean_patch"), TOKENS[:, 1:].mean(1))


def test_open_clip_that_pools_before_its_norm_has_no_tokens():
    class Visual(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_post = nn.Identity()

        def forward(self, x):
            return self.ln_post(x.flatten(1))

    backbone = OpenClipBackbone(Visual(), ("projected",), 1)
    assert backbone(X, "projected").shape == (2, 48)
    with pytest.raises(NotImplementedError, match="pools before its last norm"):
        backbone.tokens(X)


def test_densenet_rectifies_before_it_averages():
    model = nn.Module()
    model.features = Fixed(torch.tensor([[[[-4.0, 2.0]]]]))
    assert DenseNetBackbone(model)(X[:1], "pooled").tolist() == [[1]]


def test_no_tokens():
    with pytest.raises(NotImplementedError, match="has no tokens"):
        Backbone(("pooled",)).tokens(X)
