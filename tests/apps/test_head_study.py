"""Heads and discordance side by side, on a cohort with planted discordance and planted errors."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from candor_monai.apps.head_study import (
    HEAD_ERROR_COLUMNS,
    RULE_COLUMNS,
    HeadStudyOptions,
    run_head_study,
)
from candor_monai.metrics.combination_rules import ORACLE, RULES
from candor_monai.metrics.head_errors import WARNING
from candor_monai.metrics.observations import Observations
from candor_monai.metrics.operating_point import decide
from candor_monai.metrics.options import Options
from candor_monai.networks.linear_heads import HeadOptions
from candor_monai.networks.probing import ProbeOptions

QUICK = HeadStudyOptions(
    probe=ProbeOptions(heads=HeadOptions(members=2, epochs=60, learning_rate=0.03), resamples=100, retrieval=False),
    measure=Options(max_candidates=300, resamples=50),
    pool_missing=True,
)


def _planted(n: int = 3000, seed: int = 0) -> tuple[dict[str, np.ndarray], Observations, np.ndarray]:
    """A quarter of the positives lie among the negatives: discordant, and missed by any linear head.

    Features are far clusters on a circle: negatives at 0°, plain positives at 60°, planted ones at 0° as the negatives.
    """
    rng = np.random.default_rng(seed)
    labels = (rng.random((n, 2)) < 0.5).astype(np.int8)
    planted = (labels == 1) & (rng.random((n, 2)) < 0.25)
    encoders = {}
    for name in ("first", "second"):
        features = 0.05 * rng.normal(size=(n, 8))
        for f in range(2):
            apart = (labels[:, f] == 1) & ~planted[:, f]
            features[:, 2 * f] += np.where(apart, 0.5, 1.0)
            features[:, 2 * f + 1] += np.where(apart, 0.87, 0.0)
        encoders[name] = features.astype(np.float32)
    seen = Observations([f"i{i}" for i in range(n)], labels, ["f", "g"], patient=[f"p{i // 2}" for i in range(n)])
    return encoders, seen, planted


def test_planted_errors_are_recovered() -> None:
    encoders, seen, planted = _planted()
    study = run_head_study(encoders, seen, options=QUICK)
    one = study.encoders["first"]
    test = one.probe.rows.test
    # Sensitivity 0.8 cannot be had from the 75 % that lie apart: τ falls within the negatives' cluster, where planted
    # positives are found no more often than negatives are called positive.
    for f, finding in enumerate(seen.findings):
        called = decide(one.probe.test_logits[0, :, f], float(one.probe.points[f].threshold or 0))
        positive, hidden = seen.labels[test, f] == 1, planted[test, f]
        named = [r for r in study.head_errors if (r["encoder"], r["finding"]) == ("first", finding)]
        row = next(r for r in named if (r["role"], r["candidates"]) == ("positives", "all"))
        miss, other = np.mean(~called[hidden]), np.mean(~called[positive & ~hidden])
        # Negatives are denser around a planted positive than other planted positives: all are discordant, no other is.
        assert row["exposed"] == pytest.approx(hidden.sum(), abs=3)
        assert row["exposed_rate"] == pytest.approx(miss, abs=0.05)
        assert row["other_rate"] == pytest.approx(other, abs=0.05)
        assert row["lo"] <= miss - other <= row["hi"]
        assert miss > 0.6
    overall = next(r for r in study.head_errors if r["level"] == "all" and r["role"] == "positives")
    assert overall["n_strata"] == 4
    assert overall["lo"] > 0.4


def test_candidates_that_no_head_saw_show_no_difference_where_there_is_none() -> None:
    """Features that know nothing: heads and candidates share the accidents of the training images, unless held out."""
    found: dict[str, list[float]] = {"all": [], "held out": []}
    for seed in range(12):
        rng = np.random.default_rng(seed)
        labels = (rng.random((600, 1)) < 0.5).astype(np.int8)
        seen = Observations([f"i{i}" for i in range(600)], labels, ["f"])
        features = {"noise": rng.normal(size=(600, 16)).astype(np.float32)}
        heads = HeadOptions(members=1, epochs=60, learning_rate=0.03)
        probe = dataclasses.replace(QUICK.probe, heads=heads, seed=seed, resamples=20)
        study = run_head_study(features, seen, options=dataclasses.replace(QUICK, margin=False, probe=probe))
        for row in study.head_errors:
            if row["level"] == "all":
                found[row["candidates"]].append(row["difference"])
    assert len(found["all"]) == 24
    error = np.std(found["held out"], ddof=1) / np.sqrt(24)
    assert abs(np.mean(found["held out"])) < 2.5 * error
    assert np.mean(found["all"]) > 2.5 * error


def test_rules_follow_from_the_decisions() -> None:
    encoders, seen, _ = _planted(1500)
    options = dataclasses.replace(QUICK, probe=dataclasses.replace(QUICK.probe, max_test=150))
    study = run_head_study(encoders, seen, options=options)
    rows = {(row["rule"], row["sample"], row["subset"]): row for row in study.rules}
    assert len(rows) == len(study.rules) == 7 * 2 * 3
    probes = [one.probe for one in study.encoders.values()]
    labels = seen.labels[probes[0].rows.test]
    called = np.stack([probe.decisions()[0] for probe in probes])
    miss, false = ~called & (labels == 1), called & (labels == 0)
    positives, negatives = (labels == 1).sum(), (labels == 0).sum()
    assert rows["single head", "capped", "positives"]["rate"] == pytest.approx(miss.mean(axis=0).sum() / positives)
    assert rows["OR", "capped", "positives"]["rate"] == pytest.approx(miss.all(axis=0).sum() / positives)
    assert rows["majority vote", "capped", "negatives"]["rate"] == pytest.approx(false.all(axis=0).sum() / negatives)
    oracle = rows[ORACLE, "capped", "negatives"]
    assert oracle["rate"] == pytest.approx(false.all(axis=0).sum() / negatives)
    assert oracle["complement"] == pytest.approx(1 - oracle["rate"])
    dm = np.stack([one.dm[:150] for one in study.encoders.values()])
    majority = (labels == 1) & (dm > 0).all(axis=0)  # more than half of two
    found = rows["single head", "capped", "majority-discordant positives"]
    assert found["n_pairs"] == majority.sum()
    assert found["rate"] == pytest.approx(miss.mean(axis=0)[majority].mean())
    uncapped = rows["single head", "uncapped", "positives"]
    assert uncapped["n_pairs"] == (seen.labels[probes[0].rows.all_test] == 1).sum() > positives
    assert [row["rate"] for row in study.rules if row["rule"] == RULES[0]] != [None] * 6


def test_everything_is_written_and_reads_back(tmp_path) -> None:
    encoders, seen, _ = _planted(900)
    study = run_head_study({name: (lambda x=x: x) for name, x in encoders.items()}, seen, options=QUICK)
    files = study.write(tmp_path)
    assert all(path.is_file() for path in files)
    errors = pd.read_csv(tmp_path / "head_errors.csv")
    assert errors.columns.tolist() == list(HEAD_ERROR_COLUMNS)
    assert pd.read_csv(tmp_path / "rules.csv").columns.tolist() == list(RULE_COLUMNS)
    assert len(pd.read_csv(tmp_path / "error_detection.csv")) == len(study.error_detection)
    assert pd.read_csv(tmp_path / "probe.csv")["auroc"].notna().any()
    assert WARNING in (tmp_path / "tables" / "table_4.md").read_text()
    assert (tmp_path / "head_warnings.txt").read_text().startswith(WARNING)
    json.dumps(study.results(), allow_nan=False)
    two = (tmp_path / "tables" / "table_2.md").read_text()
    assert "| first |" in two
    assert " 0.5" not in two.split("| first |")[1].split("|")[5]  # the margin AUROC is there and not at chance


def test_false_discoveries_are_controlled_by_score() -> None:
    encoders, seen, _ = _planted(900)
    study = run_head_study(encoders, seen, options=QUICK)
    for score in ("proxy margin", "energy"):
        rows = [r for r in study.error_detection if r["score"] == score and r["level"] == "site"]
        p = np.array([r["p"] for r in rows])
        ranked = p[np.argsort(p)] * len(p) / np.arange(1, len(p) + 1)
        q = np.minimum.accumulate(ranked[::-1])[::-1]
        assert [r["q"] for r in rows] == pytest.approx(q[np.argsort(np.argsort(p))].tolist())
        total = next(r for r in study.error_detection if r["score"] == score and r["level"] == "all")
        assert total["n_better"] == sum(r["verdict"] == "better" for r in rows)
        assert total["auroc"] == pytest.approx(np.mean([r["auroc"] for r in rows]))


def test_two_runs_are_identical() -> None:
    encoders, seen, _ = _planted(600)
    first, second = (run_head_study(encoders, seen, options=QUICK) for _ in range(2))
    assert first.results() == second.results()


def test_an_encoder_beside_it_changes_nothing_of_its_own() -> None:
    encoders, seen, _ = _planted(600)
    both = run_head_study(encoders, seen, options=QUICK)
    one = run_head_study({"first": encoders["first"]}, seen, options=QUICK)
    assert [row for row in both.probe if row["encoder"] == "first"] == one.probe
    own = [row for row in both.head_errors if row["encoder"] == "first"]
    assert own == [row for row in one.head_errors if row["encoder"] == "first"]


def test_a_short_training_is_warned_of() -> None:
    encoders, seen, _ = _planted(600)
    options = dataclasses.replace(QUICK, probe=dataclasses.replace(QUICK.probe, heads=HeadOptions(members=1, epochs=2)))
    study = run_head_study(encoders, seen, options=options)
    assert study.warnings[0] == WARNING
    assert "steps only" in study.warnings[1]


def test_findings_without_a_decision_are_named() -> None:
    encoders, seen, _ = _planted(600)
    labels = seen.labels.copy()
    labels[:, 1] = 0
    seen = dataclasses.replace(seen, labels=labels)
    whole = run_head_study(encoders, seen, options=dataclasses.replace(QUICK, pool_missing=False))
    assert {row["status"] for row in whole.rules} == {"insufficient"}
    assert "1 findings have no decision (g: no operating point" in whole.rules[0]["reason"]
    part = run_head_study(encoders, seen, options=QUICK)
    assert {row["missing_findings"] for row in part.rules} == {1}
    assert part.rules[0]["rate"] is not None
    strata = [row for row in part.head_errors if row["finding"] == "g"]
    assert {row["status"] for row in strata} == {"insufficient"}
    assert all(row["reason"] for row in strata)


def test_bad_input_is_refused() -> None:
    _, seen, _ = _planted(60)
    with pytest.raises(ValueError, match="encoders is empty"):
        run_head_study({}, seen)
    with pytest.raises(ValueError, match="folds"):
        HeadStudyOptions(folds=1)


def test_the_page_on_heads_runs(tmp_path, monkeypatch) -> None:
    """The Python of docs/heads.md on a small cohort; its config names what exists."""
    import re

    import yaml
    from ignite.engine import Engine

    import candor_monai.apps.head_study as module
    from candor_monai.data.cohort import Cohort
    from tests.support import ROOT

    text = (ROOT / "docs" / "heads.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    encoders, seen, _ = _planted(600)
    labels = {finding: seen.labels[:, f].tolist() for f, finding in enumerate(seen.findings)}
    cohort = Cohort.of(seen.image_id.tolist(), labels, patients=seen.patient.tolist(), site="here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "HeadStudyOptions", lambda: QUICK)
    names = {"cohort": cohort, "lite0_features": encoders["first"], "vit_features": encoders["second"]}
    exec(blocks[0], names)
    assert (tmp_path / "eval" / "heads" / "rules.csv").is_file()
    engine = Engine(lambda engine, batch: batch)
    network = type("Network", (), {"describe": lambda self: {"name": "first", "fingerprint": {"w": 1}}})()
    store = (encoders["first"], np.ones(600, bool))
    names.update(observations=cohort.observations([]), store_features=store, network=network, evaluator=engine)
    exec(blocks[1], names)
    engine.run([0], max_epochs=1)
    assert engine.state.probe.encoder == "first"
    assert (tmp_path / "heads.safetensors").is_file()
    config = yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1])
    from candor_monai import networks

    assert config["network_def"]["_target_"] == f"candor_monai.networks.{networks.HeadedEncoder.__name__}"
    assert callable(networks.load_encoder)
