"""What an adapter hands over: rows, codes and counts, before any policy is applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..cohort import BOX_COLUMNS, MASK_COLUMNS, REJECTED_COLUMNS, no_rows


@dataclass
class Draft:
    """Rows of a dataset with the codes of their labels.

    Args:
        records: one row an image: ``image_id``, ``image`` (relative path) and any of ``patient_id``, ``site``,
            ``split``, covariates; blanks are ``""`` or missing.
        findings: names of the F label columns.
        codes: shape (N, F), int8, as in label_policy; given as (N,), they are those of every finding.
        boxes, masks: as in Cohort.
        rejected: as in Cohort, for images that the tables name but that cannot be used.
        left_out: images left out by a stated rule, by rule.
        found: numbers to set beside the card's ``expected``.
        notes: further counts and decisions.
        suffixes: suffixes to try when an image's own is not there.
        features: shape (N, d), for a cohort of features.
        open_image: reads an image that is not a file of its own.
        match_on: covariates of the matched groups when neither card nor user names them.
        elsewhere: as in Cohort.
        paths_checked: whether the adapter has seen to it that no path of a table leaves the dataset's folder.
        blank: what a blank becomes when the user does not say; None leaves it to the task.
    """

    records: pd.DataFrame
    findings: tuple[str, ...]
    codes: np.ndarray
    boxes: pd.DataFrame = field(default_factory=no_rows(BOX_COLUMNS))
    masks: pd.DataFrame = field(default_factory=no_rows(MASK_COLUMNS))
    rejected: pd.DataFrame = field(default_factory=no_rows(REJECTED_COLUMNS))
    left_out: dict[str, int] = field(default_factory=dict)
    found: dict[str, int] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    suffixes: Sequence[str] = ()
    features: np.ndarray | None = None
    open_image: Callable[[str], Path | bytes] | None = None
    match_on: tuple[str, ...] | None = None
    blank: str | None = None
    elsewhere: dict[str, str] = field(default_factory=dict)
    paths_checked: bool = False

    def __post_init__(self) -> None:
        if self.codes.ndim == 1:
            self.codes = np.repeat(self.codes[:, None], len(self.findings), axis=1)

    def keep(self, mask: np.ndarray, rule: str | None = None) -> None:
        """Keep the rows where ``mask`` is true; ``rule`` counts the others in ``left_out``."""
        if rule is not None and not mask.all():
            self.left_out[rule] = self.left_out.get(rule, 0) + int((~mask).sum())
        self.records = self.records[mask].reset_index(drop=True)
        self.codes = self.codes[mask]
        if self.features is not None:
            self.features = self.features[mask]

    def reject(self, mask: np.ndarray, reason: str, message: str, stage: str = "cohort") -> None:
        """Move the rows where ``mask`` is true to ``rejected``."""
        if mask.any():
            gone = self.records[mask]
            self.add_rejected(gone["image_id"], gone["image"], reason, message, stage)
            self.keep(~mask)

    def add_rejected(
        self,
        image_ids: Sequence[Any] | pd.Series,
        files: Sequence[Any] | pd.Series | None,
        reason: str,
        message: str | Sequence[str],
        stage: str = "cohort",
    ) -> None:
        """List images that are not among the records; ``files`` None: they have none."""
        n = len(image_ids)
        more = pd.DataFrame(
            {
                "image_id": list(image_ids),
                "file": [""] * n if files is None else list(files),
                "stage": [stage] * n,
                "reason": [reason] * n,
                "message": [message] * n if isinstance(message, str) else list(message),
            },
            dtype=object,
        )
        self.rejected = more if self.rejected.empty else pd.concat([self.rejected, more], ignore_index=True)


def box_table(
    image_id: Sequence[Any] | pd.Series,
    finding: Sequence[Any] | pd.Series | str,
    x: Any,
    y: Any,
    width: Any,
    height: Any,
    frame_width: Any = None,
    frame_height: Any = None,
) -> pd.DataFrame:
    """Boxes as Cohort wants them; texts become numbers, a frame of None is the image's own."""
    index = range(len(image_id))
    table = pd.DataFrame({"image_id": list(image_id)}, dtype=object, index=index)
    table["finding"] = finding if isinstance(finding, str) else list(finding)
    named = (("x", x), ("y", y), ("width", width), ("height", height))
    for column, values in (*named, ("frame_width", frame_width), ("frame_height", frame_height)):
        whole = [values] * len(table) if np.isscalar(values) or values is None else list(values)
        table[column] = pd.to_numeric(pd.Series(whole, dtype=object, index=index), errors="coerce").astype(np.float64)
    return table[list(BOX_COLUMNS)]
