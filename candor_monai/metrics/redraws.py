"""DM under further draws of the candidate sets, read off lists of each query's nearest images.

Every draw asks for the nearest members of another random subset of the same images. So the nearest positives and the
nearest negatives of each query are found once, exactly, and so far down that a random subset nearly always has k among
them; then 64 draws at a time walk down the lists (:mod:`.lane_walk`). One list over all images of the group, found in
the pass that scores them, holds both labels of most findings; where it holds too few of a label, the query gets a list
of that label alone. Where a list ends too early for a draw, and where lists are not worth their cost, the draw's own
sets are searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .compared_draw import compare
from .draw import Draw, draw_key, same_code_pairs
from .keyed_hash import stable_fraction
from .lane_walk import first_members
from .neighbours import Neighbours, Request
from .observations import Observations
from .options import Options
from .sweep import MANY, union
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
# Draws whose lists are walked down together, 64 a word; queries that are read together at most.
_LANES = 256
_QUERIES = 1024
# Bytes of a draw of a query while it is read, and of each of its neighbours.
_DRAW_BYTES, _NEIGHBOUR_BYTES = 48, 24


@dataclass(frozen=True)
class _Lists:
    """The nearest images of one label of every query of a finding.

    Attributes:
        place: places among the images of the group, nearest first, shape (Q, L), int32; past the end, the number of
            images of the group.
        similarity: shape (Q, L + 1), float64; −inf past the end.
        whole: the list holds every image of the label but those of the query's own code, shape (Q,), bool.
    """

    place: np.ndarray
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
            out[place] = {n: {k: np.full(shape, np.nan) for k in self._ks} for n in sizes}
            open_ = {n: np.ones(shape, bool) for n in sizes}
            if place in self.needs:
                lists = [self._lists(place, label, shared, alone.get((place, label))) for label in (0, 1)]
                self._of_finding(place, lists, out[place], open_)
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
                short = np.flatnonzero(self._labelled(place, label, shared)[1].sum(axis=1) < _ENOUGH * need)
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

    def _labelled(self, place: int, label: int, shared: Neighbours | None) -> tuple[np.ndarray, np.ndarray]:
        """The lists over all images of a finding's queries: places of the images, and whether each has the label.

        Returns:
            shape (Q, L), int32 and bool; L = 0 where there are none.
        """
        draw = self._drawn[place]
        if shared is None:
            return np.empty((len(draw.queries), 0), np.int32), np.empty((len(draw.queries), 0), bool)
        has = np.zeros(len(self._members) + 1, bool)  # the last: of no image
        has[self._place[_sides(draw)[label]]] = True
        listed = self._place[shared.rows[np.searchsorted(self._asked, draw.queries)]]
        return listed, has[listed]

    def _lists(
        self,
        place: int,
        label: int,
        shared: Neighbours | None,
        alone: tuple[np.ndarray, Neighbours] | None,
    ) -> _Lists:
        """The lists of one label of a finding: those over all images less the others, or of the label alone."""
        draw = self._drawn[place]
        count, nowhere = len(draw.queries), len(self._members)
        queries, own = alone or (np.empty(0, np.int64), None)
        listed, has = self._labelled(place, label, shared)
        has[queries] = False
        number = has.sum(axis=1)
        width = max(int(number.max(initial=0)), own.rows.shape[1] if own is not None else 0)
        out = _Lists(
            np.full((count, width), nowhere, np.int32),
            np.full((count, width + 1), -np.inf),
            np.full(count, self.depth == len(self._members)),
        )
        if shared is not None:
            query, at = np.nonzero(has)
            to = np.arange(len(query)) - np.repeat(np.cumsum(number) - number, number)
            out.place[query, to] = listed[query, at]
            line = np.searchsorted(self._asked, draw.queries[query])
            out.similarity[query, to] = shared.similarities[line, at]
        if own is not None:
            out.place[queries, : own.rows.shape[1]] = self._place[own.rows]
            out.similarity[queries, : own.rows.shape[1]] = own.similarities
            out.whole[queries] = own.rows.shape[1] == len(_sides(draw)[label])
        return out

    def _of_finding(self, place: int, lists: Sequence[_Lists], margins: Margins, open_: dict[int, np.ndarray]) -> None:
        """Write the margins of all further draws of a finding, and which of them the lists leave open.

        Draws are shared out over threads.
        """
        further, workers = len(self._drawn[place].sets) - 1, torch.get_num_threads()
        at_once = min(_LANES, 64 * -(-further // (64 * workers)))
        workers = min(workers, -(-further // at_once))
        each = at_once * (_DRAW_BYTES + self._ks[-1] * _NEIGHBOUR_BYTES)
        together = min(max(self._options.memory_bytes // 8 // workers // each, 16), _QUERIES)

        def some(first: int) -> None:
            lanes = slice(first, min(first + at_once, further))
            for n, drawn in self._drawn_together(place, range(lanes.start + 1, lanes.stop + 1), list(margins)):
                views = {k: dm[lanes] for k, dm in margins[n].items()}
                _read_off(drawn, lists, views, open_[n][lanes], together)

        list(in_workers(some, range(0, further, at_once)))

    def _drawn_together(self, place: int, redraws: range, sizes: Sequence[int]) -> Iterator[tuple[int, _Drawn]]:
        """(n, the candidates of some draws) for each set size."""
        draw = self._drawn[place]
        sets = [draw.sets[redraw] for redraw in redraws]
        for n in sizes:
            cut = [(pos[:n], neg[:n]) for pos, neg in sets]
            member = _bits(len(self._members) + 1, [[self._place[side] for side in sides] for sides in cut])
            if self._options.sets == "patient":
                left_out = self._lasts(draw, cut)
            elif self._options.balance_removed:
                left_out = self._balanced(draw, redraws, cut, member[:, self._place[draw.queries]])
            else:
                left_out = [_NOBODY, _NOBODY]
            yield n, _Drawn(member, len(cut), left_out)

    def _lasts(self, draw: Draw, sets: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[_LeftOut]:
        """The side that has no image of the query's patient loses its last, where the other side has one."""
        patients = [[self._codes[side] for side in sides] for sides in sets]
        taken = _bits(len(self._observations.unit_names), patients)[:, self._codes[draw.queries]]
        out = []
        for label in (0, 1):
            query, lane = _set_lanes(taken[1 - label] & ~taken[label])
            last = self._place[[sides[label][-1] for sides in sets]]
            out.append(_LeftOut(query, lane, last[lane]))
        return out

    def _balanced(
        self, draw: Draw, redraws: range, sets: Sequence[tuple[np.ndarray, np.ndarray]], inside: np.ndarray
    ) -> list[_LeftOut]:
        """A random candidate of the side that the query itself is not in.

        Args:
            draw, redraws, sets: the draws.
            inside: in which of them the query is a positive, and a negative, candidate, shape (2, Q, words), uint64.
        """
        out = []
        for label in (0, 1):
            query, lane = _set_lanes(inside[1 - label])
            image = np.empty(len(query), np.int32)
            for at, redraw in enumerate(redraws):
                here = np.flatnonzero(lane == at)
                key = draw_key(self._observations, self._options, draw.finding, draw.group, redraw)
                rows = draw.queries[query[here]]
                fraction = stable_fraction(self._observations.digests[rows], "balance", *key)
                side = sets[at][label]
                image[here] = self._place[side[np.floor(fraction * len(side)).astype(np.int64)]]
            out.append(_LeftOut(query, lane, image))
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


@dataclass(frozen=True)
class _LeftOut:
    """Candidates of another code than the query's that it is not compared with; a query has one at most in a draw.

    Attributes:
        query: shape (P,), int64, ascending.
        lane: number of the draw, shape (P,), int64.
        image: place among the images of the group, shape (P,), int32.
    """

    query: np.ndarray
    lane: np.ndarray
    image: np.ndarray


_NOBODY = _LeftOut(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32))


@dataclass(frozen=True)
class _Drawn:
    """The candidates of some draws.

    Attributes:
        member: in which draws (bits) each image of the group is a positive, and a negative, candidate, shape
            (2, images + 1, words), uint64; the last is no image.
        lanes: draws.
        left_out: of each label.
    """

    member: np.ndarray
    lanes: int
    left_out: Sequence[_LeftOut]


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


def _bits(count: int, sets: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """Who is in which of some sets.

    Args:
        count: of things that may be in a set.
        sets: for each draw, the members of either side, each of them once.

    Returns:
        shape (2, count, words), uint64: bit b of word w belongs to draw 64·w + b.
    """
    out = np.zeros((2, count, -(-len(sets) // 64)), np.uint64)
    for lane, sides in enumerate(sets):
        for label, members in enumerate(sides):
            out[label, members, lane // 64] |= np.uint64(1 << lane % 64)
    return out


def _set_lanes(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(index, lane) of every bit that is set in words, shape (Q, W), uint64."""
    index, lane = np.nonzero(np.unpackbits(words.astype("<u8").view(np.uint8), axis=1, bitorder="little"))
    return index, lane


def _read_off(
    drawn: _Drawn, lists: Sequence[_Lists], margins: dict[int, np.ndarray], unanswered: np.ndarray, together: int
) -> None:
    """Margins of some draws, from lists.

    Args:
        drawn: the draws.
        lists: of positives, and of negatives.
        margins: k -> DM, shape (lanes, Q), float64, written.
        unanswered: where a list ends too early, shape (lanes, Q), bool, written.
        together: queries that are read at once.
    """
    most = max(margins)
    for first in range(0, unanswered.shape[1], together):
        queries = slice(first, min(first + together, unanswered.shape[1]))
        sums, short = [], np.zeros(unanswered[:, queries].T.shape, bool)
        for label in (0, 1):
            place, similarity = lists[label].place[queries], lists[label].similarity[queries]
            at = _nearest_members(place, drawn.member[label], drawn.lanes, drawn.left_out[label], first, most)
            short |= (at[:, :, -1] == place.shape[1]) & ~lists[label].whole[queries, None]
            line = np.arange(len(place))[:, None, None] * similarity.shape[1]
            sums.append(_means(similarity.ravel()[line + at], list(margins)))
        for k, dm in margins.items():
            with np.errstate(invalid="ignore"):  # −∞ less −∞, where both sides have fewer than k
                found = sums[1][k] - sums[0][k]
            found[~np.isfinite(found)] = np.nan
            dm[:, queries] = found.T
        unanswered[:, queries] = short.T


def _nearest_members(
    place: np.ndarray, member: np.ndarray, lanes: int, left_out: _LeftOut, first: int, k: int
) -> np.ndarray:
    """Where in the lists of some queries the first k candidates are, shape (Q, lanes, k); the length where it ends.

    Args:
        place: the lists, shape (Q, L), int32.
        member: in which draws each image is a candidate, shape (images + 1, words), uint64.
        lanes: draws.
        left_out: who is left out, of all queries.
        first: number of the first query among all.
        k: neighbours.
    """
    asked = np.arange(64 * member.shape[1]) < lanes
    wanted = np.tile(np.packbits(asked, bitorder="little").view("<u8").astype(np.uint64), (len(place), 1))
    at = first_members(place, member, wanted, k)[:, :lanes]
    low, high = np.searchsorted(left_out.query, (first, first + len(place)))
    query, lane, image = left_out.query[low:high] - first, left_out.lane[low:high], left_out.image[low:high]
    padded = np.concatenate([place, np.full((len(place), 1), len(member) - 1, place.dtype)], axis=1)
    met = (padded[query[:, None], at[query, lane]] == image[:, None]).any(axis=1)
    for one in np.flatnonzero(met):
        listed = place[query[one]]
        word, bit = divmod(int(lane[one]), 64)
        inside = member[listed, word] >> np.uint64(bit) & np.uint64(1)
        inside = np.flatnonzero(inside.astype(bool) & (listed != image[one]))[:k]
        at[query[one], lane[one]] = place.shape[1]
        at[query[one], lane[one], : len(inside)] = inside
    return at


def _means(similarities: np.ndarray, ks: Sequence[int]) -> dict[int, np.ndarray]:
    """k -> mean of the first k similarities, added in their order, shape (Q, lanes).

    Args:
        similarities: shape (Q, lanes, K), float64, descending; −inf where there are fewer.
        ks: every k, at most K.
    """
    total = np.zeros(similarities.shape[:2])
    out = {}
    for place in range(max(ks)):
        total = total + similarities[:, :, place]
        if place + 1 in ks:
            out[place + 1] = total / (place + 1)
    return out
