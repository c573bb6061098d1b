"""The bundle as MONAI's tools see it: properties, metadata, network shape, TorchScript, offline."""

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from monai.bundle import ConfigWorkflow, ckpt_export, verify_metadata, verify_net_in_out

from candor_monai._version import __version__
from candor_monai.utils import bundle_config, resource

BUNDLE = resource("bundles", "candor_eval")
SCHEMA = Path(__file__).with_name("metadata_schema.json")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("config", ["evaluate.yaml", "inference.yaml"])
def test_no_property_of_an_inference_workflow_is_missing(config, tmp_path):
    workflow = ConfigWorkflow(
        config_file=bundle_config(config),
        workflow_type="infer",
        logging_file=False,
        run_id="run",
        output_dir=str(tmp_path / "eval"),
    )
    workflow.initialize()
    assert workflow.check_properties() == []
    assert list(tmp_path.iterdir()) == [], "initializing writes nothing"


def test_metadata_is_of_this_version():
    metadata = json.loads((BUNDLE / "configs" / "metadata.json").read_text())
    assert metadata["version"] == metadata["required_packages_version"]["candor_monai"] == __version__
    assert metadata["version"] in metadata["changelog"]


def test_metadata_passes_the_verification(tmp_path):
    shutil.copy(SCHEMA, tmp_path / "schema.json")
    verify_metadata(meta_file=str(BUNDLE / "configs" / "metadata.json"), filepath=str(tmp_path / "schema.json"))


@pytest.mark.parametrize("key", json.loads(SCHEMA.read_text())["required"])
def test_the_schema_refuses_metadata_without_a_required_key(key, tmp_path):
    from jsonschema import ValidationError, validate

    metadata = copy.deepcopy(json.loads((BUNDLE / "configs" / "metadata.json").read_text()))
    del metadata[key]
    with pytest.raises(ValidationError, match=f"'{key}' is a required property"):
        validate(metadata, json.loads(SCHEMA.read_text()))


def test_the_network_has_the_shape_that_metadata_tells(tmp_path):
    verify_net_in_out(
        net_id="network_def",
        meta_file=str(BUNDLE / "configs" / "metadata.json"),
        config_file=bundle_config("inference.yaml"),
        device="cpu",
    )


def test_the_checkpoint_exports_to_torchscript_and_gives_the_same_features(tmp_path):
    exported = tmp_path / "model.ts"
    ckpt_export(
        net_id="network_def",
        filepath=str(exported),
        ckpt_file=str(BUNDLE / "models" / "model.pt"),
        meta_file=str(BUNDLE / "configs" / "metadata.json"),
        config_file=bundle_config("inference.yaml"),
    )
    from candor_monai.networks.encoders import load_encoder

    images = torch.rand(2, 3, 224, 224)
    assert torch.allclose(torch.jit.load(exported)(images), load_encoder("marker")(images), atol=1e-5)


def test_the_checkpoint_is_the_default_encoders():
    from candor_monai.apps.make_calibration_weights import calibration_weights

    stored = torch.load(BUNDLE / "models" / "model.pt", weights_only=True)
    made = calibration_weights()
    assert stored.keys() == made.keys()
    assert all(torch.equal(stored[key], made[key]) for key in made)
