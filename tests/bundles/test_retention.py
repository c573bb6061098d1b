"""Occlusion retention on every kind of cohort: phantoms whose truth is known, publishers' layouts, real boxes."""

from __future__ import annotations

import csv
import logging
import shutil
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from ignite.engine import Engine
from PIL import Image

from candor_monai.data import load_cohort, phantom_files
from candor_monai.data.cohort import BOX_COLUMNS, Cohort
from candor_monai.data.cohorts.chexpert_labels import COLUMNS as CHEXPERT_COLUMNS
from candor_monai.data.decode_pool import DecodePool
from candor_monai.data.decoding import canonical, decode
from candor_monai.data.encode_loader import EncodeLoader
from candor_monai.data.feature_store import FeatureStore
from candor_monai.data.retention_views import RetentionViews
from candor_monai.handlers.feature_saver import FeatureSaver
from candor_monai.handlers.retention import RetentionHandler, associations
from candor_monai.networks import load_encoder
from candor_monai.visualize.results_files import read_results
from tests.data.cohorts.trees import write_rows
from tests.data.test_header_index import dicom
from tests.support import SHARED, needs_shared

from .small_cohort import run_bundle

# images, and images with each marker, of each of the four matched groups
PER_GROUP = {"images": 24, "common_marker": 8, "rare_marker": 6}
MARKERS = {"common_marker": 4 * 8, "rare_marker": 4 * 6}


# ---- over encoders ----------------------------------------------------------------------------------------------


def test_association_of_four_encoders_by_hand():
    numbers = {  # encoder: retention, standardised, difference; D
        "a": (0.9, 0.5, 0.05, 0.1),
        "b": (0.8, None, -0.01, 0.2),
        "c": (0.7, 0.4, 0.0, 0.4),
        "d": (0.6, 0.2, 0.2, 0.3),
    }
    columns = ("retention", "standardised", "difference")
    rows = [
        {"encoder": name, "task": "chest", "level": "task", **dict(zip(columns, values, strict=False))}
        for name, values in numbers.items()
    ]
    others = [
        {"encoder": "a", "task": "chest", "level": "finding", "retention": 0.0, "standardised": 0.0, "difference": 1.0},
        {"encoder": "e", "task": "retina", "level": "task", "retention": 0.0, "standardised": 0.0, "difference": 1.0},
    ]
    d = {name: values[3] for name, values in numbers.items()} | {"e": 0.9, "f": 0.8}
    raw, standardised = associations(rows + others, d, "chest")
    # ranks 4 3 2 1 against 1 2 4 3: sum of squares 9 + 1 + 4 + 4, so 1 - 6·18/60; at most one step (3 orders) from
    # either end of the 24 orders is as extreme
    assert (raw["n_encoders"], raw["spearman"], raw["p"]) == (4, pytest.approx(-0.8), pytest.approx(2 * 4 / 24))
    # b has none; ranks 3 2 1 against 1 3 2: 4 + 1 + 1, so 1 - 6·6/24; no order of three is less extreme
    assert (standardised["n_encoders"], standardised["spearman"]) == (3, pytest.approx(-0.5))
    assert standardised["p"] == 1.0
    # the finding's box lowers it more for a and d; equal is not more
    assert [(row["lowered_more"], row["n_compared"]) for row in (raw, standardised)] == [(2, 4), (2, 4)]


# ---- the calibration cohort, through the bundle -----------------------------------------------------------------


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory) -> Path:
    """A calibration cohort of few images."""
    folder = tmp_path_factory.mktemp("phantoms") / "calibration"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phantom_files, "PER_GROUP", PER_GROUP)
        return phantom_files.phantom_folder(folder)


def calibration_options(phantoms: Path, output: Path, encoder: str, **more) -> dict:
    return {
        "cohort": "calibration",
        "dataset_dir": str(phantoms),
        "encoder": encoder,
        "output_dir": str(output),
        "permutations": 99,
        "resamples": 200,
        "probe": False,
        "write_report": False,
        "progress": False,
        **more,
    }


def metrics_of(workflow) -> dict[str, float]:
    return workflow.parser.get_parsed_content("evaluator").state.metrics


def table_of(output: Path) -> dict[str, dict[str, str]]:
    """Rows of retention.csv by finding; all findings together are ''."""
    with open(output / "retention.csv", newline="") as file:
        return {row["finding"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("fill, near, control", [("blur", 0.01, 0.99), ("mean", 0.1, 0.8)])
def test_covering_the_marker_is_seen_and_covering_the_control_is_not(phantoms, tmp_path, caplog, fill, near, control):
    # the border of a flat patch is a stimulus of its own, that some controls show and a blurred patch does not
    output = tmp_path / "eval"
    options = calibration_options(phantoms, output, "marker", retention_fill=fill, write_report=fill == "blur")
    metrics = metrics_of(run_bundle("candor_eval", **options))
    table = table_of(output)
    assert set(table) == {*MARKERS, ""}
    for finding, boxed in MARKERS.items():
        # (1, -1) turns into (-1, -1): nothing is left but the small background
        assert abs(metrics[f"retention/{finding}"]) < near
        assert metrics[f"control/{finding}"] > control
        assert metrics[f"difference/{finding}"] > 0.9
        assert f"standardised/{finding}" not in metrics  # all images with a marker are alike to this encoder
        row = table[finding]
        assert (row["n_boxed"], row["n_images"], row["n_control"], row["n_rescaled"]) == (str(boxed),) * 3 + ("0",)
        assert float(row["retention"]) == metrics[f"retention/{finding}"]
        assert 0.7 < float(row["difference_lo"]) < float(row["difference"]) < float(row["difference_hi"])
        assert (row["encoder"], row["fill"], row["status"], row["left_out"]) == ("marker", fill, "ok", "")
        assert row["reason"] == "standardised: all images are alike to this encoder (1 - c below 0.01)"
    results = read_results(output / "results.json")
    assert [row["finding"] for row in results["retention"]] == [*MARKERS, ""]
    for row in results["retention"]:
        assert row["retention"] == float(table[row["finding"]]["retention"])
    if fill == "blur":
        assert "How much of a feature is left" in (output / "report.html").read_text(encoding="utf-8")

    shards = {path: path.stat().st_mtime_ns for path in (output / "features").rglob("*.arrow")}
    with caplog.at_level(logging.INFO):
        again = run_bundle("candor_eval", **options | {"write_report": False})
    assert f"nothing to encode: all {4 * PER_GROUP['images']} images" in caplog.text
    assert len(again.parser.get_parsed_content("occlusion::dataloader")) == 0
    assert {path: path.stat().st_mtime_ns for path in (output / "features").rglob("*.arrow")} == shards
    assert table_of(output) == table
    assert metrics_of(again) == metrics


@pytest.mark.parametrize("fill, least, most", [("blur", 0.999, 0.001), ("mean", 0.975, 0.01)])
def test_the_blind_encoder_sees_neither(phantoms, tmp_path, fill, least, most):
    # it sees the background, of which a flat patch takes a little: as much of it with the control as with the marker
    options = calibration_options(phantoms, tmp_path / "eval", "blind", retention_fill=fill)
    metrics = metrics_of(run_bundle("candor_eval", **options))
    for finding in MARKERS:
        assert metrics[f"retention/{finding}"] >= least
        assert metrics[f"control/{finding}"] >= least
        assert abs(metrics[f"difference/{finding}"]) < most


def test_boxed_d_is_over_the_queries_with_boxes(phantoms, tmp_path):
    folder = shutil.copytree(phantoms, tmp_path / "calibration")
    boxes = pd.read_csv(folder / "boxes.csv")
    kept = boxes.iloc[::2]
    kept.to_csv(folder / "boxes.csv", index=False)
    shared = {"feature_dir": str(tmp_path / "features"), "total_interval": False, "permutation_test": False}
    found = {}
    for queries in ("all", "boxed"):
        output = tmp_path / queries
        run_bundle("candor_eval", **calibration_options(folder, output, "blind", queries=queries, **shared))
        found[queries] = pq.read_table(output / "queries.parquet").to_pandas()
    for finding in MARKERS:
        whole, boxed = (found[name][found[name]["finding"] == finding] for name in ("all", "boxed"))
        assert set(whole["image_id"]) == set(boxes.loc[boxes["finding"] == finding, "image_id"])
        assert set(boxed["image_id"]) == set(kept.loc[kept["finding"] == finding, "image_id"])
        same = whole.set_index("image_id").loc[boxed["image_id"]]  # against the same candidates
        np.testing.assert_array_equal(boxed["dm"].to_numpy(), same["dm"].to_numpy())
        (row,) = [
            row
            for row in read_results(tmp_path / "boxed" / "results.json")["discordance"]
            if row["level"] == "group" and row["finding"] == finding and row["group"] == boxed["group"].iloc[0]
        ]
        group = boxed[boxed["group"] == row["group"]]
        assert row["n_queries"] == len(group)
        assert row["D"] == pytest.approx(group["discordant"].mean())
    assert {f: row["n_boxed"] for f, row in table_of(tmp_path / "boxed").items() if f} == {
        finding: str((kept["finding"] == finding).sum()) for finding in MARKERS
    }


# ---- publishers' layouts ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def blind():
    return load_encoder("blind")


def retained(cohort: Cohort, encoder, folder: Path, **options) -> tuple[dict[str, dict], RetentionViews]:
    """Rows by finding, from the cohort's views encoded into a store."""
    with DecodePool(workers=1, size=None) as pool:
        views = RetentionViews(cohort, pool, **options)
        store = FeatureStore(folder / "store", encoder.fingerprint)
        loader = EncodeLoader(views.records(store), views, batch_size=8)
        engine = Engine(lambda _, batch: {"pred": encoder(batch["image"])})
        FeatureSaver(store, loader).attach(engine)
        RetentionHandler(views, store, encoder="blind", resamples=50).attach(engine)
        with torch.inference_mode():
            engine.run(loader)
        assert store.missing(views.view_ids, views.sources()) == []
    return {row["finding"]: row for row in engine.state.retention}, views


def left(encoder, path: Path, covered: np.ndarray) -> float:
    """ρ of one image by hand: its pixels, the mean over what is covered, the encoder on both."""
    source = decode(path).pixels
    hidden = source.copy()
    hidden[covered] = np.rint(source.mean(axis=(0, 1))).astype(source.dtype)
    with torch.inference_mode():
        a, b = encoder(torch.from_numpy(np.stack([canonical(source), canonical(hidden)]))).double()
    return float(a @ b / a.norm() / b.norm())


def region(shape: tuple[int, int], *boxes: tuple[int, int, int, int]) -> np.ndarray:
    """Pixels of boxes given as x, y, width, height."""
    covered = np.zeros(shape, dtype=bool)
    for x, y, width, height in boxes:
        covered[y : y + height, x : x + width] = True
    return covered


def smooth(rows: int, columns: int, seed: int, channels: int = 1) -> np.ndarray:
    """A cloudy image, (rows, columns[, 3]) uint8."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (8, 8) if channels == 1 else (8, 8, channels), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((columns, rows), Image.Resampling.BICUBIC))


def idrid_tree(root: Path) -> Path:
    base = root / "A. Segmentation"
    images = base / "1. Original Images" / "a. Training Set"
    truths = base / "2. All Segmentation Groundtruths" / "a. Training Set"
    shape = (96, 128)
    masks = {
        ("1. Microaneurysms", "MA"): {
            1: region(shape, (10, 10, 6, 6), (30, 20, 4, 4)),
            2: region(shape, (20, 60, 30, 20)),
            3: region(shape),
            4: region((96, 96), (20, 60, 10, 10)),
        },
        ("3. Hard Exudates", "EX"): {
            1: region(shape, (40, 40, 20, 12)),
            3: region(shape, (40, 40, 20, 12)),
            5: region(shape, (0, 0, 128, 96)),
            6: region(shape, (0, 0, 80, 96)),
        },
    }
    images.mkdir(parents=True)
    for number in range(1, 7):
        Image.fromarray(smooth(*shape, seed=number, channels=3)).save(images / f"IDRiD_{number:02}.jpg")
    for (lesion, short), drawn in masks.items():
        (truths / lesion).mkdir(parents=True)
        for number, mask in drawn.items():
            Image.fromarray(mask.astype(np.uint8) * 255).save(truths / lesion / f"IDRiD_{number:02}_{short}.tif")
    return root


def test_idrid_masks_per_lesion_type(tmp_path, blind):
    cohort = load_cohort("idrid", idrid_tree(tmp_path / "idrid"), part="segmentation", task="retinal_lesions")
    rows, _ = retained(cohort, blind, tmp_path)
    assert list(rows) == ["Hard exudates", "Microaneurysms", ""]
    counts = {name: tuple(row[key] for key in ("n_boxed", "n_images", "n_control")) for name, row in rows.items()}
    assert counts == {"Microaneurysms": (4, 2, 2), "Hard exudates": (4, 3, 2), "": (8, 5, 4)}
    assert rows["Microaneurysms"]["left_out"] == "mask_empty: 1; mask_shape: 1"
    # a flat mask marks nothing, be it empty or full, and is nothing for another finding's control to avoid
    assert rows["Hard exudates"]["left_out"] == "mask_empty: 1; no_control (control alone): 1"
    assert rows[""]["n_rescaled"] == 0
    path, shape = cohort.path(0), (96, 128)
    first = left(blind, path, region(shape, (10, 10, 6, 6), (30, 20, 4, 4)))
    second = left(blind, cohort.path(1), region(shape, (20, 60, 30, 20)))
    assert rows["Microaneurysms"]["retention"] == pytest.approx((first + second) / 2, abs=1e-6)
    mirrored = left(blind, path, region(shape, (112, 10, 6, 6), (94, 20, 4, 4)))
    other = left(blind, cohort.path(1), region(shape, (78, 60, 30, 20)))
    assert rows["Microaneurysms"]["control"] == pytest.approx((mirrored + other) / 2, abs=1e-6)
    boxes, _ = retained(cohort, blind, tmp_path, masks="box")
    around = left(blind, path, region(shape, (10, 10, 24, 14)))
    assert boxes["Microaneurysms"]["retention"] == pytest.approx((around + second) / 2, abs=1e-6)


MIMIC_FRAME = (2544, 3056)  # width, height; the images at hand are an eighth of it
MS_BOXES = [
    ("d0", 800, 400, 400, 800, *MIMIC_FRAME),
    ("d0", 1600, 1600, 160, 80, *MIMIC_FRAME),
    ("d1", 200, 400, 800, 1200, *MIMIC_FRAME),
    ("d2", 200, 400, 0, 1200, *MIMIC_FRAME),
    ("d3", 3000, 400, 80, 80, *MIMIC_FRAME),
    ("d4", 0, 0, *MIMIC_FRAME, *MIMIC_FRAME),
    ("d5", -200, 400, 600, 800, *MIMIC_FRAME),
    ("d6", 200, 400, 80, 80, *MIMIC_FRAME),  # not positive
    ("d7", 25, 50, 100, 150, 318, 382),
    ("d8", 200, 400, 800, 1200, "", ""),
    ("gone", 5, 5, 80, 80, *MIMIC_FRAME),
]


def mimic_tree(root: Path) -> Path:
    names = [f"d{i}" for i in range(9)]
    keys = [{"subject_id": f"1000000{i}", "study_id": f"5000000{i}"} for i in range(9)]
    frame = {"Columns": MIMIC_FRAME[0], "Rows": MIMIC_FRAME[1]}
    meta = [{"dicom_id": name, **key, "ViewPosition": "AP", **frame} for name, key in zip(names, keys, strict=True)]
    blank = dict.fromkeys(sorted(CHEXPERT_COLUMNS), "")
    labels = [key | blank | {"Edema": "0.0" if name == "d6" else "1.0"} for name, key in zip(names, keys, strict=True)]
    split = [{"dicom_id": name, **key, "split": "train"} for name, key in zip(names, keys, strict=True)]
    for kind, rows in (("metadata", meta), ("split", split), ("chexpert", labels)):
        write_rows(root / f"mimic-cxr-2.0.0-{kind}.csv", rows)
    for seed, (name, key) in enumerate(zip(names, keys, strict=True)):
        path = root / f"files/p10/p{key['subject_id']}/s{key['study_id']}/{name}.jpg"
        path.parent.mkdir(parents=True)
        Image.fromarray(smooth(382, 318, seed)).save(path)
    return root


def test_ms_cxr_boxes_are_in_the_frame_of_mimic(tmp_path, blind):
    columns = ("dicom_id", "x", "y", "w", "h", "image_width", "image_height")
    table = [{"category_name": "Edema", **dict(zip(columns, box, strict=True))} for box in MS_BOXES]
    write_rows(tmp_path / "ms" / "MS_CXR_Local_Alignment_v1.1.0.csv", table)
    cohort = load_cohort("ms_cxr", tmp_path / "ms", mimic_dir=str(mimic_tree(tmp_path / "mimic")))
    assert (cohort.counts["found"]["boxes"], len(cohort.boxes)) == (11, 10)  # one is of an image that is not there
    rows, views = retained(cohort, blind, tmp_path)
    assert dict(views.counts) == {"annotations used": 8, "annotations of images that are not positive": 1}
    edema = rows["Edema"]
    assert (edema["n_boxed"], edema["n_images"], edema["n_control"]) == (8, 4, 4)
    assert edema["n_rescaled"] == 7  # all of d0 to d5; d7 has its image's own size, d8 none
    assert edema["left_out"] == "box_covers_image: 1; box_empty: 1; box_out_of_frame: 1; box_outside: 1"
    # d0: 50 by 100 pixels at (100, 50) and 20 by 10 at (200, 200); d5 is cut off at the left edge
    shape = (382, 318)
    covered = {
        0: region(shape, (100, 50, 50, 100), (200, 200, 20, 10)),
        1: region(shape, (25, 50, 100, 150)),
        5: region(shape, (0, 50, 50, 100)),
        7: region(shape, (25, 50, 100, 150)),
    }
    by_hand = [left(blind, cohort.path(row), part) for row, part in covered.items()]
    assert edema["retention"] == pytest.approx(np.mean(by_hand), abs=1e-6)


def test_rsna_boxes_are_of_1024_pixels(tmp_path, blind):
    boxes = [
        ("a", 264.0, 152.0, 212.0, 380.0),
        ("a", 562.0, 152.0, 256.0, 452.0),
        ("b", 100.0, 300.0, 200.0, 200.0),  # its file has 512 × 512 pixels
        ("c", 10.0, 10.0, 0.0, 30.0),
        ("d", 1100.0, 10.0, 30.0, 30.0),
        ("e", 0.0, 0.0, 1024.0, 1024.0),
        ("f", "", "", "", ""),
        ("g", 0.0, 0.0, 700.0, 1024.0),
    ]
    columns = ("patientId", "x", "y", "width", "height")
    rows = [{**dict(zip(columns, box, strict=True)), "Target": 1} for box in boxes]
    rows.append({"patientId": "h", **dict.fromkeys(columns[1:], ""), "Target": 0})
    root = tmp_path / "rsna"
    write_rows(root / "stage_2_train_labels.csv", rows)
    for seed, name in enumerate("abcdefgh"):
        side = 512 if name == "b" else 1024
        dicom(root / f"stage_2_train_images/{name}.dcm", smooth(side, side, seed), ViewPosition="AP")
    cohort = load_cohort("rsna", root, header_workers=1, findings=["Pneumonia"])
    found, _ = retained(cohort, blind, tmp_path)
    pneumonia = found["Pneumonia"]
    assert (pneumonia["n_boxed"], pneumonia["n_images"], pneumonia["n_control"]) == (7, 3, 2)
    assert pneumonia["n_rescaled"] == 1
    told = "box_covers_image: 1; box_empty: 2; box_outside: 1; no_control (control alone): 1"
    assert pneumonia["left_out"] == told
    covered = {
        0: region((1024, 1024), (264, 152, 212, 380), (562, 152, 256, 452)),
        1: region((512, 512), (50, 150, 100, 100)),
        6: region((1024, 1024), (0, 0, 700, 1024)),
    }
    by_hand = [left(blind, cohort.path(row), part) for row, part in covered.items()]
    assert pneumonia["retention"] == pytest.approx(np.mean(by_hand), abs=1e-6)


# ---- real boxes -------------------------------------------------------------------------------------------------


@needs_shared
def test_real_radiographs(tmp_path, blind):
    cohort = load_cohort("nih_cxr", SHARED / "nih_cxr")
    rows, views = retained(cohort, blind, tmp_path)
    listed = pd.read_csv(SHARED / "nih_cxr" / "BBox_List_2017.csv", usecols=["Image Index", "Finding Label"])
    boxed = Counter(listed["Finding Label"].replace("Infiltrate", "Infiltration"))
    assert len({view.row for view in views.views}) == listed["Image Index"].nunique() == 24
    assert {finding: row["n_boxed"] for finding, row in rows.items()} == {**boxed, "": 28}
    assert rows[""]["n_rescaled"] == 28  # drawn on 1024 × 1024, covered on 256 × 256
    assert rows[""]["n_images"] == 28
    assert rows[""]["n_control"] + sum(_reasons(rows[""]).values()) == 28
    assert set(_reasons(rows[""])) <= {"no_control (control alone)"}
    assert 0.5 < rows[""]["retention"] < 1
    assert rows[""]["retention_lo"] < rows[""]["retention"] < rows[""]["retention_hi"]


@needs_shared
def test_blood_cells_are_another_domain(tmp_path, blind):
    files = sorted((SHARED / "bccd" / "annotations").glob("*.xml"))[:20]
    findings = ("Platelets", "RBC", "WBC")
    boxes, present = [], {finding: [] for finding in findings}
    for file in files:
        drawn = ElementTree.parse(file).getroot()
        size = [int(drawn.findtext(f"size/{side}")) for side in ("width", "height")]
        cells = drawn.findall("object")
        for cell in cells:
            x, y, right, low = (int(cell.findtext(f"bndbox/{edge}")) for edge in ("xmin", "ymin", "xmax", "ymax"))
            boxes.append((file.stem, cell.findtext("name"), x, y, right - x, low - y, *size))
        names = {cell.findtext("name") for cell in cells}
        for finding in findings:
            present[finding].append(int(finding in names))
    names = [file.stem for file in files]
    cohort = Cohort.of(
        names,
        present,
        name="bccd",
        root=SHARED / "bccd",
        images=[f"images/{name}.jpg" for name in names],
        boxes=pd.DataFrame(boxes, columns=list(BOX_COLUMNS), dtype=object),
    )
    rows, _ = retained(cohort, blind, tmp_path)
    assert {finding: row["n_boxed"] for finding, row in rows.items()} == {
        "Platelets": 11,
        "RBC": 20,
        "WBC": 20,
        "": 51,
    }
    for row in rows.values():
        assert row["n_images"] == row["n_boxed"]
        assert row["n_rescaled"] == 0
        assert row["n_control"] + _reasons(row)["no_control (control alone)"] == row["n_boxed"]
        assert -1 < row["retention"] < 1
    assert rows["Platelets"]["n_control"] == 11  # small enough to find a free place everywhere
    assert rows["Platelets"]["drop"] < rows["WBC"]["drop"] < rows["RBC"]["drop"]  # a few pixels, a cell, all of them


def _reasons(row: dict) -> Counter[str]:
    """What was left out, from the table's text."""
    parts = [part.rsplit(": ", 1) for part in (row["left_out"] or "").split("; ") if part]
    return Counter({reason: int(n) for reason, n in parts})
