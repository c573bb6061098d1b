"""Cards of unknown origin: a mapping, or one line that names file and line."""

from __future__ import annotations

import pytest

from candor_monai.utils import UserError, read_yaml


def test_a_mapping(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\nb: [2]\n")
    assert read_yaml(path) == {"a": 1, "b": [2]}


@pytest.mark.parametrize(
    "content,words",
    [
        (b"a: 1\n? [1, 2]\n: x\n", ", line 2: not valid YAML: a list cannot be a key"),
        (b"a: {b: 1}\n? {c: 1}\n: x\n", ", line 2: not valid YAML: a dict cannot be a key"),
        (b"title: {name}\n{x}: 1\n", ", line 2: not valid YAML"),
        (b"a: 1\na: 2\n", ", line 2: not valid YAML: key 'a' is written twice"),
        (b"a: 1\nb: \0\n", ", line 2: not valid YAML: "),
        (b"a: 1\nb: \xff\n", ", line 2: not UTF-8 text"),
        (b"a: [1\n", "not valid YAML"),
        (b"a: !!python/object/apply:os.system [ls]\n", ", line 1: not valid YAML: could not determine a constructor"),
        (b"a: 2024-13-45\n", "a value is not what it looks like: month must be in 1..12"),
        (b"a: !!int word\n", "a value is not what it looks like"),
        (b"a: !!timestamp word\n", "a value is not what it looks like"),
        (b"a: 1\n---\nb: 2\n", "not valid YAML: but found another document"),
        (b"[" * 5000 + b"]" * 5000, "nested too deeply"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "Git LFS pointer"),
        (b"", "must hold a mapping, is empty"),
        (b"- a\n", "must hold a mapping, holds list"),
    ],
    ids=lambda value: repr(value[:12]) if isinstance(value, bytes) else None,
)
def test_anything_else_is_one_line(content, words, tmp_path):
    path = tmp_path / "card.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_yaml(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert words in message
    assert "\n" not in message


def test_missing_and_a_folder(tmp_path):
    with pytest.raises(UserError, match=r"none\.yaml: cannot be read: No such file or directory\.$"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(UserError, match=r"cannot be read: Is a directory\.$"):
        read_yaml(tmp_path)


def test_references_that_multiply(tmp_path):
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    path = tmp_path / "card.yaml"
    path.write_text("\n".join(lines[:4]))
    assert read_yaml(path)["a3"][9][9][9] == [1] * 10
    path.write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"card\.yaml: its references .* make more than 1,000,000 values"):
        read_yaml(path)
