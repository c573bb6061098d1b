"""Heads on disk: whole, with their card, and nothing else accepted."""

import json

import pytest
import torch
from safetensors.torch import save_file

from candor_monai.networks.head_files import (
    SCHEMA_VERSION,
    head_card,
    load_heads,
    read_head_card,
    save_heads,
    training_ids_digest,
)
from candor_monai.networks.linear_heads import HeadOptions, HeadWeights
from candor_monai.utils import UserError, WeightsError

WEIGHTS = HeadWeights(torch.arange(12.0).reshape(2, 2, 3), torch.tensor([[0.5, -0.5], [0.0, 1.0]]))


def _card() -> dict:
    return head_card(["a", "b"], [0.25, None], HeadOptions(), ["y", "x"], {"name": "e", "fingerprint": {"w": 1}})


def test_what_is_saved_is_what_is_loaded(tmp_path) -> None:
    path = tmp_path / "sub" / "heads.safetensors"
    save_heads(path, WEIGHTS, _card())
    heads = load_heads(path)
    assert torch.equal(heads.weight, WEIGHTS.weight)
    assert torch.equal(heads.bias, WEIGHTS.bias)
    assert heads.findings == ("a", "b")
    card = read_head_card(path)
    assert card["thresholds"] == [0.25, None]
    assert card["encoder"] == {"name": "e", "fingerprint": {"w": 1}}
    assert card["training"]["epochs"] == 30
    assert (card["n_training_images"], card["training_ids_sha256"]) == (2, training_ids_digest(["x", "y"]))
    assert [entry.name for entry in path.parent.iterdir()] == ["heads.safetensors"]


def test_the_digest_is_of_the_set_of_ids() -> None:
    assert training_ids_digest(["a", "bc"]) == training_ids_digest(["bc", "a"])
    assert training_ids_digest(["a", "bc"]) != training_ids_digest(["ab", "c"])


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": "1"},
        {"findings": "ab"},
        {"findings": [1, 2]},
        {"thresholds": None},
        {"thresholds": ["a", "b"]},
        {"encoder": []},
    ],
)
def test_a_card_of_another_kind(change, tmp_path) -> None:
    path = tmp_path / "heads.safetensors"
    save_heads(path, WEIGHTS, _card() | change)
    with pytest.raises(WeightsError, match=r"heads\.safetensors: (heads of schema|the card of the heads is not one)"):
        load_heads(path)


def test_a_card_nested_too_deeply(tmp_path) -> None:
    path = tmp_path / "heads.safetensors"
    save_file({"weight": torch.ones(1)}, path, metadata={"card": "[" * 100_000})
    with pytest.raises(WeightsError, match="not a readable heads file"):
        read_head_card(path)


def test_image_ids_are_not_in_the_file(tmp_path) -> None:
    path = tmp_path / "heads.safetensors"
    save_heads(path, WEIGHTS, head_card(["a", "b"], [0.0, 0.0], HeadOptions(), ["secret-study-7"], {}))
    assert b"secret" not in path.read_bytes()


def test_a_missing_file_is_told(tmp_path) -> None:
    with pytest.raises(WeightsError, match="no such heads file"):
        load_heads(tmp_path / "none.safetensors")


@pytest.mark.parametrize("content", [b"", b"not a tensor file", b"\xff" * 64])
def test_other_files_are_refused(tmp_path, content: bytes) -> None:
    path = tmp_path / "heads.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match="not a readable heads file"):
        load_heads(path)


def test_a_truncated_file_is_refused(tmp_path) -> None:
    path = tmp_path / "heads.safetensors"
    save_heads(path, WEIGHTS, _card())
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(WeightsError, match="not a readable"):
        load_heads(path)


def test_tensors_without_a_card_are_refused(tmp_path) -> None:
    path = tmp_path / "heads.safetensors"
    save_file({"weight": WEIGHTS.weight}, path)
    with pytest.raises(WeightsError, match="without the card"):
        load_heads(path)


@pytest.mark.parametrize(
    "change, tensors, words",
    [
        ({"schema_version": SCHEMA_VERSION + 1}, None, "schema 2"),
        ({"findings": ["a"]}, None, "does not fit the tensors"),
        ({}, {"weight": WEIGHTS.weight}, "holds"),
        ({}, {"weight": WEIGHTS.weight, "bias": WEIGHTS.bias * torch.nan}, "finite"),
    ],
)
def test_cards_and_tensors_must_fit(tmp_path, change: dict, tensors: dict | None, words: str) -> None:
    path = tmp_path / "heads.safetensors"
    tensors = tensors or {"weight": WEIGHTS.weight, "bias": WEIGHTS.bias}
    save_file(tensors, path, metadata={"card": json.dumps({**_card(), **change})})
    with pytest.raises(WeightsError, match=words):
        load_heads(path)


def test_an_unknown_output_is_the_users_mistake(tmp_path) -> None:
    path = tmp_path / "heads.safetensors"
    save_heads(path, WEIGHTS, _card())
    with pytest.raises(UserError, match="probabilities"):
        load_heads(path, "probability")


def test_a_failed_write_leaves_the_old_file(tmp_path) -> None:
    path = tmp_path / "heads.safetensors"
    save_heads(path, WEIGHTS, _card())
    before = path.read_bytes()
    with pytest.raises(ValueError):
        save_heads(path, WEIGHTS, {**_card(), "thresholds": [float("nan"), 0.0]})
    assert path.read_bytes() == before
