"""An encoder with heads in MONAI Label's own monaibundle app: listed as classification and asked, without a network."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from candor_monai.networks import export_classifier_bundle, load_encoder, load_heads, save_heads
from candor_monai.networks.head_files import head_card
from candor_monai.networks.linear_heads import HeadOptions, HeadWeights
from tests.networks.images import as_tensor, canonical

from .server_support import ENCODER, Server, in_environment, needs_label_server, write_png

pytestmark = needs_label_server
NAME = "chest_classification"
FINDINGS = ("Edema", "Mass v1.2")


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    encoder = load_encoder(ENCODER)
    draw = torch.Generator().manual_seed(0)
    weights = HeadWeights(torch.randn(1, 2, encoder.dimension, generator=draw), torch.zeros(1, 2))
    path = tmp_path_factory.mktemp("heads") / "heads.safetensors"
    save_heads(path, weights, head_card(FINDINGS, [None, None], HeadOptions(members=1), ["a"], encoder.describe()))
    return path


@pytest.fixture(scope="module")
def server(heads, tmp_path_factory):
    folder = tmp_path_factory.mktemp("monaibundle")
    sample_apps = Path(in_environment("import sys; print(sys.prefix)")) / "monailabel" / "sample-apps"
    shutil.copytree(sample_apps / "monaibundle", folder / "app")
    export_classifier_bundle(ENCODER, heads, folder / "app" / "model" / NAME)
    rng = np.random.default_rng(0)
    write_png(folder / "chest" / "a.png", rng.integers(0, 256, (300, 240), dtype=np.uint8))
    conf = {"models": NAME, "zoo_source": "local", "skip_trainers": "true", "sam2": "false"}
    # whatever it would fetch goes to a port that nobody listens on
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    server = Server(folder, folder / "app", str(folder / "chest"), conf, NO_PROXY="127.0.0.1", **nowhere)
    yield server.start()
    server.stop(kill=True)


def test_it_is_listed_as_classification(server):
    model = server.client().info()["models"][NAME]
    assert model["type"] == "classification"
    assert model["labels"] == {"edema": 0, "mass v1.2": 1}
    assert model["dimension"] == 2


def test_it_answers_with_the_probabilities_of_the_heads(server, heads):
    from PIL import Image

    answer = server.infer("a", model=NAME)
    found = {item["label"]: item["score"] for item in answer["prediction"]}
    pixels = canonical(Image.open(server.folder / "chest" / "a.png"))
    expected = load_heads(heads, "probabilities")(load_encoder(ENCODER)(as_tensor(pixels)))[0]
    assert list(found) == ["edema", "mass v1.2"]
    torch.testing.assert_close(torch.tensor(list(found.values())), expected, atol=2e-3, rtol=2e-3)
