"""A cohort: images, patients, covariates and labels as one typed table."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..utils import UserError, unknown
from .matching import MISSING, matched_groups
from .tasks import Task

if TYPE_CHECKING:
    from ..metrics.observations import Observations

REQUIRED = ("image_id", "image", "patient_id", "site", "split")
SPLITS = ("train", "val", "test")
BOX_COLUMNS = ("image_id", "finding", "x", "y", "width", "height", "frame_width", "frame_height")
MASK_COLUMNS = ("image_id", "finding", "path")
REJECTED_COLUMNS = ("image_id", "file", "stage", "reason", "message")


def no_rows(columns: Sequence[str]) -> Callable[[], pd.DataFrame]:
    """Makes tables of these columns without a row."""
    return lambda: pd.DataFrame({column: pd.Series(dtype=object) for column in columns})


def shown_name(image: str, elsewhere: Mapping[str, str]) -> str:
    """A file's name for outputs: what its folder is called in place of where it lies.

    >>> shown_name("/home/me/b/1.png", {"/home/me/b/": "ours/"})
    'ours/1.png'
    """
    for folder, name in elsewhere.items():
        if image.startswith(folder):
            return f"{name}{image.removeprefix(folder)}"
    return image


@dataclass(frozen=True)
class Cohort:
    """Images of one dataset with their labels.

    Args:
        name: name of the dataset.
        root: folder that ``image`` is relative to; None for a cohort without files.
        records: one row an image. Text columns: ``image_id`` (unique), ``image`` (path, absolute or relative to
            ``root``; missing in a cohort of features), ``patient_id``, ``site``, ``split`` (``train``, ``val``,
            ``test``), each but the first possibly missing (``isna()``); then covariates.
        findings: names of the F label columns.
        labels: shape (N, F), int8: 1 positive, 0 negative, -1 unlabelled or excluded.
        uncertain: shape (N, F), bool: the source calls the label uncertain, whatever the policy made of it.
        boxes: ``image_id, finding, x, y, width, height, frame_width, frame_height``: x is the column, y the row of
            the top left corner, in pixels of a frame of the stated width and height (missing: the image's own).
        masks: ``image_id, finding, path``: an image of the same frame, non-zero where the finding is.
        rejected: ``image_id, file, stage, reason, message``: every image that was named but is not in ``records``.
        counts: what was read, decided and left out, by name.
        task: the task that the labels belong to.
        card: the dataset's card.
        features: shape (N, d), float32, for a cohort of features computed elsewhere; else None.
        clusters: shape (N,), texts: images of the same text (not ``""``) show the same pixels; None: not looked at.
        open_image: gives the bytes of an image that is not a file of its own (member of an archive), else its path;
            None: every image is a file.
        elsewhere: folders of this machine that names in ``image`` begin with, and what stands for them in outputs.

    Raises:
        ValueError: the parts do not fit together.

    >>> cohort = Cohort.of(["a", "b"], {"Edema": [1, 0]}, name="two", covariates={"view": ["AP", "PA"]})
    >>> cohort.groups(["view"])
    (array([0, 1]), ('view=AP', 'view=PA'))
    """

    name: str
    root: Path | None
    records: pd.DataFrame
    findings: tuple[str, ...]
    labels: np.ndarray
    uncertain: np.ndarray
    boxes: pd.DataFrame = field(default_factory=no_rows(BOX_COLUMNS))
    masks: pd.DataFrame = field(default_factory=no_rows(MASK_COLUMNS))
    rejected: pd.DataFrame = field(default_factory=no_rows(REJECTED_COLUMNS))
    counts: dict[str, Any] = field(default_factory=dict)
    task: Task = field(default_factory=lambda: Task("task"))
    card: dict[str, Any] = field(default_factory=dict)
    features: np.ndarray | None = None
    clusters: np.ndarray | None = None
    open_image: Callable[[str], Path | bytes] | None = None
    elsewhere: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for column in REQUIRED:
            if column not in self.records.columns:
                raise ValueError(f"records has no column {column!r}")
        shape = (len(self.records), len(self.findings))
        for name, dtype in (("labels", np.int8), ("uncertain", np.bool_)):
            array = getattr(self, name)
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(f"{name} must be {np.dtype(dtype)} of shape {shape}, is {array.dtype} {array.shape}")
        if self.labels.size and not np.isin(self.labels, (-1, 0, 1)).all():
            raise ValueError("labels must be 1, 0 or -1")
        ids = self.records["image_id"]
        if ids.isna().any():
            raise ValueError("an image_id is missing")
        if ids.duplicated().any():
            raise ValueError(f"image_id {ids[ids.duplicated()].iloc[0]!r} occurs twice")
        for name, columns in (("boxes", BOX_COLUMNS), ("masks", MASK_COLUMNS), ("rejected", REJECTED_COLUMNS)):
            missing = [column for column in columns if column not in getattr(self, name).columns]
            if missing:
                raise ValueError(f"{name} has no column {missing[0]!r}")
        for name in ("features", "clusters"):
            array = getattr(self, name)
            if array is not None and len(array) != len(self.records):
                raise ValueError(f"{name} must have {len(self.records)} rows, has {len(array)}")

    @classmethod
    def of(
        cls,
        image_ids: Sequence[str],
        labels: dict[str, Sequence[int]],
        *,
        name: str = "cohort",
        root: str | Path | None = None,
        images: Sequence[str] | None = None,
        patients: Sequence[str | None] | None = None,
        site: str | Sequence[str] | None = None,
        splits: Sequence[str | None] | None = None,
        covariates: dict[str, Sequence[Any]] | None = None,
        task: Task | None = None,
        **parts: Any,
    ) -> Cohort:
        """A cohort from plain sequences: ``labels`` maps each finding to its N values 1, 0 or -1."""
        n = len(image_ids)
        records = pd.DataFrame({"image_id": list(image_ids)}, dtype=object)
        for column, values in (("image", images), ("patient_id", patients), ("site", site), ("split", splits)):
            whole = [values] * n if values is None or isinstance(values, str) else list(values)
            records[column] = pd.Series(whole, dtype=object, index=records.index)
        for column, values in (covariates or {}).items():
            records[column] = list(values)
        findings = tuple(labels)
        table = np.array([list(labels[f]) for f in findings], dtype=np.int8).reshape(len(findings), n).T
        parts.setdefault("uncertain", np.zeros((n, len(findings)), dtype=np.bool_))
        return cls(
            name=name,
            root=None if root is None else Path(root),
            records=records,
            findings=findings,
            labels=np.ascontiguousarray(table),
            task=(task or Task(name)).with_findings(findings),
            **parts,
        )

    def __len__(self) -> int:
        return len(self.records)

    def path(self, i: int) -> Path:
        """File of record ``i``.

        Raises:
            UserError: the cohort holds features only.
        """
        image = self.records["image"].iat[i]
        if not isinstance(image, str):
            raise UserError(f"cohort {self.name!r} holds features only: there is no image of {self.image_id(i)!r}.")
        return Path(image) if self.root is None else self.root / image

    def file_name(self, i: int) -> str:
        """File of record ``i`` as outputs name it, without folders of this machine; ``""`` where there is none."""
        image = self.records["image"].iat[i]
        return shown_name(image, self.elsewhere) if isinstance(image, str) else ""

    def source(self, i: int) -> Path | bytes:
        """What a decoder reads for record ``i``: its file, or the bytes of an image inside an archive."""
        return self.path(i) if self.open_image is None else self.open_image(str(self.records["image"].iat[i]))

    def image_id(self, i: int) -> str:
        """Id of record ``i``."""
        return str(self.records["image_id"].iat[i])

    def groups(self, match_on: Sequence[str] | None = None) -> tuple[np.ndarray, tuple[str, ...]]:
        """Matched group of each image: codes, shape (N,), int64, and the names that they index.

        Args:
            match_on: columns of ``records``; None takes those of the task.

        Raises:
            UserError: a column that does not exist, or one that names images or patients.
        """
        chosen = self.task.match_on if match_on is None else match_on
        for name in chosen:
            if name in ("image_id", "image", "patient_id"):
                kind = "patient" if name == "patient_id" else "image"
                raise UserError(f"match_on: {name!r} differs from {kind} to {kind}, and so there is nothing to match.")
        return matched_groups(self.records, chosen)

    def boxed(self) -> np.ndarray:
        """Whether an expert marked the finding in the image (box or mask), shape (N, F), bool."""
        marked = np.zeros(self.labels.shape, dtype=np.bool_)
        rows = pd.Index(self.records["image_id"])
        columns = pd.Index(self.findings)
        for table in (self.boxes, self.masks):
            row, column = rows.get_indexer(pd.Index(table["image_id"])), columns.get_indexer(pd.Index(table["finding"]))
            known = (row >= 0) & (column >= 0)
            marked[row[known], column[known]] = True
        return marked

    def observations(
        self, match_on: Sequence[str] | None = None, findings: Sequence[str] | None = None
    ) -> Observations:
        """The cohort as the measures see it.

        An image without a patient id is its own patient; with no patient id at all, ``patient`` is None. ``test``
        is given only when every image has a split.

        Args:
            match_on: covariates of the matched groups; None takes those of the task.
            findings: some of the cohort's findings; None takes all.

        Raises:
            UserError: an unknown covariate or finding.
        """
        from ..metrics.observations import Observations

        chosen = self.findings if findings is None else tuple(findings)
        for finding in chosen:
            if finding not in self.findings:
                raise unknown("finding", finding, self.findings)
        column = [self.findings.index(finding) for finding in chosen]
        group, names = self.groups(match_on)
        split = self.records["split"]
        return Observations(
            image_id=self.records["image_id"].to_numpy(dtype=str),
            labels=self.labels[:, column],
            findings=chosen,
            group=group,
            group_names=names,
            patient=self._patients(),
            site=self.records["site"].fillna(MISSING).to_numpy(dtype=str),
            uncertain=self.uncertain[:, column],
            boxed=self.boxed()[:, column],
            test=None if split.isna().any() else (split == "test").to_numpy(dtype=np.bool_),
            cluster=self.clusters,
            task=self.task.name,
        )

    def _patients(self) -> np.ndarray | None:
        patient = self.records["patient_id"]
        if patient.isna().all():
            return None
        return patient.fillna("").to_numpy(dtype=str)

    def select(self, mask: np.ndarray) -> Cohort:
        """The cohort of the records that ``mask`` (bool, or row numbers) picks; counts and rejections stay."""
        rows = np.flatnonzero(mask) if np.asarray(mask).dtype == np.bool_ else np.asarray(mask, dtype=np.int64)
        records = self.records.iloc[rows].reset_index(drop=True)
        ids = set(records["image_id"])
        return dataclasses.replace(
            self,
            records=records,
            labels=self.labels[rows],
            uncertain=self.uncertain[rows],
            boxes=self.boxes[self.boxes["image_id"].isin(ids)].reset_index(drop=True),
            masks=self.masks[self.masks["image_id"].isin(ids)].reset_index(drop=True),
            features=None if self.features is None else self.features[rows],
            clusters=None if self.clusters is None else self.clusters[rows],
        )

    def with_clusters(self, cluster_ids: Sequence[str] | np.ndarray) -> Cohort:
        """The same cohort with the images told that show the same pixels: one text an image, ``""`` for no other."""
        return dataclasses.replace(self, clusters=np.array([str(c) for c in cluster_ids], dtype=np.str_))

    def describe(self) -> dict[str, Any]:
        """Counts by group, finding and split, what was left out, and the publisher's numbers beside those found."""
        from .cohort_checks import describe

        return describe(self)

    def fingerprint(self) -> str:
        """Digest (32 hex digits) of all that is known of the images (and their features, if any), in whatever order."""
        order = np.argsort(self.records["image_id"].to_numpy(dtype=str), kind="stable")
        digest = hashlib.blake2b(digest_size=16)
        for column in sorted(self.records.columns):
            _digest_text(digest, column, self.records[column], order)
        for finding in sorted(self.findings):
            digest.update(finding.encode() + b"\x00")
            digest.update(np.ascontiguousarray(self.labels[order, self.findings.index(finding)]).tobytes())
            digest.update(np.ascontiguousarray(self.uncertain[order, self.findings.index(finding)]).tobytes())
        for table, columns in ((self.boxes, BOX_COLUMNS), (self.masks, MASK_COLUMNS)):
            rows = sorted("\x1f".join(map(str, row)) for row in table[list(columns)].itertuples(index=False))
            digest.update("\x1e".join(rows).encode() + b"\x00")
        if self.features is not None:
            for start in range(0, len(order), 4096):
                digest.update(np.ascontiguousarray(self.features[order[start : start + 4096]]).tobytes())
        if self.clusters is not None:
            _digest_text(digest, "cluster", pd.Series(self.clusters), order)
        return digest.hexdigest()


def _digest_text(digest: Any, name: str, column: pd.Series, order: np.ndarray) -> None:
    values = column.to_numpy(dtype=object, copy=True)
    values[column.isna().to_numpy(dtype=bool)] = "\x1d"
    digest.update(
        name.encode() + b"\x00" + "\x1e".join(map(str, values[order])).encode("utf-8", "surrogatepass") + b"\x00"
    )
