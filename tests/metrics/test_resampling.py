"""The conditional interval, against worked examples, scikit-learn and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from candor_monai.metrics.resampling import (
    Replicates,
    auroc_replicates,
    conditional_interval,
    patient_weights,
    percentile_interval,
    pool_replicates,
    resample_auroc,
    resample_mean,
    uniform_bits,
    weighted_mean_replicates,
)


def test_worked_by_hand() -> None:
    # Two patients; the first has two queries (discordant, concordant), the second one (discordant).
    weights = np.array([[1, 2, 0, 0], [1, 0, 3, 0]], np.uint8)
    replicates = resample_mean(np.array([True, False, True]), np.array([0, 0, 1]), weights)
    assert replicates.estimate == 2 / 3
    assert replicates.numerators.tolist() == [2, 2, 3, 0]
    assert replicates.denominators.tolist() == [3, 4, 3, 0]
    np.testing.assert_array_equal(replicates.values(), [2 / 3, 0.5, 1.0, np.nan])


def test_auroc_by_hand() -> None:
    # Scores 1 < 2 = 2 < 3; positives: the second 2 and the 3. Pairs won: 2>1, 2=2 (½), 3>1, 3>2.
    scores, positive = np.array([1.0, 2.0, 2.0, 3.0]), np.array([False, False, True, True])
    weights = np.array([[1, 2], [1, 1], [1, 0], [1, 1]], np.uint8)
    values = resample_auroc(scores, positive, np.arange(4), weights)
    assert values.tolist() == [3.5 / 4, 1.0]


def test_weights_do_not_depend_on_who_else_is_in_the_run() -> None:
    ids = [f"p{i}" for i in range(50)]
    full = patient_weights(ids, 42, 101)
    np.testing.assert_array_equal(patient_weights(ids[7:], 42, 101), full[7:])
    np.testing.assert_array_equal(patient_weights(ids[::-1], 42, 101), full[::-1])
    np.testing.assert_array_equal(patient_weights(ids, 42, 1000)[:, :101], full)
    assert (patient_weights(ids, 43, 101) != full).mean() > 0.5


def test_weights_are_poisson() -> None:
    weights = patient_weights([str(i) for i in range(2000)], 1, 500)
    observed = np.bincount(weights.ravel(), minlength=7)[:7]
    expected = stats.poisson.pmf(np.arange(7), 1) * weights.size
    assert (
        stats.chisquare(
            np.append(observed, weights.size - observed.sum()), np.append(expected, weights.size - expected.sum())
        ).pvalue
        > 1e-3
    )
    assert abs(np.corrcoef(weights[:-1].ravel(), weights[1:].ravel())[0, 1]) < 0.005
    assert abs(np.corrcoef(weights[:, :-1].ravel(), weights[:, 1:].ravel())[0, 1]) < 0.005
    assert patient_weights(["a"], 1, 3).dtype == np.uint8


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("prevalence", [0.02, 0.3, 0.9])
def test_auroc_equals_scikit_learn(ties: bool, prevalence: float) -> None:
    rng = np.random.default_rng(3)
    n, patients, resamples = 400, 150, 130
    scores = rng.integers(0, 9, n).astype(float) if ties else rng.normal(size=n)
    positive = rng.random(n) < prevalence
    codes = rng.integers(0, patients, n)
    weights = patient_weights([str(i) for i in range(patients)], 5, resamples)
    ours = resample_auroc(scores, positive, codes, weights)
    for b in range(resamples):
        w = weights[codes, b]
        if w[positive].sum() == 0 or w[~positive].sum() == 0:
            assert np.isnan(ours[b])
        else:
            assert ours[b] == pytest.approx(roc_auc_score(positive, scores, sample_weight=w), abs=1e-12)


def test_row_order_changes_no_bit() -> None:
    rng = np.random.default_rng(0)
    scores, positive, codes = rng.normal(size=300), rng.random(300) < 0.4, rng.integers(0, 80, 300)
    values = rng.normal(size=300)
    weights = patient_weights([str(i) for i in range(80)], 5, 70)
    order = rng.permutation(300)
    np.testing.assert_array_equal(
        resample_auroc(scores, positive, codes, weights),
        resample_auroc(scores[order], positive[order], codes[order], weights),
    )
    first = resample_mean(positive, codes, weights).values()
    np.testing.assert_array_equal(first, resample_mean(positive[order], codes[order], weights).values())
    np.testing.assert_allclose(
        resample_mean(values, codes, weights).values(),
        resample_mean(values[order], codes[order], weights).values(),
        rtol=1e-12,
    )


def test_interval_of_independent_images_is_binomial() -> None:
    weights = patient_weights([str(i) for i in range(400)], 42, 1000)
    interval = conditional_interval(np.arange(400) < 160, np.arange(400), weights)
    assert interval.estimate == 0.4
    assert interval.sd == pytest.approx(np.sqrt(0.24 / 400), rel=0.08)
    assert interval.lo == pytest.approx(0.4 - 1.96 * interval.sd, abs=0.004)
    assert interval == conditional_interval(np.arange(400) < 160, np.arange(400), weights)


def test_interval_counts_patients_not_images() -> None:
    weights = patient_weights([str(i) for i in range(40)], 42, 1000)
    values, codes = np.repeat(np.arange(40) < 16, 10), np.repeat(np.arange(40), 10)
    assert conditional_interval(values, codes, weights).sd == pytest.approx(np.sqrt(0.24 / 40), rel=0.08)


def test_pooling_sums_and_severity_weighs() -> None:
    a = Replicates(1, 2, np.array([1.0, 0.0]), np.array([2.0, 0.0]))
    b = Replicates(3, 4, np.array([3.0, 2.0]), np.array([4.0, 4.0]))
    pooled = pool_replicates([a, b])
    assert pooled.estimate == 4 / 6
    assert pooled.values().tolist() == [4 / 6, 0.5]
    mean = weighted_mean_replicates([a, b], [3, 1])
    assert mean.estimate == pytest.approx((3 * 0.5 + 0.75) / 4)
    np.testing.assert_allclose(mean.values(), [(3 * 0.5 + 0.75) / 4, np.nan])


def test_auroc_pools_by_queries() -> None:
    scores, positive, codes = np.array([1.0, 2.0, 3.0]), np.array([False, True, True]), np.arange(3)
    weights = np.array([[1, 0], [1, 1], [1, 1]], np.uint8)
    queries = resample_mean(np.array([True, False]), np.array([1, 2]), weights)
    replicates = auroc_replicates(scores, positive, codes, weights, queries)
    assert (replicates.estimate, replicates.numerator) == (1.0, 2.0)
    assert replicates.denominators.tolist() == [2.0, 0.0]  # the second resample has no negative


@pytest.mark.parametrize(
    "values, patients, reason",
    [
        ([], [], "no query"),
        ([1], [0], "fewer than 10 positive patients (1)"),
        ([0.0] * 30, list(range(30)), None),
        ([1e100] * 30, list(range(30)), None),
        ([1.0] * 30, [0] * 21 + list(range(1, 10)), None),
    ],
)
def test_degenerate_input(values: list[float], patients: list[int], reason: str | None) -> None:
    weights = patient_weights([str(i) for i in range(30)], 42, 200)
    interval = conditional_interval(np.array(values), np.array(patients, np.int64), weights)
    assert interval.reason == reason
    if reason is None:
        assert interval.lo == pytest.approx(values[0])
        assert interval.sd == pytest.approx(0, abs=abs(values[0]) * 1e-12)
    else:
        assert interval.lo is None
        assert interval.hi is None


def test_one_resample_gives_no_interval() -> None:
    weights = patient_weights([f"p{i}" for i in range(20)], seed=1, resamples=1)
    interval = conditional_interval(np.arange(20) < 8, np.arange(20), weights)
    assert (interval.estimate, interval.sd, interval.lo, interval.hi) == (0.4, None, None, None)
    assert interval.reason == "one resample shows no spread"


def test_too_many_empty_resamples_give_no_interval() -> None:
    weights = np.zeros((1, 100), np.uint8)
    weights[0, :98] = 1
    interval = conditional_interval(np.array([1.0]), np.array([0]), weights, min_patients=0)
    assert (interval.empty, interval.lo) == (2, None)
    assert interval.reason == "2 of 100 resamples hold no query"


def test_one_class_has_no_auroc() -> None:
    weights = np.ones((3, 4), np.uint8)
    assert np.isnan(resample_auroc(np.zeros(3), np.ones(3, bool), np.arange(3), weights)).all()
    assert resample_auroc(np.zeros(3), np.array([True, False, False]), np.arange(3), weights).tolist() == [0.5] * 4


def test_bad_input_names_the_argument_and_the_row() -> None:
    weights = np.ones((2, 4), np.uint8)
    with pytest.raises(ValueError, match="values: row 1 is not finite"):
        resample_mean(np.array([0, np.nan]), np.array([0, 1]), weights)
    with pytest.raises(ValueError, match="patient_codes: row 1 is 2"):
        resample_mean(np.array([0, 1]), np.array([0, 2]), weights)
    with pytest.raises(ValueError, match="weights have dtype float64: whole numbers from 0 to 255, uint8, are needed"):
        resample_mean(np.ones(2), np.zeros(2, np.int64), np.ones((1, 4)))
    with pytest.raises(ValueError, match="equally long"):
        resample_auroc(np.zeros(3), np.zeros(3, bool), np.zeros(2, np.int64), weights)
    with pytest.raises(ValueError, match="row 2 repeats"):
        patient_weights(["a", "b", "a"], 1, 2)
    with pytest.raises(ValueError, match="must be positive"):
        uniform_bits(["a"], ("x",), 0)
    with pytest.raises(ValueError, match="nothing to pool"):
        pool_replicates([])
    with pytest.raises(ValueError, match="row 0 has no value"):
        weighted_mean_replicates([Replicates(0, 0, np.zeros(2), np.zeros(2))], [1.0])


def test_interval_of_nothing() -> None:
    assert percentile_interval(Replicates(0, 0, np.zeros(2), np.zeros(2))).reason == "no query"
