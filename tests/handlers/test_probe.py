"""The probe on an Ignite engine, over features alone."""

import numpy as np
import pytest
import torch
from ignite.engine import Engine

from candor_monai.handlers.probe import ProbeHandler, published
from candor_monai.metrics.observations import Observations
from candor_monai.networks.head_files import read_head_card
from candor_monai.networks.linear_heads import HeadOptions
from candor_monai.networks.probing import ProbeOptions, run_probe
from candor_monai.utils import UserError

QUICK = ProbeOptions(heads=HeadOptions(members=2, epochs=20, learning_rate=0.02), resamples=50)


def _cohort(n: int = 300) -> tuple[np.ndarray, Observations]:
    rng = np.random.default_rng(0)
    labels = (rng.random((n, 2)) < [0.4, 0.3]).astype(np.int8)
    features = rng.normal(size=(n, 6)).astype(np.float32)
    features[:, :2] += 3 * labels
    names = ("view=AP", "view=PA")
    group = np.arange(n) % 2
    ids, patients = [f"i{i}" for i in range(n)], [f"p{i}" for i in range(n)]
    return features, Observations(ids, labels, ["Edema", "Pleural effusion"], group, names, patients)


def _run(handler: ProbeHandler) -> Engine:
    engine = Engine(lambda engine, batch: batch)
    handler.attach(engine)
    engine.run([0], max_epochs=1)
    return engine


def test_metrics_are_those_of_the_table() -> None:
    features, seen = _cohort()
    engine = _run(ProbeHandler(seen, (features, np.ones(300, bool)), options=QUICK, encoder={"name": "six"}))
    table = run_probe(features, seen, options=QUICK).table()
    row = next(r for r in table if r["level"] == "finding" and r["finding"] == "Edema")
    assert engine.state.metrics["head_auroc/Edema"] == row["auroc"]
    assert engine.state.metrics["head_miss_rate/Edema"] == row["miss_rate"]
    assert engine.state.metrics["head_auroc"] == table[-1]["auroc"]
    assert "head_auroc/Pleural effusion/view_AP" in engine.state.metrics
    assert engine.state.probe.encoder == "six"


def test_details_hold_a_logit_for_every_test_image() -> None:
    features, seen = _cohort()
    engine = _run(ProbeHandler(seen, (features, np.ones(300, bool)), options=QUICK))
    logits = engine.state.metric_details["head_logit"]
    test = engine.state.probe.rows.test
    assert logits.shape == (300, 2)
    assert np.flatnonzero(~np.isnan(logits[:, 0])).tolist() == sorted(test.tolist())
    assert (logits[test] == engine.state.probe.test_logits[0]).all()


def test_images_without_a_feature_are_left_out(tmp_path) -> None:
    features, seen = _cohort()
    present = np.ones(300, bool)
    present[::7] = False
    broken = features.copy()
    broken[~present] = np.nan
    handler = ProbeHandler(
        seen,
        lambda: (broken, present),
        split=["test" if i % 5 == 0 else "train" for i in range(300)],
        options=QUICK,
        encoder={"name": "six", "fingerprint": {"w": 1}},
        heads_file=tmp_path / "heads.safetensors",
    )
    probe, rows = handler.probe()
    assert rows.tolist() == np.flatnonzero(present).tolist()
    assert set(rows[probe.rows.all_test].tolist()) == {i for i in range(0, 300, 5) if present[i]}
    assert read_head_card(tmp_path / "heads.safetensors")["encoder"] == {"name": "six", "fingerprint": {"w": 1}}


def test_undefined_values_are_left_out() -> None:
    features, seen = _cohort()
    labels = seen.labels.copy()
    labels[:, 1] = 0
    seen = Observations(seen.image_id, labels, seen.findings)
    handler = ProbeHandler(seen, (features, np.ones(300, bool)), options=QUICK)
    metrics = published(handler.probe()[0].table())
    assert "head_auroc/Edema" in metrics
    assert not [key for key in metrics if "effusion" in key]
    assert "head_auroc" not in metrics  # the task's mean would be over a part of it
    assert all(np.isfinite(value) for value in metrics.values())


def test_keys_fit_every_tracker_and_stay_apart() -> None:
    row = {"level": "group", "finding": "a", "auroc": 0.5, "miss_rate": None, "false_positive_rate": None}
    keys = list(published([{**row, "group": "site=a|view=b"}, {**row, "group": "site_a_view=b"}], "lite/"))
    assert keys == ["lite/head_auroc/a/site_a_view_b", "lite/head_auroc/a/site_a_view_b_"]


def test_metrics_saver_writes_them(tmp_path) -> None:
    from monai.handlers import MetricsSaver

    features, seen = _cohort()
    engine = Engine(lambda engine, batch: batch)
    ProbeHandler(seen, (features, np.ones(300, bool)), options=QUICK).attach(engine)
    MetricsSaver(save_dir=str(tmp_path), metrics="*", metric_details=None, summary_ops=None).attach(engine)
    engine.run([0], max_epochs=1)
    assert f"head_auroc/Edema,{engine.state.metrics['head_auroc/Edema']}" in (tmp_path / "metrics.csv").read_text()


def test_the_engines_other_metrics_stay() -> None:
    features, seen = _cohort()
    engine = Engine(lambda engine, batch: batch)
    engine.state.metrics = {"D": 0.4}
    engine.state.metric_details = {"other": torch.zeros(1, 1)}
    ProbeHandler(seen, (features, np.ones(300, bool)), options=QUICK)(engine)
    assert engine.state.metrics["D"] == 0.4
    assert set(engine.state.metric_details) == {"other", "head_logit"}


def test_a_split_without_test_images_is_no_failure_of_the_run(caplog) -> None:
    features, seen = _cohort()
    engine = _run(ProbeHandler(seen, (features, np.ones(300, bool)), split=["train"] * 300, options=QUICK))
    assert engine.state.probe is None
    assert engine.state.probe_reason == "no heads: the split leaves no labelled test image"
    assert engine.state.metrics == {}
    assert "no labelled test image" in caplog.text


def test_a_torn_split_is_the_users_to_mend() -> None:
    features, seen = _cohort()
    torn = Observations(seen.image_id, seen.labels, seen.findings, patient=["p"] * 300)
    handler = ProbeHandler(torn, (features, np.ones(300, bool)), split=["train", "test"] * 150, options=QUICK)
    with pytest.raises(UserError, match="the patient of row 1 is also in row 0"):
        handler.probe()


def test_a_zero_feature_is_refused() -> None:
    features, seen = _cohort()
    with pytest.raises(UserError, match=r"heads of encoder 'encoder': features\[0\] is zero or not finite"):
        ProbeHandler(seen, (features * 0, np.ones(300, bool)), options=QUICK).probe()


def test_on_many_processes_the_first_probes_and_all_publish_the_same(monkeypatch) -> None:
    """Two ranks in turn, with a broadcast that pickles as the real one does."""
    import pickle

    import torch.distributed as dist

    features, seen = _cohort()
    sent: list[bytes] = []
    rank = [0]

    def broadcast(box: list, src: int) -> None:
        if rank[0] == src:
            sent.append(pickle.dumps(box))
        box[:] = pickle.loads(sent[-1])

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: rank[0])
    monkeypatch.setattr(dist, "broadcast_object_list", broadcast)

    def publish(handler: ProbeHandler) -> Engine:
        engine = Engine(lambda engine, batch: batch)
        engine.state.metrics = {}
        handler(engine)
        return engine

    first = publish(ProbeHandler(seen, (features, np.ones(300, bool)), options=QUICK))
    rank[0] = 1

    def not_here() -> tuple[np.ndarray, np.ndarray]:
        raise AssertionError("only rank 0 reads features")

    second = publish(ProbeHandler(seen, not_here, options=QUICK))
    assert second.state.metrics == first.state.metrics
    assert second.state.probe.table() == first.state.probe.table()
    rank[0] = 0
    with pytest.raises(UserError):
        publish(ProbeHandler(seen, (features * 0, np.ones(300, bool)), options=QUICK))
    rank[0] = 1
    with pytest.raises(UserError):  # the others fail as well instead of waiting
        publish(ProbeHandler(seen, not_here, options=QUICK))
