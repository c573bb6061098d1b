from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from candor_monai.visualize.heat_map import heat_map, luminance


def test_three_names_by_hand():
    plot = ET.fromstring(heat_map(["a", "b", "<c>"], {(1, 0): 0.5, (2, 0): -0.25, (2, 1): None}, "title"))
    texts = [text.text for text in plot.iter("text")]
    assert texts == ["b", "0.50", "<c>", "−0.25", "a", "b"]
    assert len([r for r in plot.iter("rect") if r.get("class") == "no"]) == 1
    assert plot.get("aria-label") == "title"


def test_dark_cells_have_light_text():
    plot = ET.fromstring(heat_map(["a", "b"], {(1, 0): 0.9}, "t"))
    assert next(t.get("class") for t in plot.iter("text") if t.text == "0.90") == "lt"


@pytest.mark.parametrize("value", np.linspace(-1, 1, 41))
def test_numbers_are_legible_on_every_colour(value):
    plot = ET.fromstring(heat_map(["a", "b"], {(1, 0): value}, "t"))
    fill = next(rect.get("fill") for rect in plot.iter("rect"))
    white = next(t.get("class") for t in plot.iter("text") if t.get("class")) == "lt"
    ratio = 1.05 / (luminance(fill) + 0.05) if white else (luminance(fill) + 0.05) / 0.05
    assert ratio >= 4.5
