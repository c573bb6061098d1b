"""The MONAI reader: our axes and metadata beside MONAI's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from monai.data import DataLoader, Dataset
from monai.transforms import LoadImage, LoadImaged
from PIL import Image

from candor_monai.data.decoding import decode
from candor_monai.data.radiograph_reader import RadiographReader
from candor_monai.utils.errors import DecodeError, UserError
from tests.data.dicom_corpus import SECRET, dicom_bytes, ramp


@pytest.fixture
def png(tmp_path):
    Image.fromarray(np.arange(0, 150, dtype=np.uint8).reshape(15, 10)).resize((20, 30)).save(tmp_path / "a.png")
    return tmp_path / "a.png"


def test_rows_by_columns_where_monai_gives_columns_by_rows(tmp_path):
    Image.fromarray(np.arange(600, dtype=np.uint16).astype(np.uint8).reshape(20, 30)).save(tmp_path / "a.png")
    path = tmp_path / "a.png"  # 20 rows × 30 columns
    assert LoadImage(reader="PILReader")(path).shape == (30, 20)
    image = LoadImage(reader=RadiographReader)(path)
    assert image.shape == (20, 30)
    np.testing.assert_array_equal(image.numpy(), np.asarray(Image.open(path)))


def test_dicom_is_windowed_and_not_inverted_where_monai_does_neither(tmp_path):
    path = tmp_path / "a.dcm"
    path.write_bytes(dicom_bytes(ramp(), photometric="MONOCHROME1", WindowCenter="2048", WindowWidth="4096"))
    image = LoadImage(reader=RadiographReader, dtype=None)(path)
    np.testing.assert_array_equal(image.numpy(), decode(path).pixels)
    assert image[0, 0] == 65535


@pytest.mark.parametrize("isolated", [True, False])
def test_files_with_different_headers_collate(tmp_path, isolated):
    (tmp_path / "a.dcm").write_bytes(dicom_bytes(ramp(), secrets=True, WindowCenter="2048", WindowWidth="4096"))
    (tmp_path / "b.dcm").write_bytes(dicom_bytes(ramp(), RescaleSlope="-1", RescaleIntercept="0"))
    Image.fromarray(ramp(dtype=np.uint8, top=255)).save(tmp_path / "c.png")
    reader = RadiographReader(isolated=isolated)
    load = LoadImaged("image", reader=reader, ensure_channel_first=True)
    dataset = Dataset([{"image": str(tmp_path / name)} for name in ("a.dcm", "b.dcm", "c.png")], load)
    (batch,) = DataLoader(dataset, batch_size=3)
    assert batch["image"].shape == (3, 1, 6, 4)
    assert batch["image"].meta["format"] == ["dicom", "dicom", "png"]
    assert SECRET not in str(batch["image"].meta)


def test_colour_has_its_channels_first(tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    assert LoadImage(reader=RadiographReader, ensure_channel_first=True)(tmp_path / "a.png").shape == (3, 5, 7)


def test_the_reason_arrives_through_monai(tmp_path):
    (tmp_path / "a.dcm").write_bytes(b"nothing")
    with pytest.raises(DecodeError) as error:
        LoadImaged("image", reader=RadiographReader)({"image": tmp_path / "a.dcm"})
    assert error.value.reason == "unknown_format"


def test_loader_workers_can_use_it(png):
    load = LoadImaged("image", reader=RadiographReader, dtype=torch.uint8, ensure_channel_first=True)
    dataset = Dataset([{"image": str(png)}] * 4, load)
    (batch,) = DataLoader(dataset, batch_size=4, num_workers=1)
    assert batch["image"].shape == (4, 1, 30, 20)


def test_options_by_name_and_bad_use():
    assert RadiographReader(voi="window").options.voi == "window"
    with pytest.raises(UserError):
        RadiographReader(voi="other")
    with pytest.raises(ValueError, match="one file, got 2"):
        RadiographReader().get_data(["a", "b"])
    assert RadiographReader().verify_suffix("anything.xyz")
