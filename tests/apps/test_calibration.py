"""The calibration experiment: the blind encoder at chance, the sensitive one at 0, shuffled labels at chance."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from candor_monai.apps.calibration import _coverage, encoded_cohort, run_calibration
from candor_monai.apps.make_calibration_weights import calibration_weights, main
from candor_monai.networks.encoders import load_encoder
from candor_monai.utils import resource


@pytest.fixture(scope="module")
def result():
    told = []
    before = time.process_time()
    found = run_calibration(seeds=20, total_interval=False, told=lambda done, of: told.append((done, of)))
    return {**found, "told": told, "cpu_seconds": time.process_time() - before}


def test_the_blind_encoder_is_at_chance_over_twenty_cohorts(result):
    blind = result["blind"]
    assert blind["n_seeds"] == len(blind["D"]) == 20
    assert blind["mean_D"] == pytest.approx(0.5, abs=0.02)
    assert blind["sd_D"] < 2 * blind["expected_sd"]
    assert blind["conditional_coverage"] > 0.6
    assert blind["ok"]


def test_the_sensitive_encoder_is_never_discordant(result):
    assert result["marker"]["max_D"] == 0.0
    assert result["marker"]["max_D_all"] == 0.0
    assert result["marker"]["min_margin_auroc"] == 1.0


def test_shuffled_labels_are_at_chance_and_d_all_is_not(result):
    assert result["shuffled"]["n_cells"] == 40
    assert result["shuffled"]["median_D"] == pytest.approx(0.5, abs=0.05)
    assert result["shuffled"]["median_D_all"] >= 0.95


def test_the_experiment_passes_within_a_minute_of_computing(result):
    assert result["passed"]
    assert result["told"][-1] == (20, 20)
    assert result["cpu_seconds"] < 60  # not wall time, which depends on what else the machine does
    assert result["seconds"] > 0


def test_coverage_of_three_intervals_by_hand():
    rows = [{"lo": 0.4, "hi": 0.6}, {"lo": 0.51, "hi": 0.6}, {"lo": 0.3, "hi": 0.5}, {"lo": None, "hi": None}]
    share, p = _coverage(rows, "lo", "hi")
    assert share == pytest.approx(2 / 3)
    assert p == pytest.approx(1 - 0.95**3)
    assert _coverage(rows[3:], "lo", "hi") == (None, None)


def test_the_total_interval_holds_its_level():
    blind = run_calibration(seeds=4, positives=40, negatives=40)["blind"]
    assert blind["total_coverage"] >= 0.5
    assert blind["total_coverage_p"] >= 0.01


def test_cohorts_follow_from_their_seed_alone():
    labels = np.arange(60) < 30
    first, again, other = (encoded_cohort(labels, seed) for seed in (5, 5, 6))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["blind"], other["blind"])


def test_too_few_cohorts_are_refused():
    with pytest.raises(ValueError, match="at least 4"):
        run_calibration(seeds=3)


def test_the_bundles_weights_are_those_of_the_code(tmp_path):
    shipped = resource("bundles", "candor_eval", "models", "model.pt")
    assert shipped.stat().st_size < 32_000
    state = torch.load(shipped, weights_only=True)
    made = calibration_weights()
    assert state.keys() == made.keys()
    for key in made:  # to the last bits: the exponentials and cosines are the machine's
        assert torch.allclose(state[key], made[key], atol=1e-6)
    load_encoder("marker").load_state_dict(state, strict=True)
    main(str(tmp_path / "model.pt"))
    assert torch.load(Path(tmp_path / "model.pt"), weights_only=True).keys() == made.keys()
