from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from candor_monai.visualize.interval_plot import interval_axis, interval_key, interval_plot

ROW = {"status": "ok", "D": 0.5, "D_lo": 0.4, "D_hi": 0.6, "D_total_lo": 0.25, "D_total_hi": 0.75, "chance": 0.5}


def test_positions_by_hand():
    plot = ET.fromstring(interval_plot(ROW))
    assert plot.find("circle").get("cx") == "120"  # the middle of 240
    paths = {path.get("class"): path.get("d") for path in plot.iter("path")}
    assert paths["ch"] == "M120 0v22"
    assert paths["to"] == "M64 11H176"  # 8 + 224/4, 8 + 3·224/4
    assert plot.get("aria-label") == "D 0.500, interval 0.250 to 0.750, chance 0.500"
    assert plot.get("role") == "img"


def test_without_a_total_interval_the_conditional_one_is_told():
    plot = ET.fromstring(interval_plot(ROW | {"D_total_lo": None}))
    assert "conditional interval 0.400 to 0.600" in plot.get("aria-label")
    assert not [path for path in plot.iter("path") if path.get("class") == "to"]


@pytest.mark.parametrize("gap", ["D_lo", "D_hi", "D_total_lo", "D_total_hi", "chance", "D_all"])
def test_any_number_may_be_missing(gap):
    ET.fromstring(interval_plot(ROW | {gap: None}))


def test_undefined_d_has_no_plot():
    assert interval_plot(ROW | {"D": None}) == ""


def test_intervals_beyond_0_and_1_stay_inside():
    plot = ET.fromstring(interval_plot(ROW | {"D_total_lo": -0.2, "D_total_hi": 1.3}))
    assert next(p.get("d") for p in plot.iter("path") if p.get("class") == "to") == "M8 11H232"


def test_axis_and_key_are_well_formed():
    assert [t.text for t in ET.fromstring(interval_axis()).iter("text")] == ["0", "0.25", "0.5", "0.75", "1"]
    assert "Left is better" in ET.fromstring(interval_key()).find("title").text
