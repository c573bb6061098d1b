"""The label desk: the loop label, choose, label on a small datastore; restart, two processes, threads, odd names."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from candor_monai.apps.label.desk import LabelDesk
from candor_monai.apps.label.diverse import farthest_first
from candor_monai.apps.label.images import LabelImages
from candor_monai.apps.label.margins import MarginIndex
from candor_monai.metrics.options import Options
from candor_monai.networks.heads import LinearHeads
from candor_monai.utils import UserError
from tests.support import failures_in_threads

FINDINGS = ("Edema", "Mass.right/upper")
COUNT = 60
OPTIONS = Options(k=2)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def make_images(count: int = COUNT) -> LabelImages:
    return LabelImages.of(
        [f"sub/ä {i:03}.dcm" for i in range(count)],
        images=[f"sub/ä {i:03}.dcm" for i in range(count)],
        patients=[f"p{i // 2}" for i in range(count)],
        covariates={"site": ["north"] * count, "view": ["AP", "PA"] * (count // 2)},
        match_on=["site", "view"],
        name="ward",
    )


def make_features(count: int = COUNT) -> np.ndarray:
    rng = np.random.default_rng(0)
    truth = np.arange(count)[:, None] % 3 == 0
    return (rng.standard_normal((count, 8)) + 1.5 * truth).astype(np.float32)


def make_desk(folder: Path, clock: Clock | None = None) -> LabelDesk:
    return LabelDesk(folder, FINDINGS, OPTIONS, clock=clock or Clock(), cover=10)


def fill(desk: LabelDesk, ids: list[str], selected_by: str = "random") -> None:
    for image_id in ids:
        number = int(image_id[6:9])
        values = {"Edema": int(number % 3 == 0), "Mass.right/upper": number // 4 % 2}
        desk.save(image_id, {"findings": values, "selected_by": selected_by})


def test_a_small_loop_by_hand(tmp_path: Path) -> None:
    desk = make_desk(tmp_path)
    with pytest.raises(UserError, match="run the scoring method"):
        desk.next("random")
    images = make_images()
    desk.set_images(images, make_features())
    choice = desk.next("random", "reader 1")
    assert choice is not None
    assert (choice.rank, choice.score) == (0, None)
    saved = desk.save(choice.image_id, '{"findings": {"Edema": 1}}', client_id="reader 1")
    assert saved.label.current.selected_by == "random"
    assert saved.label.current.client_id == "reader 1"
    assert desk.labelled() == [choice.image_id]
    assert len(desk.unlabelled()) == COUNT - 1
    assert desk.next("candor_review") is None
    assert desk.next("candor_uncertain") is None
    other = desk.next("candor_diverse", "reader 2")
    assert other is not None
    assert other.image_id != choice.image_id
    assert (
        desk.save(other.image_id, {"findings": {"Edema": 0}}, "reader 2").label.current.selected_by == "candor_diverse"
    )
    fresh = desk.unlabelled()[0]
    assert desk.save(fresh, {"findings": {"Edema": 0}}).label.current.selected_by == "chosen"


def test_what_is_served_is_what_the_margins_say(tmp_path: Path) -> None:
    desk = make_desk(tmp_path)
    images, features = make_images(), make_features()
    desk.set_images(images, features)
    fill(desk, images.ids[:40])
    labels = desk.store.matrix(images.ids)
    index = MarginIndex(features, images.observations(FINDINGS), OPTIONS, labels)
    signed = np.where(labels == 1, index.dm, np.where(labels == 0, -index.dm, np.nan))
    score = np.nanmax(np.where(np.isnan(signed), -9, signed), axis=1)
    wanted = [images.ids[i] for i in np.argsort(-score, kind="stable") if score[i] > 0]
    served = []
    while (choice := desk.next("candor_review", "a")) is not None:
        served.append(choice.image_id)
        assert choice.score == score[images.row[choice.image_id]]
    assert served == wanted
    assert 3 < len(served) < 40
    r = np.nanmean(index.impurity, axis=1)
    served = []
    while (choice := desk.next("candor_uncertain", "b")) is not None:
        served.append(choice.image_id)
        assert choice.score == pytest.approx(r[images.row[choice.image_id]])
    assert set(served) == set(images.ids[40:])
    assert (np.diff([r[images.row[i]] for i in served]) <= 1e-12).all()
    assert desk.left("candor_uncertain") == 0
    assert desk.reset("candor_uncertain") == 20
    assert desk.left("candor_uncertain", "b") == 20
    # a review moves an image to the end of it for good
    first = wanted[0]
    desk.save(first, {"findings": {"Edema": 1}}, "a")
    label = desk.label(first)
    assert label is not None
    assert [x.selected_by for x in label.readings] == ["random", "candor_review"]
    desk.reset()
    again = desk.next("candor_review", "a")
    assert again is not None
    assert again.image_id != first


def test_saving_tells_what_it_affected(tmp_path: Path) -> None:
    desk = make_desk(tmp_path)
    images = make_images()
    desk.set_images(images, make_features())
    fill(desk, images.ids[:40])
    before = {i: desk.explain(i)["findings"]["Edema"] for i in images.ids}
    saved = desk.save(images.ids[50], {"findings": {"Edema": 1}})
    assert set(saved.affected) == {"Edema"}
    after = {i: desk.explain(i)["findings"]["Edema"] for i in images.ids}
    numbers = ("c_pos", "c_neg", "dm", "impurity")
    moved = {i for i in images.ids if any(before[i][n] != after[i][n] for n in numbers)}
    assert set(saved.affected["Edema"]) == moved != set()
    assert all(desk.explain(i)["group"] == "site=north|view=AP" for i in moved)


def test_explanations(tmp_path: Path) -> None:
    desk = make_desk(tmp_path)
    images, features = make_images(), make_features()
    present = np.ones(COUNT, bool)
    present[59] = False
    head = LinearHeads(["Edema"], torch.ones(1, 1, 8), torch.zeros(1, 1), [None])
    desk.set_images(images, features, present, head)
    told = desk.explain(images.ids[0])
    part = told["findings"]["Edema"]
    assert (told["label"], part["dm"], part["reason"]) == (None, None, "no labelled image")
    assert 0 < part["probability"] < 1
    assert told["findings"][FINDINGS[1]]["probability"] is None
    fill(desk, images.ids[:40])
    json.dumps(desk.explain(images.ids[0]), allow_nan=False)
    part = desk.explain(images.ids[0])["findings"]["Edema"]
    assert part["label"] == 1
    assert part["discordant"] is (part["dm"] > 0)
    assert len(part["positives"]) == 2
    assert part["dm"] == part["c_neg"] - part["c_pos"]
    assert part["reason"] is None
    assert part["c_pos"] == sum(n["similarity"] for n in part["positives"]) / 2
    others = {n["image_id"] for n in (*part["positives"], *part["negatives"])}
    assert images.ids[0] not in others
    assert images.ids[1] not in others
    assert "mean similarity" in part["words"]
    assert "not a diagnosis" in desk.explain(images.ids[0])["words"]
    # an image without a feature, then with one encoded on demand
    assert not desk.has_feature(images.ids[59])
    assert desk.has_feature(images.ids[58])
    assert "no feature" in desk.explain(images.ids[59])["findings"]["Edema"]["reason"]
    with pytest.raises(ValueError, match="not finite, or zero"):
        desk.set_feature(images.ids[59], np.zeros(8))
    desk.set_feature(images.ids[59], features[59])
    assert desk.has_feature(images.ids[59])
    outside = desk.explain(images.ids[59])
    assert outside["findings"]["Edema"]["dm"] is not None
    whole = make_desk(tmp_path / "other")
    whole.set_images(images, features, head=head)
    fill(whole, images.ids[:40])
    assert whole.explain(images.ids[59]) == outside
    with pytest.raises(UserError, match="there is no image 'x'"):
        desk.explain("x")


def test_bad_requests_change_nothing(tmp_path: Path) -> None:
    desk = make_desk(tmp_path)
    images = make_images()
    desk.set_images(images, make_features())
    for image_id, document in (
        ("/etc/hostname", {"findings": {"Edema": 1}}),
        (images.ids[0], "{"),
        (images.ids[0], {"findings": {"Edma": 1}}),
        (images.ids[0], {"findings": {"Edema": 7}}),
        (images.ids[0], None),
    ):
        with pytest.raises(UserError):
            desk.save(image_id, document)
    for call in (desk.next, desk.left, desk.reset):
        with pytest.raises(UserError, match="Did you mean 'candor_review'"):
            call("candor_reveiw")
    assert desk.labelled() == []
    assert desk.status()["problems"] == {}


def test_a_restart_loses_nothing(tmp_path: Path) -> None:
    clock = Clock()
    desk = make_desk(tmp_path, clock)
    images, features = make_images(), make_features()
    desk.set_images(images, features)
    fill(desk, images.ids[:40])
    desk.set_images(images, features)
    taken = [desk.next("candor_uncertain", "a"), desk.next("candor_review", "a")]
    fill(desk, images.ids[40:42])
    fresh = make_desk(tmp_path, clock)
    assert fresh.labelled() == desk.labelled() == images.ids[:42]
    choice = fresh.next("candor_uncertain", "b")
    assert choice is not None
    assert choice.image_id not in {c and c.image_id for c in taken} | set(images.ids[:42])
    told = fresh.explain(images.ids[3])
    live = desk.explain(images.ids[3])
    assert told["label"] == live["label"]
    assert told["findings"]["Edema"]["positives"] == []
    assert fresh.status()["selected_by"] == {"random": 42}
    assert not fresh.live
    fresh.set_images(images, features)
    assert fresh.live
    assert desk.live
    for image_id in images.ids:
        assert fresh.explain(image_id) == desk.explain(image_id)


def test_without_features_margins_of_the_last_scoring_are_kept(tmp_path: Path) -> None:
    desk = make_desk(tmp_path)
    images = make_images()
    desk.set_images(images, make_features())
    fill(desk, images.ids[:40])
    dm = desk.explain(images.ids[0])["findings"]["Edema"]["dm"]
    fewer = LabelImages(images.table.iloc[:50], images.match_on, images.name)
    desk.set_images(fewer)
    assert desk.explain(images.ids[0])["findings"]["Edema"]["dm"] == dm
    assert len(desk.unlabelled()) == 10
    assert not desk.has_feature(images.ids[0])
    assert desk.next("random") is not None
    with pytest.raises(UserError, match="there is no image"):
        desk.explain(images.ids[55])


def test_two_processes(tmp_path: Path) -> None:
    clock = Clock()
    one, two = make_desk(tmp_path, clock), make_desk(tmp_path, clock)
    images, features = make_images(), make_features()
    one.set_images(images, features)
    two.set_images(images, features)
    fill(one, images.ids[:20])
    fill(two, images.ids[20:40])
    assert one.labelled() == two.labelled() == images.ids[:40]
    assert all(one.explain(i) == two.explain(i) for i in images.ids)
    taken = [desk.next("random", "a") for desk in (one, two, one, two)]
    assert len({c.image_id for c in taken if c is not None}) == 4
    assert one.remove_label(images.ids[0])
    assert not one.remove_label(images.ids[0])
    assert two.label(images.ids[0]) is None
    assert images.ids[0] in two.unlabelled()
    assert one.explain(images.ids[2]) == two.explain(images.ids[2])
    fewer = LabelImages(images.table.iloc[:50], images.match_on, images.name)
    two.set_images(fewer, features[:50])
    assert two.live
    assert not one.live
    assert len(one.unlabelled()) == 11


def test_eight_clients_at_once(tmp_path: Path) -> None:
    desk = make_desk(tmp_path)
    images, features = make_images(200), make_features(200)
    desk.set_images(images, features)
    got: list[str] = []

    def work(number: int) -> None:
        for step in range(12):
            choice = desk.next(("random", "candor_diverse", "candor_uncertain")[step % 3], f"c{number}")
            if choice is None:
                continue
            got.append(choice.image_id)
            desk.explain(choice.image_id)
            desk.save(choice.image_id, {"findings": {"Edema": step % 2, FINDINGS[1]: number % 2}}, f"c{number}")

    assert not failures_in_threads(work)
    assert len(got) == len(set(got)) > 60
    assert desk.labelled() == sorted(got)
    index = MarginIndex(features, images.observations(FINDINGS), OPTIONS, desk.store.matrix(images.ids))
    for i in range(0, 200, 11):
        near = index.near(i, 0)
        assert desk.explain(images.ids[i])["findings"]["Edema"]["dm"] == near.dm


def test_scoring_lets_others_go_on_and_takes_what_they_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = make_desk(tmp_path)
    images, features = make_images(), make_features()
    desk.set_images(images, features)
    fill(desk, images.ids[:30])
    begun, go_on = threading.Event(), threading.Event()

    def waiting(*args: object) -> np.ndarray:
        begun.set()
        assert go_on.wait(60)
        return farthest_first(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("candor_monai.apps.label.desk.farthest_first", waiting)
    scoring = threading.Thread(target=desk.set_images, args=(images, features))
    scoring.start()
    assert begun.wait(60)
    assert desk.next("random", "a") is not None
    fill(desk, images.ids[30:40])
    desk.remove_label(images.ids[0])
    go_on.set()
    scoring.join()
    assert desk.labelled() == images.ids[1:40]
    index = MarginIndex(features, images.observations(FINDINGS), OPTIONS, desk.store.matrix(images.ids))
    for row, image_id in enumerate(images.ids):
        assert desk.explain(image_id)["findings"]["Edema"]["dm"] == index.near(row, 0).dm
    desk.reset()
    served = set()
    while (choice := desk.next("candor_diverse", "a")) is not None:
        served.add(choice.image_id)
    assert served == {images.ids[0], *images.ids[40:]}


def test_a_spoiled_file_of_scores_is_told_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    desk = make_desk(tmp_path)
    desk.set_images(make_images(), make_features())
    (tmp_path / "scores.arrow").write_bytes(b"ARROW1 nothing")
    fresh = make_desk(tmp_path)
    with pytest.raises(UserError, match="run the scoring method"):
        fresh.next("random")
    assert "not a readable file of scores" in caplog.text
    fresh.set_images(make_images(), make_features())
    assert make_desk(tmp_path).next("random") is not None


def test_a_blinded_reread(tmp_path: Path) -> None:
    desk = make_desk(tmp_path)
    images = make_images()
    desk.set_images(images, make_features())
    with pytest.raises(UserError, match="no margin"):
        desk.draw_rereads()
    fill(desk, images.ids[:54])
    reviewed = desk.next("candor_review", "a")
    assert reviewed is not None
    desk.save(reviewed.image_id, {"findings": {"Edema": 1}}, "a")
    path = desk.draw_rereads(3)
    listed = pd.read_csv(path)["image_id"].tolist()
    assert list(pd.read_csv(path).columns) == ["image_id", "image"]  # nothing that tells which is which
    kinds = {e["image_id"]: e["selected_by"] for e in json.loads((tmp_path / "rereads.json").read_text())["entries"]}
    assert list(kinds) == listed
    assert reviewed.image_id not in kinds
    assert sorted(kinds.values()) == ["candor_review"] * 3 + ["reread_random"] * 4  # one makes up for the review
    read = []
    while (choice := desk.next("reread", "b")) is not None:
        assert choice.score is None
        saved = desk.save(choice.image_id, {"findings": {"Edema": 0}}, "b")
        assert saved.label.current.selected_by == kinds[choice.image_id]
        read.append(choice.image_id)
    assert read == listed
    assert desk.left("reread") == 0
    assert desk.status()["reread_by"] == {"candor_review": 4, "reread_random": 4}


@pytest.mark.parametrize("findings", [[], ["a", "a"]])
def test_bad_desks(tmp_path: Path, findings: list[str]) -> None:
    with pytest.raises(UserError, match="finding"):
        LabelDesk(tmp_path, findings)


def test_bad_images() -> None:
    with pytest.raises(UserError, match="occurs twice"):
        LabelImages.of(["a", "a"])
    with pytest.raises(UserError, match="no image"):
        LabelImages.of([])
    with pytest.raises(UserError, match="Did you mean 'view'"):
        LabelImages.of(["a"], covariates={"view": ["AP"]}, match_on=["veiw"])
