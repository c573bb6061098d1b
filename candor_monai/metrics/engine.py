"""From the draws of a group to its cells: the requests that are compared, and what is made of the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from .cells import Cell
from .discordance import discordance_margin, neighbour_mean, tie_rate
from .draw import Draw, Exclusions, draw_key, excluded_candidates, same_code_pairs
from .margin_sweep import Side, nearest_means
from .neighbours import Counts, Neighbours, Request
from .observations import Observations
from .options import Options
from .similarity import FeatureRows

#: Answers requests: (requests, number of neighbours) -> neighbours.
Search = Callable[[Sequence[Request], int], list[Neighbours]]


@dataclass(frozen=True)
class GridPoint:
    """D of one draw at one set size and one k.

    Attributes:
        redraw: number of the draw, from 0.
        k: neighbours.
        n: candidates a side.
        dm: discordance margin of the positive queries that had k candidates a side, float64; none when n < k + 1.
    """

    finding: str
    group: str
    redraw: int
    k: int
    n: int
    dm: np.ndarray


@dataclass(frozen=True)
class _Compared:
    """A draw cut to n candidates a side, with the queries it leaves."""

    redraw: int
    n: int
    exclusions: Exclusions
    kept: np.ndarray


def score_group(
    observations: Observations, options: Options, drawn: Sequence[Draw], search: Search, common: int | None
) -> tuple[list[Cell], list[GridPoint]]:
    """Cells (without margin scores) and grid of all findings of one group.

    Args:
        observations: the cohort.
        options: of the measure.
        drawn: the draws of the group's findings.
        search: answers requests.
        common: set size of ``D_common``, or None.
    """
    most = max((options.k, *options.ks))
    requests: list[Request] = []
    plans = []
    for draw in drawn:
        compared = [] if draw.reason else _compared(observations, options, draw, common)
        first = len(requests)
        if compared:
            requests += _whole_group(observations, options, draw)
        for item in compared:
            requests += _sides(draw, item)
        plans.append((compared, first))
    answers = search(requests, most)
    cells, grid = [], []
    for draw, (compared, first) in zip(drawn, plans, strict=True):
        cells.append(_cell(options, draw, compared, answers[first:], common))
        grid += _grid(options, draw, compared, answers[first + 2 :])
    return cells, grid


def insufficient_cell(draw: Draw, reason: str, dropped: int = 0) -> Cell:
    """A cell of which nothing can be estimated."""
    rows, values = np.empty(0, np.int64), np.empty(0)
    return Cell(
        draw.finding,
        draw.group,
        draw.rows_pos,
        draw.rows_neg,
        rows,
        rows,
        rows,
        np.empty(0, np.int8),
        np.empty(0, bool),
        *(values,) * 6,
        None,
        "insufficient",
        reason,
        dropped,
    )


def _compared(observations: Observations, options: Options, draw: Draw, common: int | None) -> list[_Compared]:
    """The draw itself first, then the common size, the further draws, and the grid."""
    plan = [(0, draw.n)]
    if common is not None and common < draw.n:
        plan.append((0, common))
    plan += [(redraw, draw.n) for redraw in range(1, len(draw.sets))]
    sizes = [size for size in options.sizes if size < draw.n]
    plan += [(redraw, size) for redraw in range(len(draw.sets)) for size in sizes if (redraw, size) not in plan]
    out = []
    for redraw, size in plan:
        pos, neg = (side[:size] for side in draw.sets[redraw])
        key = draw_key(observations, options, draw.finding, draw.group, redraw)
        exclusions = excluded_candidates(observations, options, key, draw.queries, draw.query_label, pos, neg)
        kept = (exclusions.left_pos >= options.k) & (exclusions.left_neg >= options.k)
        out.append(_Compared(redraw, size, exclusions, kept))
    return out


def _whole_group(observations: Observations, options: Options, draw: Draw) -> list[Request]:
    """Every positive and every negative of the group; the query (or its patient) left out."""
    codes = observations.units if options.exclude_same_patient else np.arange(len(observations))
    return [
        Request(draw.queries, side, same_code_pairs(codes, draw.queries, side))
        for side in (draw.rows_pos, draw.rows_neg)
    ]


def _sides(draw: Draw, item: _Compared) -> list[Request]:
    pos, neg = (side[: item.n] for side in draw.sets[item.redraw])
    return [Request(draw.queries, pos, item.exclusions.pos), Request(draw.queries, neg, item.exclusions.neg)]


def _margins(answers: Sequence[Neighbours], kept: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    c_pos, c_neg = (neighbour_mean(side.similarities[kept], k) for side in answers[:2])
    return c_pos, c_neg, discordance_margin(c_pos, c_neg)


def _cell(
    options: Options, draw: Draw, compared: list[_Compared], answers: Sequence[Neighbours], common: int | None
) -> Cell:
    if draw.reason:
        return insufficient_cell(draw, draw.reason)
    kept = compared[0].kept
    dropped = int((~kept).sum())
    own = draw.query_label == 1
    if not (kept & own).any():
        return insufficient_cell(
            draw, f"every query is left with fewer than k = {options.k} candidates a side", dropped
        )
    sides = _margins(answers[2:4], kept, options.k)
    whole = _margins(answers[:2], kept, options.k)
    at_common = None if common is None or common > draw.n else sides[2]
    redraws = []
    for place, item in enumerate(compared[1:], start=1):
        answer = answers[2 + 2 * place : 4 + 2 * place]
        if item.redraw == 0 and item.n == common:
            at_common = _spread(answer, item.kept, options.k)[kept]
        elif item.redraw and item.n == draw.n:
            redraws.append(_spread(answer, item.kept, options.k)[kept])
    ties = tie_rate(sides[2][own[kept]]) or 0.0
    tied = ties > options.tie_limit
    return Cell(
        draw.finding,
        draw.group,
        draw.rows_pos,
        draw.rows_neg,
        *draw.sets[0],
        draw.queries[kept],
        draw.query_label[kept],
        compared[0].exclusions.removed[kept],
        *sides,
        *whole,
        None,
        "tied" if tied else "ok",
        f"tie rate {ties:.4g} is above {options.tie_limit:g}: the features do not tell images apart" if tied else None,
        dropped,
        at_common,
        None if at_common is None else common,
        np.array(redraws).reshape(len(draw.sets) - 1, int(kept.sum())),
    )


def _spread(answers: Sequence[Neighbours], kept: np.ndarray, k: int) -> np.ndarray:
    """DM over all queries, NaN where the set leaves fewer than k candidates."""
    out = np.full(len(kept), np.nan)
    out[kept] = _margins(answers, kept, k)[2]
    return out


def _grid(options: Options, draw: Draw, compared: list[_Compared], answers: Sequence[Neighbours]) -> list[GridPoint]:
    points = []
    if options.ks or options.sizes:
        sizes = {draw.n, *options.sizes}
        for place, item in enumerate(compared):
            if item.n not in sizes:
                continue
            pair = answers[2 * place : 2 * place + 2]
            own = draw.query_label == 1
            for k in sorted({options.k, *options.ks}):
                kept = own & (item.n > k) & (item.exclusions.left_pos >= k) & (item.exclusions.left_neg >= k)
                dm = _margins(pair, kept, k)[2]
                points.append(GridPoint(draw.finding, draw.group, item.redraw, k, item.n, dm))
    return points


def margin_scores(
    rows: FeatureRows, observations: Observations, options: Options, cells: Sequence[Cell], counts: Counts
) -> list[np.ndarray | None]:
    """The margin classifier: c⁺ − c⁻ of every labelled image of each cell.

    Returns:
        for each cell, the scores of ``rows_pos`` then ``rows_neg``, NaN where fewer than k candidates are left, or
        None where the cell has no candidates.
    """
    out: list[np.ndarray | None] = [None] * len(cells)
    places = [place for place, cell in enumerate(cells) if cell.n]
    for _, members in groupby(places, key=lambda place: cells[place].group):
        sides = [side for place in members for side in _margin_sides(observations, options, cells[place], place)]
        means = nearest_means(rows, sides, options, counts, observations.order)
        for first in range(0, len(sides), 2):
            out[sides[first].cell] = means[first] - means[first + 1]
    return out


def _margin_sides(observations: Observations, options: Options, cell: Cell, place: int) -> list[Side]:
    members = np.concatenate([cell.rows_pos, cell.rows_neg])
    labels = (np.arange(len(members)) < len(cell.rows_pos)).astype(np.int8)
    key = draw_key(observations, options, cell.finding, cell.group, 0)
    exclusions = excluded_candidates(observations, options, key, members, labels, cell.cand_pos, cell.cand_neg)
    return [
        Side(place, members, cell.cand_pos, exclusions.pos),
        Side(place, members, cell.cand_neg, exclusions.neg),
    ]
