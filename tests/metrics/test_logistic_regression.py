"""Logistic regression against scikit-learn."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from candor_monai.metrics.logistic_regression import fit_logistic


def test_without_inputs_that_vary_the_intercept_is_the_log_odds() -> None:
    model = fit_logistic(np.zeros((4, 1)), np.array([True, True, True, False]))
    assert model.intercept == pytest.approx(np.log(3), abs=1e-8)
    assert model.weight.tolist() == [0.0]


@pytest.mark.parametrize("penalty", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("separable", [False, True])
def test_equals_scikit_learn(penalty: float, separable: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4)) * [1, 5, 0.1, 2]
    y = (x[:, 0] + (0 if separable else rng.normal(size=120)) > 0.3).astype(bool)
    expected = LogisticRegression(C=1 / penalty, tol=1e-12, max_iter=10_000).fit(x, y)
    found = fit_logistic(x, y, penalty)
    assert found.weight == pytest.approx(expected.coef_[0], abs=1e-5)
    assert found.decision(x) == pytest.approx(expected.decision_function(x), abs=1e-4)


def test_equal_columns_share_their_weight() -> None:
    x = np.random.default_rng(1).normal(size=(50, 1)).repeat(2, axis=1)
    model = fit_logistic(x, x[:, 0] + 0.5 > np.random.default_rng(2).normal(size=50))
    assert model.weight[0] == pytest.approx(model.weight[1], abs=1e-9)


@pytest.mark.parametrize("targets, penalty, words", [([1, 1], 1.0, "one class"), ([1, 0], 0.0, "penalty")])
def test_bad_input_is_refused(targets: list, penalty: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fit_logistic(np.zeros((2, 1)), np.array(targets, dtype=bool), penalty)
