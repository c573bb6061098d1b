"""One run at a time in a folder (locks of killed runs: test_feature_store_faults.py)."""

from __future__ import annotations

import os

import pytest

from candor_monai.data.feature_store import FeatureStore
from candor_monai.data.folder_lock import folder_lock
from candor_monai.utils import UserError


def test_the_second_holder_is_told_and_the_next_is_not(tmp_path):
    out = tmp_path / "out"
    with folder_lock(out), pytest.raises(UserError, match="in use by this process"), folder_lock(out):
        pass
    with folder_lock(tmp_path / "out"):
        assert (tmp_path / "out" / ".lock").read_text() == f"{os.getpid()}\n"


def test_the_same_folder_by_another_name_is_the_same_folder(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    with folder_lock(tmp_path), pytest.raises(UserError, match="in use"), folder_lock(tmp_path / "link"):
        pass


def test_a_store_locks_its_folder(tmp_path):
    store = FeatureStore(tmp_path / "store", {})
    with store.lock(), pytest.raises(UserError, match="in use"), folder_lock(store.folder):
        pass


def test_an_error_inside_gives_the_folder_back(tmp_path):
    with pytest.raises(KeyError), folder_lock(tmp_path):
        raise KeyError
    with folder_lock(tmp_path):
        pass


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match="cannot be made"), folder_lock(tmp_path / "file" / "out"):
        pass


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    def refuses(*args):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", refuses)
    with pytest.raises(UserError, match="cannot be written: Read-only file system"), folder_lock(tmp_path):
        pass


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def refuses(*args):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("candor_monai.data.folder_lock.fcntl.lockf", refuses)
    with pytest.raises(UserError, match="cannot lock files"), folder_lock(tmp_path):
        pass
