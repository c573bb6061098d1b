"""A blinded re-read: discordant images and as many random concordant ones, in an order that tells nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...metrics.keyed_hash import keyed_rank
from ...utils import UserError, atomic_write
from .readings import Label

REVIEW, RANDOM = "candor_review", "reread_random"


@dataclass(frozen=True)
class RereadList:
    """Images to read again.

    Args:
        round: number of the list, from 1.
        time: when it was drawn, UTC, as in the labels.
        entries: image id -> ``candor_review`` or ``reread_random``, in the order of reading. What each image is for
            is not for the reader's eyes.
    """

    round: int
    time: str
    entries: Mapping[str, str]

    def left(self, labels: Mapping[str, Label]) -> list[str]:
        """Images of the list that were not read since it was drawn."""
        return [i for i in self.entries if i in labels and labels[i].current.time < self.time]


def reread_kind(label: Label | None) -> str | None:
    """How an image was read again: ``candor_review`` where any later reading was such, else ``reread_random`` where one
    was, else ``chosen`` where there is a later reading at all, else None."""
    kinds = {reading.selected_by for reading in label.readings[1:]} if label is not None else set()
    return next((kind for kind in (REVIEW, RANDOM) if kind in kinds), "chosen" if kinds else None)


def draw_list(
    image_ids: Sequence[str],
    score: np.ndarray,
    labels: Mapping[str, Label],
    number: int | None,
    seed: int,
    round_: int,
    time: str,
) -> tuple[RereadList, str | None]:
    """Draw a list.

    It holds the most discordant images that were not read again yet, and concordant ones drawn at random, so many
    that reviews and random re-reads are equally many when all of it is read.

    Args:
        image_ids: N ids.
        score: largest margin of each on the other label's side (:func:`.ranking.discordance`), shape (N,).
        labels: of the images that have one.
        number: discordant images; None: all.
        seed, round_: of the draw.
        time: now.

    Returns:
        the list, and what a reader must know, or None.

    Raises:
        UserError: nothing to read again.
    """
    kinds = [reread_kind(labels.get(image_id)) for image_id in image_ids]
    fresh = np.array([kind is None and image_id in labels for kind, image_id in zip(kinds, image_ids, strict=True)])
    ids = np.array(list(image_ids), dtype=object)
    known = fresh & ~np.isnan(score)
    discordant = np.flatnonzero(known & (score > 0))
    discordant = discordant[np.lexsort((discordant, -score[discordant]))][:number]
    concordant = np.flatnonzero(known & (score <= 0))
    wanted = len(discordant) + kinds.count(REVIEW) - kinds.count(RANDOM)
    drawn = concordant[keyed_rank(ids[concordant].tolist(), "reread", seed, round_)][: max(wanted, 0)]
    rows = np.concatenate([discordant, drawn])
    if not len(rows):
        raise UserError(
            "there is nothing to read again: no labelled image is discordant, and earlier reviews are matched."
        )
    rows = rows[keyed_rank(ids[rows].tolist(), "reread order", seed, round_)]
    review = set(discordant.tolist())
    entries = {str(ids[row]): REVIEW if row in review else RANDOM for row in rows.tolist()}
    short = max(wanted, 0) - len(drawn)
    note = (
        f"{short} concordant images are lacking: there are only {len(drawn)} that were not read again."
        if short
        else None
    )
    return RereadList(round_, time, entries), note


def write_list(path: Path, drawn: RereadList) -> None:
    """Write a list."""
    entries = [{"image_id": image_id, "selected_by": kind} for image_id, kind in drawn.entries.items()]
    content = {"schema_version": 1, "round": drawn.round, "time": drawn.time, "entries": entries}
    atomic_write(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def read_list(path: Path) -> RereadList | None:
    """The list that was drawn last; None: there is none.

    Raises:
        UserError: the file is not a list.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        entries = {str(entry["image_id"]): str(entry["selected_by"]) for entry in content["entries"]}
        if content["schema_version"] != 1 or not set(entries.values()) <= {REVIEW, RANDOM}:
            raise ValueError
        return RereadList(int(content["round"]), str(content["time"]), entries)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a readable list of images to read again; draw another one.") from error
