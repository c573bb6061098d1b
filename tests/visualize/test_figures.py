from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from candor_monai.visualize import figures
from candor_monai.visualize.neighbours import discordant_examples, nearest_neighbours

from . import synthetic


def test_points_by_hand():
    document = {
        "encoders": [{"name": "a"}],
        "discordance": [
            {"encoder": "a", "task": "t", "finding": "f", "level": "finding", "status": "ok"}
            | {"n_positive": 40, "D": 0.25, "D_all": 0.75}
        ],
    }
    axes = figures.positives_figure(document).axes[0]
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
    assert drawn["D: equal sets"] == [[40, 0.25]]
    assert drawn["D_all: all images"] == [[40, 0.75]]
    assert axes.get_xscale() == "log"


def test_every_encoder_is_in_the_panel_of_its_task():
    document = synthetic.whole_study(classes=False)
    figure = figures.tasks_figure(document)
    assert [axes.get_title() for axes in figure.axes] == [
        "chest", "tumor", "referable_retinopathy", "malignancy", "glaucoma", "mammography"
    ]  # fmt: skip
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert sorted(labels) == sorted(synthetic.TITLES)
    pooled = {r["encoder"]: r["D"] for r in document["discordance"] if (r["task"], r["level"]) == ("chest", "task")}
    assert labels[-1] == "RAD-DINO"
    assert pooled["rad_dino"] == min(pooled.values())


def test_heat_map_shows_the_lower_triangle():
    document = synthetic.three_encoders()
    image = figures.overlap_figure(document, "chest").axes[0].get_images()[0]
    shown = image.get_array()
    assert np.ma.getmaskarray(shown).tolist() == [[True, True, True], [False, True, True], [True, False, True]]
    expected = {(r["encoder_a"], r["encoder_b"]): r["delta_jaccard"] for r in document["overlap"]}
    assert shown[1, 0] == expected["rad_dino", "dinov3_s"]


def test_neighbours_figure_has_every_picture():
    document = synthetic.one_encoder()
    frames = synthetic.frames(document)
    chosen = discordant_examples(frames["queries"], 1)
    near = nearest_neighbours(chosen, frames["candidates"], synthetic.features)
    figure = figures.neighbours_figure(chosen.to_dict("records")[0], near, synthetic.thumbnail)
    assert len(figure.axes) == 1 + 5 + 5
    assert all(len(axes.get_images()) == 1 for axes in figure.axes)
    figure = figures.neighbours_figure(chosen.to_dict("records")[0], near, lambda image_id: None)
    assert [axes.texts[0].get_text() for axes in figure.axes] == ["no picture"] * 11


@pytest.mark.parametrize(
    ("make", "stems"),
    [
        (synthetic.one_encoder, {"positives", "findings_chest"}),
        (synthetic.two_views, {"positives", "findings_chest"}),
        (synthetic.three_encoders, {"positives", "tasks", "findings_chest", "agreement_chest", "overlap_chest"}),
    ],
)
def test_written_figures(tmp_path, make, stems):
    files = figures.write_figures(tmp_path, make(), dpi=60)
    assert {file.stem for file in files} == stems
    assert sorted(files) == sorted(tmp_path.iterdir())
    for file in files:
        if file.suffix == ".svg":
            assert ET.parse(file).getroot().tag.endswith("svg")
        else:
            assert min(Image.open(file).size) > 60


def test_results_without_a_number_give_no_figure(tmp_path):
    document = synthetic.one_encoder()
    for row in document["discordance"]:
        row |= {"D": None, "D_all": None, "status": "insufficient"}
    assert figures.write_figures(tmp_path, document) == []


def test_agreement_that_is_known_by_finding_alone_has_no_figure(tmp_path):
    document = synthetic.three_encoders()
    document["agreement"] = [row | {"finding": "mean over findings"} for row in document["agreement"]]
    names = {file.name for file in figures.write_figures(tmp_path, document, dpi=30)}
    assert "overlap_chest.svg" in names
    assert "agreement_chest.svg" not in names, "it would be empty"


def test_the_same_figure_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        figures.save_figure(figures.positives_figure(synthetic.one_encoder()), tmp_path / name, dpi=60)
    for suffix in figures.SUFFIXES:
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
