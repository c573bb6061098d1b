"""Error detection on cohorts whose truth is known."""

import dataclasses

import numpy as np
import pytest
from scipy.stats import rankdata

from candor_monai.apps.error_scores import COLUMNS, VIEW_MAP, error_scores
from candor_monai.metrics.auroc_tests import auroc
from candor_monai.metrics.error_detection import SCORES
from candor_monai.metrics.observations import Observations
from candor_monai.metrics.options import Options
from candor_monai.networks.linear_heads import HeadOptions
from candor_monai.networks.probing import ProbeOptions, run_probe

PROBE = ProbeOptions(heads=HeadOptions(members=3, epochs=60, learning_rate=0.03), resamples=60, retrieval=False)
MEASURE = Options(max_candidates=200)


def _cohort(n: int = 900, **more) -> tuple[np.ndarray, Observations]:
    rng = np.random.default_rng(0)
    labels = (rng.random((n, 1)) < 0.4).astype(np.int8)
    features = rng.normal(size=(n, 5)).astype(np.float32)
    features[:, :1] += 2.5 * labels - 1.2
    parts = {
        "image_id": [f"i{i}" for i in range(n)],
        "labels": labels,
        "findings": ["f"],
        "group": np.arange(n) % 2,
        "group_names": ("view=AP", "view=PA"),
    }
    return features, Observations(**{**parts, **more})


def test_every_score_finds_errors_and_is_compared_on_the_same_images() -> None:
    features, seen = _cohort()
    probe = run_probe(features, seen, options=PROBE)
    rows = error_scores(features, probe, MEASURE).rows
    assert [row["score"] for row in rows] == list(SCORES)
    assert all(set(row) == set(COLUMNS) for row in rows)
    assert {row["n"] for row in rows} == {len(probe.rows.test)}
    errors = probe.decisions()[0][:, 0] != (seen.labels[probe.rows.test, 0] == 1)
    assert {row["n_errors"] for row in rows} == {int(errors.sum())}
    found = {row["score"]: row for row in rows}
    # The features hold one clear boundary, so images near it are both impure and wrongly called.
    for score in ("maximum softmax", "threshold distance", "neighborhood impurity", "proxy margin"):
        assert found[score]["auroc"] > 0.6, score
    assert found["maximum logit"]["auroc"] == found["maximum softmax"]["auroc"]
    assert found["energy"]["difference"] == 0.0
    assert found["maximum softmax"]["p"] is None
    assert found["neighborhood impurity"]["p"] is not None


def test_the_auroc_is_that_of_the_definition() -> None:
    features, seen = _cohort()
    probe = run_probe(features, seen, options=PROBE)
    row = next(r for r in error_scores(features, probe, MEASURE).rows if r["score"] == "neighborhood impurity")
    unit = features.astype(float) / np.linalg.norm(features.astype(float), axis=1, keepdims=True)
    from candor_monai.metrics.draw import draws

    labels = np.full_like(seen.labels, -1)
    labels[probe.rows.all_train] = seen.labels[probe.rows.all_train]
    training = {d.group: d.sets[0] for d in draws(dataclasses.replace(seen, labels=labels), MEASURE)}
    scores = []
    for image in probe.rows.test.tolist():
        positive, negative = training[seen.group_names[seen.group[image]]]
        assert len(positive) == len(negative)
        near = [(float(unit[image] @ unit[c]), label) for side, label in ((negative, 0), (positive, 1)) for c in side]
        ranked = sorted(near, reverse=True)
        share = np.mean([label for _, label in ranked[:5]])
        scores.append(1 - abs(2 * share - 1))
    errors = (probe.decisions()[0][:, 0] != (seen.labels[probe.rows.test, 0] == 1)).astype(int)
    assert row["auroc"] == auroc(rankdata(np.round(scores, 9)), errors)


SITES = np.repeat(["mimic", "vindr", "padchest"], [500, 200, 200])
VIEWS = np.concatenate([np.arange(500) % 2, np.full(200, 2), np.full(200, 3)])
NAMES = ("site=mimic|view=AP", "site=mimic|view=PA", "site=vindr|view=(missing)", "site=padchest|view=L")


def test_a_training_site_lends_its_views_by_the_stated_table() -> None:
    features, seen = _cohort(site=SITES, group=VIEWS, group_names=NAMES)
    probe = run_probe(features, seen, options=dataclasses.replace(PROBE, train_site="mimic"))
    found = error_scores(features, probe, MEASURE)
    assert found.views == {"AP": "AP", "PA": "PA", "(missing)": "PA", "L": None}
    assert VIEW_MAP["(missing)"][0] == "PA"
    rows = {(row["site"], row["score"]): row for row in found.rows}
    assert len(rows) == 3 * len(SCORES)
    assert {row["train_site"] for row in found.rows} == {"mimic"}
    assert rows["vindr", "neighborhood impurity"]["status"] == "ok"
    lateral = rows["padchest", "neighborhood impurity"]
    assert (lateral["auroc"], lateral["reason"]) == (None, "no candidates in the views of this site")
    assert rows["padchest", "maximum softmax"]["auroc"] is not None


def test_images_of_a_view_without_candidates_are_left_out_of_every_score() -> None:
    site = np.where(SITES == "padchest", "vindr", SITES)
    features, seen = _cohort(site=site, group=VIEWS, group_names=(*NAMES[:3], "site=vindr|view=L"))
    probe = run_probe(features, seen, options=dataclasses.replace(PROBE, train_site="mimic"))
    rows = [row for row in error_scores(features, probe, MEASURE).rows if row["site"] == "vindr"]
    lateral = int((VIEWS[probe.rows.test] == 3).sum())
    assert {row["n_left_out"] for row in rows} == {lateral}
    assert {row["n"] for row in rows} == {int((VIEWS[probe.rows.test] == 2).sum())}


def test_a_map_of_ones_own() -> None:
    features, seen = _cohort(site=SITES, group=VIEWS, group_names=NAMES)
    probe = run_probe(features, seen, options=dataclasses.replace(PROBE, train_site="mimic"))
    assert error_scores(features, probe, MEASURE, {"L": ["X", "AP"]}).views["L"] == "AP"


@pytest.mark.parametrize("case", ["no operating point", "no error", "few candidates", "constant features"])
def test_degenerate_cohorts_have_a_status_and_a_reason(case: str) -> None:
    features, seen = _cohort()
    labels = seen.labels.copy()
    part = run_probe(features, seen, options=PROBE).rows.part
    if case == "no operating point":
        labels[part == "val"] = 0
    if case == "no error":
        features = np.zeros_like(features)
        features[:, 0], features[:, 1] = 2 * labels[:, 0] - 1, 1
    if case == "few candidates":
        train = np.flatnonzero((part == "train") & (labels[:, 0] == 1))
        labels[train[4:]] = -1
    if case == "constant features":
        features = np.ones_like(features)
    seen = dataclasses.replace(seen, labels=labels)
    probe = run_probe(features, seen, options=PROBE)
    rows = {row["score"]: row for row in error_scores(features, probe, MEASURE).rows}
    for row in rows.values():
        assert (row["auroc"] is None) == (row["status"] == "insufficient")
        assert row["status"] == "ok" or row["reason"]
    confidence, impurity = rows["maximum softmax"], rows["neighborhood impurity"]
    if case == "no operating point":
        assert "no positive among the validation images" in confidence["reason"]
    if case == "no error":
        assert confidence["reason"] == "the head makes no error"
    if case == "few candidates":
        assert confidence["status"] == "ok"
        assert "too few training images" in impurity["reason"]
    if case == "constant features":
        assert confidence["auroc"] == 0.5
        assert "do not vary" in rows["Mahalanobis"]["reason"]
