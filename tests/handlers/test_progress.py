"""Progress of an engine in words and as a bar."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
import torch
from ignite.engine import Engine

from candor_monai.handlers.progress import ProgressHandler, images_of


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(progress, batches):
    engine = Engine(lambda engine, batch: None)
    progress.attach(engine)
    engine.run(batches)


BATCHES = [{"index": torch.tensor([0, 1, 2, 3])}, {"index": torch.tensor([4, 5, -1, -1])}]


def test_progress_tells_rate_and_time_left(capsys):
    run(ProgressHandler(6, "encoding", every=0.0), BATCHES)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("encoding: 4 of 6 images (66 %), ")
    assert lines[0].endswith(" left")
    assert lines[-1].startswith("encoding: 6 of 6 images (100 %), ")


def test_lines_are_rare_where_nobody_watches(capsys):
    run(ProgressHandler(6, "encoding"), BATCHES)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_progress_draws_a_bar_on_a_terminal():
    screen = Terminal()
    run(ProgressHandler(2, "scoring", unit="batch", count=lambda engine: 1, stream=screen), BATCHES)
    assert "scoring: 100%" in screen.getvalue()
    assert "batch/s" in screen.getvalue()


@pytest.mark.parametrize(
    "elapsed, text",
    [(0.0, "0.0 images/s"), (100.0, "3:20 left"), (10000.0, "5:33:20 left")],
)
def test_line(elapsed, text):
    progress = ProgressHandler(300, "encoding")
    progress._done = 100
    assert text in progress.line(elapsed)


@pytest.mark.parametrize(
    "batch, count",
    [
        ({"index": torch.tensor([3, -1])}, 1),
        ({"pred": torch.zeros(5, 2)}, 5),
        ([{"index": 3}, {"index": -1}], 1),
        ([torch.zeros(2), torch.zeros(2)], 2),
    ],
)
def test_images_of_any_batch(batch, count):
    assert images_of(SimpleNamespace(state=SimpleNamespace(batch=batch))) == count
