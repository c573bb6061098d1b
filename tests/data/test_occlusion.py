"""Regions that are covered, and what they are covered with."""

from __future__ import annotations

import numpy as np
import pytest

from candor_monai.data.occlusion import (
    FILLS,
    VIEW_REASONS,
    Piece,
    box_pieces,
    boxes_in_image,
    control_pieces,
    mask_of_image,
    mask_pieces,
    occluded,
    union,
)
from candor_monai.utils.errors import DecodeError, UserError
from tests.support import ROOT

SHAPE = (8, 10)


def mask_of(*boxes: tuple[float, float, float, float], shape: tuple[int, int] = SHAPE) -> np.ndarray:
    return union(box_pieces(np.array(boxes), shape), shape)


def control_of(
    *boxes: tuple[float, float, float, float], others: np.ndarray | None = None, image_id: str = "a", seed: int = 42
) -> np.ndarray:
    pieces = box_pieces(np.array(boxes), SHAPE)
    annotated = union(pieces, SHAPE) if others is None else union(pieces, SHAPE) | others
    return union(control_pieces(pieces, annotated, image_id, seed), SHAPE)


def test_by_hand():
    covered = mask_of((1, 2, 3, 2))  # x = 1 … 3, y = 2, 3
    assert np.argwhere(covered).tolist() == [[2, 1], [2, 2], [2, 3], [3, 1], [3, 2], [3, 3]]
    image = np.arange(80, dtype=np.uint8).reshape(SHAPE)
    result = occluded(image, covered, "mean", "a", 42)
    assert (result[covered] == 40).all()  # 39.5, to the even neighbour
    np.testing.assert_array_equal(result[~covered], image[~covered])
    assert np.argwhere(control_of((1, 2, 3, 2)))[:, 1].tolist() == [6, 7, 8, 6, 7, 8]


@pytest.mark.parametrize(
    "box, rows, columns",
    [
        ((-3, -3, 5, 5), (0, 1), (0, 1)),  # partly outside: cut
        ((8.2, 6.9, 50, 50), (6, 7), (8, 9)),
        ((2.5, 2.5, 0.1, 0.1), (2, 2), (2, 2)),  # a touched pixel is covered
        ((2.0000000001, 2, 2, 2), (2, 3), (2, 3)),  # rounding of a rescaled box covers no further pixel
        ((0, 0, 10, 8), (0, 7), (0, 9)),
    ],
)
def test_pixels_of_boxes(box: tuple, rows: tuple[int, int], columns: tuple[int, int]):
    at = np.argwhere(mask_of(box))
    assert (at[:, 0].min(), at[:, 0].max()) == rows
    assert (at[:, 1].min(), at[:, 1].max()) == columns


@pytest.mark.parametrize(
    "box, reason",
    [
        ((1, 1, 0, 3), "box_empty"),
        ((1, 1, 3, -1), "box_empty"),
        ((np.nan, 1, 3, 1), "box_empty"),
        ((1, 1, np.inf, 1), "box_empty"),
        ((10, 1, 3, 1), "box_outside"),
        ((-5, 1, 5, 1), "box_outside"),
        ((1, 1e9, 5, 1), "box_outside"),
    ],
)
def test_boxes_that_cannot_be_covered(box: tuple, reason: str):
    with pytest.raises(DecodeError) as error:
        mask_of(box)
    assert error.value.reason == reason
    assert error.value.reason in VIEW_REASONS


def test_boxes_of_another_frame_are_rescaled():
    boxes = np.array([[100, 50, 20, 10], [1, 1, 2, 2], [3, 3, 2, 2]])
    frames = np.array([[1000, 800], [np.nan, np.nan], [10, 8]])
    scaled = boxes_in_image(boxes, frames, SHAPE)
    assert scaled.tolist() == [[1.0, 0.5, 0.2, 0.1], [1, 1, 2, 2], [3, 3, 2, 2]]
    unequal = boxes_in_image(np.array([[10, 10, 10, 10]]), np.array([[20, 80]]), SHAPE)
    assert unequal.tolist() == [[5.0, 1.0, 5.0, 1.0]]


def test_boxes_without_a_frame_must_fit():
    with pytest.raises(DecodeError) as error:
        boxes_in_image(np.array([[100, 50, 20, 10]]), np.full((1, 2), np.nan), SHAPE)
    assert error.value.reason == "box_out_of_frame"
    boxes_in_image(np.array([[-0.5, 0, 11, 8]]), np.full((1, 2), np.nan), SHAPE)  # less than a pixel is rounding


def test_all_boxes_of_a_finding_are_covered_together():
    image = np.arange(80, dtype=np.uint8).reshape(SHAPE)
    both = occluded(image, mask_of((0, 0, 2, 2), (5, 5, 2, 2)), "zero", "a", 42)
    assert (both[:2, :2] == 0).all()
    assert (both[5:7, 5:7] == 0).all()
    assert np.count_nonzero(both != image) == 7  # one of the eight was 0 before


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [(), (3,)])
def test_fills(fill: str, dtype: type, channels: tuple[int, ...]):
    top = np.iinfo(dtype).max
    random = np.random.default_rng(0)
    image = random.integers(0, top // 2, (60, 50, *channels)).astype(dtype)
    image[20:30, 10:20] = top
    covered = mask_of((10, 20, 10, 10), shape=(60, 50))
    result = occluded(image, covered, fill, "a", 42)
    np.testing.assert_array_equal(result[~covered], image[~covered])
    assert result.dtype == dtype
    assert (image[covered] == top).all()  # the input is untouched
    assert result[covered].mean() < 0.9 * top
    again = occluded(image, covered, fill, "a", 42)
    np.testing.assert_array_equal(result, again)
    if fill == "noise":
        assert (occluded(image, covered, fill, "b", 42) != result).any()
        assert (occluded(image, covered, fill, "a", 43) != result).any()
        assert abs(result[covered].mean() / image.mean() - 1) < 0.3
    if fill == "mean":
        np.testing.assert_allclose(result[covered][0], image.mean(axis=(0, 1)), atol=0.51)
    if fill == "blur":
        assert len(np.unique(result[covered])) > 10


def test_a_fill_that_is_not_one_and_an_image_that_would_vanish():
    image = np.arange(80, dtype=np.uint8).reshape(SHAPE)
    with pytest.raises(UserError, match="fill='black'"):
        occluded(image, mask_of((0, 0, 2, 2)), "black", "a", 42)
    with pytest.raises(DecodeError) as error:
        occluded(image, mask_of((0, 0, 10, 8)), "mean", "a", 42)
    assert error.value.reason == "box_covers_image"


def test_the_mirrored_control_has_the_same_size():
    assert np.array_equal(control_of((0, 1, 2, 3)), np.fliplr(mask_of((0, 1, 2, 3))))


def test_a_mirrored_box_that_touches_an_annotation_goes_elsewhere():
    central = mask_of((4, 3, 3, 2))
    places = {control_of((4, 3, 3, 2), image_id=f"{i}").tobytes() for i in range(40)}
    assert len(places) > 20  # at random
    for i in range(40):
        control = control_of((4, 3, 3, 2), image_id=f"{i}")
        assert control.sum() == central.sum()
        assert not (control & central).any()
    others = np.fliplr(mask_of((0, 1, 2, 3)))  # another finding stands where the mirror image would be
    control = control_of((0, 1, 2, 3), others=others)
    assert not (control & (others | mask_of((0, 1, 2, 3)))).any()
    assert control.sum() == 6


def test_random_places_are_uniform_over_the_free_ones():
    piece = Piece(0, 0, np.ones((1, 1), dtype=bool))
    annotated = np.ones((1, 9), dtype=bool)
    annotated[0, 5:8] = False
    annotated[0, 8] = True
    found = [control_pieces([piece], annotated, f"{i}", 1)[0].column for i in range(600)]
    assert set(found) == {5, 6, 7}
    assert min(found.count(column) for column in (5, 6, 7)) > 150


def test_the_control_does_not_depend_on_the_order_of_boxes():
    boxes = [(4, 3, 3, 2), (3, 0, 2, 2), (0, 6, 2, 2)]
    assert np.array_equal(control_of(*boxes), control_of(*boxes[::-1]))
    assert not np.array_equal(control_of(*boxes), control_of(*boxes, seed=43))


def test_a_control_that_fits_in_one_place_only_is_found_there():
    others = np.ones(SHAPE, dtype=bool)
    others[5:7, 3:6] = False
    control = control_of((4, 0, 3, 2), others=others)
    assert np.array_equal(control, ~others)


def test_no_room_for_a_control():
    with pytest.raises(DecodeError) as error:
        control_of((2, 0, 7, 8))
    assert error.value.reason == "no_control"


def test_masks_by_pixels_components_and_box():
    mask = np.zeros(SHAPE, np.uint8)
    mask[1, 1] = mask[2, 2] = mask[2, 3] = 255  # one part: corners connect
    mask[6, 8] = 9
    assert np.array_equal(union(mask_pieces(mask, "pixels"), SHAPE), mask != 0)
    assert len(mask_pieces(mask, "pixels")) == 2
    assert union(mask_pieces(mask, "components"), SHAPE).sum() == 2 * 3 + 1
    assert union(mask_pieces(mask, "box"), SHAPE).sum() == 6 * 8
    control = control_pieces(mask_pieces(mask, "pixels"), mask != 0, "a", 1)
    assert np.array_equal(union(control, SHAPE), np.fliplr(mask != 0))
    with pytest.raises(DecodeError) as error:
        mask_pieces(np.zeros(SHAPE))
    assert error.value.reason == "mask_empty"
    with pytest.raises(UserError, match="masks='all'"):
        mask_pieces(mask, "all")


def test_masks_of_another_size():
    mask = np.zeros((16, 20, 3), np.uint8)
    mask[4:8, 10:14, 0] = 255
    assert np.array_equal(mask_of_image(mask, SHAPE), mask_of((5, 2, 2, 2)))
    with pytest.raises(DecodeError) as error:
        mask_of_image(mask, (10, 8))
    assert error.value.reason == "mask_shape"


def test_a_mask_of_16_bits_counts_every_value_that_is_not_zero():
    mask = np.zeros(SHAPE, np.uint16)
    mask[2, 3], mask[4, 5] = 1, 300
    assert mask_of_image(mask, SHAPE).sum() == 2
    assert mask_of_image(np.stack([mask * 0, mask, mask * 0], axis=-1), SHAPE).sum() == 2


def test_many_components_are_placed_quickly():
    random = np.random.default_rng(0)
    mask = np.zeros((1500, 2000), bool)
    mask[random.integers(0, 1490, 300), random.integers(900, 1090, 300)] = True
    mask |= np.roll(mask, 1, 1)
    annotated = mask | np.fliplr(mask)
    control = union(control_pieces(mask_pieces(mask), annotated, "a", 1), mask.shape)
    assert not (control & annotated).any()
    assert control.sum() == mask.sum()


def test_reasons_are_documented():
    page = (ROOT / "docs" / "retention.md").read_text()
    for reason, text in VIEW_REASONS.items():
        assert f"| `{reason}` | {text} |" in page
