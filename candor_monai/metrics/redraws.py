"""DM under further draws of the candidate sets, read off lists of each query's nearest images.

Every draw asks for the nearest members of another random subset of the same images. So the nearest positives and the
nearest negatives of each query are found once, exactly, and so far down that a random subset nearly always has k among
them; then many draws walk down the lists together (:mod:`.listed_draws`). One list over all images of the group, found
in the pass that scores them, holds both labels of most findings; where it holds too few of a label, the query gets a
list of that label alone. Where a list ends too early for a draw, and where lists are not worth their cost, the draw's
own sets are searched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .compared_draw import compare
from .draw import Draw, DrawnSets, draw_key, same_code_pairs
from .keyed_hash import stable_fraction
from .listed_draws import copy_listed, count_listed, leave_out_last, read_margins, set_lane
from .neighbours import Neighbours, Request
from .observations import Observations
from .operand_pool import MANY
from .options import Options
from .score_tables import union
from .workers import in_workers

#: Answers requests: (requests, number of neighbours of each) -> neighbours.
Search = Callable[[Sequence[Request], Sequence[int]], list[Neighbours]]
#: n -> k -> DM of every query in every further draw, shape (redraws - 1, Q), float64; NaN where fewer than k candidates
#: are left.
Margins = dict[int, dict[int, np.ndarray]]

# A listed neighbour costs about as much as so many scored pairs; and its bytes, while it is looked for and then.
_WORTH = 100
_FOUND_BYTES, _KEPT_BYTES = 512, 16
# A list that holds so much of what it should leaves very few draws open.
_ENOUGH = 0.8
# Bytes of a candidate and of a neighbour in a draw that is searched.
_SEARCHED = 64
# Draws whose lists are walked down together, 64 a word.
_LANES = 256


@dataclass(frozen=True)
class _Lists:
    """The nearest positives and the nearest negatives of every query of a finding.

    Attributes:
        start: where the list of each label and query begins, and where the last of the label ends, shape (2, Q + 1),
            int64.
        image: places among the images of the group, nearest first, int32.
        similarity: theirs, float64.
        whole: the list holds every image of the label but those of the query's own code, shape (2, Q), bool.
    """

    start: np.ndarray
    image: np.ndarray
    similarity: np.ndarray
    whole: np.ndarray


class Redraws:
    """The further draws of all findings of a group.

    Args:
        observations: the cohort.
        options: of the measure.
        drawn: the draws of the group's findings.
        ks: every k, ascending.

    Attributes:
        needs: place of each finding with lists -> how many positives and how many negatives a query's list must hold.
        depth: length of the lists over all images; 0: there are none.
        alone: (place of a finding, label) -> those that get lists of their own from the first.
    """

    def __init__(self, observations: Observations, options: Options, drawn: Sequence[Draw], ks: Sequence[int]) -> None:
        self._observations, self._options, self._drawn, self._ks = observations, options, drawn, ks
        self._codes = observations.units if options.by_patient else np.arange(len(observations))
        self.needs: dict[int, list[int]] = {}
        spare = options.memory_bytes // 4
        for place, draw in enumerate(drawn):
            if draw.reason or options.redraws == 1:
                continue
            needs = [_needed(ks[-1], draw.n / len(side), len(side)) for side in _sides(draw)]
            bytes_ = len(draw.queries) * sum(needs) * _KEPT_BYTES
            if _WORTH * sum(needs) < 2 * draw.n * (options.redraws - 1) and bytes_ <= spare:
                spare -= bytes_
                self.needs[place] = needs
        listed = [drawn[place] for place in self.needs]
        self._members = union([side for draw in listed for side in _sides(draw)], len(observations))
        self._asked = union([draw.queries for draw in listed], len(observations))
        self._place = np.full(len(observations) + 1, len(self._members), np.int32)  # the last: of row −1, no image
        self._place[self._members] = np.arange(len(self._members))
        self.depth, self.alone = self._plan(spare)

    def _plan(self, spare: int) -> tuple[int, list[tuple[int, int]]]:
        """The length of lists over all images that costs least, and the labels for which they are then too short."""
        which, depths, costs = [], [], []
        for place, needs in self.needs.items():
            draw = self._drawn[place]
            for label, (need, side) in enumerate(zip(needs, _sides(draw), strict=True)):
                share = len(side) / len(self._members)
                # The label's images are spread over the list by chance.
                depth = int((need + 2.5 * np.sqrt(need * (1 - share))) / share) + 1
                which.append((place, label))
                depths.append(min(depth, len(self._members)))
                costs.append(len(draw.queries) * (len(side) + _WORTH * need))

        def cost(depth: int) -> int:
            alone = sum(cost for at, cost in zip(depths, costs, strict=True) if at > depth)
            # In a large group the lists come from a pass over all images that is made anyway.
            product = len(self._members) if depth and len(self._members) < MANY else 0
            return len(self._asked) * (depth * _WORTH + product) + alone

        affordable = {at for at in depths if len(self._asked) * at * _KEPT_BYTES <= spare}
        depth = min([0, *sorted(affordable)], key=cost)
        alone, room = [], self._options.memory_bytes // 4
        for (place, label), at in zip(which, depths, strict=True):
            need = len(self._drawn[place].queries) * self.needs[place][label] * _FOUND_BYTES
            if at > depth and need <= room:
                room -= need
                alone.append((place, label))
        return depth, alone

    def requests(self) -> tuple[list[Request], list[int]]:
        """What is asked of the sweep beside everything else, and for how many neighbours.

        The lists over all images, where there are any, then those of ``alone``.
        """
        asked, depths = [], []
        if self.depth:
            own = same_code_pairs(self._codes, self._asked, self._members)
            asked.append(Request(self._asked, self._members, own))
            depths.append(self.depth)
        for place, label in self.alone:
            asked.append(self._of_label(place, label))
            depths.append(self.needs[place][label])
        return asked, depths

    def margins(self, answers: Sequence[Neighbours], search: Search) -> list[Margins]:
        """DM of every query in every further draw.

        Args:
            answers: to :meth:`requests`.
            search: for the lists of one label, and for what lists do not answer.

        Returns:
            for each finding, the margins of its further draws.
        """
        out: list[Margins] = [{} for _ in self._drawn]
        if self._options.redraws == 1:
            return out
        shared = answers[0] if self.depth else None
        alone = {
            (place, label): (np.arange(len(self._drawn[place].queries)), answer)
            for (place, label), answer in zip(self.alone, answers[bool(self.depth) :], strict=True)
        }
        alone |= self._further_lists(shared, search)
        unanswered: list[tuple[int, int, np.ndarray]] = []
        for place, draw in enumerate(self._drawn):
            if draw.reason:
                continue
            shape = len(draw.sets) - 1, len(draw.queries)
            sizes = [draw.n, *(size for size in self._options.sizes if size < draw.n)]
            tables = {n: np.full((len(self._ks), *shape), np.nan) for n in sizes}
            out[place] = {n: dict(zip(self._ks, table, strict=True)) for n, table in tables.items()}
            open_ = {n: np.ones(shape, bool) for n in sizes}
            if place in self.needs:
                own = [alone.get((place, label)) for label in (0, 1)]
                self._of_finding(place, self._lists(place, shared, own), tables, open_)
            unanswered += [(place, n, still) for n, still in open_.items() if still.any()]
        self._search_open(unanswered, out, search)
        return out

    def _further_lists(
        self, shared: Neighbours | None, search: Search
    ) -> dict[tuple[int, int], tuple[np.ndarray, Neighbours]]:
        """(place of a finding, label) -> the queries that need lists of that label alone, and these lists.

        They are looked for with as many queries at once as half of the memory allows.
        """
        room = self._options.memory_bytes // 2
        batches: list[list[tuple[int, int, np.ndarray]]] = [[]]
        spare = room
        for place, needs in self.needs.items():
            for label, need in enumerate(needs):
                if (place, label) in self.alone or self.depth == len(self._members):
                    continue
                short = np.flatnonzero(self._listed(place, label, shared) < _ENOUGH * need)
                first = 0
                while first < len(short):
                    count = min(max(spare // (need * _FOUND_BYTES), 1), len(short) - first)
                    batches[-1].append((place, label, short[first : first + count]))
                    spare -= count * need * _FOUND_BYTES
                    first += count
                    if spare < need * _FOUND_BYTES:
                        batches.append([])
                        spare = room
        found: dict[tuple[int, int], list[tuple[np.ndarray, Neighbours]]] = {}
        for batch in filter(None, batches):
            requests = [self._of_label(place, label).of_queries(queries) for place, label, queries in batch]
            depths = [self.needs[place][label] for place, label, _ in batch]
            for (place, label, queries), answer in zip(batch, search(requests, depths), strict=True):
                found.setdefault((place, label), []).append((queries, answer))
        return {
            which: (np.concatenate([queries for queries, _ in parts]), _joined([answer for _, answer in parts]))
            for which, parts in found.items()
        }

    def _of_label(self, place: int, label: int) -> Request:
        draw = self._drawn[place]
        side = _sides(draw)[label]
        return Request(draw.queries, side, same_code_pairs(self._codes, draw.queries, side))

    def _listed(self, place: int, label: int, shared: Neighbours | None) -> np.ndarray:
        """Images of a label in the list over all images of each query of a finding, shape (Q,), int64."""
        number = np.zeros(len(self._drawn[place].queries), np.int64)
        if shared is not None:
            count_listed(shared.rows, self._line(place), self._chosen(place, label), number)
        return number

    def _line(self, place: int) -> np.ndarray:
        """Which of the lists over all images is that of each query of a finding, shape (Q,), int64."""
        return np.searchsorted(self._asked, self._drawn[place].queries)

    def _chosen(self, place: int, label: int) -> np.ndarray:
        """Whether each row, and the row −1 behind them, has the label, shape (N + 1,), bool."""
        chosen = np.zeros(len(self._place), bool)
        chosen[_sides(self._drawn[place])[label]] = True
        return chosen

    def _lists(
        self, place: int, shared: Neighbours | None, own: Sequence[tuple[np.ndarray, Neighbours] | None]
    ) -> _Lists:
        """The lists of a finding: those over all images less the other label, or of a label alone.

        Args:
            place: of the finding.
            shared: lists over all images.
            own: for each label, queries with lists of that label alone, and these.
        """
        draw = self._drawn[place]
        count = len(draw.queries)
        whole = np.full((2, count), self.depth == len(self._members))
        number = np.zeros((2, count), np.int64)
        sources = []
        for label, alone in enumerate(own):
            chosen = self._chosen(place, label)
            line = self._line(place)
            if alone is not None:
                queries, found = alone
                line[queries] = -1
                own_line = np.full(count, -1)
                own_line[queries] = np.arange(len(queries))
                whole[label, queries] = found.rows.shape[1] == len(_sides(draw)[label])
                sources.append((label, found, own_line, chosen))
            if shared is not None:
                sources.append((label, shared, line, chosen))
        for label, found, line, chosen in sources:
            count_listed(found.rows, line, chosen, number[label])
        start = np.zeros((2, count + 1), np.int64)
        np.cumsum(number, axis=1, out=start[:, 1:])
        start[1] += start[0, -1]
        image, similarity = np.empty(start[1, -1], np.int32), np.empty(start[1, -1])
        for label, found, line, chosen in sources:
            copy_listed(found.rows, found.similarities, line, chosen, self._place, start[label], image, similarity)
        return _Lists(start, image, similarity, whole)

    def _of_finding(
        self, place: int, lists: _Lists, margins: dict[int, np.ndarray], open_: dict[int, np.ndarray]
    ) -> None:
        """Write the margins of all further draws of a finding, and which of them the lists leave open.

        Draws are shared out over threads.

        Args:
            place: of the finding.
            lists: of its queries.
            margins: n -> DM, shape (K, redraws - 1, Q), float64, written.
            open_: n -> whether it is not known, shape (redraws - 1, Q), bool, written.
        """
        draw, ks = self._drawn[place], np.array(self._ks)
        further = len(draw.sets) - 1
        at_once = min(_LANES, 64 * -(-further // (64 * torch.get_num_threads())))
        assert isinstance(draw.sets, DrawnSets)
        draw.sets.further()
        # Whoever is left out, and a smaller set, depend on the order of a draw.
        ordered = self._options.sets == "patient" or self._options.balance_removed or len(margins) > 1
        drawn = draw.sets.__getitem__ if ordered else draw.sets.unordered

        def some(first: int) -> None:
            lanes = min(at_once, further - first)
            sets = [drawn(1 + redraw) for redraw in range(first, first + lanes)]
            for n, table in margins.items():
                cut = [(pos[:n], neg[:n]) for pos, neg in sets]
                member = np.zeros((len(self._members) + 1, -(-lanes // 64)), np.uint64)
                for lane, sides in enumerate(cut):
                    for side in sides:
                        set_lane(member, self._place, side, lane)
                left_out = self._left_out(draw, 1 + first, cut, member)
                read_margins(
                    lists.start,
                    lists.image,
                    lists.similarity,
                    lists.whole,
                    member,
                    lanes,
                    left_out,
                    ks,
                    first,
                    table,
                    open_[n],
                )

        list(in_workers(some, range(0, further, at_once)))

    def _left_out(
        self, draw: Draw, redraw: int, sets: Sequence[tuple[np.ndarray, np.ndarray]], member: np.ndarray
    ) -> np.ndarray:
        """The one candidate of another code than the query's, at most, that it is not compared with in a draw.

        Args:
            draw: of the finding.
            redraw: number of the first draw.
            sets: of the draws.
            member: who is a candidate in them.

        Returns:
            place among the images of the group on the side of the positives and of the negatives, −1: none, shape
            (2, Q, draws), int32; (2, 0, 0) where nobody is left out.
        """
        if self._options.sets == "patient":
            out = np.full((2, len(draw.queries), len(sets)), -1, np.int32)
            sides = np.zeros(len(self._observations.unit_names), np.uint8)
            for lane, (pos, neg) in enumerate(sets):
                leave_out_last(out, self._codes, draw.queries, pos, neg, self._place, sides, lane)
            return out
        if not self._options.balance_removed:
            return np.empty((2, 0, 0), np.int32)
        out = np.full((2, len(draw.queries), len(sets)), -1, np.int32)
        candidate = member[self._place[draw.queries]]
        for lane, two in enumerate(sets):
            # A random candidate of the side that the query itself is not in.
            inside = (candidate[:, lane // 64] >> np.uint64(lane % 64) & np.uint64(1)).astype(bool)
            key = draw_key(self._observations, self._options, draw.finding, draw.group, redraw + lane)
            for label in (0, 1):
                here = np.flatnonzero(inside & (draw.query_label == label))
                fraction = stable_fraction(self._observations.digests[draw.queries[here]], "balance", *key)
                image = two[label][np.floor(fraction * len(two[label])).astype(np.int64)]
                out[label, here, lane] = self._place[image]
        return out

    def _search_open(
        self, unanswered: Sequence[tuple[int, int, np.ndarray]], out: Sequence[Margins], search: Search
    ) -> None:
        """Search the draws' own sets, as many together as an eighth of the memory holds."""
        batch: list[_Open] = []
        room = spare = self._options.memory_bytes // 8
        for place, n, still in unanswered:
            for redraw in 1 + np.flatnonzero(still.any(axis=1)):
                queries = np.flatnonzero(still[redraw - 1])
                need = 2 * (n + len(queries) * self._ks[-1]) * _SEARCHED
                if batch and need > spare:
                    self._search_batch(batch, out, search)
                    batch, spare = [], room
                batch.append(_Open(place, int(redraw), n, queries))
                spare -= need
        if batch:
            self._search_batch(batch, out, search)

    def _search_batch(self, batch: Sequence[_Open], out: Sequence[Margins], search: Search) -> None:
        every = [compare(self._observations, self._options, self._drawn[o.place], o.redraw, o.n) for o in batch]
        requests = [
            request.of_queries(one.queries)
            for one, compared in zip(batch, every, strict=True)
            for request in compared.requests()
        ]
        answers = search(requests, [self._ks[-1]] * len(requests))
        for at, (one, compared) in enumerate(zip(batch, every, strict=True)):
            pair = []
            for answer in answers[2 * at : 2 * at + 2]:
                values = np.zeros((len(compared.queries), self._ks[-1]))
                values[one.queries] = answer.similarities
                pair.append(values)
            for k, dm in out[one.place][one.n].items():
                dm[one.redraw - 1, one.queries] = compared.dm(pair, k)[one.queries]


@dataclass(frozen=True)
class _Open:
    """Queries of a further draw whose own sets are searched, int64."""

    place: int
    redraw: int
    n: int
    queries: np.ndarray


def _sides(draw: Draw) -> tuple[np.ndarray, np.ndarray]:
    return draw.rows_pos, draw.rows_neg


def _joined(parts: Sequence[Neighbours]) -> Neighbours:
    """Lists of all queries, from those of some and the others."""
    if len(parts) == 1:
        return parts[0]
    return Neighbours(np.concatenate([p.similarities for p in parts]), np.concatenate([p.rows for p in parts]))


def _needed(k: int, share: float, members: int) -> int:
    """How far down a list holds k members of a random subset, but for three in a million.

    A Poisson count of mean (√k + 2.45)² is below k so rarely.
    """
    return min(int(np.ceil((np.sqrt(k) + 2.45) ** 2 / share)), members)
