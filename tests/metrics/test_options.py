"""Options: defaults of the measure, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from candor_monai.metrics.options import Options


def test_defaults_are_those_of_the_measure():
    options = Options()
    assert (options.k, options.seed, options.max_candidates, options.max_queries) == (5, 42, 4000, 4000)
    assert (options.sets, options.queries, options.matched, options.resamples) == ("patient", "all", True, 1000)
    assert options.permutations == 9999


def test_lists_become_tuples():
    assert Options(ks=[1, 2], sizes=[250]).ks == (1, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 0}, "k is 0"),
        ({"k": 2.0}, r"k is 2\.0"),
        ({"k": True}, "k is True"),
        ({"k": np.float64(3)}, "k is"),
        ({"k": np.bool_(True)}, "k is"),
        ({"k": 10, "max_candidates": 10}, "k is 10: it must be below max_candidates"),
        ({"seed": -1}, "seed is -1"),
        ({"max_candidates": 1}, "max_candidates is 1"),
        ({"max_queries": 0}, "max_queries is 0"),
        ({"redraws": 0}, "redraws is 0"),
        ({"resamples": -1}, "resamples is -1"),
        ({"memory_bytes": 10}, "memory_bytes is 10"),
        ({"sets": "patients"}, "sets is 'patients': it must be one of 'image', 'patient'"),
        ({"queries": "some"}, "queries is 'some'"),
        ({"roles": None}, "roles is None"),
        ({"shuffle_labels": "all"}, "shuffle_labels is 'all'"),
        ({"precision": "half"}, "precision is 'half'"),
        ({"matched": "yes"}, "matched is 'yes'"),
        ({"isolated": 1}, "isolated is 1"),
        ({"ks": (0,)}, "ks is 0"),
        ({"sizes": (1,)}, "sizes is 1"),
        ({"common_candidates": 5}, "common_candidates is 5"),
        ({"tie_limit": 2}, "tie_limit is 2"),
        ({"weights": {"edema": -1}}, r"weights\['edema'\] is -1"),
        ({"weights": {"edema": 0, "mass": 0}}, r"weights\['edema'\] is 0: it must be positive"),
        ({"weights": {"edema": float("nan")}}, r"weights\['edema'\] is nan"),
    ],
)
def test_what_is_out_of_range_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        Options(**changes)


def test_whole_numbers_of_numpy_are_whole_numbers():
    options = Options(k=np.int64(3), ks=np.array([1, 3]), common_candidates=np.uint8(20))
    assert options == Options(k=3, ks=(1, 3), common_candidates=20)
    assert {type(n) for n in (options.k, *options.ks, options.common_candidates)} == {int}
