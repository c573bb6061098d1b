"""Head errors of discordant and other images: tables by hand, and a simulated study whose truth is known."""

import numpy as np
import pytest

from candor_monai.metrics.head_errors import Stratum, compare_by_encoder, compare_errors, count
from candor_monai.metrics.resampling import patient_weights


def _stratum(e1: int, n1: int, e0: int, n0: int, encoder: str = "a", finding: str = "f") -> Stratum:
    error = np.array([1] * e1 + [0] * (n1 - e1) + [1] * e0 + [0] * (n0 - e0), dtype=bool)
    return Stratum(encoder, finding, error, np.arange(n1 + n0) < n1, np.arange(n1 + n0))


def _weights(n: int, resamples: int = 200) -> np.ndarray:
    return patient_weights([f"p{i}" for i in range(n)], 42, resamples)


def test_two_tables_by_hand() -> None:
    # (8/10, 2/10) and (3/5, 6/15): see the Mantel–Haenszel test; pooled rates 11/15 and 8/25
    weights = _weights(20)
    found = compare_errors([count(_stratum(8, 10, 2, 10), weights), count(_stratum(3, 5, 6, 15), weights)])
    assert found.difference == pytest.approx(3.75 / 8.75, abs=1e-15)
    assert (found.exposed_rate, found.other_rate) == (11 / 15, 8 / 25)
    assert (found.exposed, found.others, found.n_strata, found.n_skipped) == (15, 25, 2, 0)
    assert found.lo is not None
    assert found.hi is not None
    assert found.lo < 3.75 / 8.75 < found.hi


def test_resampled_counts_are_those_of_the_weighted_images() -> None:
    rng = np.random.default_rng(0)
    stratum = Stratum("a", "f", rng.random(60) < 0.3, rng.random(60) < 0.5, rng.integers(0, 20, 60))
    weights = _weights(20, 30)
    found = count(stratum, weights).resampled
    w = weights[stratum.patient].astype(int)
    assert (found[0] == w[stratum.exposed & stratum.error].sum(axis=0)).all()
    assert (found[1] == w[stratum.exposed].sum(axis=0)).all()
    assert (found[2] == w[~stratum.exposed & stratum.error].sum(axis=0)).all()
    assert (found[3] == w[~stratum.exposed].sum(axis=0)).all()


def test_the_sd_is_that_of_fresh_samples() -> None:
    rng = np.random.default_rng(1)
    weights = _weights(300, 400)

    def sample() -> Stratum:
        exposed = rng.random(300) < 0.4
        return Stratum("a", "f", rng.random(300) < np.where(exposed, 0.5, 0.2), exposed, np.arange(300))

    truth = [compare_errors([count(sample(), weights[:, :2])]).difference for _ in range(300)]
    sds = [compare_errors([count(sample(), weights)]).sd for _ in range(20)]
    assert np.mean(sds) == pytest.approx(np.std(truth), rel=0.12)


def test_a_study_with_planted_errors_recovers_the_difference_within_its_interval() -> None:
    """30 studies of 4 encoders × 3 findings: discordant images err by 0.15 more, base rates differ by stratum."""
    rng = np.random.default_rng(2)
    weights = _weights(400, 200)
    covered = []
    for _ in range(30):
        severity = rng.random(400)  # makes a patient's errors depend on each other across encoders
        strata = []
        for e in range(4):
            for f in range(3):
                exposed = rng.random(400) < 0.2 + 0.1 * f
                error = severity < 0.1 + 0.1 * e + 0.15 * exposed
                strata.append(Stratum(f"e{e}", f"f{f}", error, exposed, np.arange(400)))
        found = compare_errors([count(stratum, weights) for stratum in strata])
        assert found.lo is not None
        assert found.hi is not None
        covered.append(found.lo <= 0.15 <= found.hi)
    assert np.mean(covered) >= 0.8


def test_by_encoder() -> None:
    weights = _weights(20)
    strata = [("a", count(_stratum(8, 10, 2, 10), weights)), ("b", count(_stratum(0, 10, 5, 10), weights))]
    found = compare_by_encoder(strata)
    assert (found["a"].difference, found["b"].difference) == (pytest.approx(0.6), pytest.approx(-0.5))


def test_no_discordant_image_gives_a_reason() -> None:
    found = compare_errors([count(_stratum(0, 0, 3, 10), _weights(10))])
    assert (found.difference, found.exposed_rate, found.other_rate) == (None, None, 0.3)
    assert (found.n_skipped, found.reason) == (1, "no stratum has units on both sides")


def test_one_discordant_image_has_a_difference_but_no_interval() -> None:
    found = compare_errors([count(_stratum(1, 1, 3, 10), _weights(11))])
    assert found.difference == pytest.approx(0.7)
    assert found.sd is None
    assert "resamples" in str(found.reason)


def test_no_error_at_all_has_no_interval_of_width_zero() -> None:
    found = compare_errors([count(_stratum(0, 10, 0, 10), _weights(20))])
    assert (found.difference, found.sd, found.lo) == (0.0, None, None)
    assert "every resample gives the same" in str(found.reason)


def test_bad_strata_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        Stratum("a", "f", np.zeros(2, bool), np.zeros(3, bool), np.zeros(2, int))
    with pytest.raises(ValueError, match="strata is empty"):
        compare_errors([])
