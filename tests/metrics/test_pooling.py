"""Pooled values never hide a missing part."""

from __future__ import annotations

import pytest

from candor_monai.metrics.pooling import Pooled, pooled_rate, weighted_mean


def test_severity_weights_by_hand():
    values = {"edema": 0.2, "fracture": 0.4, "atelectasis": 0.6}
    assert weighted_mean(values, {"edema": 3, "fracture": 2, "atelectasis": 1}).value == pytest.approx(2.0 / 6)
    assert weighted_mean(values).value == pytest.approx(0.4)


def test_a_missing_part_gives_no_value_unless_asked():
    values = {"edema": 0.2, "fracture": None}
    assert weighted_mean(values) == Pooled(None, ("edema",), ("fracture",))
    assert weighted_mean(values, over_missing=True) == Pooled(0.2, ("edema",), ("fracture",))
    assert weighted_mean({"a": None}, over_missing=True).value is None
    assert weighted_mean({}) == Pooled(None, (), ())


def test_the_order_of_the_parts_changes_no_bit():
    values = {f"finding {i}": 1 / (i + 3) for i in range(12)}
    weights = {name: 1 + (place % 3) for place, name in enumerate(values)}
    turned = dict(reversed(values.items()))
    assert weighted_mean(values, weights) == weighted_mean(turned, weights)


def test_rates_pool_by_trials():
    assert pooled_rate([1, 9], [2, 18]) == 0.5
    assert pooled_rate([0], [0]) is None
    assert pooled_rate([], []) is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: weighted_mean({"a": 1.0}, {}), "weights has no 'a'"),
        (lambda: weighted_mean({"a": 1.0}, {"a": -1}), r"weights\['a'\] is -1"),
        (lambda: weighted_mean({"a": 1.0}, {"a": float("nan")}), r"weights\['a'\] is nan"),
        (lambda: weighted_mean({"a": 1.0}, {"a": 0}), "weights sum to 0"),
        (lambda: pooled_rate([1], [1, 2]), "events has 1 parts"),
        (lambda: pooled_rate([1, 3], [1, 2]), r"events\[1\] is 3 of 2"),
        (lambda: pooled_rate([-1], [1]), r"events\[0\] is -1"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
