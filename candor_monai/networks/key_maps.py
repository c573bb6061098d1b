"""Renamings of publishers' weight keys, by name, as cards refer to them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from torch import Tensor

from candor_monai.utils import WeightsError

State = dict[str, Tensor]

_OUTER = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_WITH_EXPANSION = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
_WITHOUT_EXPANSION = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}


def efficientnet_lite(lengths: tuple[int, ...]) -> Callable[[Mapping[str, Tensor]], State]:
    """Names of the package efficientnet-pytorch to timm's, for stages of these lengths.

    >>> list(efficientnet_lite((1, 2))({"_blocks.1._expand_conv.weight": None, "_fc.bias": None}))
    ['blocks.1.0.conv_pw.weight', 'classifier.bias']
    """
    places = [(stage, index) for stage, length in enumerate(lengths) for index in range(length)]

    def rename(state: Mapping[str, Tensor]) -> State:
        expanded = {key.split(".")[1] for key in state if "._expand_conv." in key}
        renamed = {}
        for key, value in state.items():
            block = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", key)
            outer = re.fullmatch(r"(\w+)\.(\w+)", key)
            if block:
                names = _WITH_EXPANSION if block[1] in expanded else _WITHOUT_EXPANSION
                place = places[int(block[1])] if int(block[1]) < len(places) else None
                if place is None or block[2] not in names:
                    raise WeightsError(f"key {key!r} is not one of an EfficientNet-Lite of {len(places)} blocks.")
                renamed[f"blocks.{place[0]}.{place[1]}.{names[block[2]]}.{block[3]}"] = value
            elif outer and outer[1] in _OUTER:
                renamed[f"{_OUTER[outer[1]]}.{outer[2]}"] = value
            else:
                renamed[key] = value  # refused by the strict load, which names it
        return renamed

    return rename


KEY_MAPS: dict[str, Callable[[Mapping[str, Tensor]], State]] = {
    "efficientnet_lite0": efficientnet_lite((1, 2, 2, 3, 3, 4, 1)),
    "efficientnet_lite1": efficientnet_lite((1, 3, 3, 4, 4, 5, 1)),
    "efficientnet_lite2": efficientnet_lite((1, 3, 3, 4, 4, 5, 1)),
}
