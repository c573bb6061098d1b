"""Example occlusions: an image as it is, with the annotated finding covered, and with a control area covered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .pictures import data_uri
from .wording import number

VIEWS = (("original", "as it is"), ("occluded", "finding covered"), ("control", "control covered"))
MOST_EXAMPLES = 12
SIDE = 150


@dataclass(frozen=True)
class OcclusionView:
    """One of the three pictures: its ``data:`` address, what it is, and what stands below."""

    address: str
    alternative: str
    caption: str


@dataclass(frozen=True)
class OcclusionExample:
    """One image with its views."""

    finding: str
    image_id: str
    views: tuple[OcclusionView, ...]


def occlusion_examples(examples: Sequence[Mapping[str, Any]]) -> tuple[OcclusionExample, ...]:
    """Example occlusions as the report shows them.

    Args:
        examples: mappings with ``finding``, ``image_id``, the pixels ``original``, ``occluded`` and ``control`` (uint8,
            (H, W), (H, W, 3) or (3, H, W); None where there is no such view), and where known ``retention`` and
            ``control_retention``, the similarities of the covered views' features to the original's. The first 12 are
            taken.
    """
    return tuple(
        OcclusionExample(str(example["finding"]), str(example["image_id"]), tuple(_views(example)))
        for example in examples[:MOST_EXAMPLES]
    )


def _views(example: Mapping[str, Any]) -> list[OcclusionView]:
    similarity = {"occluded": example.get("retention"), "control": example.get("control_retention")}
    shown = []
    for key, what in VIEWS:
        pixels = example.get(key)
        if pixels is None:
            continue
        value = similarity.get(key)
        caption = what if value is None else f"{what}: similarity {number(value)}"
        alternative = f"image {example['image_id']}, {example['finding']}, {caption}"
        shown.append(OcclusionView(data_uri(pixels, SIDE), alternative, caption))
    return shown
