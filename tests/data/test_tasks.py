"""Tasks: those shipped, and what a task refuses."""

from __future__ import annotations

import pytest

from candor_monai.data import Task, list_tasks, load_task
from candor_monai.utils import UserError


def test_chest_weights_are_those_of_the_measures():
    task = load_task("chest")
    assert len(task.findings) == 12
    assert sum(task.weight(f) for f in task.findings) == 5 * 3 + 5 * 2 + 2 * 1
    assert task.match_on == ("site", "view")


@pytest.mark.parametrize("name", list_tasks())
def test_every_shipped_task_loads(name):
    task = load_task(name)
    assert task.name == name
    assert task.title


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"uncertain": "ignore"}, "'ignore'"),
        ({"blank": "positive"}, "'positive'"),
        ({"findings": ["A", "A"]}, "names finding 'A' twice"),
        ({"findings": ["A"], "weights": {"A": 0}}, "must be positive"),
        ({"findings": ["Edema"], "weights": {"Edma": 1}}, "Did you mean 'Edema'"),
        ({"finding": ["A"]}, "Did you mean 'findings'"),
    ],
)
def test_what_is_refused(fields, message):
    with pytest.raises(UserError, match=message):
        load_task({"name": "t", **fields})


def test_unknown_task():
    with pytest.raises(UserError, match="Did you mean 'chest'"):
        load_task("chets")


def test_fewer_findings_drop_their_weights():
    task = Task("t", ("A", "B"), {"A": 2.0}).with_findings(("B",))
    assert task.weights == {}
