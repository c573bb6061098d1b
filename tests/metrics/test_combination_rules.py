"""The six rules and the oracle, on decisions worked by hand."""

import numpy as np
import pytest

from candor_monai.metrics.combination_rules import ORACLE, RULES, combine, patient_sums

# Three heads, validation of 5 positives and 5 negatives; 0.8 of 5 positives is 4: τ is the fourth largest positive.
VAL_LABELS = np.array([1] * 5 + [0] * 5)
VALIDATION = np.array(
    [
        [5.0, 4.0, 3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -3.0, -4.0],  # τ = 2, separates
        [5.0, 4.0, 3.0, 0.0, 1.0, 0.5, 4.5, -2.0, -3.0, -4.0],  # τ = 1
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],  # τ = 1, says yes to all that reach 1
    ]
)
FOLD = np.array([0, 1, 0, 1, 0, 0, 1, 0, 1, 0])
TEST = np.array([[2.5, 0.0, 0.0, 3.0], [0.0, 1.5, 0.0, 2.0], [0.0, 1.0, 0.0, 1.0]])
TEST_LABELS = np.array([1, 1, 1, 0])


def test_votes_by_hand() -> None:
    found = combine(VALIDATION, VAL_LABELS, FOLD, TEST, TEST_LABELS)
    assert found.positive["single head"] == pytest.approx([1 / 3, 2 / 3, 0, 1])
    assert found.positive["majority vote"].tolist() == [0, 1, 0, 1]
    assert found.positive["OR"].tolist() == [1, 1, 0, 1]
    assert found.chosen == 0
    assert found.positive["chosen on validation"].tolist() == [1, 0, 0, 1]
    # the oracle misses what every head misses, and is wrong on a negative only if all are
    assert found.positive[ORACLE].tolist() == [1, 1, 0, 1]
    assert set(found.positive) == {*RULES, ORACLE}


def test_mean_probability_by_hand() -> None:
    # one head: its mean probability decides as the head does
    found = combine(VALIDATION[:1], VAL_LABELS, FOLD, TEST[:1], TEST_LABELS)
    assert (found.positive["mean probability"] == found.positive["single head"]).all()
    # two opposite heads cancel: every probability is one half, all are called positive
    pair = np.stack([VALIDATION[0], -VALIDATION[0]])
    both = combine(pair, VAL_LABELS, FOLD, np.stack([TEST[0], -TEST[0]]), TEST_LABELS)
    assert both.positive["mean probability"].tolist() == [1, 1, 1, 1]


def test_an_even_split_is_no_majority() -> None:
    found = combine(VALIDATION[:2], VAL_LABELS, FOLD, TEST[:2], TEST_LABELS)
    assert found.positive["majority vote"].tolist() == [0, 0, 0, 1]


def _heads(seed: int, n: int, signal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    return rng.normal(size=(len(signal), n)) + signal[:, None] * labels, labels


def test_the_stack_learns_which_head_to_trust() -> None:
    signal = np.array([3.0, 0.0, 0.0])
    validation, labels = _heads(0, 400, signal)
    test, truth = _heads(1, 2000, signal)
    found = combine(validation, labels, np.arange(400) % 5, test, truth)

    def false_positives(rule: str) -> float:
        return float(found.positive[rule][truth == 0].mean())

    assert found.positive["stacked logistic regression"][truth == 1].mean() == pytest.approx(0.8, abs=0.05)
    assert false_positives("stacked logistic regression") < 0.06
    assert false_positives("single head") > 0.4
    assert false_positives("chosen on validation") < 0.06


def test_the_stacks_threshold_is_cross_fitted() -> None:
    # With as many noise heads as validation images per fold, in-sample predictions would separate the labels and put τ
    # far too high; out of fold the sensitivity holds on new images.
    validation, labels = _heads(2, 120, np.zeros(60))
    test, truth = _heads(3, 3000, np.zeros(60))
    found = combine(validation, labels, np.arange(120) % 5, test, truth)
    assert found.positive["stacked logistic regression"][truth == 1].mean() > 0.68


def test_the_stack_does_not_depend_on_the_scale_of_the_logits() -> None:
    validation, labels = _heads(4, 300, np.array([1.0, 0.3]))
    test, truth = _heads(5, 500, np.array([1.0, 0.3]))
    rule = "stacked logistic regression"
    plain = combine(validation, labels, np.arange(300) % 5, test, truth).positive[rule]
    scale = np.array([[0.01], [50.0]])
    scaled = combine(validation * scale, labels, np.arange(300) % 5, test * scale, truth).positive[rule]
    assert np.mean(plain != scaled) < 0.01


def test_missing_validation_labels_are_left_out() -> None:
    more = np.concatenate([VALIDATION, np.full((3, 4), 99.0)], axis=1)
    labels, fold = np.append(VAL_LABELS, [-1] * 4), np.append(FOLD, [0] * 4)
    plain = combine(VALIDATION, VAL_LABELS, FOLD, TEST, TEST_LABELS)
    found = combine(more, labels, fold, TEST, TEST_LABELS)
    assert all((found.positive[rule] == plain.positive[rule]).all() for rule in plain.positive)


def test_validation_without_positives_has_no_rule() -> None:
    found = combine(VALIDATION, np.zeros(10, int), FOLD, TEST, TEST_LABELS)
    assert found.positive == {}
    assert set(found.reasons) == {*RULES, ORACLE}


def test_validation_without_negatives_has_neither_choice_nor_stack() -> None:
    found = combine(VALIDATION, np.ones(10, int), FOLD, TEST, TEST_LABELS)
    assert set(found.reasons) == {"chosen on validation", "stacked logistic regression"}
    assert "majority vote" in found.positive


def test_heads_must_be_the_same() -> None:
    with pytest.raises(ValueError, match="same heads"):
        combine(VALIDATION, VAL_LABELS, FOLD, TEST[:2], TEST_LABELS)


def test_sums_by_patient_give_rates_and_resamples() -> None:
    rng = np.random.default_rng(0)
    share, chosen, codes = rng.random(50), rng.random(50) < 0.6, rng.integers(0, 8, 50)
    weights = rng.integers(0, 4, (8, 5))
    hit, total = patient_sums(share, chosen, codes, 8) @ weights
    w = weights[codes]
    assert hit == pytest.approx((share[:, None] * chosen[:, None] * w).sum(axis=0))
    assert total == pytest.approx((chosen[:, None] * w).sum(axis=0))
