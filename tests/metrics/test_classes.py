"""The Metric class gives what evaluate() gives, however the batches come."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from monai.metrics import Cumulative

from candor_monai.metrics.classes import DiscordanceMetric
from candor_monai.metrics.evaluation import evaluate
from candor_monai.metrics.observations import Observations

from .test_evaluation import PLAIN, cohort


def fed(features: np.ndarray, seen: Observations, batches) -> DiscordanceMetric:
    metric = DiscordanceMetric(seen, PLAIN)
    for index in batches:
        metric(torch.from_numpy(features[index]), torch.as_tensor(index))
    return metric


def test_two_batches_by_hand():
    features = np.float32([[1, 0], [0.5, 0.9], [1, 0.1], [0, 1]])
    seen = Observations(list("abcd"), [[1], [1], [0], [0]], ["edema"])
    metric = DiscordanceMetric(seen, PLAIN.__class__(k=1, sets="image", total_interval=False, permutation_test=False))
    metric(torch.from_numpy(features[:2]), torch.tensor([0, 1]))
    metric(torch.from_numpy(features[2:]), torch.tensor([2, 3]))
    assert metric.aggregate() == {"D/edema": 1.0, "D": 1.0}


def test_equals_evaluate_and_batches_do_not_matter():
    features, seen = cohort(1)
    want = evaluate(features, seen, PLAIN)
    by = np.random.default_rng(0).permutation(len(seen))
    for batches in ([np.arange(len(seen))], np.array_split(by, 9)):
        metric = fed(features, seen, batches)
        values = metric.aggregate()
        assert metric.evaluation.rows == want.rows
        assert values["D"] == want.rows[-1]["D"]
        assert values["D/finding 1"] == want.rows[7]["D"]


def test_an_image_that_comes_twice_counts_once():
    features, seen = cohort(2)
    everyone = np.arange(len(seen))
    assert fed(features, seen, [everyone, everyone[:5]]).aggregate() == fed(features, seen, [everyone]).aggregate()
    other = features + np.float32(1)
    metric = fed(features, seen, [everyone])
    metric(torch.from_numpy(other[3:4]), torch.tensor([3]))
    with pytest.raises(ValueError, match=r"features\[70\] differs from an earlier row of the same image \(index 3\)"):
        metric.aggregate()


def test_missing_images_are_left_out_and_reset_forgets():
    features, seen = cohort(3)
    some = np.arange(10, len(seen))
    metric = fed(features, seen, [some])
    assert isinstance(metric, Cumulative)
    metric.aggregate()
    assert metric.evaluation.rows == evaluate(features[some], seen.take(some), PLAIN).rows
    metric.reset()
    with pytest.raises(ValueError, match="no batch"):
        metric.aggregate()


@pytest.mark.parametrize(
    ("features", "index", "message"),
    [
        (torch.zeros(2), torch.zeros(2, dtype=torch.long), "features has shape"),
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.long), "features has shape"),
        (torch.ones(2, 3), torch.zeros(2), "index has dtype"),
        (torch.ones(2, 3), torch.tensor([0, 70]), r"index\[1\] is 70"),
        (torch.ones(2, 3), torch.tensor([-1, 0]), r"index\[0\] is -1"),
    ],
)
def test_bad_batches_are_named(features, index, message):
    with pytest.raises(ValueError, match=message):
        DiscordanceMetric(cohort(4)[1])(features, index)
