"""Portions of work: every group once, the costly ones alone, none much larger than its share."""

from dataclasses import replace

import numpy as np
import pytest

from candor_monai.apps.portions import group_costs, portions
from candor_monai.metrics import Observations, Options
from candor_monai.metrics.evaluation import evaluation_plan


def test_by_hand():
    assert portions({"a": 3.0, "b": 2.0}) == [["a"], ["b"]]
    assert portions({}) == []


@pytest.mark.parametrize("processes", [1, 4, 16])
def test_every_group_once_and_no_portion_much_above_its_share(processes):
    costs = {f"g{i}": float(cost) for i, cost in enumerate(np.random.default_rng(0).lognormal(0, 1, 500))}
    made = portions(costs, processes)
    assert sorted(name for names in made for name in names) == sorted(costs)
    sums = [sum(costs[name] for name in names) for names in made]
    assert sums == sorted(sums, reverse=True)
    share = sum(sums) / max(16, 4 * processes)
    assert max(sums) < 2 * share
    assert len(made) <= max(16, 4 * processes) + 1


def test_a_process_alone_is_not_given_the_rest_of_the_small_ones():
    assert portions({"large": 1000.0, **{f"s{i}": 1.0 for i in range(10)}})[0] == ["large"]


def test_costs_follow_the_work():
    rng = np.random.default_rng(0)
    group = np.repeat([0, 1, 2], [300, 100, 20])
    labels = (rng.random((420, 2)) < 0.4).astype(int)
    labels[group == 2] = 0
    seen = Observations([f"i{i}" for i in range(420)], labels, ["a", "b"], group=group, group_names=["x", "y", "z"])
    options = Options()
    plan = evaluation_plan(seen, options)
    costs = group_costs(plan, options, 64)
    assert costs["x"] > 2 * costs["y"] > 100 * costs["z"] > 0
    slim = group_costs(plan, replace(options, permutation_test=False, margin=False), 64)
    assert all(slim[name] < costs[name] for name in ("x", "y"))
