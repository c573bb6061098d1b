"""The two calibration encoders: one blind to the marker, one that sees it, and nothing else in between."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from candor_monai.data.phantom import AMPLITUDE, Marker, add_marker, backgrounds, canonical_pixels
from candor_monai.networks.calibration import CalibrationEncoder, blind, marker, projection_matrix
from candor_monai.networks.encoders import load_encoder


def images(count=6, side=224, seed=0):
    return backgrounds(np.random.default_rng(seed), count, side)


def pixels(phantoms):
    return torch.from_numpy(canonical_pixels(phantoms).copy())


def lanczos(phantoms):
    small = [np.asarray(Image.fromarray(np.rint(p * 255).astype(np.uint8)).resize((224, 224), 1)) for p in phantoms]
    return torch.from_numpy(np.broadcast_to(np.stack(small)[:, None], (len(small), 3, 224, 224)).copy())


def with_marker(phantoms, kind, row=0.4, column=0.6):
    marked = phantoms.copy()
    for image in marked:
        add_marker(image, Marker(kind, row, column))
    return marked


@pytest.mark.parametrize("kind, expected", [("vertical", [1, -1]), ("horizontal", [-1, 1])])
def test_the_sensitive_encoder_names_the_marker(kind, expected):
    plain, marked = images(), with_marker(images(), kind)
    seen = marker()(pixels(marked))[:, :2]
    assert torch.allclose(seen, torch.tensor(expected, dtype=torch.float32).expand(6, 2), atol=0.01)
    assert torch.allclose(marker()(pixels(plain))[:, :2], -torch.ones(6, 2), atol=0.01)


@pytest.mark.parametrize("side", [224, 256, 512, 300])
@pytest.mark.parametrize("kind", ["vertical", "horizontal"])
def test_both_survive_the_lanczos_resize(side, kind):
    phantoms = images(4, side)
    before, after = lanczos(phantoms), lanczos(with_marker(phantoms, kind))
    assert (marker()(after)[:, ["vertical", "horizontal"].index(kind)] > 0.99).all()
    a, b = blind()(before), blind()(after)
    # what is left is the rounding to 8 bits, a ten-thousandth of what sets two backgrounds apart
    assert (a - b).norm(dim=1).max() < 2e-3
    assert torch.cdist(a, a)[~torch.eye(4, dtype=torch.bool)].min() > 0.2


@pytest.mark.parametrize("row", np.linspace(0.25, 0.75, 5))
@pytest.mark.parametrize("column", np.linspace(0.15, 0.85, 5))
def test_wherever_the_marker_is(row, column):
    marked = with_marker(images(1), "vertical", row, column)
    assert marker()(pixels(marked))[0, 0] > 0.99


@pytest.mark.parametrize("build", [blind, marker])
@pytest.mark.parametrize("value", [0, 1, 127, 255])
def test_no_image_has_a_zero_or_infinite_feature(build, value):
    feature = build()(torch.full((1, 3, 224, 224), value, dtype=torch.uint8))
    assert torch.isfinite(feature).all()
    assert feature.norm() > 1e-3


def test_white_noise_is_no_marker():
    noise = torch.randint(108, 148, (4, 3, 224, 224), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert (marker()(noise)[:, :2] < 0.5).all()


def test_float_images_and_other_sizes_are_taken():
    bytes_, size = pixels(images(2)), (448, 448)
    assert torch.allclose(blind()(bytes_), blind()(bytes_.float() / 255))
    larger = torch.nn.functional.interpolate(bytes_.float() / 255, size=size, mode="bilinear")
    assert torch.allclose(blind()(larger), blind()(bytes_), atol=5e-3)


def test_a_feature_does_not_depend_on_its_place_in_the_batch():
    batch = pixels(images(8))
    for build in (blind, marker):
        whole = build()(batch)
        assert torch.equal(build()(batch.flip(0)).flip(0), whole)


def test_the_projection_is_orthonormal_and_leaves_brightness_out():
    matrix = projection_matrix().double()
    assert torch.allclose(matrix.T @ matrix, torch.eye(32, dtype=torch.float64), atol=1e-6)
    assert matrix.sum(dim=0).abs().max() < 1e-6


def test_the_marker_is_as_high_as_stated():
    plain, marked = images(1), with_marker(images(1), "vertical", 0.5 + 0.5 / 224, 0.5 + 0.5 / 224)
    assert (marked - plain).max() == pytest.approx(AMPLITUDE, rel=1e-4)
    assert (marked - plain).mean() == pytest.approx(0, abs=1e-6)


def test_the_cards_load_them():
    for name, dimension in (("blind", 32), ("marker", 34)):
        encoder = load_encoder(name)
        assert encoder.dimension == dimension
        own = {"blind": blind, "marker": marker}[name]()
        assert torch.allclose(encoder(pixels(images(2))), own(pixels(images(2))), atol=1e-5)
    assert load_encoder("blind").fingerprint != load_encoder("marker").fingerprint


def test_another_kind_is_refused():
    with pytest.raises(ValueError, match="'blind' or 'marker'"):
        CalibrationEncoder("sharp")


def test_torchscript_gives_the_same_features():
    batch = pixels(images(2))
    for build in (blind, marker):
        assert torch.equal(torch.jit.script(build())(batch), build()(batch))
