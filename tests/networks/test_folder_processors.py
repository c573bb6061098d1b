"""What a folder states about its processor, and who wins when the card says otherwise."""

from __future__ import annotations

import dataclasses
import json

import pytest

from candor_monai.networks.cards import ProcessorCard, load_card
from candor_monai.networks.folder_processors import (
    differing,
    from_open_clip,
    from_timm,
    from_transformers,
    reconcile,
    stated_processor,
)
from candor_monai.utils import WeightsError

CARD = load_card({"name": "mine", "loader": "module", "target": "a.b", "feature_point": "pooled", "dimension": 1})
HALF = {"mean": [0.5] * 3, "std": [0.5] * 3}


def test_smallest_example_by_hand():
    # 224 / 0.875 = 256: resize the shorter side to 256, crop 224.
    found = from_timm({"input_size": [3, 224, 224], "crop_pct": 0.875, "interpolation": "bicubic", **HALF})
    assert (found.size, found.resize, found.crop, found.interpolation) == (256, "shortest", 224, "bicubic")
    assert found.mean == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    "content,size,resize,crop",
    [
        ({"image_processor_type": "ViTImageProcessor", "size": 224}, 224, "squash", None),
        ({"image_processor_type": "ViTImageProcessor", "size": {"height": 384, "width": 384}}, 384, "squash", None),
        ({"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}}, 256, "shortest", 224),
        ({"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224}, 224, "shortest", 224),
        ({"image_processor_type": "CLIPImageProcessor", "do_center_crop": False}, 224, "shortest", None),
        ({"image_processor_type": "ViTImageProcessor", "do_resize": False}, None, "none", None),
    ],
)
def test_transformers_sizes(content, size, resize, crop):
    found = from_transformers(content)
    assert (found.size, found.resize, found.crop) == (size, resize, crop)


def test_transformers_switches():
    found = from_transformers({"image_processor_type": "ViTImageProcessor", "do_normalize": False, "do_rescale": False})
    assert (found.mean, found.std, found.scale) == ((0, 0, 0), (1, 1, 1), 1)


@pytest.mark.parametrize(
    "content",
    [
        {"image_processor_type": "ViTImageProcessor", "size": {"height": 224, "width": 448}},
        {"image_processor_type": "ViTImageProcessor", "resample": 1},
        {"image_processor_type": "ViTImageProcessor", "size": {"longest_edge": 5}},
        {"image_processor_type": "ViTImageProcessor", "size": "large"},
        {"image_processor_type": "ViTImageProcessor", "size": 10**400},
        {"image_processor_type": "ViTImageProcessor", "size": float("inf")},
        {"image_processor_type": "ViTImageProcessor", "image_mean": ["a", "b", "c"]},
        {"image_processor_type": "ViTImageProcessor", "image_mean": 0.5},
        {"image_processor_type": "ViTImageProcessor", "image_std": [float("nan")] * 3},
        {"image_processor_type": "ViTImageProcessor", "rescale_factor": float("nan")},
        {"image_processor_type": "ViTImageProcessor", "resample": [3]},
    ],
)
def test_what_cannot_be_done_is_said(content, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(content))
    with pytest.raises(WeightsError, match="cannot be understood"):
        stated_processor(CARD, tmp_path)


def test_open_clip_defaults_and_squash():
    found = from_open_clip({"model_cfg": {"vision_cfg": {"image_size": 336}}})
    assert (found.size, found.crop, found.resize) == (336, 336, "shortest")
    found = from_open_clip({"preprocess_cfg": {"size": [384, 384], "resize_mode": "squash", **HALF}})
    assert (found.size, found.crop, found.resize, found.std) == (384, None, "squash", (0.5, 0.5, 0.5))


def test_nothing_stated(tmp_path):
    assert stated_processor(CARD, tmp_path) is None
    (tmp_path / "config.json").write_text('{"hidden_size": 3}')
    assert stated_processor(CARD, tmp_path) is None


def test_not_json(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WeightsError, match=r"config\.json: not JSON"):
        stated_processor(CARD, tmp_path)


@pytest.mark.parametrize(
    "name,content",
    [
        ("config.json", {"input_size": [], "mean": [0.5] * 3}),
        ("config.json", {"input_size": [3, 224, 224], "crop_pct": 0, **HALF}),
        ("config.json", {"input_size": [3, 224, 224], "crop_pct": [1], **HALF}),
        ("config.json", {"input_size": [3, 224, 224], "crop_pct": 1e-320, **HALF}),
        ("open_clip_config.json", {"preprocess_cfg": []}),
        ("open_clip_config.json", {"preprocess_cfg": {"size": []}}),
        ("open_clip_config.json", {"model_cfg": {"vision_cfg": 3}}),
        ("open_clip_config.json", {"preprocess_cfg": {"mean": [1, 2]}}),
    ],
)
def test_odd_values_are_one_line(name, content, tmp_path):
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(WeightsError, match="cannot be understood") as caught:
        stated_processor(CARD, tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("policy", ["strict", "card", "folder"])
def test_policies(policy):
    ours = ProcessorCard(policy=policy)
    theirs = ProcessorCard(size=256, crop=224, resize="shortest")
    if policy == "strict":
        with pytest.raises(WeightsError, match="size: card 224, folder 256"):
            reconcile(CARD, ours, theirs)
        return
    settled, differences = reconcile(CARD, ours, theirs)
    assert settled.size == (224 if policy == "card" else 256)
    assert len(differences) == 3


def test_no_difference_and_named_processors():
    ours = ProcessorCard()
    assert reconcile(CARD, ours, dataclasses.replace(ours, backend="pil")) == (ours, [])
    assert reconcile(CARD, ours, None) == (ours, [])
    assert reconcile(CARD, ours, ProcessorCard(size=99), named=True) == (ours, [])


def test_none_at_all():
    stated = ProcessorCard(size=99)
    assert reconcile(CARD, None, stated) == (stated, [])
    with pytest.raises(WeightsError, match="no processor"):
        reconcile(CARD, None, None)


def test_rounding_of_published_numbers_is_no_difference():
    near = ProcessorCard(mean=(0.4850000001, 0.456, 0.406), scale=0.00392156862745098)
    assert differing(ProcessorCard(), near) == []
    assert [key for key, *_ in differing(ProcessorCard(), ProcessorCard(mean=(0.486, 0.456, 0.406)))] == ["mean"]
