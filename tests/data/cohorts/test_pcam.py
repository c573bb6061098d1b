"""PCam: HDF5 layout, slides, and files of valid and test mixed up."""

from __future__ import annotations

import io
import os
import pickle

import numpy as np
import pytest

from candor_monai.data import load_cohort
from candor_monai.data.cohorts.pcam import TILES, TileReader
from candor_monai.utils import UserError

from .trees import labels_of, touch, write_rows

h5py = pytest.importorskip("h5py", reason="h5py is not installed")
from PIL import Image  # noqa: E402


def part(root, name, y, slide, meta=True):
    x = np.random.default_rng(len(name)).integers(0, 256, (len(y), 96, 96, 3), dtype=np.uint8)
    stem = f"camelyonpatch_level_2_split_{name}"
    with h5py.File(root / f"{stem}_x.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(2, 96, 96, 3))
    with h5py.File(root / f"{stem}_y.h5", "w") as file:
        file["y"] = np.array(y, np.uint8).reshape(-1, 1, 1, 1)
    rows = [
        {"": i, "coord_y": 1, "coord_x": 2, "tumor_patch": "True", "center_tumor_patch": str(bool(v)), "wsi": slide}
        for i, v in enumerate(y)
    ]
    if meta:
        write_rows(root / f"{stem}_meta.csv", rows)
    return x


def test_two_splits_by_hand(tmp_path):
    x = part(tmp_path, "train", [1, 0, 1], "camelyon16_train_tumor_001")
    part(tmp_path, "valid", [0, 1], "camelyon16_train_tumor_009", meta=False)
    cohort = load_cohort("pcam", tmp_path)
    assert labels_of(cohort, "Tumor") == {
        "train/000000": 1,
        "train/000001": 0,
        "train/000002": 1,
        "valid/000000": 0,
        "valid/000001": 1,
    }
    assert cohort.records["split"].tolist() == ["train"] * 3 + ["val"] * 2
    assert cohort.records["patient_id"].isna().tolist() == [False] * 3 + [True] * 2
    for reader in (cohort, pickle.loads(pickle.dumps(cohort))):
        tile = np.asarray(Image.open(io.BytesIO(reader.source(2))))
        assert np.array_equal(tile, x[2])


def test_valid_and_test_mixed_up(tmp_path):
    part(tmp_path, "valid", [0, 1], "s1")
    part(tmp_path, "test", [1, 0], "s2")
    a = tmp_path / "camelyonpatch_level_2_split_valid_y.h5"
    b = tmp_path / "camelyonpatch_level_2_split_test_y.h5"
    swap = tmp_path / "swap"
    a.rename(swap), b.rename(a), swap.rename(b)
    with pytest.raises(UserError, match="valid and test may have been mixed up"):
        load_cohort("pcam", tmp_path)


def test_a_slide_in_two_splits(tmp_path):
    part(tmp_path, "train", [0, 1], "s1")
    part(tmp_path, "test", [0, 1], "s1")
    with pytest.raises(UserError, match="slide s1 is in two splits"):
        load_cohort("pcam", tmp_path)


def test_file_inside_a_folder_of_its_name(tmp_path):
    part(tmp_path, "test", [0, 1], "s1")
    name = "camelyonpatch_level_2_split_test_x.h5"
    (tmp_path / name).rename(tmp_path / "x")
    (tmp_path / name).mkdir()
    (tmp_path / "x").rename(tmp_path / name / name)
    cohort = load_cohort("pcam", tmp_path)
    assert len(cohort.source(1)) > 100


def test_what_is_refused(tmp_path):
    touch(tmp_path, ["camelyonpatch_level_2_split_train_x.h5.gz"])
    with pytest.raises(UserError, match="gunzip"):
        load_cohort("pcam", tmp_path)
    part(tmp_path, "train", [0, 1], "s1")
    (tmp_path / "camelyonpatch_level_2_split_train_y.h5").unlink()
    with pytest.raises(UserError, match=r"_y\.h5 is missing"):
        load_cohort("pcam", tmp_path)
    part(tmp_path, "train", [0, 1], "s1")
    path = tmp_path / "camelyonpatch_level_2_split_train_x.h5"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match="download may be incomplete"):
        load_cohort("pcam", tmp_path)
    with h5py.File(path, "w") as file:
        file.create_group("x")
    with pytest.raises(UserError, match="not an HDF5 file with a dataset x"):
        load_cohort("pcam", tmp_path)


class Interrupted(TileReader):
    """Another thread keeps a block of its own as soon as this one has kept one."""

    @property
    def _block(self):
        return self.__dict__.get("kept")

    @_block.setter
    def _block(self, block):
        self.__dict__["kept"] = None if block is None else ("x.h5", 0, np.zeros((TILES, 1, 1, 3), np.uint8))


def test_threads_that_read_tiles_at_once_get_their_own(tmp_path):
    reader = Interrupted(tmp_path)
    tiles = np.zeros((2 * TILES, 1, 1, 3), np.uint8)
    tiles[TILES + 3] = 7
    reader._open[os.getpid(), "x.h5"] = tiles
    assert reader._tile("x.h5", TILES + 3).tolist() == [[[7, 7, 7]]]
