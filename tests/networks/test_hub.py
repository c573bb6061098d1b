"""The hub: its cache, its failures in plain words, and no waiting when nothing answers."""

from __future__ import annotations

import socket
import time

import huggingface_hub
import pytest
from huggingface_hub import errors as hub_errors

from candor_monai.networks import hub
from candor_monai.networks.cards import load_card
from candor_monai.networks.encoders import load_encoder
from candor_monai.networks.locations import weights_here
from candor_monai.utils import WeightsError


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def reachable(monkeypatch):
    monkeypatch.setattr(hub, "_check_reachable", lambda card: None)


def _http_error(kind):
    """The hub's error without the response it wraps, whose library differs between the hub's versions."""
    error = kind.__new__(kind)
    error.args = ("403 Client Error",)
    return error


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
    with pytest.raises(WeightsError) as caught:
        load_encoder("uni")
    message = str(caught.value)
    assert words in message
    for part in ("uni", "MahmoodLab/UNI", "CC-BY-NC-ND-4.0", "gated", "weights_dir"):
        assert part in message


def test_nothing_answers(monkeypatch):
    """An address that drops packets: an error within seconds."""

    def never(address, timeout):
        assert timeout <= hub.CONNECT_SECONDS
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", never)
    start = time.monotonic()
    with pytest.raises(WeightsError, match=r"cannot be reached \(timed out\)"):
        load_encoder("rad_dino")
    assert time.monotonic() - start < 5


def test_refused_port_ends_at_once(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(WeightsError, match=r"127\.0\.0\.1 cannot be reached"):
        load_encoder("rad_dino")
    assert time.monotonic() - start < 5


def test_offline_mode_is_said(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
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
    assert weights_here(card) == "hub cache"


def test_incomplete_cache_is_not_enough(tmp_path):
    card = load_card("rad_dino")
    snapshot = tmp_path / "cache" / "models--microsoft--rad-dino" / "snapshots" / card.revision
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    assert hub.cached(card) is None
    assert weights_here(card) == "missing"


def test_what_is_asked_for(monkeypatch, reachable, tmp_path):
    asked = {}

    def snapshot_download(repo, local_files_only=False, **kwargs):
        if local_files_only:
            raise hub_errors.LocalEntryNotFoundError("not cached")
        asked.update(kwargs, repo=repo)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    card = load_card("rad_dino")
    assert hub.fetch(card) == tmp_path
    assert asked["repo"] == "microsoft/rad-dino"
    assert asked["revision"] == card.revision
    assert "model.safetensors" in asked["allow_patterns"]
    assert "backbone_compatible.safetensors" not in asked["allow_patterns"]
    assert not any("*.py" in pattern for pattern in asked["allow_patterns"])
