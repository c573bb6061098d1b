"""Rank agreements and trends, against hand-worked values and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from candor_monai.metrics.rankings import clustered_slope, clustered_spearman, mean_spearman, spearman


def test_worked_by_hand() -> None:
    # Ranks 1 2 3 against 1 3 2: 1 − 6·2/(3·8) = 0.5; of six orders |ρ| ≥ 0.5 in all.
    assert spearman([0.1, 0.2, 0.3], [5, 9, 7]).value == pytest.approx(0.5)
    assert spearman([0.1, 0.2, 0.3], [5, 9, 7]).p == 1.0
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]).p == pytest.approx(2 / 24)


@pytest.mark.parametrize("size", [6, 11, 40])
@pytest.mark.parametrize("ties", [False, True])
def test_equals_scipy(size: int, ties: bool) -> None:
    rng = np.random.default_rng(size)
    one, two = rng.normal(size=(2, size))
    if ties:
        one, two = np.round(one), np.round(two)
    two += 0.5 * one
    expected = stats.spearmanr(one, two)
    found = spearman(one, two)
    assert found.value == pytest.approx(expected.statistic)
    exact = stats.permutation_test(
        (one,), lambda x: stats.spearmanr(x, two).statistic, permutation_type="pairings", n_resamples=1000, rng=0
    )
    assert found.p == pytest.approx(exact.pvalue, abs=0.06)
    assert found == spearman(one, two)


@pytest.mark.parametrize("size", range(3, 41))
def test_equal_and_opposite_orders_correlate_at_one_to_the_bit(size: int) -> None:
    """results.json allows nothing beyond, and a study would end in the rounding of its last step."""
    one = np.random.default_rng(size).normal(size=size)
    tied = np.round(one) if len(set(np.round(one))) > 1 else one
    for values in (one, tied):
        assert spearman(values, np.exp(values)).value == 1
        assert spearman(values, -values).value == -1
        assert mean_spearman(np.stack([values] * 7, axis=1), np.stack([-values] * 7, axis=1)).value == -1
        assert clustered_spearman(values, values, [f"f{i}" for i in range(size)]).value == 1


def test_mean_over_findings_needs_all_encoders() -> None:
    first = np.array([[1, 1, np.nan], [2, 2, 2], [3, 3, 3], [4, 4, 4]], float)
    second = np.array([[1, 4, 1], [2, 3, 2], [3, 2, 3], [4, 1, 4]], float)
    found = mean_spearman(first, second)
    assert (found.value, found.count) == (pytest.approx(0.0), 2)
    same = mean_spearman(first[:, :1].repeat(12, 1), second[:, :1].repeat(12, 1))
    assert same.value == pytest.approx(1.0)
    assert same.p == pytest.approx(2 / 24)  # twelve copies of one finding are no more evidence than one


def test_trend_is_clustered_by_finding() -> None:
    rng = np.random.default_rng(0)
    findings = np.repeat([f"f{i}" for i in range(12)], 11)
    size = np.repeat(rng.permutation(12), 11).astype(float)
    plain, clustered = [], []
    for _ in range(20):
        d = np.repeat(rng.normal(size=12), 11) + 0.3 * rng.normal(size=132)
        found = clustered_spearman(d, size, findings)
        assert found.value == pytest.approx(stats.spearmanr(d, size).statistic)
        plain.append(stats.spearmanr(d, size).pvalue)
        clustered.append(found.p)
    assert np.mean(np.array(plain) < 0.05) > 0.3
    assert np.mean(np.array(clustered) < 0.05) < 0.25


def test_trend_with_profiles_that_vary_within_findings() -> None:
    rng = np.random.default_rng(0)
    findings = np.repeat(list("abcdef"), 5)
    x = rng.normal(size=30)
    assert clustered_spearman(x, x, findings).p == pytest.approx(1 / 720)
    ragged = clustered_spearman(x[:29], x[:29], findings[:29])
    assert ragged.reason == "findings have different numbers of rows"


def test_slope_by_hand_and_against_the_formula() -> None:
    assert clustered_slope([0, 1, 2, 3], [1, 3, 5, 7], list("abcd")).value == pytest.approx(2.0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 60))
    code = np.repeat(np.arange(12), 5)
    found = clustered_slope(x, y, code)
    fit = stats.linregress(x, y)
    assert found.value == pytest.approx(fit.slope)
    residual = y - fit.intercept - fit.slope * x
    centred = x - x.mean()
    scores = np.array([(centred * residual)[code == c].sum() for c in range(12)])
    variance = 12 / 11 * 59 / 58 * (scores @ scores) / (centred @ centred) ** 2
    assert found.p == pytest.approx(2 * stats.t.sf(abs(fit.slope) / np.sqrt(variance), 11))


def test_slope_within_clusters_ignores_their_levels() -> None:
    x = np.tile(np.arange(5.0), 4)
    level = np.repeat([10.0, -3, 5, 0], 5)
    found = clustered_slope(x, 0.5 * x + level, np.repeat(list("abcd"), 5), within=True)
    assert found.value == pytest.approx(0.5)
    assert found.p < 1e-6


@pytest.mark.parametrize(
    "one, two, reason",
    [
        ([], [], "fewer than 3 values"),
        ([1, 2], [1, 2], "fewer than 3 values"),
        ([1, 1, 1], [1, 2, 3], "all values are equal"),
    ],
)
def test_degenerate(one: list, two: list, reason: str) -> None:
    assert spearman(one, two).reason == reason
    assert spearman(one, two).value is None
    assert clustered_spearman(one, two, ["a"] * len(one)).reason == reason


def test_few_clusters_give_no_p() -> None:
    assert clustered_spearman([1, 2, 3, 4], [1, 1, 2, 2], list("aabb")).reason == "fewer than 3 findings"
    assert clustered_slope([1, 2, 3, 4], [1, 2, 2, 3], list("aabb")).reason == "fewer than 3 clusters"
    assert clustered_slope([2024] * 4, [1, 2, 2, 3], list("abcd")).reason == "x does not vary"
    assert mean_spearman(np.full((4, 2), np.nan), np.ones((4, 2))).value is None


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="row 1 is not finite"):
        spearman([1, np.nan, 3], [1, 2, 3])
    with pytest.raises(ValueError, match="equally long"):
        spearman([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="clusters has shape"):
        clustered_spearman([1, 2, 3], [1, 2, 3], ["a"])
    with pytest.raises(ValueError, match="one shape"):
        mean_spearman(np.ones((3, 2)), np.ones((2, 2)))
