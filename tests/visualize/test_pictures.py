from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from candor_monai.visualize.pictures import Pictures, as_rows_columns, data_uri


def opened(uri):
    head, body = uri.split(",", 1)
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(body)))


def test_rows_are_down_and_columns_across():
    pixels = np.zeros((20, 30), np.uint8)
    pixels[:, 15:] = 255  # bright right half
    picture = opened(data_uri(pixels))
    assert picture.size == (30, 20)
    assert picture.getpixel((2, 10)) < 40
    assert picture.getpixel((27, 10)) > 215


@pytest.mark.parametrize("shape", [(8, 9), (8, 9, 1), (8, 9, 3), (1, 8, 9), (3, 8, 9)])
def test_shapes_of_a_thumbnail(shape):
    assert as_rows_columns(np.full(shape, 7, np.uint8)).shape == (8, 9)


def test_colour_is_kept():
    pixels = np.zeros((3, 8, 9), np.uint8)
    pixels[0] = 200
    assert as_rows_columns(pixels)[0, 0].tolist() == [200, 0, 0]


@pytest.mark.parametrize("pixels", [np.zeros((4, 4)), np.zeros((2, 4, 4), np.uint8), np.zeros((0, 4), np.uint8)])
def test_what_is_no_picture_is_refused(pixels):
    with pytest.raises(ValueError, match="a thumbnail must be"):
        as_rows_columns(pixels)


def test_large_pictures_are_made_small():
    assert opened(data_uri(np.zeros((300, 600), np.uint8), side=96)).size == (96, 48)


def test_a_picture_is_stored_once_and_asked_for_once():
    asked = []

    def thumbnails(image_id):
        asked.append(image_id)
        return None if image_id == "none" else np.zeros((8, 8), np.uint8)

    pictures = Pictures(thumbnails)
    assert pictures.store() == ""
    shown = [pictures.show("a", "one"), pictures.show("a", "two"), pictures.show("b", "<three>")]
    assert shown[0].count("#p0") == shown[1].count("#p0") == shown[2].count("#p1") == 1
    assert 'aria-label="&lt;three&gt;"' in shown[2]
    assert pictures.store().count("<symbol") == 2
    assert "no picture" in pictures.show("none", "gone")
    assert asked == ["a", "b", "none"]


def test_large_pictures_are_stored_beside_small_ones():
    pictures = Pictures(lambda image_id: np.zeros((300, 300), np.uint8), side=10, large=20)
    small, large = pictures.show("a", "x"), pictures.show("a", "x", large=True)
    assert 'viewBox="0 0 10 10"' in small
    assert 'viewBox="0 0 20 20"' in large
    assert opened(pictures.address("a")).size == (10, 10)
    assert opened(pictures.address("a", large=True)).size == (20, 20)
    assert pictures.cost(["a"]) == pictures.cost(["a"], large=True) == 0
    assert pictures.cost(["b", "b"]) == len(pictures.address("b")) + 120
