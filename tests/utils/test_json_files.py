"""JSON files of unknown origin: a mapping, or one line that names the file."""

from __future__ import annotations

import pytest

from candor_monai.utils import UserError, WeightsError, read_json

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"


def test_a_mapping_with_and_without_byte_order_mark(tmp_path):
    path = tmp_path / "a.json"
    for content in (b'{"a": 1}', b'\xef\xbb\xbf{"a": 1}'):
        path.write_bytes(content)
        assert read_json(path) == {"a": 1}


@pytest.mark.parametrize(
    "content,words",
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (POINTER, "Git LFS pointer"),
        (b"{", "not JSON"),
        (b'{"a": "\0"}', "not JSON"),
        (b"\0" * 64, "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[]", "holds a list"),
        (b"null", "holds null"),
        (b'"text"', "holds a text"),
        (b"true", "holds true or false"),
        (b"3", "holds a number"),
        (b"[" * 200_000 + b"]" * 200_000, "nested too deeply"),
        (b'{"a":' * 200_000 + b"1" + b"}" * 200_000, "nested too deeply"),
    ],
    ids=lambda value: repr(value[:8]) if isinstance(value, bytes) else None,
)
def test_anything_else_is_one_line(content, words, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(WeightsError) as caught:
        read_json(path, WeightsError)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert words in message
    assert "\n" not in message


def test_missing_and_a_folder(tmp_path):
    with pytest.raises(UserError, match=r"none\.json: cannot be read: No such file"):
        read_json(tmp_path / "none.json")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read_json(tmp_path)
