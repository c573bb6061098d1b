"""Files that are whole or absent, written by many threads."""

from __future__ import annotations

import os
import threading

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


def test_threads_keep_the_file_mode_mask(tmp_path):
    before = os.umask(0o027)
    try:
        threads = [
            threading.Thread(target=lambda n=n: [atomic_write(tmp_path / f"{n}", b"x") for _ in range(30)])
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert os.umask(0o027) == 0o027
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}
    finally:
        os.umask(before)
