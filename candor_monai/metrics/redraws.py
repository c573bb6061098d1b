"""DM under further draws of the candidate sets, read off lists of each query's nearest images.

Every draw asks for the nearest members of another random subset of the same images. So the nearest positives and the
nearest negatives of each query are found once, exactly, and so far down that a random subset nearly always has k among
them. Where it has not, and where lists are not worth their cost, the draw's own sets are searched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from .compared_draw import ComparedDraw, compare
from .draw import Draw, same_code_pairs
from .neighbours import Neighbours, Request
from .observations import Observations
from .options import Options

#: Answers requests: (requests, number of neighbours of each) -> neighbours.
Search = Callable[[Sequence[Request], Sequence[int]], list[Neighbours]]
#: (redraw, n) -> k -> DM of every query, shape (Q,), float64; NaN where fewer than k candidates are left.
Margins = dict[tuple[int, int], dict[int, np.ndarray]]

# A listed neighbour costs about as much as so many scored pairs; and its bytes, while it is looked for and then.
_WORTH = 100
_FOUND_BYTES, _KEPT_BYTES = 512, 16
# Bytes of a candidate and of a neighbour in a draw that is searched.
_SEARCHED = 64
# Draws that a thread of its own is worth.
_FEWEST = 8
_NOWHERE = np.int32(2**31 - 1)


@dataclass
class _Redrawn:
    """A further draw at one set size.

    Attributes:
        place: of its finding among those of the group.
        redraw: number of the draw, from 1.
        n: candidates a side.
        dm: for each k, DM of the queries; NaN where fewer than k candidates are left.
        open: queries that the lists do not answer, shape (Q,), bool.
    """

    place: int
    redraw: int
    n: int
    dm: dict[int, np.ndarray]
    open: np.ndarray


class Redraws:
    """The further draws of all findings of a group.

    Args:
        observations: the cohort.
        options: of the measure.
        drawn: the draws of the group's findings.
        ks: every k, ascending.

    Attributes:
        depths: place of each finding with lists -> neighbours of its queries in them, positives and negatives.
    """

    def __init__(self, observations: Observations, options: Options, drawn: Sequence[Draw], ks: Sequence[int]) -> None:
        self._observations, self._options, self._drawn, self._ks = observations, options, drawn, ks
        self._codes = observations.units if options.by_patient else np.arange(len(observations))
        self.depths: dict[int, list[int]] = {}
        spare = options.memory_bytes // 4
        for place, draw in enumerate(drawn):
            if draw.reason or options.redraws == 1:
                continue
            sides = (draw.rows_pos, draw.rows_neg)
            depths = [_depth(ks[-1], draw.n / len(side), len(side)) for side in sides]
            need = len(draw.queries) * sum(depths) * _KEPT_BYTES
            if _WORTH * sum(depths) < 2 * draw.n * (options.redraws - 1) and need <= spare:
                spare -= need
                self.depths[place] = depths

    def margins(self, search: Search) -> list[Margins]:
        """DM of every query in every further draw.

        Args:
            search: for the lists, and for what they do not answer.

        Returns:
            for each finding, the margins of its further draws, in order.
        """
        done: list[_Redrawn] = []
        lists = self._lists(search)
        for place, draw in enumerate(self._drawn):
            if not draw.reason:
                done += self._of_finding(place, lists.pop(place, None))
        self._search_open([one for one in done if one.open.any()], search)
        out: list[Margins] = [{} for _ in self._drawn]
        for one in done:
            out[one.place][one.redraw, one.n] = one.dm
        return out

    def _lists(self, search: Search) -> dict[int, list[Neighbours]]:
        """Nearest positives and negatives, without those of the query's code, of each finding with lists.

        They are looked for with as many queries at once as half of the memory allows.
        """
        room = self._options.memory_bytes // 2
        batches: list[list[tuple[int, int, Request, int]]] = [[]]
        spare = room
        for place, depths in self.depths.items():
            draw = self._drawn[place]
            for label, (side, depth) in enumerate(zip((draw.rows_pos, draw.rows_neg), depths, strict=True)):
                whole = Request(draw.queries, side, same_code_pairs(self._codes, draw.queries, side))
                first = 0
                while first < len(draw.queries):
                    count = min(max(spare // (depth * _FOUND_BYTES), 1), len(draw.queries) - first)
                    batches[-1].append((place, label, whole.of_queries(np.arange(first, first + count)), depth))
                    spare -= count * depth * _FOUND_BYTES
                    first += count
                    if spare < depth * _FOUND_BYTES:
                        batches.append([])
                        spare = room
        found: dict[tuple[int, int], list[Neighbours]] = {}
        for batch in filter(None, batches):
            answers = search([request for _, _, request, _ in batch], [depth for *_, depth in batch])
            for (place, label, *_), answer in zip(batch, answers, strict=True):
                found.setdefault((place, label), []).append(answer)
        return {place: [_joined(found[place, label]) for label in (0, 1)] for place in self.depths}

    def _of_finding(self, place: int, lists: Sequence[Neighbours] | None) -> list[_Redrawn]:
        """All further draws of one finding, in order; they are shared out over threads."""

        def some(span: tuple[int, int]) -> list[_Redrawn]:
            rank = np.full(len(self._observations) + 1, _NOWHERE)  # the last: of images that a short list lacks
            return [one for redraw in range(*span) for one in self._of_draw(place, redraw, lists, rank)]

        last, workers = len(self._drawn[place].sets), torch.get_num_threads()
        share = max(-(-(last - 1) // workers), _FEWEST)
        spans = [(first, min(first + share, last)) for first in range(1, last, share)]
        if len(spans) == 1 or lists is None:
            return [one for span in spans for one in some(span)]
        with ThreadPoolExecutor(workers) as pool:
            return [one for found in pool.map(some, spans) for one in found]

    def _of_draw(self, place: int, redraw: int, lists: Sequence[Neighbours] | None, rank: np.ndarray) -> list[_Redrawn]:
        draw = self._drawn[place]
        sizes = [draw.n, *(size for size in self._options.sizes if size < draw.n)]
        if lists is None:
            everyone, nothing = np.ones(len(draw.queries), bool), np.full(len(draw.queries), np.nan)
            return [_Redrawn(place, redraw, n, {k: nothing.copy() for k in self._ks}, everyone) for n in sizes]
        sets = draw.sets[redraw]
        for side in sets:
            rank[side] = np.arange(len(side))
        ranks = [rank.take(found.rows) for found in lists]
        for side in sets:
            rank[side] = _NOWHERE
        return [self._read_off(place, redraw, n, lists, ranks) for n in sizes]

    def _read_off(
        self, place: int, redraw: int, n: int, lists: Sequence[Neighbours], ranks: Sequence[np.ndarray]
    ) -> _Redrawn:
        draw, most = self._drawn[place], self._ks[-1]
        compared = compare(self._observations, self._options, draw, redraw, n)
        out = compared.exclusions
        similarities = []
        unanswered = np.zeros(len(draw.queries), bool)
        for found, ranked, side, whole, pairs, left in (
            (lists[0], ranks[0], compared.pos, draw.rows_pos, out.pos, out.left_pos),
            (lists[1], ranks[1], compared.neg, draw.rows_neg, out.neg, out.left_neg),
        ):
            query, candidate = pairs
            # Images of the query's own code are not in its list; others can be left out of this draw alone.
            other = self._codes[draw.queries[query]] != self._codes[side[candidate]]
            values, number = _nearest_members(found, ranked, n, (query[other], candidate[other]), most)
            similarities.append(values)
            if found.rows.shape[1] < len(whole):
                unanswered |= number < np.minimum(most, left)
        return _Redrawn(place, redraw, n, self._dm(compared, similarities, unanswered), unanswered)

    def _dm(
        self, compared: ComparedDraw, similarities: Sequence[np.ndarray], unanswered: np.ndarray
    ) -> dict[int, np.ndarray]:
        if unanswered.any():
            # Replaced by what is searched for; until then any finite number will do.
            similarities = [np.where(unanswered[:, None], 0.0, side) for side in similarities]
        return {k: compared.dm(similarities, k) for k in self._ks}

    def _search_open(self, unanswered: Sequence[_Redrawn], search: Search) -> None:
        """Search the draws' own sets, as many together as an eighth of the memory holds."""
        batch: list[_Redrawn] = []
        spare = self._options.memory_bytes // 8
        for one in unanswered:
            need = 2 * (one.n + int(one.open.sum()) * self._ks[-1]) * _SEARCHED
            if batch and need > spare:
                self._search_batch(batch, search)
                batch, spare = [], self._options.memory_bytes // 8
            batch.append(one)
            spare -= need
        if batch:
            self._search_batch(batch, search)

    def _search_batch(self, batch: Sequence[_Redrawn], search: Search) -> None:
        every = [compare(self._observations, self._options, self._drawn[o.place], o.redraw, o.n) for o in batch]
        requests = [
            request.of_queries(np.flatnonzero(one.open))
            for one, compared in zip(batch, every, strict=True)
            for request in compared.requests()
        ]
        answers = search(requests, [self._ks[-1]] * len(requests))
        for place, (one, compared) in enumerate(zip(batch, every, strict=True)):
            pair = []
            for answer in answers[2 * place : 2 * place + 2]:
                values = np.zeros((len(one.open), self._ks[-1]))
                values[one.open] = answer.similarities
                pair.append(values)
            for k, dm in one.dm.items():
                dm[one.open] = compared.dm(pair, k)[one.open]


def _joined(parts: Sequence[Neighbours]) -> Neighbours:
    """Lists of all queries, from those of some and the others."""
    if len(parts) == 1:
        return parts[0]
    return Neighbours(np.concatenate([p.similarities for p in parts]), np.concatenate([p.rows for p in parts]))


def _depth(k: int, share: float, members: int) -> int:
    """How far down a list holds k members of a random subset, but for one in a hundred thousand.

    A Poisson count of mean (√k + 2.25)² is below k so rarely.
    """
    return min(int(np.ceil((np.sqrt(k) + 2.25) ** 2 / share)), members)


def _nearest_members(
    found: Neighbours, ranks: np.ndarray, n: int, dropped: tuple[np.ndarray, np.ndarray], k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Similarities of each query to the first k of its list that are among the n candidates, and how many are there.

    Args:
        found: the lists.
        ranks: place in the draw of each listed image, shape (Q, K), int32.
        n: candidates.
        dropped: (query, place in the draw) of candidates that the query is not compared with; a query comes once.
        k: neighbours.

    Returns:
        shape (Q, k), float64, −inf where the list ends before; and shape (Q,), int64.
    """
    inside = ranks < n
    query, place = dropped
    if len(query):
        inside[query] &= ranks[query] != place[:, None]
    at = np.flatnonzero(inside)
    number = np.bincount(at // max(1, ranks.shape[1]), minlength=len(ranks))
    first = np.cumsum(number) - number
    there = np.arange(k) < number[:, None]
    out = np.full((len(ranks), k), -np.inf)
    out[there] = found.similarities.ravel()[at[(first[:, None] + np.arange(k))[there]]]
    return out, number
