"""AUROCs and paired comparisons against scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from candor_monai.metrics.auroc_tests import Auroc, auroc, paired_aurocs, spread
from candor_monai.metrics.resampling import patient_weights


def test_by_hand() -> None:
    # pairs: (2 > 1), (2 = 2 counts ½), (3 > 1), (3 > 2): 3.5 of 4
    assert auroc(np.array([1.0, 2.0, 2.0, 3.0]), np.array([0, 0, 1, 1])) == 3.5 / 4


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_equals_scikit_learn_with_ties_and_missing_labels(levels: int) -> None:
    rng = np.random.default_rng(levels)
    scores = rng.integers(0, levels, 300) / 7
    labels = rng.choice([-1, 0, 1], 300)
    kept = labels >= 0
    assert auroc(scores, labels) == pytest.approx(roc_auc_score(labels[kept], scores[kept]), abs=1e-12)


def interval_of(scores: np.ndarray, labels: np.ndarray, codes: np.ndarray, weights: np.ndarray) -> Auroc:
    """The first of one."""
    return paired_aurocs(scores[None], labels, codes, weights)[0][0]


def test_interval_is_the_spread_of_weighted_aurocs() -> None:
    rng = np.random.default_rng(1)
    labels = np.array([1, 0] * 40)
    scores = rng.normal(size=80) + labels
    codes = np.arange(80) // 2
    weights = patient_weights([f"p{i}" for i in range(40)], 42, 60)
    found = interval_of(scores, labels, codes, weights)
    slow = [roc_auc_score(labels, scores, sample_weight=weights[codes, b].astype(float)) for b in range(60)]
    assert found.sd == pytest.approx(np.std(slow, ddof=1), abs=1e-12)
    assert (found.lo, found.hi) == pytest.approx(tuple(np.percentile(slow, [2.5, 97.5])), abs=1e-12)


def test_a_better_score_is_told_from_a_worse_one_and_not_from_itself() -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 2, 400)
    good, poor = rng.normal(size=400) + 2 * labels, rng.normal(size=400)
    weights = patient_weights([str(i) for i in range(400)], 42, 200)
    values, pairs = paired_aurocs(np.stack([poor, good, poor * 2]), labels, np.arange(400), weights)
    assert pairs[1].p is not None
    assert pairs[1].p < 1e-6
    assert pairs[1].difference == pytest.approx((values[1].value or 0) - (values[0].value or 0), abs=1e-15)
    assert (pairs[2].difference, pairs[2].p) == (0.0, 1.0)
    assert pairs[0].p is None


def test_p_values_are_uniform_when_scores_are_alike() -> None:
    rng = np.random.default_rng(3)
    weights = patient_weights([str(i) for i in range(150)], 42, 200)
    p = []
    for _ in range(200):
        labels = rng.integers(0, 2, 150)
        scores = rng.normal(size=(2, 150)) + labels
        p.append(paired_aurocs(scores, labels, np.arange(150), weights)[1][1].p)
    assert 0.02 <= np.mean(np.array(p) < 0.05) <= 0.10
    assert 0.4 <= np.mean(p) <= 0.6


@pytest.mark.parametrize(
    "labels, reason", [([1, 1], "no negative"), ([0, 0], "no positive"), ([-1, -1], "no labelled image")]
)
def test_one_class_gives_a_reason(labels: list, reason: str) -> None:
    found = interval_of(np.zeros(2), np.array(labels), np.arange(2), np.ones((2, 3), np.uint8))
    assert (found.value, found.reason) == (None, reason)


def test_equal_scores_are_at_one_half() -> None:
    assert auroc(np.ones(10), np.array([0, 1] * 5)) == 0.5


def test_a_class_on_one_patient_has_no_interval() -> None:
    weights = patient_weights([str(i) for i in range(50)], 42, 200)
    found = interval_of(np.arange(50.0), np.array([1] + [0] * 49), np.arange(50), weights)
    assert found.value == 0.0
    assert found.sd is None
    assert "resamples" in str(found.reason)


def test_separable_scores_have_no_interval_of_width_zero() -> None:
    weights = patient_weights([str(i) for i in range(40)], 42, 100)
    found = interval_of(np.arange(40.0), np.arange(40) >= 20, np.arange(40), weights)
    assert (found.value, found.sd, found.lo) == (1.0, None, None)
    assert found.reason == "no interval: every resample gives the same value"


def test_spread_of_nothing() -> None:
    assert spread(np.array([np.nan, np.nan]))[:3] == (None, None, None)


def test_bad_scores_are_named() -> None:
    with pytest.raises(ValueError, match=r"scores\[0\] is inf"):
        auroc(np.array([np.inf, 0.0]), np.array([1, 0]))
