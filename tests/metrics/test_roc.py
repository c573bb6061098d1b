"""AUROC: by hand, and against scikit-learn and the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from candor_monai.metrics.roc import auroc

from . import reference


def test_by_hand():
    assert auroc(np.array([1.0, 2.0, 2.0, 3.0]), np.array([False, True, False, True])) == (1 + 0.5 + 1 + 1) / 4


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40))
def test_equals_sklearn_and_the_reference_with_many_ties(items):
    scores = np.array([float(score) for score, _ in items])
    positive = np.array([label for _, label in items])
    if positive.all() or not positive.any():
        assert auroc(scores, positive) is None
        return
    value = auroc(scores, positive)
    assert value == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)
    assert value == pytest.approx(reference.auroc(scores.tolist(), positive.tolist()), abs=1e-12)
    assert auroc(scores[::-1], positive[::-1]) == value
    assert auroc(-scores, positive) == pytest.approx(1 - value, abs=1e-15)


@pytest.mark.parametrize(
    ("scores", "positive", "message"),
    [
        (np.array([1.0, np.nan]), np.array([True, False]), r"scores\[1\]"),
        (np.zeros(2), np.zeros(3, bool), "scores has shape"),
    ],
)
def test_bad_input_is_named(scores, positive, message):
    with pytest.raises(ValueError, match=message):
        auroc(scores, positive)


def test_nothing_is_none():
    assert auroc(np.empty(0), np.empty(0, bool)) is None
