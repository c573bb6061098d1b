"""Pooled values: over groups by number of queries, then over findings. Never over missing parts unless asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Pooled:
    """A pooled value and what it holds.

    Attributes:
        value: None where a part is missing, or there is none.
        parts: names of the parts it holds.
        missing: names of the parts it lacks.
    """

    value: float | None
    parts: tuple[str, ...]
    missing: tuple[str, ...]


def weighted_mean(
    values: Mapping[str, float | None], weights: Mapping[str, float] | None = None, *, over_missing: bool = False
) -> Pooled:
    """Weighted mean of named parts.

    Args:
        values: value of each part, None where it has none.
        weights: weight of each part, not negative; None: all equal.
        over_missing: pool what is there when parts are missing.

    Returns:
        the mean, summed in the order of the parts' names.

    Raises:
        ValueError: a part has no weight, or a negative one, or the weights sum to 0.

    >>> weighted_mean({"edema": 0.25, "fracture": 0.5}, {"edema": 3, "fracture": 1}).value
    0.3125
    >>> weighted_mean({"edema": 0.25, "fracture": None})
    Pooled(value=None, parts=('edema',), missing=('fracture',))
    """
    names = sorted(values)
    for name in names:
        if weights is not None and name not in weights:
            raise ValueError(f"weights has no {name!r}")
        if weights is not None and not 0 <= weights[name] < float("inf"):
            raise ValueError(f"weights[{name!r}] is {weights[name]}: it must be finite and not negative")
    parts = tuple(name for name in names if values[name] is not None)
    missing = tuple(name for name in names if values[name] is None)
    if not parts or (missing and not over_missing):
        return Pooled(None, parts, missing)
    total = value = 0.0
    for name in parts:
        weight = 1.0 if weights is None else float(weights[name])
        part = values[name]
        assert part is not None
        total += weight
        value += weight * part
    if total == 0:
        raise ValueError("weights sum to 0 over the parts " + ", ".join(parts))
    return Pooled(value / total, parts, missing)


def pooled_rate(events: Sequence[int], trials: Sequence[int]) -> float | None:
    """A rate pooled by number of trials (D over groups: by number of queries), or None without a trial.

    Raises:
        ValueError: the lengths differ, or a count is negative or has more events than trials.

    >>> pooled_rate([1, 3], [4, 4])
    0.5
    """
    if len(events) != len(trials):
        raise ValueError(f"events has {len(events)} parts, trials {len(trials)}")
    for place, (event, trial) in enumerate(zip(events, trials, strict=True)):
        if not 0 <= event <= trial:
            raise ValueError(f"events[{place}] is {event} of {trial} trials")
    total = sum(trials)
    return sum(events) / total if total else None
