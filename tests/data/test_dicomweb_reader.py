"""Reading ahead from a PACS: order, bounds, the cache and its limit."""

from __future__ import annotations

import threading
import time

import pytest

from candor_monai.data.dicomweb_reader import PacsReader
from candor_monai.utils import DecodeError

IMAGES = [f"studies/1/series/2/instances/{i}" for i in range(40)]


def reader_of(client, images, **how):
    reader = PacsReader(client, **how)
    reader.expect(images)
    return reader


class Client:
    """Answers with the instance's number; knows how many were asked at once."""

    url = "http://pacs"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.now = self.most = 0
        self.lock = threading.Lock()

    def instance(self, study, series, instance):
        with self.lock:
            self.asked.append(instance)
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.005)
        with self.lock:
            self.now -= 1
        if instance == "13":
            raise DecodeError("gone", "the server no longer has it")
        return instance.encode() * 10


def test_every_image_once_and_ahead():
    client = Client()
    reader = reader_of(client, IMAGES, concurrency=4)
    for i, image in enumerate(IMAGES):
        if i == 13:
            with pytest.raises(DecodeError, match="no longer"):
                reader(image)
        else:
            assert reader(image) == str(i).encode() * 10
    assert sorted(map(int, client.asked)) == list(range(40))
    assert 1 < client.most <= 4


def test_what_is_not_asked_for_does_not_pile_up():
    client = Client()
    reader = reader_of(client, IMAGES, concurrency=2)
    for image in IMAGES[::13]:
        if not image.endswith("/13"):
            reader(image)
    assert len(reader._ahead) <= 8


def test_cache_is_used_and_bounded(tmp_path):
    client = Client()
    reader = reader_of(client, IMAGES[:10], concurrency=1, cache_dir=tmp_path, cache_bytes=1000)
    first = [reader(image) for image in IMAGES[:10]]
    asked = len(client.asked)
    again = reader_of(client, IMAGES[:10], concurrency=1, cache_dir=tmp_path, cache_bytes=1000)
    assert [again(image) for image in IMAGES[:10]] == first
    assert len(client.asked) == asked
    small = reader_of(client, IMAGES[20:30], concurrency=1, cache_dir=tmp_path, cache_bytes=150)
    for image in IMAGES[20:30]:
        small(image)
    assert sum(p.stat().st_size for p in tmp_path.rglob("*.dcm")) <= 150


def test_a_cache_that_another_process_empties(tmp_path, monkeypatch):
    client = Client()
    reader = reader_of(client, IMAGES[:3], concurrency=1, cache_dir=tmp_path, cache_bytes=1000)
    assert reader(IMAGES[0]) == b"0" * 10
    kept = reader._file(IMAGES[0])
    monkeypatch.setattr(type(kept), "is_file", lambda self: True)  # it was there a moment ago
    kept.unlink()
    assert reader(IMAGES[0]) == b"0" * 10
    monkeypatch.undo()
    gone = tmp_path / "ab" / "gone.dcm"
    monkeypatch.setattr(type(tmp_path), "glob", lambda self, pattern: iter([gone, kept]))
    again = reader_of(client, IMAGES[20:30], concurrency=1, cache_dir=tmp_path, cache_bytes=15)
    assert again(IMAGES[20]) == b"20" * 10
    assert again(IMAGES[1]) == b"1" * 10
