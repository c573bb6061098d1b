"""The images of a datastore as the margins see them: ids, files, matched groups, patients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class LabelImages:
    """N images, in the order of their ids.

    Args:
        table: one row an image: ``image_id`` (unique text), ``image`` (path relative to the datastore, or missing),
            ``patient`` (pseudonym, or missing), ``site``, ``view`` and further covariates.
        match_on: columns of ``table`` that make a matched group.
        name: of the cohort, for the export and the feature store.
    """

    table: pd.DataFrame
    match_on: tuple[str, ...]
    name: str

    @classmethod
    def of_cohort(cls, cohort: Any, key: bytes) -> LabelImages:
        """The images of a :class:`~candor_monai.data.cohort.Cohort`, patients replaced by pseudonyms under ``key``."""
        raise NotImplementedError

    def groups(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """Matched group of each image: codes, shape (N,), int64, and their names."""
        raise NotImplementedError
