from __future__ import annotations

import xml.etree.ElementTree as ET

from candor_monai.visualize.equal_sets import CROWD, FEW, equal_sets_drawing
from candor_monai.visualize.scatter_plot import scatter_plot


def test_two_points_by_hand():
    rows = [{"n_positive": 10, "D": 0.2, "D_all": 0.9}, {"n_positive": 1000, "D": 0.4, "D_all": 0.5}]
    plot = ET.fromstring(scatter_plot(rows))
    dots = next(p.get("d") for p in plot.iter("path") if p.get("class") == "dt")
    assert dots == "M52 222h0M624 170h0"  # x: from 10 to 1000; y: 14 + 260·(1 − D)
    assert "2 encoder and finding pairs" in plot.get("aria-label")
    assert "Median D 0.30, median D_all 0.70" in plot.get("aria-label")


def test_rows_without_numbers_are_passed_over():
    rows = [{"n_positive": 10, "D": 0.2, "D_all": None}, {"n_positive": 0, "D": 0.2, "D_all": 0.3}, {"D": None}]
    assert scatter_plot(rows) == ""


def test_the_drawing_says_what_it_shows():
    drawing = ET.fromstring(equal_sets_drawing())
    assert len(drawing.findall(".//rect")) == 2 * len(FEW) + len(CROWD) == 5 + 29
    assert len(drawing.findall(".//g[@class='ps']/circle")) == 10
