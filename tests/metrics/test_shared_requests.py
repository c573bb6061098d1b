"""What several option sets ask of a group: equal requests are found, others are kept apart."""

from __future__ import annotations

import numpy as np

from candor_monai.metrics.neighbours import Request
from candor_monai.metrics.shared_requests import DistinctRequests


def test_equal_requests_are_one_with_the_most_neighbours():
    def request(*candidates: int, left_out: int = 0) -> Request:
        pair = (np.array([0]), np.array([left_out]))
        return Request(np.array([1, 2]), np.array(candidates), pair)

    asked = DistinctRequests()
    assert [asked.add(request(3, 4, 5), k) for k in (2, 7, 1)] == [0, 0, 0]
    assert asked.ks == [7]
    assert asked.add(request(3, 5, 4), 2) == 1, "the order is part of a set"
    assert asked.add(request(3, 9, 5), 2) == 2
    assert asked.add(request(3, 4, 5, left_out=1), 2) == 3
    assert asked.further([request(3, 4, 5), request(3, 4, 6)], [9, 4]) == 2 * (9 - 7) + 2 * 4
    nothing = Request(np.empty(0, np.int64), np.empty(0, np.int64))
    assert asked.add(nothing, 1) == asked.add(nothing, 1) == 4
