"""Archives: members read in memory, limits kept, damage told."""

from __future__ import annotations

import zipfile

import pytest

from candor_monai.data.archives import ArchiveReader, members, read_member, split_archive
from candor_monai.utils import DecodeError


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "x" / "study.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("a/IM1", b"one")
        opened.writestr("big", bytes(1 << 20))
        opened.writestr("__MACOSX/a", b"")
        opened.writestr("a/.hidden", b"")
        opened.writestr("empty/", b"")
    return path


def test_members_by_hand(archive, tmp_path):
    assert members(archive) == ["a/IM1", "big"]
    assert split_archive(tmp_path / "x/study.zip/a/IM1") == (archive, "a/IM1")
    assert split_archive(tmp_path / "x/none/a") is None
    reader = ArchiveReader(tmp_path)
    assert reader("x/study.zip/a/IM1") == b"one"
    assert reader("x/study.zip") == archive


def test_directory_is_read_once_and_anew_when_it_changes(archive, monkeypatch):
    opened = []
    real = zipfile.ZipFile

    def counting(*arguments, **options):
        opened.append(arguments[0])
        return real(*arguments, **options)

    monkeypatch.setattr("candor_monai.data.archives.zipfile.ZipFile", counting)
    for _ in range(5):
        assert read_member(archive, "a/IM1") == b"one"
    assert len(opened) == 1
    with real(archive, "w") as other:
        other.writestr("a/IM1", b"another")
    assert read_member(archive, "a/IM1") == b"another"
    assert len(opened) == 2


def test_limits_and_damage(archive):
    with pytest.raises(DecodeError, match="larger than 1,000 bytes") as error:
        read_member(archive, "big", largest=1000)
    assert error.value.reason == "too_large"
    with pytest.raises(DecodeError) as error:
        read_member(archive, "gone")
    assert error.value.reason == "missing_file"
    raw = bytearray(archive.read_bytes())
    raw[raw.index(b"one" if b"one" in raw else b"a/IM1") + 6] ^= 0xFF
    archive.write_bytes(raw)
    with pytest.raises(DecodeError) as error:
        read_member(archive, "a/IM1")
    assert error.value.reason == "bad_archive"


def test_encrypted_members_are_told(archive):
    raw = bytearray(archive.read_bytes())
    for mark in (b"PK\x03\x04", b"PK\x01\x02"):
        at = raw.index(mark)
        raw[at + (6 if mark[2] == 3 else 8)] |= 1
    archive.write_bytes(raw)
    with pytest.raises(DecodeError) as error:
        read_member(archive, "a/IM1")
    assert error.value.reason == "encrypted"


def test_not_an_archive(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(DecodeError) as error:
        members(tmp_path / "a.zip")
    assert error.value.reason == "bad_archive"
