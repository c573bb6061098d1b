"""OccludeBox and its dictionary twin: the pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.data.utils import list_data_collate

from candor_monai.transforms import CanonicalImaged, OccludeBox, OccludeBoxd
from candor_monai.utils.errors import DecodeError, UserError

IMAGE = np.arange(80, dtype=np.uint8).reshape(1, 8, 10)


def test_by_hand():
    result = OccludeBox(fill="zero")(IMAGE, boxes=[[1, 2, 3, 2]])
    expected = IMAGE.copy()
    expected[0, 2:4, 1:4] = 0
    np.testing.assert_array_equal(result, expected)
    control = OccludeBox(fill="zero", region="control")(IMAGE, boxes=[[1, 2, 3, 2]])
    expected = IMAGE.copy()
    expected[0, 2:4, 6:9] = 0
    np.testing.assert_array_equal(control, expected)


@pytest.mark.parametrize("kind", ["numpy", "torch", "meta"])
@pytest.mark.parametrize("channels", [1, 3])
def test_array_types(kind: str, channels: int):
    pixels = np.repeat(IMAGE, channels, axis=0)
    image = {"numpy": pixels, "torch": torch.from_numpy(pixels), "meta": MetaTensor(pixels, meta={"rows": 8})}[kind]
    result = OccludeBox(fill="mean")(image, boxes=torch.tensor([[1.0, 2.0, 3.0, 2.0]]))
    assert type(result) is type(image)
    assert result.shape == image.shape
    assert (np.asarray(result)[:, 2:4, 1:4] == 40).all()
    assert (np.asarray(image) == pixels).all()


def test_occlusion_happens_before_the_resize():
    """Covered in the source and then squashed, so the region has soft edges."""
    item = {"image": np.full((1, 90, 60), 200, np.uint8), "boxes": [[20, 30, 11, 17]], "image_id": "a"}
    item["image"][0, 0, 0] = 100
    occluded = CanonicalImaged("image", size=30)(OccludeBoxd("image", fill="zero")(item))["image"][0]
    assert occluded.shape == (30, 30)
    assert (occluded[11:15, 11:15] < 20).all()
    assert (occluded[:8] > 150).all()
    row = occluded[13].tolist()
    assert any(20 < value < 180 for value in row)  # column 31 / 2 = 15.5: a half covered pixel


def test_dictionary_twin_tells_what_could_not_be_covered():
    control = OccludeBoxd("image", region="control", fill="zero")
    items = [
        control({"image": IMAGE, "boxes": np.array([[1, 2, 3, 2]]), "image_id": "a"}),
        control({"image": IMAGE, "boxes": np.array([[1, 0, 8, 8]]), "image_id": "b"}),
    ]
    assert [(item["image_occluded"], item["image_reason"]) for item in items] == [(True, ""), (False, "no_control")]
    np.testing.assert_array_equal(items[1]["image"], IMAGE)
    batch = list_data_collate(items)
    assert batch["image"].shape == (2, 1, 8, 10)
    assert batch["image_occluded"].tolist() == [True, False]


def test_masks_other_findings_and_ids():
    mask = np.zeros((1, 8, 10), bool)
    mask[0, 3, 4:6] = True
    occlude = OccludeBoxd("image", box_key=None, mask_key="mask", other_key="others", region="control", fill="zero")
    item = {"image": IMAGE, "mask": mask, "others": np.array([[0, 0, 10, 3]]), "image_id": "a"}
    result = occlude(item)["image"]
    changed = np.argwhere(result[0] != IMAGE[0])
    assert len(changed) == 2
    assert changed[:, 0].min() >= 3
    assert not mask[0][tuple(changed.T)].any()
    np.testing.assert_array_equal(result, occlude(item)["image"])
    assert (occlude({**item, "image_id": "b"})["image"] != result).any()


def test_bad_use():
    for bad in ({"fill": "black"}, {"region": "left"}, {"masks": "all"}):
        with pytest.raises(UserError, match="use one of"):
            OccludeBox(**bad)
    with pytest.raises(UserError, match="uint8 or uint16"):
        OccludeBox()(IMAGE.astype(np.float32), boxes=[[1, 1, 1, 1]])
    with pytest.raises(UserError, match="boxes or a mask"):
        OccludeBox()(IMAGE)
    with pytest.raises(UserError, match="the mask has shape"):
        OccludeBox()(IMAGE, mask=np.ones((2, 2)))
    with pytest.raises(DecodeError, match="outside"):
        OccludeBox()(IMAGE, boxes=[[50, 1, 1, 1]])
