"""What the store is told about an image."""

from __future__ import annotations

import os

import numpy as np
import pytest

from candor_monai.data.store_rows import Sources, file_states, pixel_clusters, stat_sources, unusable_features


def test_a_nan_and_a_zero_row_are_unusable():
    features = np.array([[1, 2], [0, 0], [np.nan, 1], [-np.inf, 0]], dtype=np.float32)
    reasons = {row: reason for row, (reason, _) in unusable_features(features).items()}
    assert reasons == {1: "feature_zero", 2: "feature_not_finite", 3: "feature_not_finite"}


@pytest.mark.parametrize(
    "features",
    [
        np.zeros((0, 3), dtype=np.float32),
        np.full((1, 3), 1e-42, dtype=np.float32),  # its squares vanish in float32
        np.full((1, 3), 3e38, dtype=np.float32),  # its squares overflow in float32
        np.array([[-0.0, 1.0]], dtype=np.float32),
    ],
)
def test_usable_features(features):
    assert unusable_features(features) == {}


def test_negative_zeros_are_zeros():
    assert list(unusable_features(np.full((1, 2), -0.0, dtype=np.float32))) == [0]


@pytest.mark.parametrize(
    "digests, codes",
    [
        ([], []),
        ([None], [0]),
        ([None, None], [0, 1]),
        ([b"a", b"a", b"b", b"a"], [0, 0, 1, 0]),
        ([float("nan")] * 2, [0, 1]),
    ],
)
def test_pixel_clusters(digests, codes):
    found = pixel_clusters(digests)
    assert found.dtype == np.int64
    assert found.tolist() == codes


def test_stat_sources(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    os.utime(path, ns=(5, 7))
    found = stat_sources([path, tmp_path / "none", None, "a\0b"])
    assert found.size.tolist() == [5, -1, -1, -1]
    assert found.mtime_ns.tolist() == [7, -1, -1, -1]
    assert len(stat_sources([path] * 1001).size) == 1001


def test_rows_of_sources():
    taken = Sources(np.arange(3), np.arange(3) + 10).take(np.array([2, 0]))
    assert (taken.size.tolist(), taken.mtime_ns.tolist()) == ([2, 0], [12, 10])


def test_an_image_inside_an_archive_has_the_state_of_the_archive(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"abc")
    paths = [tmp_path / "a.zip", f"{tmp_path}/a.zip/x/y.dcm", tmp_path / "a.zip/x/z.dcm", tmp_path / "no/a.dcm", None]
    found = file_states(paths)
    assert found.size.tolist() == [3, 3, 3, -1, -1]
    assert found.mtime_ns.tolist()[:3] == [(tmp_path / "a.zip").stat().st_mtime_ns] * 3
