"""A matrix on disk that is made once and never trusted blindly."""

from __future__ import annotations

import numpy as np
import pytest

from candor_monai.data.consolidated import kept_matrix, temporary_matrix

SHAPE = (3, 2)


def filler(value, calls):
    def fill(matrix):
        calls.append(value)
        matrix[:] = value

    return fill


def refused(path, why):
    path.unlink()


def test_made_once_per_key(tmp_path):
    calls = []
    for key, value in (("aa", 1), ("aa", 2), ("bb", 3), ("aa", 4)):
        matrix = kept_matrix(tmp_path / "c", key, SHAPE, filler(value, calls), refused)
        assert matrix.dtype == np.float32
        assert (matrix == calls[-1]).all()
    assert calls == [1, 3, 4]  # one matrix at a time is kept
    assert len(list((tmp_path / "c").iterdir())) == 1


def test_an_altered_file_is_made_again(tmp_path):
    calls = []
    kept_matrix(tmp_path, "aa", SHAPE, filler(1, calls), refused)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    assert (kept_matrix(tmp_path, "aa", SHAPE, filler(2, calls), refused) == 2).all()


def test_a_failure_while_filling_leaves_nothing(tmp_path):
    def fill(matrix):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        kept_matrix(tmp_path, "aa", SHAPE, fill, refused)
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_matrix_has_no_name(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    matrix = temporary_matrix(SHAPE, filler(5, []))
    assert (matrix == 5).all()
    assert not matrix.flags.writeable
    assert list(tmp_path.iterdir()) == []
