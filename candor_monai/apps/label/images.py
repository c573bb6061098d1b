"""The images of a datastore as the margins see them: ids, files, matched groups, patients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...data.matching import matched_groups
from ...utils import UserError, unknown
from ...utils.pseudonyms import pseudonyms
from .readings import check_image_id

if TYPE_CHECKING:
    from ...data.cohort import Cohort
    from ...metrics.observations import Observations

FIXED = ("image_id", "image", "patient", "cluster")


@dataclass(frozen=True)
class LabelImages:
    """N images of a datastore.

    Args:
        table: one row an image, texts or missing: ``image_id`` (unique), ``image`` (its file, relative to the
            datastore's folder), ``patient`` (a pseudonym), ``cluster`` (equal where the pixels are), and covariates
            such as ``site`` and ``view``. Only ``image_id`` must be there.
        match_on: covariates that make a matched group; none: all images are one group.
        name: of the cohort, for the export and the feature store.

    Raises:
        UserError: no image, an id twice or not text, or a covariate that is not there.

    >>> LabelImages.of(["a", "b"], covariates={"view": ["AP", "PA"]}, match_on=["view"]).groups
    (array([0, 1]), ('view=AP', 'view=PA'))
    """

    table: pd.DataFrame
    match_on: tuple[str, ...] = ()
    name: str = "labels"

    def __post_init__(self) -> None:
        if "image_id" not in self.table.columns or not len(self.table):
            raise UserError("there is no image to label.")
        table = self.table.reset_index(drop=True).astype(object)
        for column in FIXED:
            if column not in table:
                table[column] = None
        object.__setattr__(self, "table", table.where(table.notna(), None))
        object.__setattr__(self, "match_on", tuple(self.match_on))
        for image_id in self.table["image_id"]:
            check_image_id(image_id)
        twice = self.table["image_id"].duplicated()
        if twice.any():
            raise UserError(f"image id {self.table['image_id'][twice].iloc[0]!r} occurs twice.")
        for column in self.match_on:
            if column not in self.covariates:
                raise unknown("matching covariate", column, self.covariates)

    @classmethod
    def of(
        cls,
        image_ids: Sequence[str],
        images: Sequence[str | None] | None = None,
        patients: Sequence[str | None] | None = None,
        covariates: Mapping[str, Sequence[Any]] | None = None,
        match_on: Sequence[str] = (),
        name: str = "labels",
    ) -> LabelImages:
        """Images from plain sequences; ``patients`` are pseudonyms."""
        columns = {"image_id": list(image_ids), **(covariates or {})}
        columns |= {c: list(v) for c, v in (("image", images), ("patient", patients)) if v is not None}
        return cls(pd.DataFrame(columns, dtype=object), tuple(match_on), name)

    @classmethod
    def of_cohort(cls, cohort: Cohort, key: bytes) -> LabelImages:
        """The images of a cohort, its patients replaced by pseudonyms.

        Args:
            cohort: its labels are not looked at.
            key: the site's secret (:func:`~candor_monai.utils.pseudonyms.read_key`).
        """
        table = cohort.records.drop(columns=["patient_id", "split"]).copy()
        table["patient"] = pseudonyms(cohort.records["patient_id"], key)
        if cohort.clusters is not None:
            table["cluster"] = [cluster or None for cluster in cohort.clusters]
        return cls(table, tuple(cohort.task.match_on), cohort.name)

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def ids(self) -> list[str]:
        """The N ids."""
        return [str(image_id) for image_id in self.table["image_id"]]

    @cached_property
    def row(self) -> dict[str, int]:
        """Id -> row."""
        return {image_id: row for row, image_id in enumerate(self.ids)}

    @cached_property
    def covariates(self) -> list[str]:
        """Columns that an image may be matched on."""
        return [str(column) for column in self.table.columns if column not in FIXED]

    @cached_property
    def groups(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """Matched group of each image: codes, shape (N,), int64, and their names."""
        return matched_groups(self.table, self.match_on)

    def observations(self, findings: Sequence[str], labels: np.ndarray | None = None) -> Observations:
        """The images as the measures see them.

        Args:
            findings: F names.
            labels: shape (N, F): 1, 0 or -1; None: no label.
        """
        from ...metrics.observations import Observations

        patient, cluster = self.table["patient"], self.table["cluster"]
        codes, names = self.groups
        return Observations(
            image_id=self.ids,
            labels=np.full((len(self), len(findings)), -1, np.int8) if labels is None else labels,
            findings=tuple(findings),
            group=codes,
            group_names=names,
            patient=None if patient.isna().all() else patient.fillna("").to_numpy(dtype=str),
            cluster=None if cluster.isna().all() else cluster.fillna("").to_numpy(dtype=str),
            task="own",
        )
