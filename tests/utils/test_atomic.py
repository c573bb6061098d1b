"""Files that are whole or absent, written by many threads."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from candor_monai.utils.atomic import atomic_path, atomic_write


def test_whole_or_absent(tmp_path: Path) -> None:
    atomic_write(tmp_path / "sub" / "a.txt", "ü")
    assert (tmp_path / "sub" / "a.txt").read_bytes() == "ü".encode()
    with pytest.raises(TypeError), atomic_path(tmp_path / "sub" / "a.txt") as temporary:
        temporary.write_bytes("half")  # type: ignore[arg-type]
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["a.txt"]
    assert (tmp_path / "sub" / "a.txt").read_bytes() == "ü".encode()


def test_threads_keep_the_file_mode_mask(tmp_path: Path) -> None:
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
