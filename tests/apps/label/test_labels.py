"""The label store: one label, odd names, two stores on one folder, threads, kills, files that somebody spoiled."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from candor_monai.apps.label.labels import LabelStore
from candor_monai.apps.label.readings import label_schema
from candor_monai.utils import UserError
from tests.support import failures_in_threads

FINDINGS = ["Edema", "Mass, right.upper/lobe", "Ödem"]


class Clock:
    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_one_label_by_hand(tmp_path: Path) -> None:
    store = LabelStore(tmp_path / "labels", FINDINGS, Clock(0.5))
    assert store.get("a") is None
    assert store.image_ids() == []
    assert not (tmp_path / "labels" / "a").exists()
    store.save("a", {"Edema": 1}, "random", "reader 1")
    content = json.loads(store.path("a").read_text(encoding="utf-8"))
    jsonschema.validate(content, label_schema())
    assert content == {
        "schema_version": 1,
        "image_id": "a",
        "findings": {"Edema": 1},
        "selected_by": "random",
        "client_id": "reader 1",
        "time": "1970-01-01T00:00:00.500000Z",
        "history": [],
    }
    assert store.matrix(["b", "a"]).tolist() == [[-1, -1, -1], [1, -1, -1]]


def test_labelling_again_keeps_history_and_what_was_not_said(tmp_path: Path) -> None:
    clock = Clock()
    store = LabelStore(tmp_path, FINDINGS, clock)
    store.save("a", {"Edema": 1, "Ödem": 0}, "random", "r1")
    clock.now += 60
    label = store.save("a", {"Edema": 0}, "candor_review", "r2")
    assert label.findings == {"Edema": 0, "Ödem": 0}
    assert [(r.selected_by, r.client_id, r.findings["Edema"]) for r in label.readings] == [
        ("random", "r1", 1),
        ("candor_review", "r2", 0),
    ]
    store.save("a", {"Ödem": None})
    assert store.matrix(["a"]).tolist() == [[0, -1, -1]]
    content = json.loads(store.path("a").read_text(encoding="utf-8"))
    jsonschema.validate(content, label_schema())
    assert [item["selected_by"] for item in content["history"]] == ["random", "candor_review"]
    assert LabelStore(tmp_path, FINDINGS).get("a") == store.get("a")


ODD = ["a.b/c.dcm", "ü/ß €", "..", "../../etc/passwd", "x" * 5000, "a\x00b", "A", "a", "a.json", " ", "\n", "con", "-"]


def test_odd_ids_do_not_meet_and_do_not_leave_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "labels"
    store = LabelStore(folder, FINDINGS)
    for number, image_id in enumerate(ODD):
        store.save(image_id, {"Edema": number % 2})
    fresh = LabelStore(folder, FINDINGS)
    assert fresh.image_ids() == sorted(ODD)
    assert fresh.problems == {}
    assert fresh.matrix(ODD)[:, 0].tolist() == [number % 2 for number in range(len(ODD))]
    assert {p.name for p in tmp_path.iterdir()} == {"state"}
    assert {p.name for p in folder.parent.iterdir()} == {"labels"}


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), unique=True, max_size=8))
@settings(max_examples=30, deadline=None)
def test_any_text_is_an_id(tmp_path_factory: pytest.TempPathFactory, ids: list[str]) -> None:
    folder = tmp_path_factory.mktemp("labels")
    store = LabelStore(folder, FINDINGS)
    for image_id in ids:
        store.save(image_id, {"Edema": 1})
    assert LabelStore(folder, FINDINGS).image_ids() == sorted(ids)


@pytest.mark.parametrize("image_id", ["", "\ud800", None, 3])
def test_what_is_no_id(tmp_path: Path, image_id: object) -> None:
    with pytest.raises(UserError, match="image id"):
        LabelStore(tmp_path, FINDINGS).save(image_id, {"Edema": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("findings", [[], ["a", "a"], [""], "Edema"])
def test_what_are_no_findings(tmp_path: Path, findings: list[str]) -> None:
    with pytest.raises(UserError, match="finding"):
        LabelStore(tmp_path, findings)


def test_what_is_refused_changes_nothing(tmp_path: Path) -> None:
    store = LabelStore(tmp_path, FINDINGS)
    store.save("a", {"Edema": 1})
    before = store.path("a").read_bytes()
    for values, selected in (
        ({"Edma": 1}, "chosen"),
        ({"Edema": 2}, "chosen"),
        ({"Edema": 0}, "candor"),
        ({}, "chosen"),
    ):
        with pytest.raises(UserError):
            store.save("a", values, selected)
    with pytest.raises(UserError):
        store.save("a", {"Edema": 1}, client_id="x" * 300)
    assert store.path("a").read_bytes() == before


def test_a_second_store_sees_what_the_first_does_at_once(tmp_path: Path) -> None:
    one, two = LabelStore(tmp_path, FINDINGS), LabelStore(tmp_path, FINDINGS)
    assert two.refresh() == []
    one.save("a", {"Edema": 1})
    one.save("b", {"Edema": 0})
    assert two.refresh() == ["a", "b"]
    assert two.refresh() == []
    # the folder's time of change may be the same after two writes of one moment
    state = os.stat(tmp_path)
    one.save("a", {"Edema": 0})
    os.utime(tmp_path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert two.refresh() == ["a"]
    assert two.matrix(["a"])[0, 0] == 0
    one.remove("a")
    assert two.refresh() == ["a"]
    assert two.get("a") is None
    assert one.refresh() == ["a", "b"]
    assert one.refresh() == []


def test_nothing_is_lost_between_two_stores_that_label_one_image(tmp_path: Path) -> None:
    one, two = LabelStore(tmp_path, FINDINGS), LabelStore(tmp_path, FINDINGS)
    one.save("a", {"Edema": 1}, client_id="1")
    two.save("a", {"Edema": 0}, client_id="2")
    label = one.save("a", {"Edema": 1}, client_id="3")
    assert [r.client_id for r in label.readings] == ["1", "2", "3"]


def test_an_edit_by_hand(tmp_path: Path) -> None:
    store = LabelStore(tmp_path, FINDINGS)
    store.save("a", {"Edema": 1})
    store.save("b", {"Edema": 1})
    store.refresh()
    for image_id in "ab":
        path = store.path(image_id)
        path.write_text(path.read_text(encoding="utf-8").replace('"Edema": 1', '"Edema": 0'), encoding="utf-8")
    assert store.get("a").findings["Edema"] == 0  # type: ignore[union-attr]
    assert store.refresh(whole=True) == ["a", "b"]
    assert store.matrix(["a", "b"])[:, 0].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b'{"schema_version": 1, "image_id": "a", "findi', "not JSON"),
        (b"\x00" * 100, "not JSON"),
        (b"\xff", "not UTF-8"),
        (b"{}", "is missing"),
    ],
)
def test_a_spoiled_file_is_told_and_kept(tmp_path: Path, content: bytes, message: str) -> None:
    store = LabelStore(tmp_path, FINDINGS)
    store.save("a", {"Edema": 1})
    store.save("b", {"Edema": 1})
    store.path("a").write_bytes(content)
    fresh = LabelStore(tmp_path, FINDINGS)
    assert fresh.image_ids() == ["b"]
    assert fresh.get("a") is None
    ((name, problem),) = fresh.problems.items()
    assert name == store.path("a").name
    assert message in problem
    fresh.save("a", {"Edema": 0})
    assert fresh.problems == {}
    assert fresh.matrix(["a"])[0, 0] == 0
    (kept,) = (tmp_path / "set_aside").iterdir()
    assert kept.read_bytes() == content


def test_a_file_of_another_image_is_a_problem(tmp_path: Path) -> None:
    store = LabelStore(tmp_path, FINDINGS)
    store.save("a", {"Edema": 1})
    os.replace(store.path("a"), store.path("b"))
    fresh = LabelStore(tmp_path, FINDINGS)
    assert fresh.image_ids() == []
    assert "label of 'a'" in next(iter(fresh.problems.values()))


def test_findings_that_nobody_asks_for_now_are_kept(tmp_path: Path) -> None:
    LabelStore(tmp_path, ["Old"]).save("a", {"Old": 1})
    store = LabelStore(tmp_path, FINDINGS)
    assert store.matrix(["a"]).tolist() == [[-1, -1, -1]]
    assert store.problems == {}
    assert store.save("a", {"Edema": 1}).findings == {"Old": 1, "Edema": 1}


def test_eight_threads_lose_nothing(tmp_path: Path) -> None:
    store = LabelStore(tmp_path, FINDINGS)

    def work(number: int) -> None:
        for i in range(25):
            store.save(f"own {number} {i}", {"Edema": i % 2}, "random", f"c{number}")
            store.save("shared", {"Ödem": number % 2}, "random", f"c{number}")
            assert store.get(f"own {number} {i}") is not None

    assert not failures_in_threads(work)
    fresh = LabelStore(tmp_path, FINDINGS)
    assert len(fresh.image_ids()) == 201
    assert fresh.problems == {}
    shared = fresh.get("shared")
    assert shared is not None
    assert len(shared.readings) == 200
    assert np.bincount([int(str(r.client_id)[1:]) for r in shared.readings]).tolist() == [25] * 8


def test_what_was_saved_is_there_after_a_kill(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    reader, writer = os.pipe()

    def label_for_ever(number: int) -> None:
        store = LabelStore(tmp_path / "labels", FINDINGS)
        for i in range(100_000):
            store.save(f"{number}-{i}", {"Edema": 1})
            os.write(writer, f"{number}-{i}\n".encode())

    workers = [context.Process(target=label_for_ever, args=(n,), daemon=True) for n in range(2)]
    for worker in workers:
        worker.start()
    os.close(writer)
    told = b""
    while told.count(b"\n") < 40:
        part = os.read(reader, 4096)
        assert part, "the workers ended early"
        told += part
    for worker in workers:
        worker.kill()
        worker.join()
    while part := os.read(reader, 4096):
        told += part
    os.close(reader)
    store = LabelStore(tmp_path / "labels", FINDINGS)
    assert set(told.decode().splitlines()) <= set(store.image_ids())
    assert store.problems == {}
    store.save("after", {"Edema": 1})  # the lock went with its holder


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        LabelStore(tmp_path / "file", FINDINGS).save("a", {"Edema": 1})
