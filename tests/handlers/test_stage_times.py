"""Where the time of encoding goes: every stage is timed, and the slowest is named."""

import time

import pytest
import torch
from monai.engines import SupervisedEvaluator

from candor_monai.handlers import StageTimes
from candor_monai.handlers.stage_times import bottleneck, stage_seconds
from candor_monai.inferers import EncoderInferer


class Slow(torch.nn.Module):
    def forward(self, images):
        time.sleep(0.05)
        return images.flatten(1)


def prepare_slowly(batch, device=None, non_blocking=False, **_):
    time.sleep(0.02)
    return batch["image"], None


def run(inferer):
    engine = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=[{"image": torch.ones(2, 1, 1, 1)}] * 3,
        network=Slow(),
        inferer=inferer,
        prepare_batch=prepare_slowly,
        val_handlers=[StageTimes(inferer)],
        decollate=False,
    )
    engine.run()
    return stage_seconds(engine)


def test_transfer_and_forward_are_told_apart():
    seconds = run(EncoderInferer(2))
    assert seconds["forward"] >= 3 * 0.05
    assert seconds["transfer"] >= 3 * 0.02
    assert set(seconds) == {"transfer", "forward"}


def test_by_hand():
    assert bottleneck({}, 2) is None
    assert bottleneck({"write": 1.0, "forward": 1.5}, 1) == ("forward", 0.6)


@pytest.mark.parametrize("stage", ["read", "decode", "transform", "transfer", "forward", "write"])
def test_any_stage_may_be_the_slowest(stage):
    seconds = dict.fromkeys(("read", "decode", "transform", "transfer", "forward", "write"), 1.0)
    named, share = bottleneck(seconds | {stage: 10.0}, 1)
    assert (named, share) == (stage, 0.67)


def test_decoding_is_done_by_many_at_once():
    assert bottleneck({"decode": 8.0, "forward": 3.0}, 1)[0] == "decode"
    assert bottleneck({"decode": 8.0, "forward": 3.0}, 4)[0] == "forward"
