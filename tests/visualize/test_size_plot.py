from __future__ import annotations

import xml.etree.ElementTree as ET

from candor_monai.visualize.size_plot import size_plot

from . import synthetic


def document(*sizes):
    found = synthetic.results(
        [synthetic.encoder(f"E{i}", parameters=n) for i, n in enumerate(sizes)], {"t": ("Edema",)}
    )
    for i, row in enumerate(r for r in found["discordance"] if r["level"] == "finding"):
        row |= {"D": i / 10, "status": "ok", "tie_rate": 0.0}
    return found


def test_three_encoders_by_hand():
    found = document(10**6, 10**7, 10**8)
    found["encoders"][2]["objective"] = "none (untrained)"
    plot = ET.fromstring(size_plot(found, "t"))
    dots = [p.get("d") for p in plot.iter("path") if p.get("class") == "dt"]
    assert dots == ["M336 210h0", "M78 254h0"]  # top 0.55: 14 + 240·(1 − D/0.55); the worst is drawn first
    (diamond,) = [p for p in plot.iter("path") if p.get("class") == "al"]
    assert diamond.find("title").text == "E2: D 0.200"
    assert "from E0 (1 M, D 0.000) to E2 (100 M, D 0.200)" in plot.get("aria-label")


def test_nothing_is_drawn_of_one_size_or_two_encoders():
    assert size_plot(document(10**6, 10**7), "t") == ""
    assert size_plot(document(5, 5, 5), "t") == ""


def test_titles_are_escaped():
    found = document(10**6, 10**7, 10**8)
    found["encoders"][0]["title"] = synthetic.SCRIPT
    assert synthetic.SCRIPT not in size_plot(found, "t")
