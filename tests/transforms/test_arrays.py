"""Arrays in and out of transforms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from monai.data import MetaTensor

from candor_monai.transforms.arrays import pixels_of, tensor_like

VALUES = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)


@pytest.mark.parametrize("image", [VALUES, torch.from_numpy(VALUES), MetaTensor(torch.from_numpy(VALUES))])
def test_values_of_any_kind(image):
    assert type(pixels_of(image)) is np.ndarray
    assert pixels_of(image).tolist() == VALUES.tolist()


def test_metadata_go_on():
    image = MetaTensor(torch.from_numpy(VALUES), meta={"format": "dicom"})
    found = tensor_like(VALUES, image)
    assert found.meta["format"] == "dicom"
    assert not isinstance(tensor_like(VALUES, VALUES), MetaTensor)
