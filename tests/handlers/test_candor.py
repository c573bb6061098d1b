"""The CANDOR handler on engines of its own: rows by index, whatever the batches."""

import logging

import numpy as np
import pytest
import torch
from monai.engines import SupervisedEvaluator

from candor_monai.handlers import CandorHandler
from candor_monai.handlers.candor import published
from candor_monai.handlers.metric_keys import metric_key
from candor_monai.metrics import Observations, Options, evaluate

N = 60
LABELS = (np.arange(N) % 2)[:, None]
FEATURES = (np.random.default_rng(0).standard_normal((N, 8)) + 2 * LABELS).astype(np.float32)
SEEN = Observations([f"i{k}" for k in range(N)], LABELS, ["Edema"])
OPTIONS = Options(permutation_test=False, total_interval=False, resamples=50)


def run(index, decollate=True, **handler):
    """An evaluator over batches of features whose rows carry the given indices."""
    index = np.asarray(index)
    batches = [
        {"image": torch.from_numpy(FEATURES[np.clip(part, 0, N - 1)]), "index": torch.from_numpy(part)}
        for part in np.array_split(index, 5)
    ]
    engine = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=batches,
        network=torch.nn.Identity(),
        val_handlers=[CandorHandler(SEEN, OPTIONS, **handler)],
        prepare_batch=lambda batch, *_, **__: (batch["image"], None),
        decollate=decollate,
    )
    engine.run()
    return engine


@pytest.mark.parametrize("decollate", [True, False])
def test_any_order_gives_the_measures_own_numbers(decollate):
    engine = run(np.random.default_rng(1).permutation(N), decollate)
    expected = published(evaluate(FEATURES, SEEN, OPTIONS).rows)
    assert {name: engine.state.metrics[name] for name in expected} == expected
    assert "D/Edema" in expected


def test_padding_and_repeated_images_count_once():
    engine = run([*range(N), -1, -1, 0, 1, 2])
    assert engine.state.metrics["D/Edema"] == run(range(N)).state.metrics["D/Edema"]


def test_missing_images_are_told(caplog):
    with caplog.at_level(logging.WARNING):
        engine = run(range(40))
    assert "20 of 60 images have no feature" in caplog.text
    assert engine.state.candor.rows[0]["n_images"] == 40


@pytest.mark.parametrize("index, told", [(range(-5, N - 5), "image index -5"), (range(5, N + 5), "out of range")])
def test_indices_that_are_not_the_observations_are_refused(index, told):
    with pytest.raises(ValueError, match=told):
        run(index)


def test_an_engine_that_saw_no_image_is_refused():
    with pytest.raises(ValueError, match="no image has a feature"):
        run([-1] * 10)


def test_keys_hold_only_what_every_tracker_takes():
    assert metric_key("D", "Aortic | enlargement", "view=PA") == "D/Aortic _ enlargement/view_PA"
