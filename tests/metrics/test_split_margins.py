"""DM of test images: the same as the whole evaluation gives."""

import dataclasses

import numpy as np
import pytest

from candor_monai.metrics.evaluation import evaluate
from candor_monai.metrics.observations import Observations
from candor_monai.metrics.options import Options
from candor_monai.metrics.split_margins import split_margins

QUICK = Options(
    k=2, max_candidates=40, total_interval=False, permutation_test=False, margin=False, resamples=0, queries="test"
)


def test_by_hand() -> None:
    # k = 1, two candidates a side. Test positive at 0°: positives at 30° and 60°, negatives at 10° and 90°:
    # DM = cos 10° − cos 30°
    angle = np.deg2rad([0.0, 30.0, 60.0, 10.0, 90.0, 120.0])
    features = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    test = np.array([True] + [False] * 5)
    seen = Observations(list("abcdef"), [[1], [1], [1], [0], [0], [0]], ["f"], test=test)
    found = split_margins(features, seen, dataclasses.replace(QUICK, k=1, max_candidates=3))
    assert found.dm[0, 0] == pytest.approx(np.cos(angle[3]) - np.cos(angle[1]), abs=1e-6)
    assert np.isnan(found.dm[1:]).all()


@pytest.mark.parametrize("sets", ["image", "patient"])
def test_equals_the_evaluation(sets: str) -> None:
    rng = np.random.default_rng(0)
    n = 400
    labels = (rng.random((n, 2)) < [0.3, 0.05]).astype(np.int8)
    labels[rng.random((n, 2)) < 0.1] = -1
    seen = Observations(
        [f"i{i}" for i in range(n)],
        labels,
        ["a", "b"],
        rng.integers(0, 2, n),
        ("g", "h"),
        [f"p{i // 3}" for i in range(n)],
        test=rng.random(n) < 0.3,
    )
    features = rng.normal(size=(n, 8)).astype(np.float32)
    options = dataclasses.replace(QUICK, sets=sets)
    found = split_margins(features, seen, options)
    expected = np.full((n, 2), np.nan)
    for cell in evaluate(features, seen, options).cells:
        expected[cell.queries, seen.finding_index(cell.finding)] = cell.dm
        if cell.status == "insufficient":
            assert (cell.finding, cell.group) in found.reasons or found.dropped[cell.finding, cell.group]
    assert np.isfinite(expected).sum() > 100
    assert ((found.dm == expected) | (np.isnan(found.dm) & np.isnan(expected))).all()


def test_without_a_test_split_it_is_refused() -> None:
    seen = Observations(["a", "b"], [[1], [0]], ["f"])
    with pytest.raises(ValueError, match="test is None"):
        split_margins(np.ones((2, 2), np.float32), seen, QUICK)
