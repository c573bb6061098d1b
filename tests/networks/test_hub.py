"""The hub: its cache, its failures in plain words, and no waiting when nothing answers."""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub import errors as hub_errors

from candor_monai.networks import hub
from candor_monai.networks.cards import load_card
from candor_monai.networks.encoders import load_encoder
from candor_monai.networks.locations import weights_here
from candor_monai.utils import WeightsError


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def reachable(monkeypatch):
    monkeypatch.setattr(hub, "_check_reachable", lambda card: None)


def _http_error(kind):
    """The hub's error without the response it wraps, whose library differs between the hub's versions."""
    error = kind.__new__(kind)
    error.args = ("403 Client Error",)
    return error


def _info(*names):
    return SimpleNamespace(sha="c0ffee", siblings=[SimpleNamespace(rfilename=name) for name in names])


def _raise(error):
    def snapshot_download(*args, local_files_only=False, **kwargs):
        if local_files_only:
            raise hub_errors.LocalEntryNotFoundError("not cached")
        raise error

    return snapshot_download


@pytest.mark.parametrize(
    "make,words",
    [
        (lambda: _http_error(hub_errors.GatedRepoError), "accept the terms"),
        (lambda: _http_error(hub_errors.RepositoryNotFoundError), "knows no such repository"),
        (lambda: _http_error(hub_errors.RevisionNotFoundError), "has no revision"),
        (lambda: _http_error(hub_errors.RemoteEntryNotFoundError), "does not hold the file"),
        (lambda: hub_errors.LocalEntryNotFoundError("offline"), "cannot be reached"),
        (lambda: hub_errors.OfflineModeIsEnabled("offline"), "cannot be reached"),
        (lambda: _http_error(hub_errors.HfHubHTTPError), "the download failed"),
        (lambda: OSError(28, "No space left on device"), "No space left"),
    ],
    ids=["gated", "repository", "revision", "entry", "offline", "offline mode", "other", "disk full"],
)
def test_each_failure_has_its_words(make, words, monkeypatch, reachable):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", _raise(make()))
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *args, **kwargs: _info("pytorch_model.bin"))
    with pytest.raises(WeightsError) as caught:
        load_encoder("uni")
    message = str(caught.value)
    assert words in message
    for part in ("uni", "MahmoodLab/UNI", "CC-BY-NC-ND-4.0", "gated", "weights_dir"):
        assert part in message


@pytest.mark.parametrize(
    "make,words",
    [(lambda: _http_error(hub_errors.GatedRepoError), "accept the terms"), (lambda: OSError("no route"), "no route")],
    ids=["gated", "no route"],
)
def test_failure_of_the_first_question(make, words, monkeypatch, reachable):
    def model_info(*args, timeout, **kwargs):
        assert timeout <= hub.CONNECT_SECONDS
        raise make()

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    with pytest.raises(WeightsError, match=words):
        load_encoder("uni")


def test_nothing_answers(monkeypatch):
    """An address that drops packets: an error within seconds."""

    ended = threading.Event()

    def never(address, timeout):
        ended.wait(60)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", never)
    monkeypatch.setattr(hub, "CONNECT_SECONDS", 0.25)
    start = time.monotonic()
    with pytest.raises(WeightsError, match=r"cannot be reached \(no answer within 0\.25 s\)"):
        load_encoder("rad_dino")
    assert time.monotonic() - start < 45  # an end, not a hang
    ended.set()


def test_refused_port_ends_at_once(monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(WeightsError, match=r"127\.0\.0\.1 cannot be reached"):
        load_encoder("rad_dino")
    assert time.monotonic() - start < 45  # an end, not a hang


def test_offline_mode_is_said(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(WeightsError, match="HF_HUB_OFFLINE is set"):
        load_encoder("rad_dino")


def test_download_can_be_forbidden(monkeypatch):
    monkeypatch.setattr(hub, "fetch", lambda card: pytest.fail("the hub was asked"))
    with pytest.raises(WeightsError) as caught:
        load_encoder("dinov3_s", download=False)
    for part in ("facebook/dinov3-vits16-pretrain-lvd1689m", "DINOv3 License", "gated", "--weights_dir"):
        assert part in str(caught.value)


def test_cache_is_used_without_the_network(tmp_path, monkeypatch):
    """A complete snapshot in the hub's cache needs nobody to answer."""
    from tests.networks.publishers import publish

    card, _ = publish("rad_dino", tmp_path / "made")
    commit = card.revision
    snapshot = tmp_path / "cache" / "models--microsoft--rad-dino" / "snapshots" / commit
    snapshot.parent.mkdir(parents=True)
    (tmp_path / "made" / "rad_dino").rename(snapshot)
    monkeypatch.setattr(hub, "fetch", lambda card: pytest.fail("the hub was asked"))
    encoder = load_encoder(card)
    assert encoder.provenance["weights"] == "hub cache"
    assert encoder.provenance["revision"] == commit
    assert weights_here(card) == "hub cache"


def test_incomplete_cache_is_not_enough(tmp_path):
    card = load_card("rad_dino")
    snapshot = tmp_path / "cache" / "models--microsoft--rad-dino" / "snapshots" / card.revision
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    assert hub.cached(card) is None
    assert weights_here(card) == "missing"


@pytest.mark.parametrize(
    "there,asked",
    [
        (["README.md", "config.json", "model.safetensors", "pytorch_model.bin"], ["config.json", "model.safetensors"]),
        (["config.json", "pytorch_model.bin", "modeling.py"], ["config.json", "pytorch_model.bin"]),
        (
            ["model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
            ["model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        ),
    ],
    ids=["safetensors first", "bin", "parts"],
)
def test_what_is_asked_for(there, asked, monkeypatch, reachable, tmp_path):
    given = {}

    def snapshot_download(repo, local_files_only=False, **kwargs):
        given.update(kwargs, repo=repo)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *args, **kwargs: _info(*there))
    card = load_card("dinov3_s")
    assert hub.fetch(card) == tmp_path
    assert given["repo"] == card.hub_id
    assert given["revision"] == card.revision
    assert given["allow_patterns"] == asked


def test_repository_without_the_weights(monkeypatch, reachable):
    there = ("config.json", "backbone_compatible.safetensors", "dino_head.safetensors")
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *args, **kwargs: _info(*there))
    with pytest.raises(WeightsError, match=r"holds none of model\.safetensors"):
        load_encoder("rad_dino")
