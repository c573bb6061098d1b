from __future__ import annotations

import numpy as np
from PIL import Image

from candor_monai.visualize import neighbour_figures
from candor_monai.visualize.gallery import build_gallery
from candor_monai.visualize.report_rows import encoder_order

from . import synthetic


def written(folder, document, frames, asked=None):
    def thumbnail(image_id):
        if asked is not None:
            asked.append(image_id)
        return synthetic.thumbnail(image_id)

    tables = (frames["queries"], frames["candidates"])
    return neighbour_figures.write_neighbour_figures(folder, document, *tables, thumbnail, synthetic.features, dpi=40)


def test_the_figure_shows_the_first_example_of_the_gallery(tmp_path):
    document = synthetic.three_encoders()
    frames = synthetic.frames(document)
    asked: list[str] = []
    files = written(tmp_path, document, frames, asked)
    assert [file.name for file in files] == ["neighbours_chest.svg", "neighbours_chest.png"]
    assert min(Image.open(files[1]).size) > 60
    best = encoder_order(document)[0]
    tables = (frames["queries"], frames["candidates"])
    gallery = build_gallery(
        document, *tables, synthetic.thumbnail, [best], features=synthetic.features, budget=10**9, count=1
    )
    first = max(
        (cell.examples[0] for cell in gallery.cells if cell.encoder == best and cell.examples),
        key=lambda example: float(example.margin),
    )
    assert first.agrees
    assert asked == [tile.image_id for tile in (first.query, *first.negatives, *first.positives)]
    text = files[0].read_text()
    assert not any(image_id in text for image_id in asked)


def test_a_task_without_a_discordant_positive_has_none_and_old_ones_go(tmp_path):
    document = synthetic.one_encoder()
    frames = synthetic.frames(document)
    assert written(tmp_path, document, frames)
    (tmp_path / "tasks.svg").write_text("x")
    frames["queries"]["discordant"] = False
    assert written(tmp_path, document, frames) == []
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.svg"]


def test_negative_queries_are_not_shown(tmp_path):
    document = synthetic.one_encoder()
    frames = synthetic.frames(document)
    frames["queries"]["label"] = np.int8(0)
    assert written(tmp_path, document, frames) == []
