"""Several cohorts as one: the same task asked of all, each image compared within its own cohort.

The cohort is a covariate, ``cohort``, and the first of those matched on, so that no group holds images of two cohorts;
the pooled rate, its intervals and its test are then those of one cohort. Ids get the cohort's label in front.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...utils import UserError
from ..cohort import Cohort
from ..label_policy import UNCERTAIN, UNLABELLED
from .draft import Draft
from .source import Source

COVARIATE = "cohort"
# What a part says of itself; every other key is an option of its own cohort.
PART_KEYS = ("cohort", "label", "dataset_dir")


@dataclass(frozen=True)
class Part:
    """One of the cohorts.

    Args:
        label: stands before its ids, and is its value of the covariate ``cohort``.
        cohort: the cohort.
    """

    label: str
    cohort: Cohort

    def named(self, ids: pd.Series) -> pd.Series:
        """Ids of the part as the whole has them; missing ones stay missing."""
        return pd.Series([None if pd.isna(i) else f"{self.label}/{i}" for i in ids], dtype=object, index=ids.index)


@dataclass
class OpenParts:
    """Opens an image of a part that keeps its images in archives; any other image is a file.

    Args:
        root: folder that relative names start from.
        parts: (what stands before the names of a part's images, the part's own ``open_image``).
    """

    root: Path
    parts: list[tuple[str, Callable[[str], Path | bytes] | None]] = field(default_factory=list)

    def __call__(self, image: str) -> Path | bytes:
        """The file, or the bytes of an image that is not a file of its own."""
        for prefix, opened in self.parts:
            if opened is not None and image.startswith(prefix):
                return opened(image.removeprefix(prefix))
        return self.root / image


def read(source: Source, *, cohorts: Sequence[Any] = (), check_files: bool = True, blank: str | None = None) -> Draft:
    """Read the parts and put them together.

    Args:
        source: the pooled cohort; its card names the task.
        cohorts: names or cards; or mappings with ``cohort``, and any of ``label`` (its name without more),
            ``dataset_dir`` (``<dataset_dir>/<label>`` without it) and options of its own.
        check_files: look whether the images are there.
        blank: what a blank label becomes, in every part.
    """
    root = source.need_dataset_dir().absolute()
    if source.task is None:
        raise UserError(f"cohort {source.name!r} pools several cohorts: its card, or --task, must name the task.")
    if isinstance(cohorts, (str, Mapping)) or len(tuple(cohorts)) < 2:
        raise UserError(
            f"cohort {source.name!r} needs two cohorts or more to pool, as "
            "--cohort_options \"{'cohorts': ['aptos','messidor2']}\"."
        )
    common = {"task": source.task, "check_files": check_files, "keep_unlabelled": True}
    common |= {"blank": blank} if blank is not None else {}
    common |= {"allow_outside": True} if source.allow_outside else {}
    parts = [_part(entry, root, common, source.name) for entry in cohorts]
    labels = [part.label for part in parts]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"cohort {source.name!r} pools two cohorts called {label!r}: give one of them a `label`.")
    source.at(root)
    for part in parts:
        source.tables.update({f"{part.label}/{name}": n for name, n in part.cohort.counts.get("tables", {}).items()})
    return pool(parts, root, source.task.findings)


def pool(parts: Sequence[Part], root: Path, findings: Sequence[str] = ()) -> Draft:
    """The parts as one draft.

    Args:
        parts: at least one.
        root: folder that the names of images shall start from; images that lie elsewhere keep their whole path, and
            are named by their part's label in outputs.
        findings: the task's, in its order; empty: those of the parts, as they come. A part that does not know a finding
            is unlabelled for it.

    Raises:
        UserError: a part brings a column ``cohort``, or features of another length than the others.
    """
    known = list(dict.fromkeys(f for part in parts for f in part.cohort.findings))
    order = [f for f in findings if f in known] or known
    opened = OpenParts(root)
    records, codes, boxes, masks, rejected = [], [], [], [], []
    elsewhere: dict[str, str] = {}
    found: dict[str, int] = {}
    left_out: dict[str, int] = {}
    for part in parts:
        cohort = part.cohort
        if COVARIATE in cohort.records:
            raise UserError(f"cohort {part.label!r} has a column {COVARIATE!r}: give it another name to pool it.")
        prefix = _prefix(part, root)
        opened.parts.append((prefix, cohort.open_image))
        if prefix.startswith("/"):
            elsewhere[prefix] = f"{part.label}/"
        rows = cohort.records.assign(**{COVARIATE: part.label})
        for column in ("image_id", "patient_id"):
            rows[column] = part.named(rows[column])
        rows["image"] = _located(rows["image"], prefix)
        records.append(rows)
        codes.append(_codes(cohort, order))
        boxes.append(cohort.boxes.assign(image_id=part.named(cohort.boxes["image_id"])))
        places = _located(cohort.masks["path"], prefix)
        masks.append(cohort.masks.assign(image_id=part.named(cohort.masks["image_id"]), path=places))
        named = {column: part.named(cohort.rejected[column]) for column in ("image_id", "file")}
        rejected.append(cohort.rejected.assign(**named))
        found[f"{part.label}: images"] = len(cohort)
        left_out |= {f"{part.label}: {rule}": n for rule, n in cohort.counts.get("left_out", {}).items()}
    together = pd.concat(records, ignore_index=True)
    return Draft(
        together.astype(object).where(together.notna(), None),
        tuple(order),
        np.concatenate(codes),
        boxes=_stacked(boxes),
        masks=_stacked(masks),
        rejected=_stacked(rejected),
        left_out=left_out,
        found=found,
        features=_features(parts),
        open_image=opened if any(part.cohort.open_image is not None for part in parts) else None,
        match_on=_matched_on(parts),
        elsewhere=dict(sorted(elsewhere.items(), key=lambda folder: -len(folder[0]))),  # the innermost first
        paths_checked=True,
    )


def _matched_on(parts: Sequence[Part]) -> tuple[str, ...]:
    """The cohort, then what the parts are matched on; the site only where a cohort has several."""
    named = dict.fromkeys((COVARIATE, *(c for part in parts for c in part.cohort.task.match_on)))
    if all(part.cohort.records["site"].nunique() <= 1 for part in parts):
        named.pop("site", None)
    return tuple(named)


def _part(entry: Any, root: Path, common: Mapping[str, Any], name: str) -> Part:
    from .cards import load_card
    from .loading import load_cohort

    given = dict(entry) if isinstance(entry, Mapping) and "cohort" in entry else {"cohort": entry}
    card = load_card(given["cohort"])
    if card.adapter == "pooled":
        raise UserError(f"cohort {name!r}: {card.name!r} is pooled itself; name its parts instead.")
    label = str(given.get("label") or card.name)
    folder = root / Path(str(given.get("dataset_dir") or label)).expanduser()
    options = {key: value for key, value in given.items() if key not in PART_KEYS}
    return Part(label, load_cohort(card, folder, **{**common, **options}))


def _prefix(part: Part, root: Path) -> str:
    """What stands before the names of a part's images and masks."""
    own = part.cohort.root
    if own is None:
        if part.cohort.open_image is not None:
            raise UserError(f"cohort {part.label!r} reads its images from a service and cannot be pooled.")
        return ""
    own = own.absolute()
    inside = own.relative_to(root).as_posix() if own.is_relative_to(root) else own.as_posix()
    return "" if inside == "." else f"{inside}/"


def _located(names: pd.Series, prefix: str) -> pd.Series:
    located = [name if not isinstance(name, str) or name.startswith("/") else f"{prefix}{name}" for name in names]
    return pd.Series(located, dtype=object, index=names.index)


def _codes(cohort: Cohort, findings: Sequence[str]) -> np.ndarray:
    """Labels as codes again, so that the policy for uncertain ones is that of the whole."""
    codes = np.full((len(cohort), len(findings)), UNLABELLED, dtype=np.int8)
    for f, finding in enumerate(findings):
        if finding in cohort.findings:
            own = cohort.findings.index(finding)
            labels = cohort.labels[:, own]
            codes[:, f] = np.where(cohort.uncertain[:, own], UNCERTAIN, np.where(labels < 0, UNLABELLED, labels))
    return codes


def _features(parts: Sequence[Part]) -> np.ndarray | None:
    found = [part.cohort.features for part in parts]
    if all(features is None for features in found):
        return None
    widths = {None if features is None else features.shape[1] for features in found}
    if len(widths) > 1:
        raise UserError("the pooled cohorts must all hold features of one length, or all images.")
    return np.concatenate([features for features in found if features is not None])


def _stacked(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    filled = [table for table in tables if len(table)]
    return pd.concat(filled, ignore_index=True) if filled else tables[0]
