"""Files that are whole or absent."""

from __future__ import annotations

import pytest

from candor_monai.utils.atomic import atomic_path, atomic_write


def test_whole_or_absent(tmp_path):
    atomic_write(tmp_path / "new" / "a.txt", "é")
    assert (tmp_path / "new" / "a.txt").read_bytes() == "é".encode()

    def half():
        with atomic_path(tmp_path / "b.txt") as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_permissions_that_are_asked_for(tmp_path):
    atomic_write(tmp_path / "a", "x", 0o600)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
