"""What a run knows of its features without reading them."""

from __future__ import annotations

import numpy as np
import pytest

from candor_monai.data.array_store import ArrayStore
from candor_monai.data.cohort import Cohort
from candor_monai.data.feature_store import FeatureStore
from candor_monai.data.shard_index import ShardIndex
from candor_monai.data.store_rows import Rejection, Sources
from candor_monai.handlers.report import ReportHandler
from candor_monai.handlers.run_context import RunContext

IDS = ["a", "b", "c", "d", "e"]
FEATURES = np.arange(1, 11, dtype=np.float32).reshape(5, 2)
STATES = Sources(np.arange(5), np.arange(5) + 10)


@pytest.fixture
def cohort():
    labels = {"Mass": [1, 0, 1, -1, 0]}  # d carries no label
    return Cohort.of(IDS, labels, name="five", images=[f"{i}.png" for i in IDS])


def _filled_store(tmp_path):
    store = FeatureStore(tmp_path / "store", {"code": 1})
    rows = [0, 1, 3]
    columns = {"source_size": STATES.size[rows], "source_mtime_ns": STATES.mtime_ns[rows]}
    store.write([IDS[row] for row in rows], FEATURES[rows], columns)
    store.write(["e"], FEATURES[[4]], {"source_size": [99], "source_mtime_ns": [0]})  # of another state of its file
    store.reject([Rejection("c", "c.png", "decode", "corrupt", "no", 2, 12)])
    return store


def _array_store(tmp_path):
    features = FEATURES.copy()
    features[2] = 0
    features[4] = np.nan
    return ArrayStore(IDS, features)


@pytest.mark.parametrize("made", [_filled_store, _array_store])
@pytest.mark.parametrize("left_out", [frozenset(), frozenset({"b"})])
def test_present_is_what_features_say(made, left_out, cohort, tmp_path, monkeypatch):
    store = made(tmp_path)
    context = RunContext(cohort, {"name": "x"}, {}, tmp_path, store, STATES, left_out)
    expected = context.features()[1]
    assert expected.tolist() == [True, not left_out, False, False, False]
    monkeypatch.setattr(ShardIndex, "gather", None)  # no feature may be read
    monkeypatch.setattr(ArrayStore, "matrix", None)
    assert context.present().tolist() == expected.tolist()
    assert context.present().dtype == np.bool_
    assert store.present([]).shape == (0,)
    assert store.present(["nobody", "a"]).tolist() == [False, True]


def test_the_report_reads_the_rows_that_it_shows(cohort, tmp_path, monkeypatch):
    store = _filled_store(tmp_path)
    context = RunContext(cohort, {"name": "x"}, {}, tmp_path, store, STATES)
    read = []
    original = FeatureStore.matrix
    monkeypatch.setattr(
        FeatureStore, "matrix", lambda self, ids, *more: read.append(list(ids)) or original(self, ids, *more)
    )
    features = ReportHandler(context).features()
    assert features("x", ["d", "a"]).tolist() == FEATURES[[3, 0]].tolist()
    assert read == [["d", "a"]]
    with pytest.raises(KeyError):
        features("x", ["nobody"])


def test_an_image_left_out_names_the_list_that_may_be_the_users(cohort, tmp_path):
    context = RunContext(cohort, {"name": "x"}, {}, tmp_path, _filled_store(tmp_path), STATES, frozenset({"b"}))
    rejected = context.rejected(context.present()).set_index("image_id")
    assert rejected.loc["b", "reason"] == "left_out"
    assert "--leave_out" in rejected.loc["b", "message"]
