"""An encoder with heads as a bundle of its own: MONAI's verification, and the probabilities of the heads."""

from __future__ import annotations

import csv
import json
import logging

import pytest
import torch
from PIL import Image

from candor_monai.networks import bundled_classifier, export_classifier_bundle, load_encoder, load_heads, save_heads
from candor_monai.networks.head_files import head_card
from candor_monai.networks.linear_heads import HeadOptions, HeadWeights
from candor_monai.networks.probes import noise_image
from candor_monai.utils import UserError, WeightsError
from tests.networks.test_bundle_export import _verify, run_inference

FINDINGS = ("Edema", "Mass v1.2")


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("monai.bundle").setLevel(logging.WARNING)


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    encoder = load_encoder("blind")
    draw = torch.Generator().manual_seed(0)
    weights = HeadWeights(torch.randn(2, 2, encoder.dimension, generator=draw), torch.randn(2, 2, generator=draw))
    card = head_card(FINDINGS, [0.5, None], HeadOptions(members=2), ["a", "b"], encoder.describe())
    path = tmp_path_factory.mktemp("heads") / "heads.safetensors"
    save_heads(path, weights, card)
    return path


@pytest.fixture(scope="module")
def bundle(heads, tmp_path_factory):
    return export_classifier_bundle("blind", heads, tmp_path_factory.mktemp("out") / "chest_classification")


def test_the_network_is_the_encoder_with_the_heads(bundle, heads, tmp_path):
    _verify(bundle, tmp_path)
    network = bundled_classifier(
        *(bundle / name for name in ("configs/encoder.yaml", "models/model.pt", "configs/heads.json"))
    )
    expected = load_heads(heads, "probabilities")(load_encoder("blind")(noise_image()))
    assert torch.equal(network(noise_image()), expected)
    assert network.findings == FINDINGS
    state = torch.load(bundle / "models" / "model.pt", weights_only=True)
    assert set(state) == set(network.state_dict())
    outputs = json.loads((bundle / "configs/metadata.json").read_text())["network_data_format"]["outputs"]["pred"]
    assert outputs["channel_def"] == {"0": "Edema", "1": "Mass v1.2"}


def test_runs_as_any_bundle(bundle, heads, tmp_path):
    pixels = noise_image()[0].permute(1, 2, 0).to(torch.uint8).numpy()
    (tmp_path / "images").mkdir()
    Image.fromarray(pixels).save(tmp_path / "images" / "a.png")
    run_inference(bundle, tmp_path / "images", tmp_path / "eval")
    with open(tmp_path / "eval" / "findings.csv") as file:
        ((name, *values),) = list(csv.reader(file))
    assert name.endswith("a.png")
    assert len(values) == 2
    assert all(0 <= float(value) <= 1 for value in values)


def test_what_is_refused(bundle, heads, tmp_path):
    with pytest.raises(WeightsError, match="trained on features of"):
        export_classifier_bundle("marker", heads, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    with pytest.raises(UserError, match="holds a bundle already"):
        export_classifier_bundle("blind", heads, bundle)
    names = bundle / "configs/encoder.yaml", bundle / "models/model.pt"
    with pytest.raises(UserError, match="no such file"):
        bundled_classifier(*names, tmp_path / "heads.json")
    (tmp_path / "heads.json").write_text('{"findings": ["one"]}')
    with pytest.raises(WeightsError, match="do not fit"):
        bundled_classifier(*names, tmp_path / "heads.json")
