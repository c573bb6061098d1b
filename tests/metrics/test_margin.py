"""The margin bound, against heads that try to break it."""

from __future__ import annotations

import numpy as np
import pytest

from candor_monai.metrics.margin import margin_bound


def test_values_by_hand():
    np.testing.assert_allclose(margin_bound(np.array([1.0, 0.95, 0.5, -1.0])), [0, 0.158113883, 0.5, 1], atol=1e-9)


def test_no_linear_head_beats_it():
    """h(z) = w·z is ‖w‖-Lipschitz: over random w the margin at a query and its negatives obeys the bound."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((6, 4))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    bound = margin_bound(np.array([(z[1:] @ z[0]).mean()]))[0]
    heads = rng.standard_normal((20000, 4))
    heads /= np.linalg.norm(heads, axis=1, keepdims=True)
    margins = (heads @ z[0] - (heads @ z[1:].T).max(axis=1)) / 2
    assert margins.max() <= bound
    assert margins.max() > 0.5 * bound


def test_copies_of_the_query_give_no_margin():
    assert margin_bound(np.array([1 + 2e-16])).tolist() == [0.0]
    assert margin_bound(np.empty(0)).shape == (0,)


@pytest.mark.parametrize("value", [1.1, -1.1, np.nan, np.inf])
def test_no_mean_cosine(value):
    with pytest.raises(ValueError, match=r"c_neg\[1\]"):
        margin_bound(np.array([0.5, value]))
