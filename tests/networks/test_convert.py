"""Conversion of pickled modules: tensors come out, nothing runs."""

from __future__ import annotations

import os
import pickle
import sys
import types

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from candor_monai.networks import convert_weights
from candor_monai.networks.cards import load_card
from candor_monai.networks.encoders import load_encoder
from candor_monai.utils import UserError, WeightsError
from tests.networks.images import as_tensor, noise


@pytest.fixture
def publisher(monkeypatch):
    """A stand-in for the package whose classes the pickle names, gone again before the file is read."""
    module = types.ModuleType("torchxrayvision.models")

    class DenseNet(nn.Module):
        def __init__(self):
            super().__init__()
            from torchvision.models import densenet121

            inner = densenet121(weights=None, num_classes=18)
            inner.features.conv0 = nn.Conv2d(1, 64, 7, 2, 3, bias=False)
            self.features, self.classifier = inner.features, inner.classifier
            self.register_buffer("op_threshs", torch.full((18,), 0.5))
            self.pathologies = ["Effusion"]

    DenseNet.__module__, DenseNet.__qualname__ = module.__name__, "DenseNet"
    module.DenseNet = DenseNet
    parent = types.ModuleType("torchxrayvision")
    parent.models = module
    saved = {name: sys.modules.get(name) for name in ("torchxrayvision", "torchxrayvision.models")}
    sys.modules |= {"torchxrayvision": parent, "torchxrayvision.models": module}

    def leave():
        for name, before in saved.items():
            if before is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = before

    yield DenseNet, leave
    leave()


def test_pickled_module_becomes_an_encoder(publisher, tmp_path):
    kind, leave = publisher
    torch.manual_seed(0)
    model = kind().eval()
    source = tmp_path / "published.pt"
    torch.save(model, source)
    leave()
    written = convert_weights(source, "densenet121_xrv", tmp_path / "weights")
    assert written == tmp_path / "weights" / "densenet121_xrv" / "model.safetensors"
    state = load_file(written)
    assert set(state) == set(model.state_dict())
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    with safe_open(written, "pt") as file:
        assert file.metadata()["source"] == "published.pt"
    encoder = load_encoder("densenet121_xrv", weights_dir=tmp_path / "weights")
    images = as_tensor(noise())
    with torch.no_grad():
        expected = torch.relu(model.features(encoder.processor(images))).mean((2, 3))
    torch.testing.assert_close(encoder(images), expected, atol=1e-6, rtol=1e-5)


def test_real_package_gives_the_same_features(tmp_path):
    """torchxrayvision's own class, its own feature function."""
    xrv = pytest.importorskip("torchxrayvision", reason="torchxrayvision is not installed (extra xrv)")
    torch.manual_seed(0)
    model = xrv.models.DenseNet(num_classes=18).eval()
    torch.save(model, tmp_path / "own.pt")
    convert_weights(tmp_path / "own.pt", "densenet121_xrv", tmp_path)
    encoder = load_encoder("densenet121_xrv", weights_dir=tmp_path)
    images = as_tensor(noise())
    with torch.no_grad():
        expected = model.features2(encoder.processor(images))
    torch.testing.assert_close(encoder(images), expected, atol=1e-6, rtol=1e-5)


class _Bomb:
    def __init__(self, what, arguments):
        self.what, self.arguments = what, arguments

    def __reduce__(self):
        return self.what, self.arguments


@pytest.mark.parametrize("what", [os.system, open, eval, exec, getattr, __import__], ids=lambda f: f.__name__)
@pytest.mark.parametrize("protocol", [2, 4])
def test_nothing_runs(what, protocol, tmp_path):
    witness = tmp_path / "ran"
    arguments = {
        "system": (f"touch {witness}",),
        "open": (str(witness), "w"),
        "eval": (f"open({str(witness)!r}, 'w')",),
        "exec": (f"open({str(witness)!r}, 'w')",),
        "getattr": ("x", "upper"),
        "__import__": ("antigravity_of_tests",),
    }[what.__name__]
    source = tmp_path / "bad.pt"
    torch.save({"model": _Bomb(what, arguments)}, source, pickle_protocol=protocol)
    with pytest.raises(WeightsError, match="conversion does not allow"):
        convert_weights(source, "densenet121_xrv", tmp_path / "weights")
    source.write_bytes(pickle.dumps(_Bomb(what, arguments), protocol=protocol))
    with pytest.raises(WeightsError):
        convert_weights(source, "densenet121_xrv", tmp_path / "weights")
    assert not witness.exists()
    assert not (tmp_path / "weights").exists()


class Scripted(nn.Module):
    """A TorchScript program that tells when it is read."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x * self.weight

    @torch.jit.export
    def __getstate__(self):
        return (self.weight, self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]):
        self.weight = state[0]
        self.training = state[1]
        print("code of the file runs")


def test_a_torchscript_program_is_not_run(tmp_path, capfd):
    torch.jit.save(torch.jit.script(Scripted()), tmp_path / "model.pt")
    with pytest.raises(WeightsError, match=r"model\.pt: holds a TorchScript program, whose code would run"):
        convert_weights(tmp_path / "model.pt", "densenet121_xrv", tmp_path)
    assert "code of the file runs" not in capfd.readouterr().out


def test_plain_state_dict_and_nested_one(tmp_path):
    card = load_card("efficientnet_lite0")
    for content in ({"a": torch.ones(2)}, {"state_dict": {"a": torch.ones(2)}, "epoch": 3}):
        torch.save(content, tmp_path / "plain.pth")
        written = convert_weights(tmp_path / "plain.pth", card, tmp_path / "weights")
        assert torch.equal(load_file(written)["a"], torch.ones(2))


@pytest.mark.parametrize(
    "content,words",
    [
        (b"", "the file is empty"),
        (b"no weights at all", "not a weight file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"PK\x03\x04broken", "damaged"),
        (b"\x80\x02h\x00.", "damaged"),
    ],
)
def test_damaged(content, words, tmp_path):
    (tmp_path / "bad.pt").write_bytes(content)
    with pytest.raises(WeightsError, match=rf"bad\.pt: .*{words}"):
        convert_weights(tmp_path / "bad.pt", "densenet121_xrv", tmp_path)


def test_missing_and_empty(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        convert_weights(tmp_path / "none.pt", "densenet121_xrv", tmp_path)
    torch.save({"note": "nothing"}, tmp_path / "empty.pt")
    with pytest.raises(WeightsError, match="no tensors"):
        convert_weights(tmp_path / "empty.pt", "densenet121_xrv", tmp_path)
