"""A part of a cohort, drawn by a keyed hash of the image id: the same images on every machine and in every order."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...metrics.keyed_hash import keyed_rank
from ...utils import UserError
from .draft import Draft


def draw(draft: Draft, labels: np.ndarray, max_images: Any, per_label: Any, seed: Any) -> np.ndarray:
    """Rows to keep, shape (N,), bool.

    Args:
        draft: whose image ids are hashed.
        labels: shape (N, F), int8, after the policy.
        max_images: keep at most so many images; None keeps all.
        per_label: keep at most so many positives and as many negatives of the one finding; None keeps all.
        seed: key of the draw.

    Raises:
        UserError: an option is not a positive whole number, or there are several findings for ``per_label``.
    """
    keep = np.ones(len(draft.records), dtype=np.bool_)
    if max_images is None and per_label is None:
        return keep
    order = keyed_rank(draft.records["image_id"].to_numpy(dtype=str), whole(seed, "draw_seed", 0), "cohort")
    if per_label is not None:
        if labels.shape[1] != 1:
            raise UserError(f"per_label is for a cohort of one finding; this one has {labels.shape[1]}.")
        most = whole(per_label, "per_label", 1)
        keep[:] = False
        for label in (0, 1):
            keep[order[labels[order, 0] == label][:most]] = True
    if max_images is not None:
        kept = order[keep[order]][: whole(max_images, "max_images", 1)]
        keep[:] = False
        keep[kept] = True
    return keep


def number(value: Any, name: str, least: float) -> float:
    """A number of at least ``least``; its text counts.

    Raises:
        UserError: anything else.
    """
    try:
        given = float(value)
    except (TypeError, ValueError):
        given = float("nan")
    if isinstance(value, bool) or not least <= given < float("inf"):
        raise UserError(f"{name} must be a number of at least {least:g}, is {value!r}.")
    return given


def whole(value: Any, name: str, least: int) -> int:
    """A whole number of at least ``least``; text of digits counts.

    Raises:
        UserError: anything else.
    """
    if isinstance(value, bool) or not str(value).isdigit() or int(value) < least:
        raise UserError(f"{name} must be a whole number of at least {least}, is {value!r}.")
    return int(value)
