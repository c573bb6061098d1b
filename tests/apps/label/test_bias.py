"""What choosing does to the measure, simulated: the figures of docs/labels.md.

They are printed by ``python -m tests.apps.label.test_bias``.
"""

from __future__ import annotations

import sys

import numpy as np

from candor_monai.apps.label.margins import MarginIndex
from candor_monai.metrics.observations import Observations
from candor_monai.metrics.options import Options

# Far enough apart to be of use, near enough to be often discordant.
WIDTH, SHIFT, OPTIONS = 16, 1.2, Options(k=5)


def rate(features: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """D over the labelled positives, and which labelled images are discordant."""
    kept = np.flatnonzero(labels >= 0)
    seen = Observations([f"i{i}" for i in kept], np.full((len(kept), 1), -1), ["F"])
    index = MarginIndex(features[kept], seen, OPTIONS, labels[kept, None])
    dm, positive = index.dm[:, 0], labels[kept] == 1
    wrong = np.zeros(len(labels), bool)
    wrong[kept] = np.where(positive, dm > 0, dm < 0)
    return float((dm[positive] > 0).mean()), wrong


def one(rng: np.random.Generator, count: int, errors: float) -> dict[str, float]:
    """One cohort: a share of the first readings is wrong, every later reading is right."""
    truth = rng.random(count) < 0.3
    features = rng.standard_normal((count, WIDTH)).astype(np.float32)
    features[:, 0] += SHIFT * (2 * truth - 1) * rng.random(count).astype(np.float32) * 2
    features += 3
    first = np.where(rng.random(count) < errors, ~truth, truth).astype(np.int8)
    out = {}
    out["first readings"], wrong = rate(features, first)
    reviewed = np.where(wrong, truth, first)
    out["reviews kept"] = rate(features, reviewed)[0]
    out["reviewed left out"] = rate(features, np.where(wrong, -1, first))[0]
    concordant = np.flatnonzero(~wrong)
    drawn = np.zeros(count, bool)
    drawn[rng.permutation(concordant)[: int(wrong.sum())]] = True
    out["reviews and equal re-read"] = rate(features, np.where(wrong | drawn, truth, first))[0]
    out["all read again"] = rate(features, truth.astype(np.int8))[0]
    return out


def simulate(cohorts: int, count: int, errors: float) -> dict[str, tuple[float, float]]:
    """Mean and standard error of each value over cohorts."""
    rows = [one(np.random.default_rng(seed), count, errors) for seed in range(cohorts)]
    values = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return {name: (float(v.mean()), float(v.std() / np.sqrt(cohorts))) for name, v in values.items()}


def test_choosing_biases_the_measure_and_first_readings_do_not() -> None:
    noisy, clean = simulate(3, 500, 0.15), simulate(2, 500, 0.0)
    # where no label is wrong, reviews change nothing and leaving reviewed images out still lowers D
    assert clean["reviews kept"] == clean["first readings"] == clean["all read again"]
    assert clean["reviewed left out"][0] < 0.5 * clean["all read again"][0]
    # where some are, reviews lower D by mending one side only
    assert noisy["reviews kept"][0] < noisy["first readings"][0]
    assert noisy["reviewed left out"][0] < 0.5 * noisy["all read again"][0]


if __name__ == "__main__":
    for share in (0.0, 0.05, 0.15):
        print(f"wrong first readings: {share:.0%}")
        for name, (mean, error) in simulate(int(sys.argv[1]) if sys.argv[1:] else 20, 1000, share).items():
            print(f"  {name:28} {mean:.3f} ± {error:.3f}")
