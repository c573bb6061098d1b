"""The table of encoders."""

from __future__ import annotations

import json

from candor_monai.networks import encoder_table, format_table, hub
from candor_monai.networks.cards import list_cards
from candor_monai.networks.table import COLUMNS
from tests.networks.publishers import publish


def test_one_row_a_card(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "cached", lambda card: None)
    publish("dinov3_s", tmp_path)
    rows = {row["name"]: row for row in encoder_table(tmp_path)}
    assert list(rows) == list_cards()
    assert all(tuple(row) == COLUMNS for row in rows.values())
    assert rows["dinov3_s"]["weights"] == "folder dinov3_s of weights_dir"
    assert rows["virchow"]["weights"] == "missing"
    assert rows["random_vit_l"]["weights"] == "none needed"
    assert "CheXpert" in rows["densenet121_xrv"]["overlaps"]
    json.dumps(list(rows.values()))


def test_a_weights_dir_that_is_not_there(tmp_path):
    rows = {row["name"]: row for row in encoder_table(tmp_path / "none")}
    assert rows["uni"]["weights"] == "missing"
    assert rows["random_vit_l"]["weights"] == "none needed"


def test_as_text():
    text = format_table(encoder_table())
    lines = text.splitlines()
    assert len(lines) == len(list_cards()) + 1
    assert lines[0].startswith("name")
    assert any("CC-BY-NC-ND-4.0" in line and "gated" in line for line in lines)
    assert all(line == line.rstrip() for line in lines)
