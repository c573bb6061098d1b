"""The images that stand behind one discordant positive: its nearest candidates of both kinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

PLACE = ["task", "finding", "group"]
COLUMNS = ("encoder", "task", "finding", "group", "query", "label", "rank", "image_id", "similarity")


def discordant_examples(queries: pd.DataFrame, count: int) -> pd.DataFrame:
    """The clearest discordant queries of each encoder and finding: those with the largest margin, one a patient.

    Args:
        queries: rows of queries.parquet, with the columns encoder, task, finding, group, image_id, patient, c_pos,
            c_neg, dm and discordant.
        count: at most this many an encoder and finding.

    Returns:
        the chosen rows, the column ``place`` (0 for the clearest) added, in the order encoder, task, finding, place.
    """
    if count < 1 or not len(queries):
        return queries.iloc[:0].assign(place=pd.Series(dtype="int64"))
    rows = queries[queries["discordant"].astype(bool)].sort_values(["dm", "image_id"], ascending=[False, True])
    cells = ["encoder", "task", "finding"]
    if "patient" in rows:
        person = rows["patient"].where(rows["patient"].notna(), rows["image_id"])
        rows = rows.assign(person=person).drop_duplicates([*cells, "person"]).drop(columns="person")
    rows = rows.assign(place=rows.groupby(cells, sort=False).cumcount())
    return rows[rows["place"] < count].sort_values([*cells, "place"], kind="stable")


def nearest_neighbours(
    examples: pd.DataFrame,
    candidates: pd.DataFrame,
    features: Callable[[str, Sequence[str]], np.ndarray],
    k: int = 5,
    sets: str = "patient",
    exclude_same_patient: bool = False,
) -> pd.DataFrame:
    """The k nearest positive and negative candidates of each example, as the measure found them.

    The candidates are those that the measure drew: the example itself is left out of them; with ``sets: patient`` so
    are all of its patient, and the larger side then loses its last-ranked candidates until both are equal.

    Args:
        examples: rows of queries.parquet.
        candidates: rows of candidates.parquet: task, finding, group, image_id, label (1 or 0), rank, patient.
        features: gives the raw features of an encoder's images, shape (n, d), float32.
        k: neighbours of each kind.
        sets: ``"patient"`` or ``"image"``.
        exclude_same_patient: leave the example's patient out with ``sets: image`` too.

    Returns:
        the columns of :data:`COLUMNS`; label is 1 or 0, rank counts from 1, similarity is the cosine.
    """
    by_patient = sets == "patient" or exclude_same_patient
    drawn = {
        place: tuple(part.sort_values("rank")[name].to_numpy() for name in ("image_id", "label", "patient"))
        for place, part in candidates.groupby(PLACE, sort=False)
    }
    asked_id, asked_patient = examples["image_id"].to_numpy(), examples["patient"].to_numpy()
    rows: list[tuple[Any, ...]] = []
    cells: Any = examples.groupby(["encoder", *PLACE], sort=False).indices
    for (encoder, task, finding, group), at in cells.items():
        if (task, finding, group) not in drawn:
            continue
        ids, label, patient = drawn[task, finding, group]
        unit = _unit(features(str(encoder), [str(i) for i in (*ids, *asked_id[at])]))
        for offset, query in enumerate(at):
            similarity = unit[: len(ids)] @ unit[len(ids) + offset]
            keep = ids != asked_id[query]
            if by_patient and isinstance(asked_patient[query], str):
                keep &= patient != asked_patient[query]
            sides = {value: np.flatnonzero(keep & (label == value)) for value in (1, 0)}
            if sets == "patient":
                equal = min(len(side) for side in sides.values())
                sides = {value: side[:equal] for value, side in sides.items()}
            for value, side in sides.items():
                nearest = side[np.argsort(-similarity[side], kind="stable")[:k]]
                rows += [
                    (encoder, task, finding, group, asked_id[query], value, rank, ids[i], float(similarity[i]))
                    for rank, i in enumerate(nearest, 1)
                ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _unit(features: np.ndarray) -> np.ndarray:
    wide = np.asarray(features, dtype=np.float64)
    return wide / np.sqrt((wide * wide).sum(axis=1, keepdims=True))
