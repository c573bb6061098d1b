"""LogME against the formula on a direct singular value decomposition, maximised independently."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

from candor_monai.metrics.logme import evidence_at_optimum, factorise, logme


def _evidence(z: np.ndarray, y: np.ndarray, alpha: float, beta: float) -> float:
    """log p(y) of the marginal Gaussian N(0, I/β + ZZᵀ/α): no shortcut at all."""
    covariance = np.eye(len(z)) / beta + z @ z.T / alpha
    return float(multivariate_normal(np.zeros(len(z)), covariance, allow_singular=False).logpdf(y))


def _best(z: np.ndarray, y: np.ndarray) -> float:
    starts = [(a, b) for a in (-3.0, 0.0, 3.0, 8.0) for b in (0.0, 2.0)]
    runs = [
        minimize(
            lambda v: -_evidence(z, y, *np.exp(np.clip(v, -40, 40))),
            start,
            method="Nelder-Mead",
            options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 2000},
        )
        for start in starts
    ]
    return -min(float(run.fun) for run in runs)


def _case(seed: int, n: int, d: int, signal: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, d))
    y = (z[:, 0] * signal + rng.normal(size=n) > 0.5).astype(np.int8)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    return z, y


@pytest.mark.parametrize("seed, n, d, signal", [(0, 40, 5, 2.0), (1, 30, 8, 0.5), (2, 25, 3, 4.0), (3, 30, 12, 1.0)])
def test_equals_the_formula_at_its_optimum(seed: int, n: int, d: int, signal: float) -> None:
    z, y = _case(seed, n, d, signal)
    expected = np.mean([_best(z, y.astype(float)), _best(z, 1.0 - y)]) / n
    found = logme(z, y[:, None])[0]
    assert found.value == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_more_features_than_images_have_an_evidence_too(seed: int) -> None:
    z, y = _case(seed, 14, 40, 1.0)
    found = logme(z, y[:, None])[0]
    # The supremum may lie at β → ∞, which a search over finite β approaches from below.
    expected = np.mean([_best(z, y.astype(float)), _best(z, 1.0 - y)]) / 14
    assert found.value == pytest.approx(expected, abs=1e-6)
    assert (found.value or 0) >= expected - 1e-8


def test_the_optimum_is_no_worse_than_anywhere_else() -> None:
    z, y = _case(5, 50, 6, 1.0)
    factor, coordinates = factorise(z, y[:, None].astype(float))
    best = evidence_at_optimum(factor.values, coordinates[:, 0], float(y.sum()), 50)
    assert best is not None
    rng = np.random.default_rng(0)
    for alpha, beta in np.exp(rng.uniform(-6, 8, size=(200, 2))):
        assert _evidence(z, y.astype(float), alpha, beta) <= best[0] + 1e-9


def test_findings_share_a_factor_and_missing_labels_leave_images_out() -> None:
    rng = np.random.default_rng(7)
    z = rng.normal(size=(60, 4))
    labels = rng.integers(0, 2, (60, 3)).astype(np.int8)
    labels[:20, 1] = -1
    together = logme(z, labels)
    for f in range(3):
        kept = labels[:, f] >= 0
        assert together[f].value == pytest.approx(logme(z[kept], labels[kept, f : f + 1])[0].value, abs=1e-12)


def test_useless_features_give_the_null_evidence() -> None:
    # y is orthogonal to the only feature, whose evidence can then only fall with α finite
    z = np.array([[1.0], [-1.0], [1.0], [-1.0]])
    y = np.array([[1], [1], [0], [0]])
    found = logme(z, y)[0]
    null = 0.5 * (np.log(4 / 2) - np.log(2 * np.pi) - 1)
    assert found.value == pytest.approx(null, abs=1e-12)
    assert found.log_ratio == np.inf


def test_a_better_feature_has_the_larger_logme() -> None:
    rng = np.random.default_rng(9)
    y = rng.integers(0, 2, 300)
    good = np.stack([y + 0.1 * rng.normal(size=300), rng.normal(size=300)], axis=1)
    poor = rng.normal(size=(300, 2))
    assert (logme(good, y[:, None])[0].value or 0) > (logme(poor, y[:, None])[0].value or 0) + 0.5


@pytest.mark.parametrize(
    "labels, reason",
    [([0, 0, 0], "no positive"), ([1, 1, 1], "no negative"), ([-1, -1, -1], "no labelled image")],
)
def test_one_class_is_insufficient(labels: list, reason: str) -> None:
    found = logme(np.eye(3)[:, :2] + 0.1, np.array(labels)[:, None])[0]
    assert (found.value, found.status, found.reason) == (None, "insufficient", reason)


def test_labels_fitted_exactly_have_no_maximum() -> None:
    found = logme(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]), np.array([[1], [0], [1], [0]]))[0]
    assert found.value is None
    assert "exactly" in str(found.reason)


def test_bad_features_are_named() -> None:
    z = np.ones((5, 2))
    z[3, 1] = np.nan
    with pytest.raises(ValueError, match=r"features\[3\] is not finite"):
        factorise(z)
    with pytest.raises(ValueError, match="one row per feature row"):
        logme(np.ones((5, 2)), np.zeros((4, 1)))
