"""Loading: options, cards, what is common to all datasets."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from candor_monai.data import list_cohorts, load_cohort
from candor_monai.data.cohorts import load_card, register_adapter
from candor_monai.data.cohorts.draft import Draft
from candor_monai.data.cohorts.registry import SHIPPED, adapter_named, adapter_options
from candor_monai.data.cohorts.vocabulary import load_vocabulary
from candor_monai.utils import UserError, read_yaml
from tests.support import ROOT

from .trees import labels_of, reasons, touch


def toy(source, *, rows=4, absolute=False):
    """Images a0, a1, … with codes 1, 0, -1, -2, -3, 1, …; every third is lateral."""
    source.at(source.need_dataset_dir())
    ids = [f"a{i}" for i in range(rows)]
    records = pd.DataFrame({"image_id": ids, "image": [f"{i}.png" for i in ids]}, dtype=object)
    if absolute:
        records["image"] = "/etc/" + records["image"]
    records["patient_id"] = ids
    records["site"] = "toy"
    records["view"] = ["L" if i % 3 == 2 else "PA" for i in range(rows)]
    cycle = np.array([1, 0, -1, -2, -3], np.int8)
    codes = cycle[np.arange(rows) % 5][:, None]
    return Draft(records, ("F",), codes, found={"rows": rows})


register_adapter("toy", toy)
CARD = {"name": "toy", "adapter": "toy", "match_on": ["site", "view"], "expected": {"rows": 9}}


def test_files_are_looked_for_and_policy_is_applied(tmp_path):
    touch(tmp_path, ["a0.png", "a1.png", "a2.png", "a4.png"])
    cohort = load_cohort(CARD, tmp_path, rows=5)
    assert labels_of(cohort, "F") == {"a0": 1, "a1": 0, "a2": -1}
    assert reasons(cohort) == {"a3": "missing_file"}
    assert cohort.counts["left_out"] == {"no label": 1}
    assert cohort.task.match_on == ("site", "view")
    assert cohort.describe()["expected"][0]["sentence"] == "rows: expected 9, found 5"


def alike(source):
    """Images whose names differ in letter case and suffix alone."""
    source.at(source.need_dataset_dir())
    names = ["a.png", "A.png", "a.jpg", "b.jpg", "B.tif"]
    records = pd.DataFrame({"image_id": names, "image": names}, dtype=object)
    return Draft(records, ("F",), np.ones((5, 1), np.int8), suffixes=(".png", ".jpg"))


register_adapter("alike", alike)


def test_a_file_under_another_name_is_one_images_alone(tmp_path):
    touch(tmp_path, ["a.png", "b.PNG"])
    cohort = load_cohort({"name": "alike", "adapter": "alike"}, tmp_path)
    assert cohort.records[["image_id", "image"]].to_numpy().tolist() == [["a.png", "a.png"], ["b.jpg", "b.PNG"]]
    assert reasons(cohort) == dict.fromkeys(["A.png", "a.jpg", "B.tif"], "missing_file")
    assert cohort.counts["files_found_under_another_name"] == 1


def test_policy_and_views_are_options(tmp_path):
    cohort = load_cohort(CARD, tmp_path, check_files=False, uncertain="positive", blank="exclude", views=["PA"], rows=5)
    assert labels_of(cohort, "F") == {"a0": 1, "a1": 0}
    assert cohort.counts["left_out"] == {"view L not chosen": 1, "no label": 2}
    assert cohort.counts["policy"]["blank"] == "exclude"


def test_unlabelled_images_can_be_kept(tmp_path):
    cohort = load_cohort(CARD, tmp_path, check_files="false", keep_unlabelled="true", rows=5)
    assert labels_of(cohort, "F")["a4"] == -1


def test_a_tenth_missing_goes_on_and_all_missing_stops(tmp_path):
    touch(tmp_path, [f"a{i}.png" for i in range(50) if i % 10])
    cohort = load_cohort(CARD, tmp_path, rows=50)
    assert len(cohort.rejected) == 5
    assert len(cohort) + len(cohort.rejected) + cohort.counts["left_out"]["no label"] == 50
    for file in tmp_path.iterdir():
        file.unlink()
    touch(tmp_path, ["other.png"])
    with pytest.raises(UserError, match=r"none of the 40 images .* e\.g\. a0\.png.*holds other\.png"):
        load_cohort(CARD, tmp_path, rows=50)


def test_paths_that_leave_the_folder(tmp_path):
    with pytest.raises(UserError, match="leaves the dataset's folder"):
        load_cohort(CARD, tmp_path, absolute=True)
    with pytest.raises(UserError, match="none of the 4 images"):
        load_cohort(CARD, tmp_path, absolute=True, allow_outside=True)


def test_drawing_a_part(tmp_path):
    every = load_cohort(CARD, tmp_path, check_files=False, rows=200)
    drawn = load_cohort(CARD, tmp_path, check_files=False, rows=200, max_images=20)
    assert len(drawn) == 20
    assert drawn.counts["left_out"]["not drawn"] == len(every) - 20
    # nested, and the same whatever else is there
    more = load_cohort(CARD, tmp_path, check_files=False, rows=200, max_images="40")
    assert set(drawn.records["image_id"]) < set(more.records["image_id"])
    other = load_cohort(CARD, tmp_path, check_files=False, rows=200, max_images=20, draw_seed=1)
    assert set(other.records["image_id"]) != set(drawn.records["image_id"])
    balanced = load_cohort(CARD, tmp_path, check_files=False, rows=200, per_label=10)
    assert sorted(labels_of(balanced, "F").values()) == [0] * 10 + [1] * 10


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_images": 0}, "max_images must be a whole number of at least 1"),
        ({"per_label": "many"}, "option per_label of cohort 'toy': must be a whole number"),
        ({"rws": 3}, "'rws'. Did you mean 'rows'"),
        ({"uncertian": "exclude"}, "Did you mean 'uncertain'"),
        ({"uncertain": "ignore"}, "'ignore'"),
        ({"check_files": "maybe"}, "option check_files of cohort 'toy': must be true or false"),
        ({"views": ["PB"]}, "'PB'. Did you mean 'PA'"),
        ({"splits": ["train"]}, "no image is left"),
        ({"splits": ["trian"]}, "Did you mean 'train'"),
        ({"findings": ["G"]}, "unknown finding"),
        ({"match_on": ["vew"]}, "Did you mean 'view'"),
        ({"preset": "papr"}, "Did you mean 'paper'"),
        ({"extras": ["calus_fracture"]}, "Did you mean 'callus_fracture'"),
    ],
)
def test_options_that_are_refused(tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        load_cohort(CARD, tmp_path, **{"check_files": False, **options})


@pytest.mark.parametrize(
    "card, message",
    [
        ("nih_cx", "Did you mean"),
        ({"name": "x"}, "adapter is missing"),
        ({"name": "x", "adapter": "nih"}, "unknown cohort adapter"),
        ({"name": "x", "adapter": "toy", "licens": "?"}, "Did you mean 'licence'"),
        ({"name": "x", "adapter": "toy", "options": {"rws": 1}}, "Did you mean 'rows'"),
    ],
)
def test_cards_that_are_refused(tmp_path, card, message):
    with pytest.raises(UserError, match=message):
        load_cohort(card, tmp_path)


def test_a_shipped_name_cannot_be_taken():
    with pytest.raises(ValueError, match="shipped"):
        register_adapter("nih_cxr", toy)


@pytest.mark.parametrize("name", list_cohorts())
def test_every_card_is_whole(name):
    card = load_card(name)
    assert card.name == name
    assert card.title
    assert card.access
    assert card.obtain
    options = adapter_options(adapter_named(card.adapter))
    assert set(card.options) <= set(options) | {"views", "blank", "uncertain", "keep_unlabelled", "splits"}
    if card.access not in ("your own", "made by the package itself", "that of each of its cohorts"):
        assert card.licence
        assert card.citation
        assert card.tree
        assert card.expected


@pytest.mark.parametrize("name", SHIPPED)
def test_every_adapter_has_a_card_and_asks_for_a_folder(name):
    assert name in {load_card(c).adapter for c in list_cohorts()}
    with pytest.raises(UserError, match=r"--dataset_dir"):
        load_cohort(name)


def test_every_card_and_extra_is_documented():
    told = (ROOT / "docs" / "cohorts.md").read_text()
    assert [name for name in list_cohorts() if f"`{name}`" not in told and name != "calibration"] == []
    extras = read_yaml(ROOT / "configs" / "chest_vocabulary.yaml")["extras"]
    assert [name for name in extras if f"`{name}`" not in told] == []


def test_presets_and_extras_of_the_vocabulary():
    findings = ["Enlarged Cardiomediastinum", "Fracture"]
    assert set(load_vocabulary().of("padchest", findings)) == set(findings)
    paper = load_vocabulary(preset="paper", extras=["callus_fracture"]).of("padchest", findings)
    assert list(paper) == ["Fracture"]
    assert paper["Fracture"][-1] == "callus rib fracture"
    assert "callus rib fracture" not in load_vocabulary().of("padchest", findings)["Fracture"]


@pytest.mark.parametrize(
    "table, message",
    [
        ({"sites": ["nih_cxr"]}, r"the chest vocabulary: sites: must be a mapping, got \['nih_cxr'\]"),
        ({"sites": {"nih_cxr": ["Edema"]}}, "sites: nih_cxr: must be a mapping"),
        ({"sites": {"nih_cxr": {"Edema": None}}}, "sites: nih_cxr: Edema: .*None"),
        ({"sites": {"nih_cxr": {"Edema": [None]}}}, "sites: nih_cxr: Edema: must be text, got None"),
        ({"sites": {"nih_cxr": {"Edema": {"a": 1}}}}, "sites: nih_cxr: Edema: must be a list"),
        ({"presets": "all"}, "presets: must be a mapping"),
        ({"presets": {"all": {"nih_cxr": {"with": ["Edema"]}}}}, "unknown key in the chest vocabulary: presets: all"),
        ({"extras": 3}, "extras: must be a mapping"),
    ],
)
def test_vocabularies_of_other_types(table, message):
    with pytest.raises(UserError, match=message):
        load_vocabulary(table)


def test_one_name_is_not_its_letters():
    table = {"sites": {"a": {"Edema": "Oedema", "Mass": [7]}}, "presets": {"p": {"a": {"without": "Mass"}}}}
    assert load_vocabulary(table).sites == {"a": {"Edema": ("Oedema",), "Mass": ("7",)}}
    assert load_vocabulary(table, preset="p").sites == {"a": {"Edema": ("Oedema",)}}


@pytest.mark.parametrize("card", ["aptos", "table", "features", "image_list"])
def test_folders_that_are_none(tmp_path, card):
    (tmp_path / "circle").symlink_to("circle")
    for folder in (tmp_path / "none", tmp_path / ("x" * 300), tmp_path / "circle", f"{tmp_path}/a\0b"):
        with pytest.raises(UserError, match="there is no such folder"):
            load_cohort(card, folder)
    with pytest.raises(UserError, match="~nobody_of_this_name/x: "):
        load_cohort(card, "~nobody_of_this_name/x")
