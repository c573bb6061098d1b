"""The retention handler: from stored features of the views to metrics and retention.csv."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from ignite.engine import Engine
from PIL import Image

from candor_monai.data.cohort import BOX_COLUMNS, Cohort
from candor_monai.data.decode_pool import DecodePool
from candor_monai.data.encode_loader import EncodeLoader
from candor_monai.data.feature_store import FeatureStore
from candor_monai.data.retention_views import RetentionViews
from candor_monai.handlers.feature_saver import FeatureSaver
from candor_monai.handlers.retention import RETENTION_COLUMNS, RetentionHandler, associations, published
from tests.support import SHARED

N = 24


@pytest.fixture
def cohort(tmp_path: Path) -> Cohort:
    """Dim noise with one bright marker in a box, left of the middle."""
    random = np.random.default_rng(0)
    rows = []
    for i in range(N):
        pixels = random.integers(90, 110, (32, 32), dtype=np.uint8)
        y = int(random.integers(2, 24))
        pixels[y : y + 4, 4:8] = 255
        Image.fromarray(pixels).save(tmp_path / f"{i:02}.png")
        rows.append((f"i{i:02}", "Mass", 4, y, 4, 4, None, None))
    return Cohort.of(
        [f"i{i:02}" for i in range(N)],
        {"Mass": [1] * N},
        root=tmp_path,
        images=[f"{i:02}.png" for i in range(N)],
        patients=[f"p{i // 2:02}" for i in range(N)],
        boxes=pd.DataFrame(rows, columns=list(BOX_COLUMNS), dtype=object),
    )


def marker(images: torch.Tensor) -> torch.Tensor:
    """Sees bright pixels alone: how many, beside a constant."""
    bright = (images[:, 0] > 200).flatten(1).float().sum(1)
    return torch.stack([bright, torch.full_like(bright, 4.0)], dim=1)


def blind(images: torch.Tensor) -> torch.Tensor:
    """Sees rounded means of halves, far too coarse for the marker."""
    halves = images.float().mean(dim=(1, 2)).reshape(len(images), 2, -1).mean(2)
    return torch.round(halves / 50) + 1


def evaluated(cohort: Cohort, encoder, folder: Path) -> tuple[Engine, list[dict]]:
    with DecodePool(workers=1, size=None) as pool:
        views = RetentionViews(cohort, pool, size=32)
        store = FeatureStore(folder / "store", {"encoder": encoder.__name__})
        loader = EncodeLoader(views.records(store), views, batch_size=8, image_size=32)
        engine = Engine(lambda _, batch: {"pred": encoder(batch["image"])})
        saver = FeatureSaver(store, loader)
        saver.attach(engine)
        handler = RetentionHandler(views, store, encoder=encoder.__name__, output_dir=folder, resamples=200)
        handler.attach(engine)
        engine.run(loader)
    return engine, engine.state.retention


def test_by_hand_the_marker_encoder_loses_its_marker(cohort: Cohort, tmp_path: Path):
    engine, rows = evaluated(cohort, marker, tmp_path)
    # (16, 4) turns into (0, 4): cosine 4 / sqrt(16² + 4²); covering the mirrored place changes nothing
    expected = 4 / np.hypot(16, 4)
    assert engine.state.metrics["retention/Mass"] == pytest.approx(expected)
    assert engine.state.metrics["control/Mass"] == pytest.approx(1.0)
    assert engine.state.metrics["difference"] == pytest.approx(1 - expected)
    assert "standardised" not in engine.state.metrics  # all its images are alike
    finding, task = rows
    assert (finding["level"], finding["finding"], task["level"], task["finding"]) == ("finding", "Mass", "task", "")
    assert (finding["n_boxed"], finding["n_images"], finding["n_patients"], finding["n_control"]) == (N, N, N // 2, N)
    assert finding["retention_lo"] <= finding["retention"] <= finding["retention_hi"]
    assert task["retention"] == finding["retention"]


def test_the_blind_encoder_loses_nothing(cohort: Cohort, tmp_path: Path):
    engine, _ = evaluated(cohort, blind, tmp_path)
    assert engine.state.metrics["retention"] == pytest.approx(1.0)
    assert engine.state.metrics["difference"] == pytest.approx(0.0)


def test_the_table_holds_the_rows(cohort: Cohort, tmp_path: Path):
    _, rows = evaluated(cohort, marker, tmp_path)
    with open(tmp_path / "retention.csv", newline="") as file:
        written = list(csv.DictReader(file))
    assert tuple(written[0]) == RETENTION_COLUMNS
    assert [row["finding"] for row in written] == ["Mass", ""]
    assert float(written[0]["retention"]) == rows[0]["retention"]
    assert written[0]["standardised"] == ""


def test_an_image_without_a_patient_is_its_own_and_images_alike_are_of_one(cohort: Cohort, tmp_path: Path):
    """Image p01 has no patient; i02 of patient p01 shows the pixels of i04 of patient p02."""
    shutil.copy(tmp_path / "02.png", tmp_path / "04.png")
    boxes = cohort.boxes.copy()
    boxes.loc[4, "y"] = boxes.loc[2, "y"]
    boxes["image_id"] = boxes["image_id"].replace("i00", "p01")
    patients = [None, *(f"p{i // 2:02}" for i in range(1, N))]
    ids = ["p01", *(f"i{i:02}" for i in range(1, N))]
    files = [f"{i:02}.png" for i in range(N)]
    changed = Cohort.of(ids, {"Mass": [1] * N}, root=tmp_path, images=files, patients=patients, boxes=boxes)
    _, rows = evaluated(changed, marker, tmp_path)
    assert rows[0]["n_images"] == N
    assert rows[0]["n_patients"] == N // 2 + 1 - 1
    assert rows[0]["n_pairs"] == N * (N - 1) // 2 - (6 + N // 2 - 3)  # of p01 with p02 four images; i01 is alone


def test_what_is_missing_is_told_and_left_out(cohort: Cohort):
    with DecodePool(workers=1, size=None) as pool:
        views = RetentionViews(cohort, pool)
    features = np.random.default_rng(0).normal(size=(len(views), 3)).astype(np.float32)
    present = np.ones(len(views), bool)
    kinds = [view.kind for view in views.views]
    present[kinds.index("original")] = False
    present[len(kinds) - 1 - kinds[::-1].index("control")] = False
    engine = Engine(lambda *_: None)
    RetentionHandler(views, features=(features, present), resamples=50).attach(engine)
    engine.run([0])
    row = engine.state.retention[0]
    assert (row["n_boxed"], row["n_images"], row["n_control"]) == (N, N - 1, N - 2)
    assert row["left_out"] == "not encoded: 1; not encoded (control alone): 1"
    assert row["encoder"] == "encoder"


def test_nothing_encoded_is_told(cohort: Cohort):
    with DecodePool(workers=1, size=None) as pool:
        views = RetentionViews(cohort, pool)
    nothing = (np.zeros((len(views), 3), np.float32), np.zeros(len(views), bool))
    rows = RetentionHandler(views, features=lambda: nothing).rows()
    assert [row["status"] for row in rows] == ["insufficient", "insufficient"]
    assert published(rows) == {}
    with pytest.raises(ValueError, match="either a store or features"):
        RetentionHandler(views)


def test_association_over_encoders():
    rows = [
        {
            "encoder": f"e{i}",
            "task": "t",
            "level": "task",
            "retention": 0.9 - i / 20,
            "standardised": None,
            "difference": i - 1,
        }
        for i in range(5)
    ]
    found = associations(rows, {f"e{i}": 0.5 - i / 10 for i in range(5)}, "t")
    assert (found[0]["measure"], found[0]["spearman"], found[0]["lowered_more"], found[0]["n_compared"]) == (
        "retention",
        pytest.approx(1.0),
        3,
        5,
    )
    assert found[1]["spearman"] is None
    assert found[1]["reason"] == "fewer than 3 encoders have both numbers"


@pytest.mark.skipif(not SHARED.is_dir(), reason="real data folder ../shared/data is absent")
def test_real_boxes_end_to_end(tmp_path: Path):
    from candor_monai.data.cohorts import load_cohort

    def pooled(images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(images[:, :1].float(), 8).flatten(1) + 1

    cohort = load_cohort("nih_cxr", SHARED / "nih_cxr")
    _, rows = evaluated(cohort, pooled, tmp_path)
    findings = {row["finding"]: row for row in rows}
    assert sum(row["n_boxed"] for row in rows[:-1]) == findings[""]["n_images"]
    assert all(0.5 < row["retention"] < 1 for row in rows)
    assert findings[""]["retention_lo"] < findings[""]["retention"] < findings[""]["retention_hi"]
    assert findings[""]["standardised"] < findings[""]["retention"]
