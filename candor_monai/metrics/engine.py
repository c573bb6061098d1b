"""From the draws of a group to its cells: the requests that are compared, and what is made of the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .cells import Cell
from .compared_draw import ComparedDraw, compare, margins
from .discordance import tie_rate
from .draw import Draw, draw_key, excluded_candidates, same_code_pairs
from .margin_sweep import nearest_means
from .neighbours import Counts, Neighbours, Request
from .observations import Observations
from .options import LEAST_MEMORY, Options
from .redraws import Margins, Redraws, Search
from .shared_requests import DistinctRequests
from .similarity import FeatureRows

# Bytes of a neighbour that is asked for, while it is looked for: 85 to 111 were measured.
_ANSWER_BYTES = 120


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
class GroupQuestions:
    """What one option set asks about one group.

    Attributes:
        observations, options, drawn, common: as given to :func:`group_questions`.
        compared: of each draw, itself and its smaller sizes; none where nothing can be estimated.
        redraws: the further draws.
        requests: those of every draw (the whole group, then of ``compared``), positives before negatives.
        ks: neighbours of each.
        listed: the requests of ``redraws``, with the neighbours of each.
    """

    observations: Observations
    options: Options
    drawn: Sequence[Draw]
    common: int | None
    compared: list[list[ComparedDraw]]
    redraws: Redraws
    requests: list[Request]
    ks: list[int]
    listed: tuple[list[Request], list[int]]


def group_questions(
    observations: Observations, options: Options, drawn: Sequence[Draw], common: int | None, sharers: int = 1
) -> GroupQuestions:
    """What is to be found for all findings of one group.

    Args:
        observations: the cohort.
        options: of the measure.
        drawn: the draws of the group's findings.
        common: set size of ``D_common``, or None.
        sharers: option sets with further draws that are answered together, and share the memory for their lists.
    """
    ks = sorted({options.k, *options.ks})
    compared = [[] if draw.reason else _compared(observations, options, draw, common) for draw in drawn]
    requests: list[Request] = []
    for draw, items in zip(drawn, compared, strict=True):
        if items:
            requests += _whole_group(observations, options, draw)
        for item in items:
            requests += item.requests()
    narrowed = replace(options, memory_bytes=max(options.memory_bytes // sharers, LEAST_MEMORY))
    redraws = Redraws(observations, narrowed, drawn, ks)
    return GroupQuestions(
        observations,
        options,
        drawn,
        common,
        compared,
        redraws,
        requests,
        [ks[-1]] * len(requests),
        redraws.requests(),
    )


def score_group(asked: Sequence[GroupQuestions], search: Search) -> list[tuple[list[Cell], list[GridPoint]]]:
    """Cells (without margin scores) and grid of all findings of one group, for each option set.

    The requests of as many option sets as the memory holds answers for go to one search; equal ones are one.

    Args:
        asked: of each option set, all with the same ``memory_bytes``.
        search: answers requests.
    """
    out = []
    for some in _together(asked):
        distinct = DistinctRequests()
        places = [[distinct.add(request, k) for request, k in zip(*_all_requests(one), strict=True)] for one in some]
        answers = search(distinct.requests, distinct.ks)
        for one, own in zip(some, places, strict=True):
            found = [answers[place].nearest(k) for place, k in zip(own, _all_requests(one)[1], strict=True)]
            out.append(_group_cells(one, found, search))
    return out


def _all_requests(asked: GroupQuestions) -> tuple[list[Request], list[int]]:
    return asked.requests + asked.listed[0], asked.ks + asked.listed[1]


def _together(asked: Sequence[GroupQuestions]) -> Iterator[list[GroupQuestions]]:
    """Option sets, in their order, whose answers half of the memory holds; those of further draws are bounded apart."""
    some: list[GroupQuestions] = []
    distinct, number = DistinctRequests(), 0
    for one in asked:
        further = distinct.further(one.requests, one.ks)
        if some and (number + further) * _ANSWER_BYTES > one.options.memory_bytes // 2:
            yield some
            some, distinct, number = [], DistinctRequests(), 0
            further = distinct.further(one.requests, one.ks)
        for request, k in zip(one.requests, one.ks, strict=True):
            distinct.add(request, k)
        some.append(one)
        number += further
    if some:
        yield some


def _group_cells(
    asked: GroupQuestions, answers: Sequence[Neighbours], search: Search
) -> tuple[list[Cell], list[GridPoint]]:
    """Cells and grid of one option set, from the answers to all that it asked."""
    options, common = asked.options, asked.common
    further = asked.redraws.margins(answers[len(asked.requests) :], search)
    cells, grid, first = [], [], 0
    for draw, compared, redrawn in zip(asked.drawn, asked.compared, further, strict=True):
        count = 2 + 2 * len(compared) if compared else 0
        found = [answer.similarities for answer in answers[first : first + count]]
        first += count
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
    rows: FeatureRows,
    observations: Observations,
    wanted: Sequence[tuple[Options, Sequence[Cell]]],
    counts: Counts,
) -> list[list[np.ndarray | None]]:
    """The margin classifier: c⁺ − c⁻ of every labelled image of each cell, for each option set.

    Sets of the same images against the same candidates are scored once for all option sets of one k: those of
    exchanged roles, for example, which have the margins of the others, negated.

    Args:
        rows: the features.
        observations: the cohort.
        wanted: options and cells of each option set, all with the same ``precision`` and ``memory_bytes``.
        counts: is added to.

    Returns:
        for each option set and cell, the scores of ``rows_pos`` then ``rows_neg``, NaN where fewer than k candidates
        are left, or None where the cell has no candidates.
    """
    out: list[list[np.ndarray | None]] = [[None] * len(cells) for _, cells in wanted]
    places: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for at, (options, cells) in enumerate(wanted):
        for place, cell in enumerate(cells):
            if cell.n:
                places.setdefault((options.k, cell.group), []).append((at, place))
    for some in places.values():
        distinct = DistinctRequests()
        found: list[tuple[list[int], np.ndarray]] = []
        for at, place in some:
            by, sides = _margin_sides(observations, wanted[at][0], wanted[at][1][place])
            found.append(([distinct.add(side, wanted[at][0].k) for side in sides], by))
        means = nearest_means(rows, distinct.requests, wanted[some[0][0]][0], counts, observations.order)
        for (at, place), ((pos, neg), by) in zip(some, found, strict=True):
            margin = np.empty(len(by))
            margin[by] = means[pos] - means[neg]
            out[at][place] = margin
    return out


def _margin_sides(observations: Observations, options: Options, cell: Cell) -> tuple[np.ndarray, list[Request]]:
    """The order of the cell's labelled images by row, and these in that order against each set.

    So what exchanged roles or other options do not change is seen to be the same.
    """
    members, positive = cell.labelled
    by = np.argsort(members)
    members, positive = members[by], positive[by]
    key = draw_key(observations, options, cell.finding, cell.group, 0)
    exclusions = excluded_candidates(observations, options, key, members, positive, cell.cand_pos, cell.cand_neg)
    return by, [
        Request(members, cell.cand_pos, exclusions.pos),
        Request(members, cell.cand_neg, exclusions.neg),
    ]
