from __future__ import annotations

import xml.etree.ElementTree as ET

from candor_monai.visualize.heat_map import heat_map


def test_three_names_by_hand():
    plot = ET.fromstring(heat_map(["a", "b", "<c>"], {(1, 0): 0.5, (2, 0): -0.25, (2, 1): None}, "title"))
    texts = [text.text for text in plot.iter("text")]
    assert texts == ["b", "0.50", "<c>", "−0.25", "a", "b"]
    assert len([r for r in plot.iter("rect") if r.get("class") == "no"]) == 1
    assert plot.get("aria-label") == "title"


def test_dark_cells_have_light_text():
    plot = ET.fromstring(heat_map(["a", "b"], {(1, 0): 0.9}, "t"))
    assert next(t.get("class") for t in plot.iter("text") if t.text == "0.90") == "lt"
