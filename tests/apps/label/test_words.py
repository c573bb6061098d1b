"""Words about an image: each case says what it is, and no more."""

from __future__ import annotations

import pytest

from candor_monai.apps.label.margins import Near
from candor_monai.apps.label.words import near_words


def near(dm: float | None, impurity: float | None = 0.0, reason: str | None = None) -> Near:
    c_neg = None if dm is None else 0.5
    c_pos = None if dm is None else 0.5 - dm
    return Near(c_pos, c_neg, dm, impurity, 9, [(0, 0.9)], [(1, 0.8)], reason)


@pytest.mark.parametrize(
    ("found", "label", "probability", "said", "unsaid"),
    [
        (
            near(0.25),
            1,
            None,
            ["labelled present, but labelled negatives are closer", "discordant"],
            ["head", ": concordant"],
        ),
        (
            near(-0.25),
            1,
            0.9,
            ["labelled present, and labelled positives are closer", "concordant", "gives 0.90"],
            ["wrong"],
        ),
        (near(-0.25), 0, None, ["labelled absent, but labelled positives are closer", "discordant"], []),
        (near(0.25), 0, None, ["labelled absent, and labelled negatives are closer", "concordant"], ["wrong"]),
        (near(0.25, 0.8), -1, None, ["not labelled", "negatives are closer", "impurity 0.80"], ["cordant", "agree"]),
        (near(0.0), 1, None, ["equally close", "do not tell them apart"], ["discordant"]),
        (
            near(None, None, "n = 2 images a side"),
            -1,
            0.25,
            ["No margin can be given: n = 2", "2 nearest", "0.25"],
            ["closer"],
        ),
    ],
)
def test_words(found: Near, label: int, probability: float | None, said: list[str], unsaid: list[str]) -> None:
    words = near_words("Edema", found, label, 5, probability)
    assert words.startswith("Edema: ")
    for part in said:
        assert part in words
    for part in unsaid:
        assert part not in words
