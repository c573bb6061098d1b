"""From a card and a folder to a cohort: options checked, files looked for, policy applied, everything counted."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...utils import UserError, unknown
from ...utils.names import names_of
from ...utils.typed import typed
from ..cohort import BOX_COLUMNS, MASK_COLUMNS, SPLITS, Cohort, shown_name
from ..file_index import inside
from ..label_policy import BLANKED, UNLABELLED, apply_policy
from ..label_tables import check_unique
from ..tasks import Task, load_task
from .cards import CohortCard, load_card
from .draft import Draft
from .drawing import draw
from .registry import adapter_named, adapter_options, adapter_types
from .selection import apply_selection
from .source import Source, user_path
from .vocabulary import load_vocabulary


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """Options of every cohort, whatever its adapter; :func:`load_cohort` says what they do."""

    task: str | Path | Mapping[str, Any] | Task | None = None
    findings: Sequence[str] | Mapping[str, str] | None = None
    match_on: Sequence[str] | None = None
    uncertain: str | None = None
    blank: str | None = None
    views: Sequence[str] | None = None
    splits: Sequence[str] | None = None
    check_files: bool = True
    keep_unlabelled: bool = False
    max_images: int | None = None
    per_label: int | None = None
    draw_seed: int = 42
    allow_outside: bool = False
    vocabulary: str | Path | Mapping[str, Any] | None = None
    preset: str = "all"
    extras: Sequence[str] = ()
    selection: str = "unbiased"


COMMON = {f.name: f.default for f in fields(CommonOptions)}
_COMMON_TYPES = typing.get_type_hints(CommonOptions)


def load_cohort(
    card: str | Path | Mapping[str, Any] | CohortCard, dataset_dir: str | Path | None = None, **options: Any
) -> Cohort:
    """Read a dataset into a cohort.

    Args:
        card: name of a shipped card (configs/cohorts), a YAML file, or a mapping of a card's fields.
        dataset_dir: the dataset's folder.
        options: the adapter's own options, and these of every cohort: ``task`` (name, file or fields), ``findings``
            (some of the task's), ``match_on``, ``uncertain``, ``blank`` (policies; None takes the task's),
            ``views``, ``splits`` (values to keep; None keeps all), ``check_files`` (look whether the images are
            there), ``keep_unlabelled`` (keep images without any label), ``max_images``, ``per_label`` (draw so many
            images, or so many of each label, by ``draw_seed``), ``allow_outside`` (paths in tables may leave the
            folder), ``vocabulary`` (YAML file), ``preset``, ``extras`` (of the vocabulary), ``selection`` (of a table
            with a column ``selected_by``: ``unbiased``, ``reread`` or ``keep``, see :mod:`.selection`).

    Returns:
        the cohort, never empty.

    Raises:
        UserError: an unknown option, finding or column, a folder that is not the dataset, no image left.
    """
    card = load_card(card)
    adapter = adapter_named(card.adapter)
    own = adapter_options(adapter)
    types = {**_COMMON_TYPES, **dict.fromkeys(own, Any), **adapter_types(adapter)}
    types = {key: types[key] for key in (*COMMON, *own)}
    chosen = {**COMMON, **own, **_checked(card.options, types, card.name), **_checked(options, types, card.name)}
    asked = chosen["task"] or card.task
    task = None if asked is None else load_task(asked)
    match_on = names_of(chosen["match_on"]) if chosen["match_on"] is not None else card.match_on
    source = Source(
        card=card,
        dataset_dir=None if dataset_dir is None else user_path(dataset_dir),
        task=task,
        match_on=match_on,
        allow_outside=chosen["allow_outside"],
        vocabulary=load_vocabulary(chosen["vocabulary"], chosen["preset"], names_of(chosen["extras"])),
    )
    draft = adapter(source, **{k: chosen[k] for k in own})
    if "findings" not in own:
        _choose_findings(draft, chosen["findings"], card.name)
    if task is None:
        # one name for all cohorts of one's own: the draw of candidates depends on it, not on where the images lie
        task = Task("own", title=f"Findings of {card.name}")
    task = _with_policy(task, match_on, chosen, draft)
    return _finish(source, draft, task, {**chosen, "asked": frozenset(options)})


def _checked(options: Mapping[str, Any], types: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The options as their declared types want them; None leaves an option to its reader."""
    checked = {}
    for key, value in options.items():
        if key not in types:
            raise unknown(f"option of cohort {name!r}:", key, types)
        where = f"option {key} of cohort {name!r}"
        checked[key] = None if value is None else typed(value, types[key], where, lenient=True)
    return checked


def _choose_findings(draft: Draft, findings: Any, name: str) -> None:
    if findings is None:
        return
    chosen = names_of(findings)
    for finding in chosen:
        if finding not in draft.findings:
            raise unknown(f"finding of cohort {name!r}:", finding, draft.findings)
    draft.codes = draft.codes[:, [draft.findings.index(f) for f in chosen]]
    draft.findings = chosen


def _with_policy(task: Task, match_on: tuple[str, ...] | None, chosen: Mapping[str, Any], draft: Draft) -> Task:
    known = task.with_findings(draft.findings)
    covariates = match_on if match_on is not None else draft.match_on
    return replace(
        known,
        match_on=known.match_on if covariates is None else covariates,
        uncertain=chosen["uncertain"] or known.uncertain,
        blank=chosen["blank"] or draft.blank or known.blank,
    )


def _finish(source: Source, draft: Draft, task: Task, chosen: Mapping[str, Any]) -> Cohort:
    card = source.card
    for column in ("patient_id", "site", "split"):
        if column not in draft.records:
            draft.records[column] = pd.Series([None] * len(draft.records), dtype=object)
    for column in draft.records.columns:
        if column not in ("image_id", "image"):
            texts = draft.records[column]
            draft.records[column] = texts.where(texts.notna() & (texts != ""), None)
    nameless = draft.records["image_id"].fillna("").str.strip() == ""
    draft.keep(~nameless.to_numpy(dtype=np.bool_), "no image id")
    check_unique(draft.records["image_id"], card.name, of="entries")
    if draft.features is None and not draft.paths_checked:
        draft.records["image"] = inside(draft.records["image"], f"images of {card.name}", source.allow_outside)
    apply_selection(draft, str(chosen["selection"]), card.name)
    for column in ("view", "split"):
        _keep_values(draft, column, chosen[f"{column}s"], card.name, f"{column}s" in chosen["asked"])
    if not chosen["keep_unlabelled"] and draft.findings:
        nothing = (UNLABELLED, BLANKED) if task.blank == "exclude" else (UNLABELLED,)
        draft.keep(np.asarray(~np.isin(draft.codes, nothing).all(axis=1)), "no label")
    files = draft.features is None and draft.open_image is None
    if files and chosen["check_files"]:
        _check_files(source, draft)
    if not len(draft.records):
        raise UserError(_nothing_left(source, draft))
    _check_covariates(draft, task)
    labels, uncertain, policy = apply_policy(draft.codes, draft.findings, task.uncertain, task.blank)
    drawn = draw(draft, labels, chosen["max_images"], chosen["per_label"], chosen["draw_seed"])
    if not drawn.all():
        draft.keep(drawn, "not drawn")
        labels, uncertain, policy = apply_policy(draft.codes, draft.findings, task.uncertain, task.blank)
    expect = getattr(draft.open_image, "expect", None)
    if expect is not None:
        # images are encoded in the order of their ids; a reader that fetches ahead wants to know what is left of them
        expect(draft.records.sort_values("image_id")["image"].tolist())
    ids = set(draft.records["image_id"])
    absent = {
        name: int((~table["image_id"].isin(ids)).sum())
        for name, table in (("boxes", draft.boxes), ("masks", draft.masks))
    }
    if any(absent.values()):
        draft.notes["annotations_without_image"] = {name: count for name, count in absent.items() if count}
    boxes = _of_kept(draft.boxes, ids, draft.findings)
    masks = _of_kept(draft.masks, ids, draft.findings)
    counts = {
        "tables": source.tables,
        "found": {**draft.found, "images": len(draft.records)},
        "left_out": draft.left_out,
        "policy": policy,
        **draft.notes,
    }
    return Cohort(
        name=card.name,
        root=source.root,
        records=draft.records,
        findings=draft.findings,
        labels=labels,
        uncertain=uncertain,
        boxes=boxes[list(BOX_COLUMNS)],
        masks=masks[list(MASK_COLUMNS)],
        rejected=_shown(draft),
        elsewhere=draft.elsewhere,
        counts=counts,
        task=task,
        card=card.as_dict(),
        features=draft.features,
        open_image=draft.open_image,
    )


def _shown(draft: Draft) -> pd.DataFrame:
    """The rejected images, their files named as outputs name them."""
    files = [shown_name(f, draft.elsewhere) if isinstance(f, str) else f for f in draft.rejected["file"]]
    return draft.rejected.assign(file=pd.Series(files, dtype=object, index=draft.rejected.index))


def _keep_values(draft: Draft, column: str, wanted: Any, name: str, asked: bool) -> None:
    """Keep the rows with the values wanted; what the user asked for must occur, a card's defaults need not."""
    if wanted is None:
        return
    kept = names_of(wanted)
    if column not in draft.records:
        raise UserError(f"cohort {name!r} records no {column}: leave {column}s out.")
    values = draft.records[column]
    known = sorted({str(v) for v in values.dropna().unique()} | (set(SPLITS) if column == "split" else set()))
    for value in kept:
        if asked and value not in known:
            raise unknown(f"{column} of cohort {name!r}:", value, known)
    mask = values.isin(kept).to_numpy(dtype=np.bool_)
    for other, count in values[~mask].fillna("(missing)").value_counts().sort_index().items():
        rule = f"{column} {other} not chosen"
        draft.left_out[rule] = draft.left_out.get(rule, 0) + int(count)
    draft.keep(mask)


def _check_files(source: Source, draft: Draft) -> None:
    """Leave out images that are not there; names in other letter case or with another suffix are put right."""
    images = draft.records["image"]
    names: list[str] = images.tolist()
    relative = ~images.str.startswith("/").to_numpy(dtype=np.bool_)
    present = np.zeros(len(images), dtype=np.bool_)
    present[relative] = source.files.present(images[relative])
    for i in np.flatnonzero(~relative).tolist():
        present[i] = Path(names[i]).is_file()
    renamed = 0
    taken = {names[i] for i in np.flatnonzero(present).tolist()}
    for i in np.flatnonzero(~present & relative).tolist():
        actual = source.files.resolve(names[i], draft.suffixes)
        if actual is not None and actual not in taken:  # a file is one image's, never another's as well
            taken.add(actual)
            names[i] = actual
            present[i] = True
            renamed += 1
    if renamed:
        draft.records["image"] = pd.Series(names, dtype=object)
        draft.notes["files_found_under_another_name"] = renamed
    if not present.any() and len(images):
        examples = ", ".join(names[:3])
        raise UserError(
            f"{source.root}: none of the {len(images):,} images that the tables of {source.name} name is there, e.g. "
            f"{examples}. {_what_is_there(source)} Set --dataset_dir to the folder that these paths start from."
        )
    draft.reject(~present, "missing_file", "the table names this file; it is not in the dataset's folder")


def _what_is_there(source: Source) -> str:
    entries = sorted(source.files.listing(""))
    return f"The folder holds {', '.join(entries[:8])}{' …' if len(entries) > 8 else ''}."


def _nothing_left(source: Source, draft: Draft) -> str:
    reasons = [f"{count:,} {rule}" for rule, count in draft.left_out.items()]
    reasons += [f"{count:,} {reason}" for reason, count in draft.rejected["reason"].value_counts().items()]
    return f"cohort {source.name!r}: no image is left ({'; '.join(reasons) or 'its tables name none'})."


def _check_covariates(draft: Draft, task: Task) -> None:
    for column in task.match_on:
        if column not in draft.records.columns:
            known: Sequence[str] = [c for c in draft.records.columns if c not in ("image_id", "image")]
            raise unknown("matching covariate", column, known)


def _of_kept(table: pd.DataFrame, ids: set[str], findings: tuple[str, ...]) -> pd.DataFrame:
    return table[table["image_id"].isin(ids) & table["finding"].isin(findings)].reset_index(drop=True)
