"""Several cohorts as one: ids, groups, labels, files and policies of the parts."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from candor_monai.data import load_cohort
from candor_monai.data.cohort import Cohort
from candor_monai.data.cohorts.pooled import Part, pool
from candor_monai.data.encode_loader import cohort_sources
from candor_monai.utils import UserError

from .trees import labels_of, touch, write_rows

FINDING = "Referable retinopathy"


def fundus(folder, name="aptos"):
    write_rows(folder / name / "train.csv", [{"id_code": f"a{g}", "diagnosis": g} for g in range(5)])
    touch(folder / name, [f"train_images/a{g}.png" for g in range(5)])


def own(folder, values=("1", "0", "-1", "")):
    rows = [{"image": f"b{i}.png", "patient": f"p{i}", "view": "left", FINDING: v} for i, v in enumerate(values)]
    write_rows(folder / "labels.csv", rows)
    touch(folder, [f"b{i}.png" for i in range(len(values))])
    return {"cohort": "table", "label": "ours", "labels": "labels.csv", "findings": [FINDING], "covariates": ["view"]}


def pooled(folder, parts, **options):
    return load_cohort("pooled", folder, task="referable_retinopathy", cohorts=parts, **options)


def test_two_cohorts_by_hand(tmp_path):
    fundus(tmp_path)
    ours = own(tmp_path / "ours")
    cohort = pooled(tmp_path, ["aptos", {**ours, "patient_column": "patient", "match_on": ["view"]}])
    assert cohort.name == "pooled"
    assert labels_of(cohort, FINDING) == {
        **{f"aptos/a{g}": int(g > 1) for g in range(5)},
        **{"ours/b0.png": 1, "ours/b1.png": 0, "ours/b2.png": -1, "ours/b3.png": 0},
    }
    assert cohort.records["cohort"].tolist() == ["aptos"] * 5 + ["ours"] * 4
    assert cohort.task.match_on == ("cohort", "view")
    assert set(cohort.groups()[1]) == {"cohort=aptos|view=(missing)", "cohort=ours|view=left"}
    assert cohort.records["patient_id"].tolist()[4:6] == [None, "ours/p0"]
    assert all(cohort.path(i).is_file() for i in range(len(cohort)))
    assert cohort.path(0) == tmp_path / "aptos/train_images/a0.png"
    assert cohort.counts["found"] == {"aptos: images": 5, "ours: images": 4, "images": 9}
    assert cohort.uncertain.sum() == 1


def test_policies_are_those_of_the_whole(tmp_path):
    fundus(tmp_path)
    parts = ["aptos", own(tmp_path / "ours")]
    unsure = labels_of(pooled(tmp_path, parts, uncertain="positive"), FINDING)
    assert unsure["ours/b2.png"] == 1
    blank = pooled(tmp_path, parts, blank="exclude")
    assert "ours/b3.png" not in set(blank.records["image_id"])


def test_a_part_that_lies_elsewhere_and_its_missing_file(tmp_path):
    (tmp_path / "here").mkdir()
    for name in ("here", "there"):
        fundus(tmp_path / name)
    (tmp_path / "there/aptos/train_images/a4.png").unlink()
    second = {"cohort": "aptos", "label": "again", "dataset_dir": str(tmp_path / "there/aptos")}
    cohort = pooled(tmp_path / "here", ["aptos", second])
    assert len(cohort) == 9
    assert all(cohort.path(i).is_file() for i in range(9))
    assert cohort.rejected[["image_id", "file", "reason"]].to_numpy().tolist() == [
        ["again/a4", "again/train_images/a4.png", "missing_file"]
    ]


def test_outputs_name_files_that_lie_elsewhere_by_their_part(tmp_path):
    (tmp_path / "here").mkdir()
    for name in ("here", "there"):
        fundus(tmp_path / name)
    second = {"cohort": "aptos", "label": "again", "dataset_dir": str(tmp_path / "there/aptos")}
    cohort = pooled(tmp_path / "here", ["aptos", second])
    names = [cohort.file_name(i) for i in range(len(cohort))]
    assert names[0] == "aptos/train_images/a0.png"
    assert names[5] == "again/train_images/a0.png"
    assert all(cohort.path(i).is_file() for i in range(len(cohort)))
    assert cohort.select(np.arange(5, 10)).file_name(0) == names[5]


def test_images_inside_archives_are_opened_by_their_own_cohort(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for letter, shape in (("x", (2, 96, 96, 3)), ("y", (2, 1, 1, 1))):
            with h5py.File(tmp_path / name / f"camelyonpatch_level_2_split_test_{letter}.h5", "w") as file:
                file[letter] = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
    parts = [{"cohort": "pcam", "label": "one"}, {"cohort": "pcam", "label": "two"}]
    cohort = load_cohort("pooled", tmp_path, task="tumor", cohorts=parts)
    alone = load_cohort("pcam", tmp_path / "two")
    assert cohort.source(3) == alone.source(1)
    assert cohort_sources(cohort).size.min() > 0


def test_boxes_and_findings_that_a_part_does_not_know():
    first = Cohort.of(["a", "b"], {"Edema": [1, 0]}, images=["a.png", "b.png"], root="/data/x", site="s")
    second = Cohort.of(["a"], {"Mass": [1]}, images=["a.png"], root="/data/y", site="s")
    draft = pool([Part("x", first), Part("y", second)], Path("/data"))
    assert draft.findings == ("Edema", "Mass")
    assert draft.codes.tolist() == [[1, -3], [0, -3], [-3, 1]]
    assert draft.records["image_id"].tolist() == ["x/a", "x/b", "y/a"]
    assert draft.match_on == ("cohort",)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (["aptos"], "two cohorts or more"),
        ("aptos,idrid", "two cohorts or more"),
        (["aptos", "aptos"], "two cohorts called 'aptos'"),
        (["aptos", "aptoss"], "Did you mean 'aptos'"),
        (["aptos", "skin_pooled"], "is pooled itself"),
        (["aptos", {"cohort": "aptos", "label": "b", "partt": 1}], "unknown option of cohort 'aptos': 'partt'"),
    ],
)
def test_parts_that_are_refused(tmp_path, parts, told):
    fundus(tmp_path)
    fundus(tmp_path, "b")
    with pytest.raises(UserError, match=told):
        pooled(tmp_path, parts)


def test_the_task_must_be_named_and_features_must_fit(tmp_path):
    with pytest.raises(UserError, match="must name the task"):
        load_cohort("pooled", tmp_path, cohorts=["aptos", "idrid"])
    parts = [
        Part(name, Cohort.of(["a"], {"Edema": [1]}, features=np.zeros((1, width), dtype=np.float32)))
        for name, width in (("x", 3), ("y", 4))
    ]
    with pytest.raises(UserError, match="features of one length"):
        pool(parts, tmp_path)
