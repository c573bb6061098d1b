"""Encoder cards: what a YAML file says, and how a mistake in it is told."""

from __future__ import annotations

import dataclasses
import json

import pytest
import yaml

from candor_monai.networks.cards import EncoderCard, ProcessorCard, list_cards, load_card
from candor_monai.utils import UserError, resource
from tests.support import ROOT

MINIMAL = {"name": "mine", "loader": "timm", "architecture": "resnet18", "feature_point": "pooled", "dimension": 512}
PAPER = [
    *("rad_dino", "biomedclip", "densenet121_xrv", "phikon_v2", "uni", "uni2", "virchow", "virchow2"),
    *("prov_gigapath", "conch", "retfound", "flair", "monet", "dermlip", "dinov3_s", "dinov3_b", "dinov3_l"),
    *("dinov3_h_plus", "dinov2_l", "clip_l14", "siglip2_l", "random_vit_l"),
]


def test_smallest_card():
    card = load_card(MINIMAL)
    assert (card.name, card.title, card.dimension) == ("mine", "mine", 512)
    assert dict(card.points) == {"pooled": 512}
    assert card.processor == ProcessorCard()


def test_the_papers_encoders_are_there():
    assert len(PAPER) == 22
    assert set(PAPER) < set(list_cards())


@pytest.mark.parametrize("name", list_cards())
def test_shipped_card_is_whole(name):
    card = load_card(name)
    assert card.name == name
    assert card.title
    assert card.licence
    assert card.parameters is None or card.parameters >= 0
    assert load_card(card.as_dict()) == card
    json.dumps(card.as_dict())


@pytest.mark.parametrize("name", PAPER)
def test_papers_card_says_where_it_comes_from(name):
    card = load_card(name)
    assert card.objective
    assert card.parameters
    if name != "random_vit_l":
        assert card.hub_id
        assert card.year
        assert card.files
        assert card.trained_on
        assert card.gate in ("open", "gated")


def test_overlap_with_evaluation_sets_is_stated():
    assert "MIMIC-CXR" in load_card("rad_dino").overlaps
    assert "CheXpert" in load_card("densenet121_xrv").overlaps


@pytest.mark.parametrize(
    "change,message",
    [
        ({"loder": "timm"}, "unknown key 'loder'. Did you mean 'loader'?"),
        ({"loader": "tim"}, "unknown loader 'tim'. Did you mean 'timm'?"),
        ({"feature_point": "clss"}, "unknown feature_point 'clss'. Did you mean 'cls'?"),
        ({"dimension": "512"}, "dimension: must be int, got '512'"),
        ({"dimension": 0}, "dimension must be at least 1"),
        ({"processor": {"sise": 224}}, "processor: unknown key 'sise'. Did you mean 'size'?"),
        ({"processor": {"resize": "squish"}}, "unknown processor.resize 'squish'. Did you mean 'squash'?"),
        ({"processor": {"mean": [0.5]}}, "processor.mean must hold 3 numbers, holds 1"),
        ({"processor": {"std": [0.5, 0, 1]}}, "processor.std must be positive"),
        ({"processor": {"size": None}}, "does not go with processor.resize"),
        ({"processor": "own"}, "processor: must be a mapping"),
        ({"processors": {"big": {"sise": 448}}}, "processors.big: unknown key 'sise'"),
        ({"points": {"cls": 512}}, "points says None for 'pooled'"),
        ({"points": {"pooled": 512, "mean_patch": 64}}, "mean_patch needs prefix_tokens"),
        ({"architecture": None}, "needs architecture"),
        ({"loader": "module"}, "needs target"),
        ({"gate": "shut"}, "unknown gate 'shut'"),
        ({"keys": {"prefixes": "x"}}, "unknown keys 'prefixes'. Did you mean 'prefix'?"),
        ({"year": True}, "year: must be int, got True"),
        ({"files": {"a": 1}}, "files: must be a list, got {'a': 1}"),
        ({"keys": {"prefix": 3}}, "keys.prefix must be text, got 3"),
        ({"keys": {"ignore": [1]}}, "keys.ignore must be a list of texts"),
        ({"keys": {"map": "efficientnet_lite"}}, "Did you mean 'efficientnet_lite"),
        ({"kwargs": {1: 2}}, "kwargs: the key 1 must be text"),
        ({"points": {"pooled": "512"}}, "points: pooled: must be int, got '512'"),
        ({"processors": {"big": None}}, "processors: big: must be a mapping, got None"),
        ({"processors": {"big": "x"}}, "processors: big: must be a mapping, got 'x'"),
        ({"processor": {"mean": [float("nan")] * 3}}, "processor.mean must hold finite numbers"),
        ({"processor": {"scale": 0.0}}, "processor.scale must be a positive number"),
        ({"processor": {"size": 10**9}}, "processor.size must be 1 to 16384"),
        ({"package": ""}, "package needs a name, and files"),
        ({"package": "some_package", "files": []}, "package needs a name, and files"),
        ({"seed": -1}, "seed must be 0 to"),
        ({"seed": 2**70}, "seed must be 0 to"),
        ({"patches": -4}, "patches must not be negative"),
        ({"name": "../mine"}, "name must be one to 100 printable characters"),
        ({"name": "mine\n"}, "name must be one to 100 printable characters"),
        ({"name": "mine\0"}, "name must be one to 100 printable characters"),
        ({"name": "mine" * 99}, "name must be one to 100 printable characters"),
    ],
)
def test_mistakes_are_named(change, message):
    with pytest.raises(UserError) as caught:
        load_card({**MINIMAL, **change})
    assert message in str(caught.value)
    assert "mine" in str(caught.value)


@pytest.mark.parametrize("name", ["", ".", "..", "   "])
def test_a_name_that_is_no_folder(name):
    with pytest.raises(UserError, match="name must be one to 100 printable characters"):
        load_card({**MINIMAL, "name": name})


def test_one_ignored_beginning_may_stand_alone():
    assert load_card({**MINIMAL, "keys": {"ignore": "head."}}).keys["ignore"] == ("head.",)


def test_an_empty_card():
    with pytest.raises(UserError, match=r"encoder card '\(unnamed\)': missing keys name, title, loader"):
        load_card({})


@pytest.mark.parametrize("key", ["loader", "feature_point", "dimension"])
def test_missing_key(key):
    with pytest.raises(UserError, match=f"missing key {key}"):
        load_card({k: v for k, v in MINIMAL.items() if k != key})


def test_unknown_name_gives_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'rad_dino'"):
        load_card("rad_dnio")


def test_card_file(tmp_path):
    path = tmp_path / "ours.yaml"
    path.write_text(yaml.safe_dump({**{k: v for k, v in MINIMAL.items() if k != "name"}, "folder": "weights"}))
    card = load_card(path)
    assert card.name == "ours"
    assert card.folder == str(tmp_path / "weights")
    assert load_card(str(path)) == card
    with pytest.raises(UserError, match="cannot be read"):
        load_card(tmp_path / "none.yaml")
    with pytest.raises(UserError, match="cannot be read: embedded null byte"):
        load_card("a\0/b.yaml")


def test_a_mistake_names_the_file(tmp_path):
    path = tmp_path / "ours.yaml"
    path.write_text("loader: timm\nfeature_pont: cls\n")
    with pytest.raises(UserError, match=r"ours\.yaml: unknown key 'feature_pont'"):
        load_card(path)


def test_card_is_its_own_card():
    card = load_card("rad_dino")
    assert load_card(card) is card
    with pytest.raises(dataclasses.FrozenInstanceError):
        card.name = "x"


def test_shipped_files_are_only_cards():
    assert all(isinstance(load_card(path), EncoderCard) for path in resource("configs", "encoders").glob("*"))


@pytest.mark.parametrize("name", list_cards())
def test_the_documented_table_is_the_cards(name):
    card = load_card(name)
    lines = (ROOT / "docs" / "encoders.md").read_text().splitlines()
    row = next(line for line in lines if line.startswith(f"| `{name}` | {card.title} |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:4] == [card.feature_point, str(card.dimension)]
    assert cells[4] == ("-" if card.parameters is None else f"{card.parameters:,}")
    assert cells[6] == card.licence
    if card.overlaps:
        assert any(line.startswith(f"| `{name}` |") and ", ".join(card.overlaps) in line for line in lines)
