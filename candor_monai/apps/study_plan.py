"""Before a study's work: what will be run, what is there already, and about how long it will take, from what was
measured before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..utils.atomic import atomic_write
from ..utils.errors import UserError
from ..utils.resources import resource
from ..utils.yaml_files import read_yaml
from ..visualize.results_files import read_results
from .doctor import clock

# A cell's record of encoding: images, seconds.
ENCODED = "encoded.json"
HERE, COSTS = "measured here", "the table of encoders, one thread"
UNKNOWN = "not known yet"


@dataclass(frozen=True)
class Estimate:
    """A time and where it is from.

    Args:
        seconds: None where nothing is known.
        source: where it is from.
    """

    seconds: float | None
    source: str


@dataclass(frozen=True)
class PlannedCell:
    """One cell before the work.

    Args:
        name: of the cell.
        encoder: name of the encoder.
        cohort: the cohort's label.
        images: of the cohort.
        to_encode: images that have no feature yet.
        views: occluded views that have none.
        scored: whether results of these options are there.
        ablations: how many ablations, and how many of them are there.
        encode, score: times, of one scoring.
    """

    name: str
    encoder: str
    cohort: str
    images: int
    to_encode: int
    views: int
    scored: bool
    ablations: tuple[int, int]
    encode: Estimate
    score: Estimate

    @property
    def scorings(self) -> int:
        """Scorings to do: the cell's own and its ablations'."""
        return int(not self.scored) + self.ablations[0] - self.ablations[1]


def speed_record(folder: Path, images: int, seconds: float) -> None:
    """Keep how long a cell's encoding took, for later plans."""
    if images > 0 and seconds > 0:
        atomic_write(folder / ENCODED, json.dumps({"images": images, "seconds": round(seconds, 3)}) + "\n")


def plan_study(cells: Iterable[Mapping[str, Any]], folder: Path) -> list[PlannedCell]:
    """The cells with their times.

    Args:
        cells: fields of :class:`PlannedCell` but the times.
        folder: the study's, where earlier cells left what they measured.
    """
    encoded, scored = _encoding_records(folder), _scoring_records(folder)
    return [
        PlannedCell(
            **cell,
            encode=encoding_time(cell["encoder"], cell["to_encode"] + cell["views"], encoded),
            score=scoring_time(cell["name"], cell["cohort"], cell["images"], scored),
        )
        for cell in cells
    ]


def encoding_time(encoder: str, images: int, records: Mapping[str, tuple[int, float]]) -> Estimate:
    """Time to encode images: by the encoder's own earlier rate here, else by the table of encoders.

    Args:
        encoder: its name.
        images: how many.
        records: encoder -> images encoded and seconds taken.

    >>> encoding_time("mine", 50, {"mine": (100, 20.0)})
    Estimate(seconds=10.0, source='measured here')
    >>> encoding_time("dinov3_s", 1000, {})
    Estimate(seconds=104.0, source='the table of encoders, one thread')
    >>> encoding_time("mine", 50, {})
    Estimate(seconds=None, source='not known yet')
    """
    if not images:
        return Estimate(0.0, "")
    if encoder in records:
        done, seconds = records[encoder]
        return Estimate(images * seconds / done, HERE)
    if encoder in _costs():
        return Estimate(images * _costs()[encoder], COSTS)
    return Estimate(None, UNKNOWN)


def scoring_time(cell: str, cohort: str, images: int, records: Mapping[str, tuple[str, int, float]]) -> Estimate:
    """Time of one scoring: the cell's own before, else its cohort's other cells', else other cohorts' by images.

    Args:
        cell: its name.
        cohort: its cohort's label.
        images: of the cohort.
        records: cell -> its cohort's label, images and seconds.

    >>> scoring_time("c", "chest", 100, {"a": ("chest", 100, 4.0), "b": ("chest", 100, 6.0), "d": ("fundus", 50, 1.0)})
    Estimate(seconds=5.0, source='measured here')
    >>> scoring_time("c", "skin", 100, {"d": ("fundus", 50, 1.0)})
    Estimate(seconds=2.0, source='measured here on other cohorts')
    """
    if cell in records:
        return Estimate(records[cell][2], HERE)
    same = [seconds for label, _, seconds in records.values() if label == cohort]
    if same:
        return Estimate(sum(same) / len(same), HERE)
    rates = [seconds / n for _, n, seconds in records.values() if n]
    if rates:
        return Estimate(images * sum(rates) / len(rates), f"{HERE} on other cohorts")
    return Estimate(None, UNKNOWN)


def tell_plan(name: str, cells: Sequence[PlannedCell]) -> str:
    """The plan as text: a line a cell, then the whole time and where it is from."""
    encoders = len({cell.encoder for cell in cells})
    cohorts = len({cell.cohort for cell in cells})
    lines = [f"study {name}: {len(cells)} cells of {encoders} encoders and {cohorts} cohorts"]
    width = max(len(cell.name) for cell in cells)
    lines += [f"  {cell.name.ljust(width)}  {_cell(cell)}" for cell in cells]
    parts = [(cell.encode, 1) for cell in cells if cell.to_encode or cell.views]
    parts += [(cell.score, cell.scorings) for cell in cells if cell.scorings]
    if not parts:
        return "\n".join([*lines, "  nothing to compute but the comparison"])
    known = [(part, times) for part, times in parts if part.seconds is not None]
    sources = dict.fromkeys(part.source for part, _ in known)
    total = sum((part.seconds or 0.0) * times for part, times in known)
    missing = len(parts) - len(known)
    told = f"  about {clock(total)} to go ({'; '.join(sources)})" if known else "  how long is not known"
    if missing:
        told += f"{';' if known else ':'} nothing like {missing} of {len(parts)} parts was measured before"
    return "\n".join([*lines, told])


def _cell(cell: PlannedCell) -> str:
    stored = cell.images - cell.to_encode
    encode = f"encode {cell.to_encode} of {cell.images} images" if cell.to_encode else f"{stored} features are there"
    encode += f" and {cell.views} views" if cell.views else ""
    if cell.encode.seconds:
        encode += f" (about {clock(cell.encode.seconds)})"
    score = "results are there" if cell.scored else "score"
    if not cell.scored and cell.score.seconds is not None:
        score += f" (about {clock(cell.score.seconds)})"
    planned, done = cell.ablations
    more = f", {planned - done} of {planned} ablations" if planned else ""
    return f"{encode}, {score}{more}"


@cache
def _costs() -> dict[str, float]:
    return {name: float(seconds) for name, seconds in read_yaml(resource("configs", "encoder_costs.yaml")).items()}


def _encoding_records(folder: Path) -> dict[str, tuple[int, float]]:
    """Encoder -> images and seconds, over the cells that encoded."""
    found: dict[str, tuple[int, float]] = {}
    for path in sorted(folder.glob(f"cells/*/{ENCODED}")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            encoder = path.parent.name.rpartition("--")[2]
            images, seconds = found.get(encoder, (0, 0.0))
            found[encoder] = (images + int(record["images"]), seconds + float(record["seconds"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a record that cannot be read estimates nothing
    return found


def _scoring_records(folder: Path) -> dict[str, tuple[str, int, float]]:
    """Cell -> its cohort's label, images and seconds of scoring."""
    found = {}
    for path in sorted(folder.glob("cells/*/results.json")):
        try:
            results = read_results(path)
        except UserError:
            continue
        seconds = results["timings"].get("score")
        if seconds:
            label = path.parent.name.rpartition("--")[0]
            found[path.parent.name] = (label, int(results["accounting"]["scored"]), float(seconds))
    return found
