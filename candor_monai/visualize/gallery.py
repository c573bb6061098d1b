"""The gallery of the report: discordant positives with their nearest neighbours of both kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from .neighbours import discordant_examples, nearest_neighbours
from .pictures import Pictures
from .report_rows import MATRIX_FINDINGS
from .wording import group_name, number

# A page with more examples than this shows smaller pictures.
MANY_EXAMPLES = 150
# Bytes of markup of an example without its tiles, of a tile without its image id, and how often an id is in it.
MARKUP_OF_EXAMPLE = 800
MARKUP_OF_TILE = 190
IDS_OF_TILE = 3
AGREES = 1e-6


@dataclass(frozen=True)
class Tile:
    """One picture with what stands below it."""

    picture: Markup | None
    image_id: str
    similarity: str

    @property
    def short(self) -> str:
        """The last part of the image id, which is the telling one when ids are paths."""
        return self.image_id.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Example:
    """One discordant positive: its own picture, its neighbours of its own and of the other label, its margin."""

    query: Tile
    positives: tuple[Tile, ...]
    negatives: tuple[Tile, ...]
    group: str
    c_pos: str
    c_neg: str
    margin: str
    agrees: bool


@dataclass(frozen=True)
class GalleryCell:
    """The examples of one encoder and finding."""

    task: str
    finding: str
    encoder: str
    queries: int
    discordant: int
    examples: tuple[Example, ...]


@dataclass
class Gallery:
    """All cells, and what the page's size limit left out."""

    cells: list[GalleryCell] = field(default_factory=list)
    shown: int = 0
    chosen: int = 0
    store: Markup = field(default_factory=lambda: Markup(""))
    has_neighbours: bool = False
    images: bool = True

    @property
    def findings(self) -> list[tuple[str, str, list[GalleryCell]]]:
        """(task, finding, its cells), in order."""
        by: dict[tuple[str, str], list[GalleryCell]] = {}
        for cell in self.cells:
            by.setdefault((cell.task, cell.finding), []).append(cell)
        return [(task, finding, cells) for (task, finding), cells in by.items()]


def build_gallery(
    results: Mapping[str, Any],
    queries: pd.DataFrame,
    candidates: pd.DataFrame,
    thumbnails: Callable[[str], np.ndarray | None],
    order: Sequence[str],
    *,
    features: Callable[[str, Sequence[str]], np.ndarray] | None = None,
    neighbours: pd.DataFrame | None = None,
    images: bool = True,
    count: int = 3,
    budget: int = 5_000_000,
) -> Gallery:
    """Choose the examples, find their neighbours, and take as many as the budget allows: the clearest first.

    Tasks of many classes (birds, aircraft) come after the others.

    Args:
        results: the results.
        queries: rows of queries.parquet.
        candidates: rows of candidates.parquet.
        thumbnails: pixels of an image id, or None.
        order: names of the encoders, the most interesting first.
        features: raw features of an encoder's images; with it the neighbours are found here.
        neighbours: the neighbours found elsewhere, in the form of :func:`~.neighbours.nearest_neighbours`.
        images: show pictures; False lists ids and similarities only.
        count: examples of each encoder and finding.
        budget: bytes of pictures and markup.
    """
    queries = positive_queries(queries)
    rank = {name: place for place, name in enumerate(order)}
    examples = discordant_examples(queries, count)
    chosen = len(examples)
    if chosen:
        many = {task: n > MATRIX_FINDINGS for task, n in examples.groupby("task")["finding"].nunique().items()}
        examples = examples.assign(
            class_task=examples["task"].map(many),
            encoder_place=examples["encoder"].map(lambda name: rank.get(name, len(rank))),
        ).sort_values(["class_task", "place", "encoder_place"], kind="stable")
        examples = examples.iloc[: max(0, budget) // MARKUP_OF_EXAMPLE]
    if neighbours is None and features is not None and len(examples):
        neighbours = found_neighbours(examples, candidates, features, results["options"])
    found = _by_query(neighbours)
    pictures = Pictures(thumbnails, *((64, 64) if chosen > MANY_EXAMPLES else (96, 176)))
    records: list[dict[str, Any]] = examples.to_dict("records")  # type: ignore[assignment]
    kept: dict[tuple[str, str, str], list[Example]] = {}
    spent = shown = 0
    for row in records:
        near = found.get((row["encoder"], row["task"], row["finding"], row["image_id"]), {1: [], 0: []})
        ids = [row["image_id"], *(i for side in near.values() for i, _ in side)]
        spent += MARKUP_OF_EXAMPLE + sum(MARKUP_OF_TILE + IDS_OF_TILE * len(i) for i in ids)
        spent += pictures.cost(ids[1:]) + pictures.cost(ids[:1], large=True) if images else 0
        if spent > budget:
            break
        kept.setdefault((row["task"], row["finding"], row["encoder"]), []).append(_example(row, near, pictures, images))
        shown += 1
    return Gallery(
        cells=_cells(queries, kept, rank),
        shown=shown,
        chosen=chosen,
        store=pictures.store(),
        has_neighbours=neighbours is not None and len(neighbours) > 0,
        images=images,
    )


def positive_queries(queries: pd.DataFrame) -> pd.DataFrame:
    """The positive ones of the rows of queries.parquet; with ``queries: test`` there are negative ones too."""
    return queries[queries["label"] == 1] if "label" in queries else queries


def found_neighbours(
    examples: pd.DataFrame,
    candidates: pd.DataFrame,
    features: Callable[[str, Sequence[str]], np.ndarray],
    options: Mapping[str, Any],
) -> pd.DataFrame:
    """Nearest neighbours of examples, with the options that D was measured with.

    Args:
        examples, candidates, features: as :func:`~.neighbours.nearest_neighbours` takes them.
        options: of results.json.
    """
    return nearest_neighbours(
        examples,
        candidates,
        features,
        k=int(options.get("k", 5)),
        sets=str(options.get("sets", "patient")),
        exclude_same_patient=bool(options.get("exclude_same_patient", False)),
    )


def _by_query(neighbours: pd.DataFrame | None) -> dict[tuple[str, ...], dict[int, list[tuple[str, float]]]]:
    found: dict[tuple[str, ...], dict[int, list[tuple[str, float]]]] = {}
    if neighbours is None:
        return found
    columns = ("encoder", "task", "finding", "query", "label", "image_id", "similarity")
    ordered = neighbours.sort_values("rank", kind="stable")
    for *key, label, image_id, similarity in zip(*(ordered[name].to_numpy() for name in columns), strict=True):
        sides = found.setdefault(tuple(key), {1: [], 0: []})
        sides[int(label)].append((image_id, float(similarity)))
    return found


def _example(
    row: Mapping[str, Any], near: Mapping[int, list[tuple[str, float]]], pictures: Pictures, images: bool
) -> Example:
    def tile(image_id: str, what: str, similarity: float | None, large: bool = False) -> Tile:
        text = "" if similarity is None else number(similarity, 4)
        alternative = f"{what}, image {image_id}" + (f", similarity {text}" if text else "")
        return Tile(pictures.show(image_id, alternative, large) if images else None, image_id, text)

    means = {value: float(np.mean([s for _, s in side])) for value, side in near.items() if side}
    agrees = all(
        abs(means[value] - row[name]) <= AGREES
        for value, name in ((1, "c_pos"), (0, "c_neg"))
        if value in means and row.get(name) is not None
    )
    return Example(
        query=tile(row["image_id"], f"positive for {row['finding']}, the image asked about", None, large=True),
        positives=tuple(tile(i, "nearest positive", s) for i, s in near[1]),
        negatives=tuple(tile(i, "nearest negative", s) for i, s in near[0]),
        group=group_name(row["group"]),
        c_pos=number(row["c_pos"], 4),
        c_neg=number(row["c_neg"], 4),
        margin=number(row["dm"], 4),
        agrees=agrees,
    )


def _cells(
    queries: pd.DataFrame, kept: Mapping[tuple[str, str, str], list[Example]], rank: Mapping[str, int]
) -> list[GalleryCell]:
    """Cells with examples, and those without a discordant query; in the order task, finding, encoder."""
    cells = []
    if len(queries):
        sizes = queries.groupby(["task", "finding", "encoder"], sort=False)["discordant"].agg(["size", "sum"])
        for key, size, discordant in zip(sizes.index, sizes["size"], sizes["sum"], strict=True):
            shown = tuple(kept.get(key, ()))
            if shown or not discordant:
                cells.append(GalleryCell(str(key[0]), str(key[1]), str(key[2]), int(size), int(discordant), shown))
    place = {key: i for i, key in enumerate(dict.fromkeys((c.task, c.finding) for c in cells))}
    return sorted(cells, key=lambda c: (place[c.task, c.finding], rank.get(c.encoder, len(rank))))
