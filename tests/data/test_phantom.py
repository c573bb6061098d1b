"""Phantoms: in range, independent of each other, the same from the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from candor_monai.data.phantom import Marker, add_marker, backgrounds, canonical_pixels, mean_background, random_marker


def test_a_marker_changes_its_box_and_nothing_else():
    image = np.full((224, 224), 0.5, dtype=np.float32)
    marker = Marker("vertical", row=0.25, column=0.75)
    add_marker(image, marker)
    assert marker.box(224) == (153, 41, 31, 31)
    changed = np.argwhere(image != 0.5)
    assert changed.min(axis=0).tolist() == [41, 153]
    assert changed.max(axis=0).tolist() == [70, 182]
    assert image[41:72, 153:184].mean() == pytest.approx(0.5, abs=5e-5)


def test_stripes_run_as_named():
    image = np.full((224, 224), 0.5, dtype=np.float32)
    add_marker(image, Marker("vertical", 0.5, 0.5))
    across, along = np.abs(np.diff(image, axis=1)).max(), np.abs(np.diff(image, axis=0)).max()
    assert across > 3 * along
    turned = np.full((224, 224), 0.5, dtype=np.float32)
    add_marker(turned, Marker("horizontal", 0.5, 0.5))
    assert np.allclose(turned, image.T)


@pytest.mark.parametrize("side", [64, 224, 256, 333])
@pytest.mark.parametrize("view", ["PA", "AP"])
def test_backgrounds_leave_room_for_the_marker(side, view):
    images = backgrounds(np.random.default_rng(1), 3, side, view)
    assert images.shape == (3, side, side)
    assert images.dtype == np.float32
    assert images.min() >= 0.18
    assert images.max() <= 0.82
    rng = np.random.default_rng(2)
    for image in images:
        marker = random_marker(rng, "horizontal")
        x, y, width, height = marker.box(side)
        assert min(x, y) >= 0
        assert max(x + width, y + height) <= side
        add_marker(image, marker)
    assert images.min() >= 0
    assert images.max() <= 1


def test_the_same_seed_gives_the_same_images_and_no_two_are_alike():
    first, again = (backgrounds(np.random.default_rng(3), 20) for _ in range(2))
    assert np.array_equal(first, again)
    rows = (first - mean_background()).reshape(20, -1)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    similar = rows @ rows.T
    assert np.abs(similar[~np.eye(20, dtype=bool)]).max() < 0.8
    assert abs(similar[~np.eye(20, dtype=bool)].mean()) < 0.15


def test_views_differ():
    heart = (slice(120, 160), slice(100, 150))
    means = [backgrounds(np.random.default_rng(4), 40, view=view)[:, *heart].mean() for view in ("PA", "AP")]
    assert means[1] > means[0] + 0.01


def test_canonical_pixels_are_grey_bytes():
    images = canonical_pixels(np.full((2, 4, 4), 0.5, dtype=np.float32))
    assert images.shape == (2, 3, 4, 4)
    assert images.dtype == np.uint8
    assert set(images.reshape(-1).tolist()) == {128}
