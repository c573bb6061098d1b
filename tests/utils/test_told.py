"""What ends a run in one line, and what keeps its traceback."""

from __future__ import annotations

import errno
import os

import pytest

from candor_monai.utils import UserError, atomic_write
from candor_monai.utils.told import told_briefly, told_once


def _raising(error):
    @told_briefly
    def run():
        raise error

    return run


@pytest.mark.parametrize(
    "error,line",
    [
        (UserError("no such finding"), "candor_monai: no such finding"),
        (PermissionError(errno.EACCES, "Permission denied", "/a/b.csv"), "candor_monai: /a/b.csv: Permission denied."),
        (OSError(errno.ENOSPC, "No space left on device"), "candor_monai: the disk: No space left on device."),
        (OSError(errno.EISDIR, "Is a directory", b"/a/b"), "candor_monai: /a/b: Is a directory."),
        (OSError(errno.EXDEV, "Invalid link", "/tmp/x", None, "/a/b"), "candor_monai: /a/b: Invalid link."),
    ],
)
def test_one_line(error, line):
    with pytest.raises(SystemExit) as caught:
        _raising(error)()
    assert caught.value.code == line


@pytest.mark.parametrize(
    "error", [ValueError("a defect"), OSError("a library's own"), ConnectionResetError(errno.ECONNRESET, "reset")]
)
def test_a_defect_keeps_its_traceback(error):
    with pytest.raises(type(error)) as caught:
        _raising(error)()
    assert caught.value is error


@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_first_process_tells_a_full_disk(rank, monkeypatch):
    monkeypatch.setenv("RANK", rank)

    @told_once
    def run():
        raise OSError(errno.ENOSPC, "No space left on device", "/a/results.json")

    with pytest.raises(SystemExit) as caught:
        run()
    assert caught.value.code == ("candor_monai: /a/results.json: No space left on device." if rank == "0" else 1)


def test_the_file_meant_is_named_and_not_its_temporary(tmp_path, monkeypatch):
    (tmp_path / "results.json" / "below").mkdir(parents=True)
    with pytest.raises(SystemExit, match=r"results\.json: Is a directory\.$") as caught:
        told_briefly(atomic_write)(tmp_path / "results.json", "{}")
    assert ".tmp" not in caught.value.code

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SystemExit, match=r"table\.csv: No space left on device\.$") as caught:
        told_briefly(atomic_write)(tmp_path / "table.csv", "a,b\n")
    assert ".tmp" not in caught.value.code
    (tmp_path / "file").write_text("x")
    with pytest.raises(SystemExit, match=r"file: (Not a directory|File exists)\.$"):
        told_briefly(atomic_write)(tmp_path / "file" / "table.csv", "a,b\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "results.json"]
