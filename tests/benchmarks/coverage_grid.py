"""The declared grid of `coverage`: which cohorts the intervals are asked to hold on.

Hubs: none; a cone (64 wide, offset 8, as strong as the strongest 64-wide case that the measure's definition names);
wide (768, offset 20); and hubs stronger than those (a cone whose images differ in length by a factor e^±0.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zlib import crc32

from tests.metrics.simulation import Setting

NONE: dict[str, Any] = {}
CONE: dict[str, Any] = {"offset": 8.0}
WIDE: dict[str, Any] = {"width": 768, "offset": 20.0}
HUBS: dict[str, Any] = {"offset": 8.0, "spread": 0.3}
KINDS = {"none": NONE, "cone": CONE, "hubs": HUBS, "wide": WIDE}
# Shifts that put θ near 0.45, 0.35 and 0.2.
SHIFTS = {
    "none": (0.0, 0.65, 1.15, 1.8),
    "cone": (0.0, 0.7, 1.4, 2.15),
    "hubs": (0.0, 0.6, 1.3, 2.2),
    "wide": (0.0, 1.2, 2.4, 3.8),
}
NEAR = (0.5, 0.45, 0.35, 0.2)


@dataclass(frozen=True)
class Case:
    """A setting, what is measured in it, and how the second encoder goes with the first (differences only)."""

    setting: Setting
    measure: str = "D"
    second: float = 0.5


def grid() -> dict[str, Case]:
    """Every setting by name, in an order that covers all axes early and leaves the slow ones to the end."""
    quick: dict[str, Case] = {}
    for positives, images, levels in (
        (20, 40, (0, 3)),
        (20, 250, (0, 1, 2, 3)),
        (45, 90, (0, 3)),
        (45, 567, (0, 1, 2, 3)),
        (200, 400, (0, 1, 2, 3)),
        (200, 2500, (0, 2)),
    ):
        for hubs in ("none", "cone", "hubs"):
            for at in levels:
                _add(quick, positives, images, hubs, at)
    for positives, images in ((20, 4000), (200, 40_000)):
        for hubs in ("none", "cone"):
            for at in (0, 2):
                _add(quick, positives, images, hubs, at)
    for positives, images in ((45, 567), (200, 567)):
        for at in (0, 2):
            _add(quick, positives, images, "wide", at)
    quick["400 of 500, cone, near 0.5"] = Case(Setting(400, 500, **CONE))
    quick["45 of 567, 10 wide, near 0.5"] = Case(Setting(45, 567, width=10, offset=3.0))
    _patients(quick)
    _pooled(quick)
    _other_measures(quick)
    out = {name: quick[name] for name in sorted(quick, key=lambda name: crc32(name.encode()))}
    for hubs in ("none", "cone"):
        for at in (0, 2):
            _add(out, 1000, 2000, hubs, at)
    _add(out, 1000, 12_500, "cone", 0)
    out["1000 of 3000, 10 wide, near 0.5"] = Case(Setting(1000, 3000, width=10, offset=3.0))
    _add(out, 2000, 400_000, "cone", 0)
    _add(out, 2000, 4000, "cone", 2)
    _add(out, 2000, 4000, "none", 1)
    return out


def _add(out: dict[str, Case], positives: int, images: int, hubs: str, at: int) -> None:
    setting = Setting(positives, images, shift=SHIFTS[hubs][at], **KINDS[hubs])
    out[f"{positives} of {images}, {hubs}, near {NEAR[at]}"] = Case(setting)


def _patients(out: dict[str, Case]) -> None:
    for images_per_patient, name in ((5, "5"), (20, "20"), (0, "1 to 20")):
        for mixed in (False, True):
            for sets in ("image", "patient"):
                for shift, near in ((0.0, "no effect"), (1.3, "effect")):
                    within = 0.1 if sets == "image" else 0.3
                    setting = Setting(
                        400,
                        1600,
                        shift=shift,
                        images_per_patient=images_per_patient,
                        mixed=mixed,
                        within=within,
                        sets=sets,
                        **CONE,
                    )
                    labels = "mixed" if mixed else "unmixed"
                    out[f"400 of 1600, {name} images a patient, {labels}, sets {sets}, {near}"] = Case(setting)
    few = Setting(200, 800, images_per_patient=20, sets="image", within=0.1)
    out["200 of 800, 20 images a patient, unmixed, sets image, 10 positive patients"] = Case(few)


def _pooled(out: dict[str, Case]) -> None:
    for hubs in ("none", "cone"):
        for at in (0, 2):
            shift = SHIFTS[hubs][at]
            four = Setting(60, 300, shift=shift, groups=4, **KINDS[hubs])
            out[f"4 groups of 60 of 300, {hubs}, near {NEAR[at]}"] = Case(four)
            three = Setting(60, 300, shift=shift, groups=2, findings=3, **KINDS[hubs])
            out[f"severity mean of 3 findings, 2 groups, {hubs}, near {NEAR[at]}"] = Case(three)
    clustered = Setting(100, 400, groups=2, findings=3, images_per_patient=5, mixed=True, **CONE)
    out["severity mean of 3 findings, 2 groups, 5 images a patient, cone, near 0.5"] = Case(clustered)


def _other_measures(out: dict[str, Case]) -> None:
    for positives in (45, 200):
        for hubs in ("none", "cone"):
            for at in (0, 2):
                setting = Setting(positives, 2 * positives, shift=SHIFTS[hubs][at], **KINDS[hubs])
                name = f"{positives} of {2 * positives}, {hubs}, near {NEAR[at]}"
                out[f"margin AUROC, {name}"] = Case(setting, "margin")
                for second in (0.5, 0.9):
                    if at == 0 or second == 0.5:
                        out[f"difference at correlation {second}, {name}"] = Case(setting, "difference", second)
    clustered = Setting(200, 800, images_per_patient=5, mixed=True, **CONE)
    out["difference at correlation 0.5, 200 of 800, 5 images a patient, cone"] = Case(clustered, "difference")
    out["margin AUROC, 200 of 400, 5 images a patient, cone"] = Case(
        Setting(200, 400, images_per_patient=5, mixed=True, **CONE), "margin"
    )
