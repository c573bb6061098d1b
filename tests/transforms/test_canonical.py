"""The canonical image as a transform, and the boxes that follow it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from monai.data import MetaTensor

from candor_monai.data.decoding import canonical
from candor_monai.transforms import CanonicalImage, CanonicalImaged
from candor_monai.utils.errors import UserError


def test_by_hand():
    image = CanonicalImage(size=None)(np.array([[[0, 65535], [257, 514]]], dtype=np.uint16))
    assert image.tolist() == [[[0, 255], [1, 2]]] * 3


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", ["numpy", "torch", "meta"])
def test_array_types(channels: int, kind: str):
    pixels = np.random.default_rng(0).integers(0, 256, (channels, 40, 30), dtype=np.uint8)
    image = {"numpy": pixels, "torch": torch.from_numpy(pixels), "meta": MetaTensor(pixels, meta={"rows": 40})}[kind]
    result = CanonicalImage(16)(image)
    np.testing.assert_array_equal(result, canonical(np.moveaxis(pixels, 0, -1).squeeze(), 16))
    assert result.dtype == torch.uint8
    assert not isinstance(result, MetaTensor) or result.meta["rows"] == 40


def test_boxes_are_x_y_width_height_and_follow_the_squash():
    """x counts columns, y counts rows, both from the top left: MONAI's default axes are the other way round."""
    pixels = np.zeros((1, 30, 20), dtype=np.uint8)
    pixels[0, 3:9, 10:15] = 200  # rows 3 to 8, columns 10 to 14
    item = CanonicalImaged("image", size=60, box_keys="boxes")({"image": pixels, "boxes": [[10, 3, 5, 6]]})
    assert item["boxes"].tolist() == [[30.0, 6.0, 15.0, 12.0]]
    x, y, width, height = item["boxes"][0].astype(int)
    inside = item["image"][0, y : y + height, x : x + width].float().mean()
    assert inside > 190
    outside = item["image"].float().sum() / 3 - inside * width * height
    assert outside < 0.12 * inside * width * height  # Lanczos spreads an edge over two pixels


def test_original_resolution_leaves_boxes():
    item = CanonicalImaged("image", size=None, box_keys="boxes")(
        {"image": np.zeros((1, 3, 2), np.uint8), "boxes": [[1, 2, 1, 1]]}
    )
    assert item["boxes"].tolist() == [[1, 2, 1, 1]]
    assert item["image"].shape == (3, 3, 2)


@pytest.mark.parametrize("bad", [np.zeros((1, 4, 4)), np.zeros((4, 4), np.uint8), np.zeros((2, 4, 4), np.uint8)])
def test_values_of_an_unknown_range_are_refused(bad: np.ndarray):
    with pytest.raises(UserError, match="CanonicalImage takes"):
        CanonicalImage()(bad)


def test_box_keys_must_match():
    with pytest.raises(UserError, match="1 image keys and 2 box keys"):
        CanonicalImaged("image", box_keys=["a", "b"])


@pytest.mark.parametrize("size", ["224", 1.5, (1, 2, 3), (1.5, 2), {"rows": 3}])
def test_sizes_that_are_none(size):
    with pytest.raises(UserError, match="CanonicalImage size="):
        CanonicalImage(size)
