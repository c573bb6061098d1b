"""Operating point and error rates."""

import numpy as np
import pytest

from candor_monai.metrics.operating_point import decide, error_rates, operating_point


def test_eighty_percent_of_ten_positives_is_eight() -> None:
    scores = np.arange(10.0)
    point = operating_point(np.concatenate([scores, [100.0]]), np.array([1] * 10 + [0]))
    assert (point.threshold, point.sensitivity, point.status) == (2.0, 0.8, "ok")


@pytest.mark.parametrize("positives", [1, 2, 3, 5, 7, 20, 33])
@pytest.mark.parametrize("sensitivity", [0.5, 0.8, 0.9, 1.0])
def test_it_is_the_largest_threshold_that_reaches_the_sensitivity(positives: int, sensitivity: float) -> None:
    rng = np.random.default_rng(positives)
    scores = rng.integers(0, 12, positives + 30).astype(float)  # many ties
    labels = np.array([1] * positives + [0] * 20 + [-1] * 10)
    found = operating_point(scores, labels, sensitivity).threshold
    reached = [t for t in np.unique(scores) if np.mean(scores[labels == 1] >= t) >= sensitivity - 1e-12]
    assert found == max(reached)


def test_no_positive_is_no_operating_point() -> None:
    point = operating_point(np.array([0.1, 0.2]), np.array([0, -1]))
    assert point.threshold is None
    assert point.status == "insufficient"
    assert "no positive among the validation images" in str(point.reason)


def test_equal_scores_call_everything_positive() -> None:
    scores, labels = np.zeros(6), np.array([1, 1, 0, 0, 0, -1])
    point = operating_point(scores, labels)
    rates = error_rates(decide(scores, float(point.threshold or 0.0)), labels)
    assert (rates.miss_rate, rates.false_positive_rate, point.sensitivity) == (0.0, 1.0, 1.0)


def test_separable_scores_make_no_false_positive() -> None:
    scores, labels = np.array([3.0, 2.0, 1.0, 1.5, -1.0, -2.0]), np.array([1, 1, 1, 1, 0, 0])
    rates = error_rates(decide(scores, float(operating_point(scores, labels).threshold or 0.0)), labels)
    assert (rates.misses, rates.false_positives) == (0, 0)


def test_rates_without_images_are_none() -> None:
    rates = error_rates(np.array([True]), np.array([-1]))
    assert (rates.miss_rate, rates.false_positive_rate) == (None, None)


@pytest.mark.parametrize(
    "scores, labels, sensitivity, words",
    [
        ([0.0, np.nan], [1, 0], 0.8, r"scores\[1\] is nan"),
        ([0.0, 1.0], [1, 2], 0.8, r"labels\[1\] is 2"),
        ([0.0], [1, 0], 0.8, "one length"),
        ([0.0], [1], 0.0, "sensitivity"),
    ],
)
def test_bad_input_is_named(scores: list, labels: list, sensitivity: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        operating_point(np.array(scores), np.array(labels), sensitivity)
