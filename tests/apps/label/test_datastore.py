"""Parts of the MONAI Label app by themselves: images that are listed anew under a request, odd labels, looking out."""

from __future__ import annotations

import json

import pytest

from candor_monai.apps.label.desk import LabelDesk
from candor_monai.apps.label.images import LabelImages
from candor_monai.data.cohort import Cohort
from candor_monai.utils import UserError

pytest.importorskip("monailabel", reason="monailabel is not installed")
from fastapi import HTTPException

from candor_monai.apps.label.server import app as app_module
from candor_monai.apps.label.server.datastore import CandorDatastore, Images


def cohort_of(root, *names):
    for name in names:
        (root / name).write_bytes(name.encode())
    return Cohort.of(list(names), {}, root=root, images=list(names))


@pytest.fixture
def datastore(tmp_path):
    cohort = cohort_of(tmp_path, "b.png", "c.png")
    desk = LabelDesk(tmp_path / "state", ["Edema"])
    desk.set_images(LabelImages.of(["b.png", "c.png"]))
    return CandorDatastore(str(tmp_path), cohort, desk)


@pytest.mark.parametrize("ask", ["get_image", "get_image_uri", "get_image_info", "path_told"])
def test_an_image_that_comes_under_a_request_moves_no_other(datastore, tmp_path, monkeypatch, ask):
    answer = getattr(datastore, ask)("c.png")
    expected = answer.read() if ask == "get_image" else answer
    row = Images.row

    def listed_anew(images, image_id):
        datastore.use(cohort_of(tmp_path, "a.png", "b.png", "c.png"))
        return row(images, image_id)

    monkeypatch.setattr(Images, "row", listed_anew)
    answer = getattr(datastore, ask)("c.png")
    assert (answer.read() if ask == "get_image" else answer) == expected
    assert datastore.list_images() == ["a.png", "b.png", "c.png"]


def test_an_image_that_is_not_listed_any_more_is_not_there(datastore):
    assert datastore.there("b.png")
    assert not datastore.there("gone.png")
    with pytest.raises(HTTPException, match="there is no image"):
        datastore.get_image_uri("gone.png")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b'{"findings": {"Edema": 1, "Edema": 0}}', "'Edema' is written twice"),
        (b'{"findings": {"Edema": NaN}}', "NaN is no JSON number"),
        (b"[" * 100_000, "nested too deeply|not JSON"),
        (b"[]", "a mapping"),
        (b'{"findings": {"Edema": 1}, "client_id": "\\ud800"}', "client_id must be text"),
    ],
)
@pytest.mark.parametrize("parameters", [{}, {"selected_by": "chosen"}])
def test_a_label_that_is_none_is_refused_whatever_the_parameters(datastore, tmp_path, document, message, parameters):
    (tmp_path / "label.json").write_bytes(document)
    with pytest.raises(HTTPException, match=message) as refused:
        datastore.save_label("b.png", str(tmp_path / "label.json"), "final", parameters)
    assert refused.value.status_code == 400
    assert datastore.get_labels_by_image_id("b.png") == {}


def test_parameters_count_where_the_document_is_silent(datastore, tmp_path):
    path = tmp_path / "label.json"
    for said, expected in (({}, "random"), ({"selected_by": "candor_diverse"}, "candor_diverse")):
        path.write_text(json.dumps({"findings": {"Edema": 1}, **said}))
        datastore.save_label("b.png", str(path), "final", {"selected_by": "random", "client_id": "r"})
        assert datastore.get_label_info("b.png", "final")["selected_by"] == expected


def test_scores_that_cannot_be_taken_over_are_asked_for_ever_more_seldom(monkeypatch):
    app = object.__new__(app_module.CandorLabelApp)
    app.options, app._seen = None, None
    tried, states = [], iter([1] * 12 + [None, 2])
    monkeypatch.setattr(app, "_signature", lambda: next(states))
    monkeypatch.setattr(app, "_access", dict)

    def refuses(options, access):
        tried.append(1)
        raise UserError("the PACS does not answer")

    monkeypatch.setattr(app_module, "open_studies", refuses)
    pause, pauses = 1.0, []
    for _ in range(12):
        pause = app._looked(pause)
        pauses.append(pause)
    assert pauses[:4] == [2.0, 4.0, 8.0, 16.0]
    assert pauses[-1] == app_module.LONGEST_PAUSE
    assert app._looked(pause) == 1.0  # nothing new
    assert len(tried) == 12
    monkeypatch.setattr(app_module, "open_studies", lambda *_: None)
    monkeypatch.setattr(app, "_take_over", lambda cohort: 0)
    assert app._looked(pause) == 1.0
