"""From a card and a folder to a cohort: options checked, files looked for, policy applied, everything counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...utils import UserError, unknown
from ..cohort import BOX_COLUMNS, MASK_COLUMNS, SPLITS, Cohort
from ..file_index import inside
from ..label_policy import BLANKED, UNLABELLED, apply_policy
from ..tasks import Task, load_task
from .cards import CohortCard, load_card
from .draft import Draft
from .drawing import draw
from .registry import adapter_named, adapter_options
from .selection import apply_selection
from .source import Source
from .vocabulary import load_vocabulary

COMMON: dict[str, Any] = {
    "task": None,
    "findings": None,
    "match_on": None,
    "uncertain": None,
    "blank": None,
    "views": None,
    "splits": None,
    "check_files": True,
    "keep_unlabelled": False,
    "max_images": None,
    "per_label": None,
    "draw_seed": 42,
    "allow_outside": False,
    "vocabulary": None,
    "preset": "all",
    "extras": (),
    "selection": "unbiased",
}


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
    chosen = {**COMMON, **own, **_checked(card.options, own, card), **_checked(options, own, card)}
    asked = chosen["task"] or card.task
    task = None if asked is None else load_task(asked)
    match_on = names_of(chosen["match_on"]) if chosen["match_on"] is not None else card.match_on
    source = Source(
        card=card,
        dataset_dir=None if dataset_dir is None else Path(dataset_dir).expanduser(),
        task=task,
        match_on=match_on,
        allow_outside=flag(chosen["allow_outside"], "allow_outside"),
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


def names_of(value: Any) -> tuple[str, ...]:
    """A list of names as a user may write it: one text, a list, or a tuple.

    >>> names_of("site"), names_of(["site", "view"])
    (('site',), ('site', 'view'))
    """
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(str(part) for part in value)


def flag(value: Any, name: str) -> bool:
    """An option that is on or off; the texts ``true`` and ``false`` count.

    Raises:
        UserError: anything else.
    """
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    raise UserError(f"{name} must be true or false, is {value!r}.")


def _checked(options: Mapping[str, Any], own: Mapping[str, Any], card: CohortCard) -> dict[str, Any]:
    for key in options:
        if key not in COMMON and key not in own:
            raise unknown(f"option of cohort {card.name!r}:", key, (*COMMON, *own))
    return dict(options)


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
    if draft.features is None and not draft.paths_checked:
        draft.records["image"] = inside(draft.records["image"], f"images of {card.name}", source.allow_outside)
    apply_selection(draft, str(chosen["selection"]), card.name)
    for column in ("view", "split"):
        _keep_values(draft, column, chosen[f"{column}s"], card.name, f"{column}s" in chosen["asked"])
    if not flag(chosen["keep_unlabelled"], "keep_unlabelled") and draft.findings:
        nothing = (UNLABELLED, BLANKED) if task.blank == "exclude" else (UNLABELLED,)
        draft.keep(np.asarray(~np.isin(draft.codes, nothing).all(axis=1)), "no label")
    files = draft.features is None and draft.open_image is None
    if files and flag(chosen["check_files"], "check_files"):
        _check_files(source, draft)
    if not len(draft.records):
        raise UserError(_nothing_left(source, draft))
    _check_covariates(draft, task)
    labels = apply_policy(draft.codes, draft.findings, task.uncertain, task.blank)[0]
    drawn = draw(draft, labels, chosen["max_images"], chosen["per_label"], chosen["draw_seed"])
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
        rejected=draft.rejected,
        counts=counts,
        task=task,
        card=card.as_dict(),
        features=draft.features,
        open_image=draft.open_image,
    )


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
    for i in np.flatnonzero(~present & relative).tolist():
        actual = source.files.resolve(names[i], draft.suffixes)
        if actual is not None:
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
