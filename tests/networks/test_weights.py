"""Weight files: read without running anything, matched key by key, hashed."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from candor_monai.networks.cards import load_card
from candor_monai.networks.weights import (
    check_sha256,
    find_file,
    load_strict,
    materialise,
    read_state,
    select_state,
    source_of,
    state_digest,
)
from candor_monai.utils import WeightsError

CARD = load_card({"name": "mine", "loader": "module", "target": "a.b", "feature_point": "pooled", "dimension": 1})


def test_smallest_digest_by_hand():
    # One tensor "a" of one float32 zero: the line of its hash, hashed.
    inner = hashlib.sha256(b"\0\0\0\0").hexdigest()
    line = f"a torch.float32 (1,) {inner}"
    assert state_digest({"a": torch.zeros(1)}) == hashlib.sha256(line.encode()).hexdigest()


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.ones(2)},
        {"b": torch.zeros(2)},
        {"a": torch.zeros(2, dtype=torch.float64)},
        {"a": torch.zeros(2, 1)},
        {"a": torch.zeros(2), "b": torch.zeros(0)},
        {"a": -torch.zeros(2)},
        {},
    ],
    ids=["values", "name", "type", "shape", "one more", "sign of zero", "nothing"],
)
def test_digest_changes_with_everything(other):
    assert state_digest(other) != state_digest({"a": torch.zeros(2)})


def test_digest_ignores_order_strides_and_threads():
    x = torch.randn(4, 6)
    one = {"x": x, "y": torch.ones(3)}
    assert state_digest(one) == state_digest(dict(reversed(one.items())))
    assert state_digest({"x": x.t().contiguous().t()}) == state_digest({"x": x})
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert state_digest(one) == state_digest(one)
    finally:
        torch.set_num_threads(before)


def test_read_both_formats(tmp_path):
    state = {"a": torch.ones(3), "b": torch.arange(4)}
    save_file(state, tmp_path / "x.safetensors")
    torch.save(state, tmp_path / "x.bin")
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    for name in ("x.safetensors", "x.bin", "old.pth"):
        found = read_state(tmp_path / name)
        assert all(torch.equal(found[key], value) for key, value in state.items())


def test_loaded_tensors_do_not_follow_the_file(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(1 << 16)}, path)
    found = read_state(path)
    with open(path, "r+b") as file:
        file.seek(200)
        file.write(b"\xff" * 4096)
    assert not found["a"].any()


def test_not_a_mapping(tmp_path):
    torch.save([torch.ones(1)], tmp_path / "list.pt")
    with pytest.raises(WeightsError, match="holds list"):
        read_state(tmp_path / "list.pt")


def test_namespace_is_the_only_object_allowed(tmp_path):
    torch.save({"args": argparse.Namespace(a=1)}, tmp_path / "x.pth")
    assert read_state(tmp_path / "x.pth")["args"].a == 1
    torch.save({"args": nn.Linear(1, 1)}, tmp_path / "x.pth")
    with pytest.raises(WeightsError, match="Python objects beside tensors"):
        read_state(tmp_path / "x.pth")


@pytest.mark.parametrize("content", [b"hello", b"<html>403</html>", b"\x89PNG\r\n\x1a\n" + bytes(99)])
def test_a_file_of_another_kind(content, tmp_path):
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(WeightsError, match=r"w\.pt: not a weight file"):
        read_state(tmp_path / "w.pt")


def test_a_pickle_that_torch_cannot_follow_is_one_line(tmp_path):
    (tmp_path / "w.pt").write_bytes(b"\x80\x02" + b"(" * 50_000 + b".")
    with pytest.raises(WeightsError, match=r"w\.pt: damaged") as caught:
        read_state(tmp_path / "w.pt")
    assert "\n" not in str(caught.value)


def test_a_torchscript_program_is_no_state(tmp_path):
    torch.jit.script(nn.Linear(1, 1)).save(tmp_path / "w.pt")
    with pytest.raises(WeightsError, match="holds a TorchScript program"):
        read_state(tmp_path / "w.pt")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(2).to_sparse(),
        torch.eye(2).to(torch.complex64),
        torch.empty(2, device="meta"),
    ],
    ids=["sparse", "complex", "meta"],
)
def test_tensors_that_are_no_plain_numbers(tensor, tmp_path):
    with pytest.raises(WeightsError, match=r"w\.pt: tensor 'a' is sparse, quantized, complex or without values"):
        select_state({"a": tensor}, CARD, tmp_path / "w.pt")


def test_names_that_are_no_texts_are_no_weights(tmp_path):
    one = torch.ones(1)
    assert list(select_state({1: one, ("a",): one, "a": one}, CARD, tmp_path)) == ["a"]
    with pytest.raises(WeightsError, match="holds no tensors; it holds 1"):
        select_state({1: one}, CARD, tmp_path)


def test_integers_in_place_of_weights_are_named(tmp_path):
    module = nn.Linear(1, 1)
    state = {"weight": torch.ones(1, 1, dtype=torch.int64), "bias": torch.ones(1)}
    with pytest.raises(WeightsError, match=r"1 wrong types \(weight torch.int64 instead of torch.float32\)"):
        load_strict(module, state, CARD, tmp_path)


def test_a_renaming_that_does_not_fit_names_the_file(tmp_path):
    card = dataclasses.replace(CARD, keys={"map": "efficientnet_lite0"})
    with pytest.raises(WeightsError, match=r"w\.pt: key '_blocks\.0\._x\.y' is not one"):
        select_state({"_blocks.0._x.y": torch.ones(1)}, card, tmp_path / "w.pt")


def test_a_state_that_holds_other_things_has_no_digest():
    with pytest.raises(WeightsError, match="holds dict 'extra', which is no tensor"):
        state_digest({"a": torch.ones(1), "extra": {"b": 1}})


def test_select_prefix_ignore_nested(tmp_path):
    one = torch.ones(1)
    content = {"visual.a": one, "visual.extra.b": one, "text.c": one, "note": "x"}
    card = dataclasses.replace(CARD, keys={"prefix": "visual.", "ignore": ["extra."], "nested": "model"})
    assert list(select_state(content, card, tmp_path)) == ["a"]
    assert list(select_state({"model": content, "epoch": 3}, card, tmp_path)) == ["a"]
    with pytest.raises(WeightsError, match="no entry 'model' with tensors; it holds state"):
        select_state({"state": content}, card, tmp_path)
    for odd in (None, 3, [1]):
        with pytest.raises(WeightsError, match="no entry 'model' with tensors; it holds model"):
            select_state({"model": odd}, card, tmp_path)
    with pytest.raises(WeightsError, match=r"keys\.nested names the entry that holds them \(nested: state_dict\)"):
        select_state({"epoch": 1, "state_dict": content}, CARD, tmp_path)
    with pytest.raises(WeightsError, match=r"no tensors that begin with 'visual\.'"):
        select_state({"text.c": one}, card, tmp_path)


def test_strict_names_what_differs(tmp_path):
    module = nn.Linear(2, 3)
    with pytest.raises(WeightsError) as caught:
        load_strict(module, {"weight": torch.ones(3, 5), "bais": torch.ones(3)}, CARD, tmp_path / "w.pt")
    message = str(caught.value)
    for part in (
        "1 missing keys (bias)",
        "1 unexpected keys (bais)",
        "weight (3, 5) instead of (3, 2)",
        "w.pt",
        "mine",
    ):
        assert part in message


def test_long_lists_are_cut(tmp_path):
    state = {f"k{i}": torch.ones(1) for i in range(40)}
    with pytest.raises(WeightsError, match="… 34 more"):
        load_strict(nn.Linear(1, 1), state, CARD, tmp_path)


def test_half_precision_files_become_float32(tmp_path):
    module = nn.Linear(2, 1)
    load_strict(module, {"weight": torch.ones(1, 2).half(), "bias": torch.ones(1).bfloat16()}, CARD, tmp_path)
    assert {p.dtype for p in module.parameters()} == {torch.float32}


def test_unneeded_parts_may_be_there(tmp_path):
    module = nn.Linear(1, 1)
    state = {**module.state_dict(), "fc.weight": torch.ones(1)}
    load_strict(module, state, CARD, tmp_path, unneeded=("fc.",))
    with pytest.raises(WeightsError, match="unexpected"):
        load_strict(module, state, CARD, tmp_path)


class _WithComputedBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.register_buffer("computed", torch.arange(3.0), persistent=False)


@pytest.mark.parametrize("build", [lambda: nn.Linear(1, 1), _WithComputedBuffer])
def test_materialise_leaves_nothing_empty(build):
    source = build()
    made = materialise(build, lambda module: load_strict(module, source.state_dict(), CARD, None))
    assert not any(t.is_meta for t in (*made.parameters(), *made.buffers()))
    assert all(torch.equal(a, b) for a, b in zip(made.buffers(), source.buffers(), strict=True))
    assert state_digest(made.state_dict()) == state_digest(source.state_dict())


def test_sha256(tmp_path):
    path = tmp_path / "w"
    path.write_bytes(b"abc")
    whole = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert check_sha256(path, CARD) == whole
    assert check_sha256(path, dataclasses.replace(CARD, sha256=whole.upper())) == whole
    assert check_sha256(path, dataclasses.replace(CARD, sha256="ba7816bf")) == whole
    with pytest.raises(WeightsError, match=r"sha256 is ba7816bf8f01cfea…, the card of encoder 'mine' says 00ff…"):
        check_sha256(path, dataclasses.replace(CARD, sha256="00ff"))


def test_find_file_takes_the_first(tmp_path):
    for name in ("b", "c"):
        (tmp_path / name).write_bytes(b"")
    assert find_file(tmp_path, ("a", "c", "b"), CARD).name == "c"
    with pytest.raises(WeightsError, match="holds nothing"):
        find_file(tmp_path / "none", ("a",), CARD)


def test_source_in_words():
    assert "gated: an account" in source_of(load_card("uni"))
    assert "package efficientnet-lite0" in source_of(load_card("efficientnet_lite0"))
    assert "github.com/mlmed" in source_of(load_card("densenet121_xrv"))
    assert "its owner" in source_of(CARD)
