"""Companions on disk that are none: one line, whatever stands in the file."""

from __future__ import annotations

import io

import numpy as np
import pytest

from candor_monai.handlers.companion_files import read_companions_file
from candor_monai.utils.errors import UserError


def _npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _header(text):
    return _npz(header=np.frombuffer(text, dtype=np.uint8))


def _npy():
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


WHOLE = _npz(header=np.arange(9999, dtype=np.uint8))
FAULTS = {
    "empty": b"",
    "junk": b"junk" * 9,
    "one array": _npy(),
    "no header": _npz(a=np.zeros(3)),
    "cut": WHOLE[:-30],
    "overwritten": WHOLE[:80] + bytes(40) + WHOLE[120:],
    "header cut": _header(b"{"),
    "header list": _header(b"[]"),
    "header empty": _header(b"{}"),
    "header deep": _header(b"[" * 100_000),
    "objects": _npz(header=np.array([object()], dtype=object)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_companions_file_is_one_line(fault, tmp_path):
    path = tmp_path / "companions.npz"
    path.write_bytes(FAULTS[fault])
    with pytest.raises(UserError, match=r"companions\.npz: cannot be read as an evaluation's companions"):
        read_companions_file(path)


def test_a_folder_and_nothing(tmp_path):
    for path in (tmp_path, tmp_path / "none.npz"):
        with pytest.raises(UserError, match="cannot be read as an evaluation's companions"):
            read_companions_file(path)


@pytest.mark.parametrize("version, words", [(99, "a later version"), (1, "an earlier version.*run `score` again")])
def test_another_version(version, words, tmp_path):
    path = tmp_path / "companions.npz"
    path.write_bytes(_header(b'{"schema_version": %d, "entries": []}' % version))
    with pytest.raises(UserError, match=words):
        read_companions_file(path)
