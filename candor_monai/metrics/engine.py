"""From the draws of a group to its cells: the requests that are compared, and what is made of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from .cells import Cell
from .compared_draw import ComparedDraw, compare, margins
from .discordance import tie_rate
from .draw import Draw, draw_key, excluded_candidates, same_code_pairs
from .margin_block import Side
from .margin_sweep import nearest_means
from .neighbours import Counts, Request
from .observations import Observations
from .options import Options
from .redraws import Margins, Redraws, Search
from .similarity import FeatureRows


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
    ks = sorted({options.k, *options.ks})
    requests: list[Request] = []
    plans = []
    for draw in drawn:
        compared = [] if draw.reason else _compared(observations, options, draw, common)
        plans.append((compared, len(requests)))
        if compared:
            requests += _whole_group(observations, options, draw)
        for item in compared:
            requests += item.requests()
    redraws = Redraws(observations, options, drawn, ks)
    lists, depths = redraws.requests()
    answers = search([*requests, *lists], [ks[-1]] * len(requests) + depths)
    further = redraws.margins(answers[len(requests) :], search)
    cells, grid = [], []
    for draw, (compared, first), redrawn in zip(drawn, plans, further, strict=True):
        found = [answer.similarities for answer in answers[first : first + 2 + 2 * len(compared)]]
        cells.append(_cell(options, draw, compared, found, redrawn, common))
        if compared and (options.ks or options.sizes):
            grid += _grid(options, draw, compared, found[2:], redrawn, common)
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


def _compared(observations: Observations, options: Options, draw: Draw, common: int | None) -> list[ComparedDraw]:
    """The first draw: itself, then at the common size, and at the sizes of the grid."""
    sizes = [draw.n]
    if common is not None and common < draw.n:
        sizes.append(common)
    sizes += [size for size in options.sizes if size < draw.n and size not in sizes]
    return [compare(observations, options, draw, 0, size) for size in sizes]


def _whole_group(observations: Observations, options: Options, draw: Draw) -> list[Request]:
    """Every positive and every negative of the group; the query (or its patient) left out."""
    codes = observations.units if options.exclude_same_patient else np.arange(len(observations))
    return [
        Request(draw.queries, side, same_code_pairs(codes, draw.queries, side))
        for side in (draw.rows_pos, draw.rows_neg)
    ]


def _cell(
    options: Options,
    draw: Draw,
    compared: list[ComparedDraw],
    found: Sequence[np.ndarray],
    redrawn: Margins,
    common: int | None,
) -> Cell:
    """The cell, from the similarities to the whole group and to each of ``compared``, positives before negatives."""
    if draw.reason:
        return insufficient_cell(draw, draw.reason)
    kept = compared[0].kept(options.k)
    dropped = int((~kept).sum())
    own = draw.query_label == 1
    if not (kept & own).any():
        return insufficient_cell(
            draw, f"every query is left with fewer than k = {options.k} candidates a side", dropped
        )
    sides = margins(found[2:4], kept, options.k)
    whole = margins(found[:2], kept, options.k)
    at_common = None if common is None or common > draw.n else sides[2]
    for place, item in enumerate(compared[1:], start=2):
        if item.n == common:
            at_common = item.dm(found[2 * place : 2 * place + 2], options.k)[kept]
    redraws = redrawn[draw.n][options.k][:, kept] if redrawn else np.empty((0, int(kept.sum())))
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
        redraws,
    )


def _grid(
    options: Options,
    draw: Draw,
    compared: list[ComparedDraw],
    found: Sequence[np.ndarray],
    redrawn: Margins,
    common: int | None,
) -> list[GridPoint]:
    """D at every k, set size and draw."""
    ks = sorted({options.k, *options.ks})
    first = {
        item.n: {k: item.dm(found[2 * place : 2 * place + 2], k) for k in ks} for place, item in enumerate(compared)
    }
    sizes = [size for size in options.sizes if size < draw.n]
    plan = [(0, draw.n), *((0, size) for size in sizes if size == common)]
    plan += [(redraw, draw.n) for redraw in range(1, len(draw.sets))]
    plan += [(redraw, size) for redraw in range(len(draw.sets)) for size in sizes if (redraw, size) not in plan]
    own = draw.query_label == 1
    points = []
    for redraw, n in plan:
        for k in ks:
            dm = redrawn[n][k][redraw - 1] if redraw else first[n][k]
            kept = own & np.isfinite(dm) & (n > k)
            points.append(GridPoint(draw.finding, draw.group, redraw, k, n, dm[kept]))
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
    members, positive = cell.labelled
    key = draw_key(observations, options, cell.finding, cell.group, 0)
    exclusions = excluded_candidates(observations, options, key, members, positive, cell.cand_pos, cell.cand_neg)
    return [
        Side(place, members, cell.cand_pos, exclusions.pos),
        Side(place, members, cell.cand_neg, exclusions.neg),
    ]
