"""Loading transforms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from candor_monai.transforms import LoadRadiograph, LoadRadiographd
from candor_monai.utils.errors import DecodeError
from tests.data.dicom_corpus import dicom_bytes, ramp


def test_by_hand(tmp_path):
    Image.fromarray(np.array([[1, 2, 3], [4, 5, 6]], dtype=np.uint8)).save(tmp_path / "a.png")
    image = LoadRadiograph(isolated=False)(tmp_path / "a.png")
    assert image.tolist() == [[[1, 2, 3], [4, 5, 6]]]
    assert image.dtype == torch.uint8
    assert (image.meta["rows"], image.meta["columns"], image.meta["original_channel_dim"]) == (2, 3, 0)


def test_the_dictionary_twin_maps_its_keys(tmp_path):
    (tmp_path / "a.dcm").write_bytes(dicom_bytes(ramp()))
    load = LoadRadiographd(["image", "prior"], allow_missing_keys=True, voi="none")
    item = load({"image": tmp_path / "a.dcm", "id": "x"})
    assert torch.equal(item["image"], LoadRadiograph(voi="none")(tmp_path / "a.dcm"))
    assert item["id"] == "x"
    assert item["image"].dtype == torch.uint16
    assert "filename_or_obj" not in item["image"].meta


def test_bytes_and_errors():
    rgb = np.random.default_rng(0).integers(0, 255, (4, 5, 3), dtype=np.uint8)
    assert LoadRadiograph()(dicom_bytes(rgb, photometric="RGB")).shape == (3, 4, 5)
    with pytest.raises(DecodeError):
        LoadRadiographd("image")({"image": b"nothing"})
    with pytest.raises(KeyError):
        LoadRadiographd("image")({})
