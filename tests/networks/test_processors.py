"""Our tensor-side processor against each encoder's own library, on the same pictures."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from candor_monai.networks.cards import ProcessorCard, list_cards, load_card
from candor_monai.networks.folder_processors import differing, stated_processor
from candor_monai.networks.processors import EncoderProcessor, centre, resize
from tests.networks.images import as_tensor, canonical, noise, photo

IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])


def _transformers_config(kind, resample, norm, size, crop=None, **more):
    config = {
        "image_processor_type": kind,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "rescale_factor": 1 / 255,
        "resample": resample,
        "image_mean": norm[0],
        "image_std": norm[1],
        "size": size,
        **more,
    }
    if crop:
        config |= {"do_center_crop": True, "crop_size": {"height": crop, "width": crop}}
    return config


def _square(side):
    return {"height": side, "width": side}


# What the publishers' own preprocessor_config.json states (docs/encoders.md says what of it is inferred).
PUBLISHED = {
    "rad_dino": _transformers_config(
        "BitImageProcessor", 3, ([0.5307] * 3, [0.2583] * 3), {"shortest_edge": 518}, 518, do_convert_rgb=True
    ),
    "phikon_v2": _transformers_config("BitImageProcessor", 3, IMAGENET, {"shortest_edge": 224}, 224),
    "dinov2_l": _transformers_config("BitImageProcessor", 3, IMAGENET, {"shortest_edge": 256}, 224),
    "clip_l14": _transformers_config("CLIPImageProcessor", 3, CLIP, {"shortest_edge": 224}, 224),
    "monet": {
        "feature_extractor_type": "CLIPFeatureExtractor",
        "crop_size": 224,
        "do_center_crop": True,
        "do_normalize": True,
        "do_resize": True,
        "image_mean": IMAGENET[0],
        "image_std": IMAGENET[1],
        "resample": 3,
        "size": 224,
    },
    "siglip2_l": _transformers_config(
        "SiglipImageProcessor", 2, ([0.5] * 3, [0.5] * 3), _square(512), do_convert_rgb=None
    ),
    **{
        name: _transformers_config("DINOv3ViTImageProcessorFast", 2, IMAGENET, _square(224))
        for name in ("dinov3_s", "dinov3_b", "dinov3_l", "dinov3_h_plus")
    },
    "retfound": _transformers_config("ViTImageProcessor", 3, IMAGENET, _square(224)),
}
TIMM = {
    name: {"input_size": [3, side, side], "crop_pct": pct, "interpolation": mode, "mean": norm[0], "std": norm[1]}
    for name, side, pct, mode, norm in (
        ("uni", 224, 1.0, "bilinear", IMAGENET),
        ("uni2", 224, 1.0, "bilinear", IMAGENET),
        ("virchow", 224, 1.0, "bicubic", IMAGENET),
        ("virchow2", 224, 1.0, "bicubic", IMAGENET),
        ("prov_gigapath", 224, 1.0, "bicubic", IMAGENET),
        ("random_vit_l", 224, 1.0, "bicubic", IMAGENET),
        ("retfound_nature_cfp", 224, 1.0, "bicubic", IMAGENET),
        ("efficientnet_lite0", 224, 0.875, "bicubic", ([0.5] * 3, [0.5] * 3)),
        ("efficientnet_lite1", 240, 0.882, "bicubic", ([0.5] * 3, [0.5] * 3)),
        ("efficientnet_lite2", 260, 0.89, "bicubic", ([0.5] * 3, [0.5] * 3)),
    )
}
OPEN_CLIP = {"biomedclip": 224, "dermlip": 224, "conch": 448}
OWN = ("flair", "densenet121_xrv")
OURS = sorted({*PUBLISHED, *TIMM, *OPEN_CLIP, *OWN})


def _own_library(name, backend, folder):
    """The encoder's own processor, as a function of one RGB picture giving (C, h, w)."""
    if name in PUBLISHED:
        from transformers import AutoImageProcessor

        (folder / "preprocessor_config.json").write_text(json.dumps(PUBLISHED[name]))
        options = {} if name.startswith("dinov3") else {"backend": backend}
        own = AutoImageProcessor.from_pretrained(str(folder), local_files_only=True, **options)
        return lambda image: own(image, return_tensors="pt")["pixel_values"][0]
    if name in TIMM:
        from timm.data import create_transform

        config = TIMM[name]
        return create_transform(**{**config, "input_size": tuple(config["input_size"])}, is_training=False)
    if name in OPEN_CLIP:
        from open_clip.transform import PreprocessCfg, image_transform_v2

        return image_transform_v2(PreprocessCfg(size=OPEN_CLIP[name], mean=CLIP[0], std=CLIP[1]), is_train=False)
    return {"flair": _flair, "densenet121_xrv": _xrv}[name]


def _flair(image):
    """Written from the description of FLAIR's own code: to [0, 1], long side to 512, zeros to the right and below."""
    from torchvision.transforms.functional import resize as torchvision_resize

    x = as_tensor(image)[0].float() / 255
    long = max(x.shape[1:])
    x = torchvision_resize(x, [x.shape[1] * 512 // long, x.shape[2] * 512 // long], antialias=True)
    out = torch.zeros(3, 512, 512)
    out[:, : x.shape[1], : x.shape[2]] = x
    return out


def _xrv(image):
    xrv = pytest.importorskip("torchxrayvision", reason="torchxrayvision is not installed (extra xrv)")
    grey = xrv.utils.normalize(np.array(image.convert("L")).astype(np.float32), 255)[None]
    grey = xrv.datasets.XRayCenterCrop()(grey)
    return torch.from_numpy(xrv.datasets.XRayResizer(224)(grey))


def _levels(ours, theirs, card):
    """Largest and mean absolute difference in 8-bit levels."""
    std = torch.tensor(card.std).view(-1, 1, 1)
    difference = ((ours - theirs) * std / card.scale).abs()
    return difference.max().item(), difference.mean().item()


def test_smallest_example_by_hand():
    # One pixel of value 255 with mean 1/2 and std 1/4: (1 - 1/2) / (1/4) = 2; a pixel of 0 gives -2.
    card = ProcessorCard(size=1, mean=(0.5,) * 3, std=(0.25,) * 3)
    images = torch.tensor([[[[255]], [[0]], [[51]]]], dtype=torch.uint8)
    assert EncoderProcessor(card)(images).flatten().tolist() == pytest.approx([2, -2, (0.2 - 0.5) / 0.25], abs=1e-6)


def test_every_shipped_card_is_compared():
    calibration = {"blind", "marker"}
    assert set(OURS) == set(list_cards()) - calibration


# Tolerances in 8-bit levels, largest and mean: photographs, then noise. Pillow's and torch's 8-bit kernels round
# their weights to different numbers of bits; the processors that round nothing agree to float32.
@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("picture", ["chelsea", "camera", "noise"])
def test_canonical_image_as_the_own_library(name, picture, tmp_path):
    card = load_card(name).processor
    image = noise() if picture == "noise" else canonical(photo(picture))
    theirs = _own_library(name, "pil", tmp_path)(image)
    ours = EncoderProcessor(card)(as_tensor(image))[0]
    assert ours.shape == theirs.shape
    assert ours.is_contiguous()
    largest, mean = _levels(ours, theirs, card)
    if card.input_size == 224 and card.size == 224:
        assert largest < 1e-3  # nothing is resized
    else:
        assert largest <= 2.01
        assert mean < 0.02


@pytest.mark.parametrize("name", [name for name in OURS if name != "densenet121_xrv"])
def test_original_resolution_as_the_own_library(name, tmp_path):
    """A picture of 300 x 451: aspect, crop and half pixels."""
    card = load_card(name).processor
    image = photo("chelsea")
    theirs = _own_library(name, "pil", tmp_path)(image)
    ours = EncoderProcessor(card)(as_tensor(image))[0]
    assert ours.shape == theirs.shape
    largest, mean = _levels(ours, theirs, card)
    assert largest <= 2.01
    assert mean < 0.02


@pytest.mark.parametrize("name", sorted(set(PUBLISHED) - {"dinov3_s", "dinov3_b", "dinov3_l", "dinov3_h_plus"}))
def test_torchvision_backend_too(name, tmp_path):
    """transformers' other backend gives the same within two levels on a photograph."""
    card = load_card(name).processor
    image = canonical(photo("chelsea"))
    theirs = _own_library(name, "torchvision", tmp_path)(image)
    largest, _ = _levels(EncoderProcessor(card)(as_tensor(image))[0], theirs, card)
    assert largest <= 2.01


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_folder_states_what_the_card_says(name, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PUBLISHED[name]))
    card = load_card(name)
    stated = stated_processor(card, tmp_path)
    assert differing(card.processor, stated) == []


@pytest.mark.parametrize("name", sorted(TIMM))
def test_timm_config_states_what_the_card_says(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "x", "pretrained_cfg": TIMM[name]}))
    card = load_card(name)
    assert differing(card.processor, stated_processor(card, tmp_path)) == []


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [160, 256, 518])
def test_resize_as_pillow(interpolation, size):
    filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    image = noise()
    theirs = as_tensor(image.resize((size, size), filters[interpolation])).int()
    ours = resize(as_tensor(image), size, size, interpolation, True).int()
    assert (ours - theirs).abs().max() <= 2
    assert (ours != theirs).float().mean() < 0.05


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [160, 256, 518])
def test_two_float_passes_as_the_8_bit_kernel(interpolation, size, monkeypatch):
    """What an accelerator computes, here on the processor."""
    images = as_tensor(noise())
    expected = resize(images, size, size, interpolation, True).int()
    monkeypatch.setattr("candor_monai.networks.processors._has_8_bit_kernel", lambda x: False)
    found = resize(images, size, size, interpolation, True)
    assert found.dtype == torch.uint8
    assert (found.int() - expected).abs().max() <= 2
    assert (found.int() != expected).float().mean() < 0.05


def test_luma_is_pillows():
    image = noise(64)
    card = ProcessorCard(size=64, channels=1, mean=(0.0,), std=(1.0,))
    ours = EncoderProcessor(card)(as_tensor(image))[0, 0] * 255
    assert np.array_equal(ours.round().numpy(), np.array(image.convert("L")))


def test_one_channel_range():
    card = load_card("densenet121_xrv").processor
    images = torch.zeros(2, 3, 224, 224, dtype=torch.uint8)
    images[1] = 255
    out = EncoderProcessor(card)(images)
    assert out.shape == (2, 1, 224, 224)
    assert out[0].unique().tolist() == [-1024]
    assert out[1].unique().tolist() == [1024]


def test_batch_gives_what_single_images_give():
    processor = EncoderProcessor(load_card("rad_dino").processor)
    images = as_tensor(canonical(photo("chelsea")), noise(), canonical(photo("camera")))
    batch = processor(images)
    assert all(torch.equal(batch[i : i + 1], processor(images[i : i + 1])) for i in range(3))
    assert torch.equal(processor(images.contiguous(memory_format=torch.channels_last)), batch)


def test_read_only_input_is_left_alone():
    images = as_tensor(noise())
    before = images.clone()
    for name in ("random_vit_l", "densenet121_xrv", "dinov3_s", "flair"):
        EncoderProcessor(load_card(name).processor)(images)
    assert torch.equal(images, before)


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(1, 3, 8, 8),
        torch.zeros(3, 8, 8, dtype=torch.uint8),
        torch.zeros(1, 1, 8, 8, dtype=torch.uint8),
        torch.zeros(1, 3, 8, 8, dtype=torch.int16),
    ],
    ids=["float", "no batch", "one channel", "int16"],
)
def test_refuses_what_is_not_canonical(images):
    with pytest.raises(ValueError, match="images must be uint8"):
        EncoderProcessor(ProcessorCard())(images)


def test_empty_batch():
    assert EncoderProcessor(load_card("rad_dino").processor)(torch.zeros(0, 3, 224, 224, dtype=torch.uint8)).shape == (
        0,
        3,
        518,
        518,
    )


@pytest.mark.parametrize("half,expected", [("down", [[0, 1], [3, 4]]), ("even", [[0, 1], [3, 4]])])
def test_centre_of_three_by_three(half, expected):
    x = torch.arange(9).view(3, 3)
    assert centre(x, 2, half).tolist() == expected


def test_centre_pads_what_is_too_small():
    assert centre(torch.ones(1, 1, 1, 1), 3).tolist() == [[[[0, 0, 0], [0, 1, 0], [0, 0, 0]]]]


@pytest.mark.parametrize("height,width,expected", [(224, 224, (512, 512)), (300, 451, (340, 512)), (7, 3, (512, 219))])
def test_long_side(height, width, expected):
    assert EncoderProcessor(load_card("flair").processor).resized(height, width) == expected
    assert math.isclose(expected[0] / expected[1], height / width, rel_tol=0.01)
