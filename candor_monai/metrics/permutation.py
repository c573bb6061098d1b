"""The permutation test of D against chance, and the mean of D under it (`chance_null`).

Label vectors are exchanged between patients (`patient_exchange`), the queries are the images that become
positive, and the candidate sets are drawn again by the same rules. The same exchanges serve all groups, all
findings and all encoders, so pooled levels and the smallest D over several encoders have null distributions
too. A cell stops early once both tails of its null distribution hold enough exchanges to know p, or once D lies so far
outside of it that no number of exchanges would tell more than that p is the least there is.

In groups of more images than `MOST_LISTED` the test uses the queries among the first images in the order of the query
sample, in the data and in every exchange alike; the candidate sets are always whole. Common findings take `MAX_LISTED`
images, rare ones so many that `ENOUGH_LISTED` queries are among them, or the first queries that a fixed amount of work
can compare with all candidates, whichever is cheaper. So do findings that are too rare for lists in smaller groups.

Groups are taken one after the other, and in each of them `Options.memory_bytes` is shared out: at most half to the
normalised features (else they are made again where they are needed), a sixteenth to all distances of a small group,
an eighth to the tables of the findings that run together, a quarter of what is left to the lists of nearest images
(which take three quarters of it while they are made); and of what is left then, half to the exchanges that run together
and an eighth to a block of distances, or to what walks down lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isqrt

import numpy as np
import torch

from .cells import Cell
from .draw import draw_key, effective_labels, groups, query_order, same_code_pairs
from .keyed_hash import keyed_rank, stable_fraction
from .long_lists import LongLists, sample_size
from .multiplicity import studentised_p
from .null_discordance import NullLists, Relabelled, Rules, from_distances, from_lists, from_table
from .observations import Observations
from .options import Options
from .patient_exchange import Moves, PatientExchange
from .relabelled_sets import Order, Places, Room, relabelled_lanes, relabelled_queries, relabelled_sides, room
from .resampling import MIN_POSITIVE_PATIENTS, Replicates, pool_replicates, weighted_mean_replicates
from .score_scan import score_room
from .similarity import unit_rows

MIN_CANDIDATES = 20
MIN_MOVABLE = 0.8
#: Images that have lists: all of a group of so many, else so many of a larger one, and more where findings are rare.
MOST_LISTED, MAX_LISTED = 16_384, 4096
CHECK_EVERY = 256
ENOUGH_IN_TAIL = 100
#: After so many exchanges a D so many standard deviations from their mean, with none as extreme, is clear.
CLEAR_AFTER, CLEAR_DEVIATIONS = 1024, 6.0
MAX_OPERATIONS = 2e11
ENOUGH_LISTED = 100
# Exchanges after which most cells are decided.
_USUAL = 2048
_POSITION = 64
_SLACK = 1e-12
# A finding has lists where a walk is expected to be shorter than this; they may be twice as long.
_MAX_LIST = 2048
# Rows that are normalised in float64 at once; queries that are compared at once for the lists (four times as many where
# memory allows), and, at most, candidates.
_ROWS = 512
_LISTED = 256
_CANDIDATES = 8192
# Bytes of an image in the tables of one finding.
_TABLE_BYTES = 48
# Bytes, in one exchange, of a patient, of a candidate and of a query; and of an image in all that go together.
_PATIENT_BYTES = 8
_CANDIDATE_BYTES = 32
_QUERY_BYTES = 32
_IMAGE_BYTES = 80
# How much longer it takes to follow a positive than to look up a label of the draw.
_FOLLOWED = 3


@dataclass(frozen=True)
class NullReplicates:
    """D of a cell or a pooled level, and what it is in every exchange of labels.

    Args:
        values: numerators and denominators of the data and of the exchanges.
        positives: positive images of the cell.
        movable: those of them whose patient has a partner to exchange labels with.
        reason: why nothing is said against chance, or None.
        asked: exchanges that were asked for; fewer are there where a cell stopped early.
    """

    values: Replicates
    positives: int
    movable: int
    reason: str | None = None
    asked: int = 0


@dataclass(frozen=True)
class ChanceTest:
    """The outcome of the test against chance; undefined numbers are None.

    Args:
        p: two-sided.
        mean: of D over the exchanges (`chance_null`).
        sd: of D over the exchanges.
        permutations: exchanges used.
        movable_share: share of the positives whose labels can move.
        reason: why there is no p, or None.
    """

    p: float | None
    mean: float | None
    sd: float | None
    permutations: int
    movable_share: float | None
    reason: str | None


def permutation_replicates(
    cells: Sequence[Cell],
    features: np.ndarray,
    observations: Observations,
    options: Options,
    exchange: PatientExchange | None = None,
    early_stop: bool = True,
) -> list[NullReplicates]:
    """D of every cell in up to `options.permutations` exchanges of labels between patients.

    Args:
        cells: from the exact engine.
        features: the stored rows, shape (N, d).
        observations: the cohort.
        options: of the evaluation.
        exchange: of the cohort's patients, where several calls share it.
        early_stop: stop a cell when both tails hold `ENOUGH_IN_TAIL` exchanges, or when it is clear (`CLEAR_AFTER`).

    Returns:
        one item a cell, in order.
    """
    if exchange is None:
        exchange = cohort_exchange(observations, options)
    labels = effective_labels(observations, options)
    found: dict[int, NullReplicates] = {}
    for name, rows, parts in groups(observations, options.matched):
        places = [place for place, cell in enumerate(cells) if cell.group == name]
        if not places:
            continue
        by_id = rows[np.argsort(observations.order[rows], kind="stable")]
        group = _Group(by_id, parts, features, observations, options, exchange)
        room = max(1, options.memory_bytes // 8 // (_TABLE_BYTES * max(1, len(rows))))
        for first in range(0, len(places), room):
            part = places[first : first + room]
            states = [_CellNull(cells[place], group, labels, observations, options, exchange) for place in part]
            _run(group, states, options, early_stop)
            found |= zip(part, (state.result() for state in states), strict=True)
    return [found[place] for place in range(len(cells))]


def _run(group: _Group, states: Sequence[_CellNull], options: Options, early_stop: bool) -> None:
    """Take the findings of one group through the exchanges."""
    if not any(state.running for state in states):
        return
    group.prepare([state for state in states if state.listed])
    step = group.exchanges_at_once
    done = 0
    with ThreadPoolExecutor(group.workers) as pool:
        while done < options.permutations and any(state.running for state in states):
            end = min(done + CHECK_EVERY, options.permutations)
            for first in range(done, end, step * group.workers):
                last = min(first + step * group.workers, end)
                spans = [(start, min(step, last - start)) for start in range(first, last, step)]
                _extend([state for state in states if state.running], group, spans, pool)
            done = end
            for state in states:
                state.running = state.running and not (early_stop and state.decided())


def _extend(
    states: Sequence[_CellNull], group: _Group, spans: Sequence[tuple[int, int]], pool: ThreadPoolExecutor
) -> None:
    """Score some further exchanges: (first, how many) of those that go together.

    Lists and tables are read by several threads, a finding and a span each; PyTorch, which makes distances, has its
    own.
    """
    read = [state for state in states if state.listed or group.table is not None]
    exchanged = list(pool.map(lambda span: group.exchange.moves(*span), spans))
    work = [(state, moves) for state in read for moves in exchanged]
    found = pool.map(lambda piece: piece[0].discordant(piece[1]), work)
    for (state, _), one in zip(work, found, strict=True):
        state.add(*one)
    for state in states:
        if state not in read:
            for moves in exchanged:
                state.add(*state.discordant(moves))


def cohort_exchange(observations: Observations, options: Options) -> PatientExchange:
    """The exchanges of a cohort, keyed by the seed and the task."""
    return PatientExchange(
        observations.units,
        observations.unit_names.tolist(),
        observations.group,
        observations.order,
        observations.site,
        (options.seed, observations.task),
    )


def chance_test(null: NullReplicates) -> ChanceTest:
    """Two-sided p of D against its exchanges, with their mean and standard deviation.

    A pooled D has the exchanges that all its cells have in common. Where they are fewer than were asked for and none of
    them is as extreme, p is that of D studentised by them, and never below what all that were asked for could show. So
    is that of a cell that has stopped because it is clear.
    """
    values = null.values.values()
    values = values[np.isfinite(values)]
    share = null.movable / null.positives if null.positives else None
    reason = null.reason
    if reason is None and null.values.estimate is None:
        reason = "no query"
    if reason is None and len(values) == 0:
        reason = "no permutation"
    mean = float(values.mean()) if len(values) else None
    sd = float(values.std(ddof=1)) if len(values) > 1 else None
    if reason is not None:
        return ChanceTest(None, mean, sd, len(values), share, reason)
    value = float(null.values.estimate or 0.0)
    p = permutation_p(value, values)
    if len(values) < null.asked and p <= _least_p(len(values)) and mean is not None and sd:
        p = min(p, max(studentised_p(value, sd, mean), _least_p(null.asked)))
    return ChanceTest(p, mean, sd, len(values), share, reason)


def is_decided(value: float, null: np.ndarray) -> bool:
    """Whether further exchanges would hardly change p.

    Either both tails hold `ENOUGH_IN_TAIL` exchanges (Besag and Clifford 1991), or `CLEAR_AFTER` have been made, none
    of them is as extreme, and the value is `CLEAR_DEVIATIONS` standard deviations from their mean: all that were asked
    for would then give the least p, which :func:`chance_test` gives.

    Args:
        value: D of the data.
        null: D in the exchanges so far, shape (B,); NaN where an exchange has no query.

    >>> is_decided(0.1, np.random.default_rng(0).normal(0.5, 0.05, 1024))
    True
    >>> is_decided(0.3, np.random.default_rng(0).normal(0.5, 0.05, 1024))
    False
    """
    known = null[np.isfinite(null)]
    fewer = min(int((known <= value + _SLACK).sum()), int((known >= value - _SLACK).sum()))
    if fewer or len(known) < CLEAR_AFTER:
        return fewer >= ENOUGH_IN_TAIL
    return bool(abs(value - known.mean()) >= CLEAR_DEVIATIONS * known.std(ddof=1) > 0)


def _least_p(exchanges: int) -> float:
    """What p is when no exchange is as extreme as the data."""
    return min(1.0, 2 / (exchanges + 1))


def permutation_p(value: float, null: np.ndarray) -> float:
    """min(1, 2·min((1 + #≤)/(B + 1), (1 + #≥)/(B + 1))).

    Args:
        value: the statistic on the data.
        null: the statistic in B exchanges, shape (B,).

    Examples:
        >>> permutation_p(0.1, np.array([0.4, 0.5, 0.6]))
        0.5
    """
    below = (1 + int((null <= value + _SLACK).sum())) / (len(null) + 1)
    above = (1 + int((null >= value - _SLACK).sum())) / (len(null) + 1)
    return min(1.0, 2 * min(below, above))


def pool_nulls(parts: Sequence[NullReplicates]) -> NullReplicates:
    """The null distribution of a pooled D: the exchanges are shared, so numerators and denominators add up.

    Parts that stopped early cut the others to the exchanges they have in common.

    Raises:
        ValueError: no part is given.
    """
    return _joined(parts, pool_replicates(_common([part.values for part in parts])))


def weighted_mean_nulls(parts: Sequence[NullReplicates], weights: Sequence[float]) -> NullReplicates:
    """The null distribution of a weighted mean of pooled values, over the exchanges in common.

    Raises:
        ValueError: no part is given, the lengths differ, a part has no value, or no weight is positive.
    """
    return _joined(parts, weighted_mean_replicates(_common([part.values for part in parts]), weights))


def _joined(parts: Sequence[NullReplicates], values: Replicates) -> NullReplicates:
    positives, movable = sum(part.positives for part in parts), sum(part.movable for part in parts)
    return NullReplicates(values, positives, movable, _fixed(positives, movable), max(part.asked for part in parts))


def _common(parts: Sequence[Replicates]) -> list[Replicates]:
    if not parts:
        raise ValueError("parts: nothing to pool")
    count = min(len(part.numerators) for part in parts)
    return [
        Replicates(part.numerator, part.denominator, part.numerators[:count], part.denominators[:count])
        for part in parts
    ]


def _fixed(positives: int, movable: int) -> str | None:
    if movable < MIN_MOVABLE * positives:
        return f"{positives - movable} of {positives} positives belong to patients without a partner to exchange with"
    return None


#: Centred rows and half their squared lengths, shapes (B, m, d) and (B, m), float32.
_Points = tuple[torch.Tensor, torch.Tensor]


class _Group:
    """The images of one group: positions, patients, distances between them.

    Positions are by image id, so that nothing depends on the order of the rows: neither which of the images comes first
    that have the same place in the query orders of their matched groups, nor the last bits of distances.
    """

    def __init__(
        self,
        rows: np.ndarray,
        parts: Sequence[tuple[str, np.ndarray]],
        features: np.ndarray,
        observations: Observations,
        options: Options,
        exchange: PatientExchange,
    ) -> None:
        self.rows = rows
        self.exchange = exchange.within(rows)
        self._place = np.full(len(observations), -1, np.int64)
        self._place[self.rows] = np.arange(len(self.rows))
        self.unit = np.unique(observations.units[self.rows], return_inverse=True)[1]
        self.key = self.unit if options.by_patient else np.arange(len(self.rows))
        self.patients = int(self.unit.max(initial=-1)) + 1
        self.single = self.patients == len(self.unit)
        #: Place of each image in the query order of its matched group.
        self.query_rank = np.empty(len(rows), np.int64)
        for name, part in parts:
            order = query_order(observations, options, part, name)
            self.query_rank[self._place[order]] = np.arange(len(part))
        #: The images in that order, of several matched groups in turn; the first of them have lists.
        self.query_order = np.argsort(self.query_rank, kind="stable").astype(np.int32)
        self.asking = self.places(self.query_order)
        self._features = features
        #: All distances, where they are held.
        self.table: np.ndarray | None = None
        self._points: _Points | None = None
        self._memory = options.memory_bytes
        self._width = int(np.shape(features)[1])
        self._keeps_points = 4 * len(rows) * (self._width + 1) <= self._memory // 2
        self._centre = self._mean(self.rows[: min(len(self.rows), MAX_LISTED)])
        self.lists: NullLists | None = None
        self.workers = torch.get_num_threads()
        self._most = min(options.max_candidates, len(rows)), min(options.max_queries, len(rows))

    @property
    def small(self) -> bool:
        return len(self.rows) <= MAX_LISTED

    @property
    def spare(self) -> int:
        """Bytes that are left beside what is kept for the whole test."""
        kept = 4 * len(self.rows) * (self._width + 1) if self._keeps_points else 0
        if self.table is not None:
            kept += self.table.nbytes
        if self.lists is not None:
            kept += self.lists.index.nbytes + self.lists.distance.nbytes
        return max(self._memory - kept, 0)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of distances, with all that it is made from, when each thread makes one."""
        return self.spare // 8 // self.workers

    @property
    def candidate_bytes(self) -> int:
        """Bytes of an image whose distances are asked for."""
        if self.table is not None:
            return 0
        return 4 * self._width if self._keeps_points else 8 * self._width

    @property
    def exchanges_at_once(self) -> int:
        """Exchanges that go together, one bit each of a word."""
        candidates, queries = self._most
        each = _PATIENT_BYTES * self.exchange.patients + _CANDIDATE_BYTES * candidates + _QUERY_BYTES * queries
        free = self.spare // 2 // self.workers - _IMAGE_BYTES * len(self.rows)
        return min(64, max(1, free // each))

    def prepare(self, states: Sequence[_CellNull]) -> None:
        """Make what the cells need: all distances of a small group, and lists of nearest images."""
        if self.small and self.table is None and 4 * len(self.rows) ** 2 <= self._memory // 16:
            everyone = np.arange(len(self.rows))
            self.table = self.distances(everyone[None], everyone[None])[0]
        self.lists, listed = None, max((state.first for state in states), default=0)
        if listed:
            wanted = max(state.list_length for state in states)
            length = max(1, min(len(self.rows), wanted, self.spare // 4 // (8 * listed)))
            self.lists = self._lists(self.query_order[:listed].astype(np.int64), length)

    def _lists(self, listed: np.ndarray, length: int) -> NullLists:
        """The nearest images of the first in the query order, who are a random sample of all, too."""
        lists = LongLists(len(listed), len(self.rows), length)
        # Distances are held three times while the nearest of them are found. PyTorch has all threads here.
        block = self.spare // 8
        rows = min(max(isqrt(block // (2 * 14)), _LISTED), 4 * _LISTED)
        step = min(max(block // (self.candidate_bytes + 14 * rows), _LISTED), _CANDIDATES)
        blocks = [slice(start, min(start + rows, len(listed))) for start in range(0, len(listed), rows)]
        sample = listed[: min(step, sample_size(len(self.rows), length))]
        for part in blocks:
            lists.expect(part, self._apart(listed[part], sample))
        products = score_room(rows, step)
        keeps = 4 * len(listed) * self._width <= block
        asked = {part.start: self._point(listed[None, part]) for part in blocks if keeps}

        def look(parts: Sequence[slice]) -> None:
            for first in range(0, len(self.rows), step):
                images = np.arange(first, min(first + step, len(self.rows)))
                (points,), (half,) = self._stretch(first, first + len(images))
                for part in parts:
                    queries = listed[part]
                    own, near = asked[part.start] if keeps and parts is blocks else self._point(queries[None])
                    found = torch.mm(own[0], points.T, out=products[: len(queries), : len(images)]).numpy()
                    found[same_code_pairs(self.key, queries, images)] = -np.inf
                    lists.add(part, first, found, half.numpy(), near[0].numpy())

        look(blocks)
        if len(short := lists.too_short()):
            look([slice(query, query + 1) for query in short])
        return NullLists(listed, *lists.result(), length)

    def _apart(self, queries: np.ndarray, images: np.ndarray) -> np.ndarray:
        """Distances of queries to images, infinite to those of the same code, shape (queries, images)."""
        return self.distances(queries[None], images[None])[0]

    def distances(self, queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """1 − cosine of positions (B, Q) and (B, n), shape (B, Q, n), float32; infinite between those of one code."""
        if self.table is not None:
            at = (queries * len(self.rows))[:, :, None] + candidates[:, None, :]
            return self.table.reshape(-1).take(at, mode="clip")
        far = _distances(self._point(queries), self._point(candidates))
        far[self.key[queries][:, :, None] == self.key[candidates][:, None, :]] = np.inf
        return far

    def positions(self, rows: np.ndarray) -> np.ndarray:
        return self._place[rows]

    def places(self, images: np.ndarray) -> Places:
        return Places(self.exchange.patient[images].astype(np.int32), self.exchange.slot[images].astype(np.int32))

    def room(self, once: bool = False) -> Room:
        return room(self.exchange.patients, len(self.rows), self.patients if once else 0)

    def in_line(self, values: np.ndarray) -> np.ndarray:
        """Values of the images, shape (N,), in the order of the exchange's line."""
        return values[self.exchange.line]

    def _point(self, positions: np.ndarray) -> _Points:
        """The points of positions (B, m)."""
        self._keep_points()
        if self._points is not None:
            (points, halves), at = self._points, torch.from_numpy(positions)
        else:
            wanted, back = np.unique(positions, return_inverse=True)
            (points, halves), at = self._centred(wanted), torch.from_numpy(back.reshape(positions.shape))
        return points[at], halves[at]

    def _stretch(self, start: int, stop: int) -> _Points:
        """The points of all positions from one to another, B = 1."""
        self._keep_points()
        if self._points is not None:
            points, halves = (part[start:stop] for part in self._points)
        else:
            points, halves = self._centred(np.arange(start, stop))
        return points[None], halves[None]

    def _keep_points(self) -> None:
        if self._points is None and self._keeps_points:
            self._points = self._centred(np.arange(len(self.rows)))

    def _centred(self, positions: np.ndarray) -> _Points:
        out, halves = torch.empty((len(positions), self._width)), torch.empty(len(positions))
        for start in range(0, len(positions), _ROWS):
            part = slice(start, start + _ROWS)
            out[part] = torch.from_numpy(unit_rows(self._features, self.rows[positions[part]]) - self._centre)
            halves[part] = 0.5 * (out[part] * out[part]).sum(dim=1)
        return out, halves

    def _mean(self, rows: np.ndarray) -> np.ndarray:
        """The mean of normalised rows, shape (d,), float64."""
        unit = np.empty((len(rows), self._width))
        for start in range(0, len(rows), _ROWS):
            unit[start : start + _ROWS] = unit_rows(self._features, rows[start : start + _ROWS])
        return unit.sum(axis=0) / max(len(rows), 1)


def _distances(queries: _Points, candidates: _Points) -> np.ndarray:
    (left, near), (right, far) = queries, candidates
    out = torch.baddbmm(far[:, None, :], left, right.transpose(1, 2), alpha=-1)
    out += near[:, :, None]
    return out.numpy()


class _CellNull:
    """One cell on its way through the exchanges."""

    def __init__(
        self,
        cell: Cell,
        group: _Group,
        labels: np.ndarray,
        observations: Observations,
        options: Options,
        exchange: PatientExchange,
    ) -> None:
        self.group, self._cell, self._options = group, cell, options
        column = observations.finding_index(cell.finding)
        label = labels[group.rows, column]
        positive = np.flatnonzero(label == 1)
        key = draw_key(observations, options, cell.finding, cell.group, 0)
        order = keyed_rank(observations.digests[group.rows], "draw", *key).astype(np.int32)
        allowed_image, allowed_label = _eligible(observations, options, group, column)
        # What is asked of the image that a label comes from or goes to stands in the order of the exchange's line.
        self._label = group.in_line(label.astype(np.int8))
        self._makes_query = group.in_line((label == 1) & allowed_label)
        self._draw = Order(order, group.places(order), group.in_line(_inverse(order)))
        turn = group.in_line(np.where(allowed_image, _inverse(group.query_order), np.int32(len(label))))
        self._turns = Order(group.query_order, group.asking, turn)
        self._may_ask = allowed_image[group.query_order]
        self._asker = group.places(positive[allowed_label[positive]])
        self.movable = int(exchange.movable[cell.rows_pos].sum())
        self.reason = _no_statement(cell, observations, self.movable)
        self.running = cell.n > options.k and _fixed(len(cell.rows_pos), self.movable) is None
        balance = None
        if options.balance_removed and options.sets == "image":
            balance = stable_fraction(observations.digests[group.rows], "balance", *key)
        self._rules = Rules(group.key, options.sets == "patient", balance, options.k)
        self._one_each = options.sets == "image" or group.single
        # Where the draw would be gone through far, it is cheaper to follow the positives.
        rare = _FOLLOWED * len(positive) ** 2 < min(cell.n, len(positive)) * len(label)
        self._givers = group.places(positive[: None if rare else 0])
        self._numerators: list[np.ndarray] = []
        self._denominators: list[np.ndarray] = []
        #: Images at the head of the query order whose lists are used, 0: none.
        self.first, self._most = 0, options.max_queries
        if self.running:
            self._plan(group._width)
        self._observe()

    @property
    def listed(self) -> bool:
        """Whether lists are walked down, instead of all candidates being compared."""
        return self.first > 0

    @property
    def list_length(self) -> int:
        """Images among which the k members that are looked for are missing once in a hundred thousand."""
        share, k = self._cell.n / len(self.group.rows), self._options.k
        return min(int((k + 3.5 * np.sqrt(k) + 8) / share) + 64, 2 * _MAX_LIST)

    def _plan(self, features_width: int) -> None:
        """Choose the cheaper way, and how many queries it can afford."""
        images, n, k = len(self.group.rows), self._cell.n, self._options.k
        if self._rules.balance is not None:
            return
        if self.group.small:
            if 1.5 * k * images / n + _LIST_OVERHEAD < 2 * n:
                self.first = images
            return
        queries = len(self._cell.queries)
        compared = 4.0 * n * features_width
        affordable = MAX_OPERATIONS / (compared * self._options.permutations)
        self._most = max(MIN_CANDIDATES, int(min(affordable, self._most)))
        first = usual = images if images <= MOST_LISTED else MAX_LISTED
        if self._options.queries != "image_sample":
            wanted = min(queries, max(affordable, ENOUGH_LISTED))
            first = min(max(first, int(np.ceil(wanted / queries * images))), images)
        # Lists beside the usual ones, that others want too; and what is walked down of them.
        made = 2.0 * (first - usual) * images * features_width
        walked = _POSITION * queries * first / images * 1.5 * k * images / n
        within = first <= MOST_LISTED and 2 * k * images / n + 64 <= _MAX_LIST
        exchanges = min(self._options.permutations, _USUAL)
        if within and (made == 0 or made + walked * exchanges <= compared * min(queries, self._most) * exchanges):
            self.first, self._most = first, self._options.max_queries

    def _observe(self) -> None:
        """D of the data, over the queries that the test uses."""
        unmoved, listed = self.group.exchange.unmoved, self.group.query_order[: self.first]
        used = listed[self._asked(unmoved) > 0] if self.listed else self._queries(unmoved)
        rows = self._cell.queries[self._cell.own]
        inside = np.isin(self.group.positions(rows), used)
        self._queries_used = int(inside.sum())
        self._discordant = int((self._cell.dm[self._cell.own][inside] > 0).sum())

    def discordant(self, moves: Moves) -> tuple[np.ndarray, np.ndarray]:
        """Discordant queries and queries of some exchanges."""
        sides = self._sides(moves)
        room = self.group.block_bytes, self.group.candidate_bytes
        if self.listed and self.group.lists is not None:
            asked = self._asked(moves)
            return from_lists(asked, sides, self._rules, self.group.lists, self.group.distances, *room)
        cohorts = Relabelled(self._queries(moves), *(side.astype(np.int64) for side in sides))
        if self.group.table is not None:
            return from_table(cohorts, self._rules, self.group.table)
        return from_distances(cohorts, self._rules, self.group.distances, *room)

    def add(self, discordant: np.ndarray, queries: np.ndarray) -> None:
        """Keep the outcome of some further exchanges."""
        self._numerators.append(discordant)
        self._denominators.append(queries)

    def decided(self) -> bool:
        """Whether more exchanges would hardly change p."""
        values = self.result().values
        return values.estimate is None or is_decided(values.estimate, values.values())

    def result(self) -> NullReplicates:
        none = [np.empty(0)]
        values = Replicates(
            float(self._discordant),
            float(self._queries_used),
            np.concatenate(self._numerators or none).astype(np.float64),
            np.concatenate(self._denominators or none).astype(np.float64),
        )
        asked = self._options.permutations
        return NullReplicates(values, len(self._cell.rows_pos), self.movable, self.reason, asked)

    def _asked(self, moves: Moves) -> np.ndarray:
        """In which exchanges each listed image is a query: an eligible new positive, one of the first."""
        listed = slice(self.first)
        places, may_ask = self.group.asking.part(listed), self._may_ask[listed]
        return relabelled_lanes(moves.sources, self._makes_query, places, may_ask, self._most, self.group.room())

    def _queries(self, moves: Moves) -> np.ndarray:
        """The queries of each exchange: eligible new positives, in query order, shape (B, Q), int64, −1 for none."""
        out = np.empty((len(moves), min(self._most, len(self._asker.patient))), np.int32)
        relabelled_queries(moves.destinations, self._asker, self._turns, self.group.unit, self.group.room(), out)
        return out[:, (out >= 0).any(axis=0)].astype(np.int64)

    def _sides(self, moves: Moves) -> tuple[np.ndarray, np.ndarray]:
        """R⁺ and R⁻ of each exchange in the order of the draw, shape (B, n), int32."""
        positives, negatives = np.empty((2, len(moves), self._cell.n), np.int32)
        there = relabelled_sides(
            moves.sources,
            moves.destinations,
            self._label,
            self._draw,
            self._givers,
            self.group.unit,
            self.group.room(once=not self._one_each),
            positives,
            negatives,
        )
        assert there, "as many patients of each label as before"
        return positives, negatives


def _inverse(order: np.ndarray) -> np.ndarray:
    """Place of each image in an order, int32."""
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return place


_LIST_OVERHEAD = 8


def _eligible(
    observations: Observations, options: Options, group: _Group, column: int
) -> tuple[np.ndarray, np.ndarray]:
    """Which images may be queries, and which labels make one (a box moves with its label)."""
    images = np.ones(len(group.rows), bool)
    labels = np.ones(len(group.rows), bool)
    if options.queries == "image_sample":
        images = group.query_rank < options.max_queries
    elif options.queries == "test" and observations.test is not None:
        images = observations.test[group.rows]
    elif options.queries == "boxed" and observations.boxed is not None:
        labels = observations.boxed[group.rows, column]
    return images, labels


def _no_statement(cell: Cell, observations: Observations, movable: int) -> str | None:
    if cell.status == "insufficient":
        return cell.reason
    if cell.status == "tied":
        return cell.reason or "tied"
    patients = len(np.unique(observations.units[cell.rows_pos]))
    if patients < MIN_POSITIVE_PATIENTS:
        return f"fewer than {MIN_POSITIVE_PATIENTS} positive patients ({patients})"
    if cell.n < MIN_CANDIDATES:
        return f"fewer than {MIN_CANDIDATES} candidates a side ({cell.n})"
    return _fixed(len(cell.rows_pos), movable)
