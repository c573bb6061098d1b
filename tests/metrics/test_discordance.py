"""DM, D, ties and chance: by hand and on degenerate input."""

from __future__ import annotations

import numpy as np
import pytest

from candor_monai.metrics.discordance import (
    chance_rate,
    chance_upper,
    discordance_margin,
    discordance_rate,
    neighbour_mean,
    tie_rate,
)

from . import reference


def test_three_queries_by_hand():
    positives = np.array([[0.75, 0.5, 0.25], [0.5, 0.25, 0.0], [0.5, 0.5, 0.5]])
    negatives = np.array([[0.5, 0.5, 0.5], [0.75, 0.25, 0.0], [0.5, 0.5, -1.0]])
    c_pos, c_neg = neighbour_mean(positives, 2), neighbour_mean(negatives, 2)
    dm = discordance_margin(c_pos, c_neg)
    assert dm.tolist() == [-0.125, 0.125, 0.0]
    assert discordance_rate(dm) == 1 / 3
    assert tie_rate(dm) == 1 / 3


def test_terms_are_summed_in_descending_order():
    rows = -np.sort(-np.random.default_rng(0).uniform(-1, 1, (50, 20)), axis=1)
    for k in (1, 7, 20):
        assert neighbour_mean(rows, k).tolist() == [reference.mean_of_nearest(row, k) for row in rows.tolist()]


def test_exchange_gives_the_negative_to_the_bit():
    c_pos, c_neg = np.random.default_rng(1).uniform(-1, 1, (2, 100))
    assert (discordance_margin(c_pos, c_neg) == -discordance_margin(c_neg, c_pos)).all()


def test_no_query_has_no_rate():
    assert discordance_rate(np.empty(0)) is None
    assert tie_rate(np.empty(0)) is None
    assert neighbour_mean(np.empty((0, 3)), 2).shape == (0,)


@pytest.mark.parametrize(
    ("ties", "k", "n", "share", "expected"),
    [(0, 5, 6, 1.0, 1.0), (0, 5, 10, 1.0, 1.0), (0, 5, 20, 1.0, 0.75), (0.2, 5, 100, 0.5, 0.425), (1, 5, 20, 0, 0)],
)
def test_most_that_chance_can_be(ties, k, n, share, expected):
    assert chance_upper(ties, k, n, share) == pytest.approx(expected)


def test_chance_with_ties():
    assert [chance_rate(t) for t in (0, 0.5, 1)] == [0.5, 0.25, 0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: neighbour_mean(np.array([0.5]), 1), r"similarities has shape \(1,\)"),
        (lambda: neighbour_mean(np.array([[0.5, 0.2]]), 3), "k is 3"),
        (lambda: neighbour_mean(np.array([[0.5, 0.2]]), 0), "k is 0"),
        (lambda: neighbour_mean(np.array([[0.5, 0.2], [0.2, 0.5]]), 2), r"similarities\[1\] is not in descending"),
        (lambda: neighbour_mean(np.array([[0.5, -np.inf]]), 2), r"similarities\[0, 1\] is not finite"),
        (lambda: discordance_margin(np.zeros(2), np.zeros(3)), "c_pos has shape"),
        (lambda: discordance_margin(np.array([0, np.nan]), np.zeros(2)), r"c_pos\[1\] is not finite"),
        (lambda: discordance_margin(np.zeros(2), np.array([np.inf, 0])), r"c_neg\[0\] is not finite"),
        (lambda: discordance_rate(np.array([0.0, np.nan])), r"dm\[1\] is not finite"),
        (lambda: chance_rate(1.5), "ties is 1.5"),
        (lambda: chance_upper(0, 5, 0, 0), "n is 0"),
        (lambda: chance_upper(0, 5, 10, 2), "share_removed is 2"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
