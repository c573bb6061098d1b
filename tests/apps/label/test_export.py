"""The way back: what was labelled, loaded and measured as a cohort of one's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from candor_monai.apps import tools
from candor_monai.apps.label.desk import LabelDesk
from candor_monai.apps.label.images import LabelImages
from candor_monai.data import load_cohort
from candor_monai.metrics.evaluation import evaluate
from candor_monai.metrics.options import Options
from candor_monai.utils import UserError

FINDINGS = ("Edema", "Mass, right.upper/lobe", "Ödem ≥ 3")
OPTIONS = Options(k=2, total_interval=False, permutation_test=False, margin=False)
COUNT = 80


def ids(count: int = COUNT) -> list[str]:
    return [f"sub {i % 3}/ä,{i:03}.x.png" for i in range(count)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ids():
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return tmp_path


def make_desk(root: Path, **columns: object) -> tuple[LabelDesk, np.ndarray]:
    rng = np.random.default_rng(1)
    truth = np.arange(COUNT)[:, None] % 3 == 0
    features = (rng.standard_normal((COUNT, 8)) + 1.0 * truth).astype(np.float32)
    images = LabelImages.of(
        ids(),
        images=ids(),
        patients=[f"{i // 2:016x}" for i in range(COUNT)],
        covariates={"site": ["north"] * COUNT, "view": ["AP", "PA"] * (COUNT // 2)},
        match_on=["site", "view"],
        name="ward",
    )
    desk = LabelDesk(root / "state", FINDINGS, OPTIONS, cover=5)
    desk.set_images(images, features)
    for i, name in enumerate(ids()[:70]):
        values = {FINDINGS[0]: int(i % 3 == 0), FINDINGS[1]: i // 4 % 2, FINDINGS[2]: None}
        desk.save(name, {"findings": values, "selected_by": "random"})
    return desk, features


def test_the_loop_closes(root: Path) -> None:
    """Label, export, load, measure: the same labels, groups and margins as at the desk."""
    desk, features = make_desk(root)
    card = desk.export(root / "out")
    cohort = load_cohort(card, root / "images")
    assert (cohort.name, cohort.findings, len(cohort)) == ("ward", FINDINGS, 70)
    assert cohort.groups()[1] == ("site=north|view=AP", "site=north|view=PA")
    assert cohort.counts["selection"]["selected_by"] == {"random": 70}
    assert set(cohort.rejected["reason"]) == {"no_label_row"}
    row = {name: i for i, name in enumerate(ids())}
    rows = [row[name] for name in cohort.records["image_id"]]
    np.testing.assert_array_equal(cohort.labels, desk.store.matrix(ids())[rows])
    queries = evaluate(features[rows], cohort.observations(), OPTIONS).queries
    assert len(queries["dm"]) > 40
    for i, image_id in enumerate(queries["image_id"]):
        told = desk.explain(image_id)["findings"][queries["finding"][i]]
        assert (told["c_pos"], told["c_neg"], told["dm"]) == tuple(queries[n][i] for n in ("c_pos", "c_neg", "dm"))
        assert told["discordant"] == queries["discordant"][i]


def test_choosing_does_not_move_the_measure(root: Path) -> None:
    """After reviews and labels chosen by a score, an evaluation is what it was before them, unless it is told."""
    desk, _features = make_desk(root)
    before = load_cohort(desk.export(root / "before"), root / "images")
    changed = 0
    while changed < 6 and (choice := desk.next("candor_review", "a")) is not None:
        label = desk.label(choice.image_id)
        assert label is not None
        desk.save(choice.image_id, {"findings": {FINDINGS[0]: 1 - label.findings[FINDINGS[0]]}}, "a")
        changed += 1
    while (choice := desk.next("candor_uncertain", "a")) is not None:
        desk.save(choice.image_id, {"findings": {FINDINGS[0]: 1}}, "a")
    assert changed == 6
    assert len(desk.labelled()) == COUNT
    card = desk.export(root / "after")
    after = load_cohort(card, root / "images")
    assert after.records["image_id"].tolist() == before.records["image_id"].tolist()
    np.testing.assert_array_equal(after.labels, before.labels)
    assert (after.rejected["reason"] == "selected").sum() == 10
    kept = load_cohort(card, root / "images", selection="keep")
    assert len(kept) == COUNT
    assert (kept.labels[:70] != before.labels).any()
    assert len(kept.counts["selection"]["warnings"]) == 2
    with pytest.raises(UserError, match=f"{changed} more are needed"):
        load_cohort(card, root / "images", selection="reread")
    desk.draw_rereads(4)
    while (choice := desk.next("reread", "b")) is not None:
        desk.save(choice.image_id, {"findings": {FINDINGS[0]: 1}}, "b")
    again = load_cohort(desk.export(root / "again"), root / "images", selection="reread")
    assert len(again) == 70
    assert again.counts["selection"]["warnings"] == []
    reread = again.counts["selection"]["reread_by"]
    assert reread["candor_review"] == reread["reread_random"] > changed


def test_what_the_table_holds(root: Path) -> None:
    desk, _ = make_desk(root)
    name = ids()[3]
    desk.save(name, {"findings": {FINDINGS[0]: 0}, "selected_by": "candor_review"})
    card = desk.export(root / "out")
    table = pd.read_csv(root / "out" / "labels.csv", dtype=str, keep_default_na=False).set_index("image_id")
    assert table.index.tolist() == sorted(ids()[:70])
    row = table.loc[name]
    assert (row["image"], row["patient_id"], row["view"]) == (name, f"{1:016x}", "PA")
    assert (row["selected_by"], row["reread_by"], row[FINDINGS[0]]) == ("random", "candor_review", "0")
    assert row[f"first_reading:{FINDINGS[0]}"] == "1"
    assert table.loc[ids()[4], f"first_reading:{FINDINGS[0]}"] == ""
    assert yaml.safe_load(card.read_text(encoding="utf-8"))["adapter"] == "table"


def test_names_that_a_spreadsheet_would_run_go_into_parquet(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    names = ["=1+1.png", "-a.png", "@b.png", "c.png"]
    for name in names:
        (tmp_path / "images" / name).write_bytes(b"")
    desk = LabelDesk(tmp_path / "state", ["+F"])
    desk.set_images(LabelImages.of(names, images=names))
    for name in names:
        desk.save(name, {"findings": {"+F": 1}})
    card = desk.export(tmp_path / "out")
    assert (tmp_path / "out" / "labels.parquet").exists()
    assert not (tmp_path / "out" / "labels.csv").exists()
    cohort = load_cohort(card, tmp_path / "images")
    assert sorted(cohort.records["image_id"]) == sorted(names)
    assert (cohort.labels == 1).all()


def test_a_pacs(tmp_path: Path) -> None:
    desk = LabelDesk(tmp_path / "state", ["F"])
    desk.set_images(LabelImages.of(["1.2.3", "1.2.4"], images=["x/1", "x/2"]))
    desk.save("1.2.3", {"findings": {"F": 1}})
    card = yaml.safe_load(desk.export(tmp_path / "out", {"url": "https://pacs/dicom-web"}).read_text())
    assert (card["adapter"], card["options"]["url"]) == ("dicomweb", "https://pacs/dicom-web")
    table = pd.read_csv(tmp_path / "out" / "labels.csv", dtype=str)
    assert table["SOPInstanceUID"].tolist() == ["1.2.3"]
    assert "image" not in table


def test_nothing_to_export_and_bad_names(tmp_path: Path) -> None:
    desk = LabelDesk(tmp_path / "state", ["F", "selected_by"])
    desk.set_images(LabelImages.of(["a"]))
    with pytest.raises(UserError, match="'selected_by' has the name of a column"):
        desk.export(tmp_path / "out")
    desk = LabelDesk(tmp_path / "other", ["F"])
    desk.set_images(LabelImages.of(["a"]), np.ones((1, 2), np.float32))
    with pytest.raises(UserError, match="nothing to export"):
        desk.export(tmp_path / "out")


def test_tools(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    desk, features = make_desk(root)
    desk.set_images(desk._images().images, features)
    card = tools.export_labels(str(root / "state"), str(root / "out"))
    assert len(load_cohort(card, root / "images")) == 70
    path = tools.draw_rereads(str(root / "state"), 2)
    assert len(pd.read_csv(path)) == 4
    assert "4 images to read again" in capsys.readouterr().out
    for call, message in (
        (lambda: tools.export_labels(str(root / "no"), "x"), "no scoring was written here"),
        (lambda: tools.draw_rereads(None), "--label_dir is needed"),
        (lambda: tools.draw_rereads(str(root / "state"), "x"), "--number must be a whole number"),
    ):
        with pytest.raises(SystemExit, match=message):
            call()
