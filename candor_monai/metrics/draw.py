"""Who is compared with whom: queries and candidate sets of every finding in every group.

The labelled images of a finding in a group are ranked by a keyed hash of their ids, without the label; R⁺ and R⁻ are
the first n of each label. So a draw is uniform, nested in n, unchanged by row order and by other findings or groups,
and exchanging the labels exchanges the sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from .keyed_hash import KeyedRanks, keyed_first, keyed_rank, stable_fraction
from .observations import Observations
from .options import Options
from .patient_exchange import exchangeable

POOLED_GROUP = "pooled"

#: (matched, group, who has a label) -> rows of these, so that draws under several option sets hold each of them once.
RowSets = dict[tuple[bool, str, bytes], np.ndarray]


@dataclass(frozen=True)
class Draw:
    """Queries and candidate sets of one finding in one group, by row.

    Attributes:
        finding: name of the finding.
        group: name of the group.
        rows_pos: every positive image, shape (P,), int64, ascending.
        rows_neg: every negative image, shape (N,), int64, ascending.
        sets: (R⁺, R⁻) of each draw, each of n rows in the order of the draw; the further ones are drawn when asked for.
        queries: rows of the queries, shape (Q,), int64, ascending.
        query_label: their labels, shape (Q,), int8.
        reason: why nothing can be estimated, or None.
    """

    finding: str
    group: str
    rows_pos: np.ndarray
    rows_neg: np.ndarray
    sets: Sequence[tuple[np.ndarray, np.ndarray]]
    queries: np.ndarray
    query_label: np.ndarray
    reason: str | None

    @property
    def n(self) -> int:
        """Candidates a side."""
        return len(self.sets[0][0]) if self.sets else 0


@dataclass(frozen=True)
class Exclusions:
    """Candidates that a query is not compared with.

    Attributes:
        pos: (index of the query, index in R⁺) of each excluded pair, two int64 arrays.
        neg: the same for R⁻.
        removed: the query or an image of its patient left the set of its own label, shape (Q,), bool.
        left_pos: candidates left in R⁺, shape (Q,), int64.
        left_neg: candidates left in R⁻, shape (Q,), int64.
    """

    pos: tuple[np.ndarray, np.ndarray]
    neg: tuple[np.ndarray, np.ndarray]
    removed: np.ndarray
    left_pos: np.ndarray
    left_neg: np.ndarray


def draws(observations: Observations, options: Options, shared: RowSets | None = None) -> Iterator[Draw]:
    """The draw of every finding in every group, group by group.

    Args:
        observations: the cohort.
        options: see :class:`.options.Options`.
        shared: rows that draws of these observations under other options made; those of these are added.

    Yields:
        one :class:`Draw` for every group (in the order of ``group_names``) and finding.

    Raises:
        ValueError: ``queries`` needs boxes or a test split that the observations lack.

    >>> seen = Observations(list("abcdef"), [[1], [1], [1], [0], [0], [0]], ["effusion"])
    >>> draw = next(draws(seen, Options(k=1, max_candidates=2, sets="image")))
    >>> draw.n, len(draw.queries), draw.reason
    (2, 3, None)
    """
    if options.queries == "boxed" and observations.boxed is None:
        raise ValueError("queries is 'boxed', but observations.boxed is None")
    if options.queries == "test" and observations.test is None:
        raise ValueError("queries is 'test', but observations.test is None")
    labels = effective_labels(observations, options)
    shared = {} if shared is None else shared
    for name, rows, parts in groups(observations, options.matched):
        sampled = [query_order(observations, options, part, part_name) for part_name, part in parts]
        for column in range(len(observations.findings)):
            yield _draw(observations, options, labels[:, column], column, name, rows, sampled, shared)


def effective_labels(observations: Observations, options: Options) -> np.ndarray:
    """Labels after the options that change them: shuffled, then isolated, then roles exchanged.

    Returns:
        shape (N, F), int8.
    """
    labels, uncertain = observations.labels, observations.uncertain
    if options.shuffle_labels:
        order = shuffled_rows(observations, options.shuffle_labels, options.seed)
        labels = labels[order]
        uncertain = None if uncertain is None else uncertain[order]
    if options.isolated:
        labels = _isolated(labels, uncertain)
    if options.roles == "negatives":
        labels = np.where(labels < 0, labels, 1 - labels).astype(np.int8)
    return labels


def shuffled_rows(observations: Observations, how: str, seed: int) -> np.ndarray:
    """A keyed exchange of whole label vectors: image i takes the labels of image ``result[i]``.

    Args:
        observations: the cohort.
        how: ``"image"``: between the images of a group. ``"patient"``: between patients of one site who have the
            same number of images in every group, in image-id order, jointly over groups; a patient whom nobody
            matches keeps its labels.
        seed: of the exchange.

    Returns:
        shape (N,), int64, a permutation of the rows.

    Raises:
        ValueError: ``how`` is neither.

    >>> seen = Observations(list("abcd"), [[1], [1], [0], [0]], ["effusion"], group=[0, 0, 1, 1])
    >>> sorted(shuffled_rows(seen, "image", 1)[:2].tolist())
    [0, 1]
    """
    if how not in ("image", "patient"):
        raise ValueError(f"how is {how!r}: it must be 'image' or 'patient'")
    source = np.arange(len(observations))
    if how == "image":
        by_id = np.argsort(observations.order)
        for code in range(len(observations.group_names)):
            rows = by_id[observations.group[by_id] == code]
            name = observations.group_names[code]
            source[rows] = rows[keyed_rank(observations.digests[rows], "shuffle", seed, observations.task, name)]
        return source
    for members in exchangeable(observations.units, observations.group, observations.order, observations.site):
        names = observations.unit_names[observations.units[members[:, 0]]].tolist()
        source[members] = members[keyed_rank(names, "shuffle patients", seed, observations.task)]
    return source


def excluded_candidates(
    observations: Observations,
    options: Options,
    key: tuple[str | int, ...],
    queries: np.ndarray,
    labels: np.ndarray,
    cand_pos: np.ndarray,
    cand_neg: np.ndarray,
) -> Exclusions:
    """Which candidates each query is not compared with, under the rules of ``sets``.

    Args:
        observations: the cohort.
        options: ``sets``, ``balance_removed`` and ``exclude_same_patient`` are used.
        key: of the draw, for the random image that ``balance_removed`` takes out.
        queries: rows of the queries, shape (Q,), int64.
        labels: their labels, shape (Q,): 1 or 0.
        cand_pos: R⁺ in the order of the draw, shape (n,), int64.
        cand_neg: R⁻ in the order of the draw, shape (n,), int64.
    """
    count = len(queries)
    positive = labels == 1
    codes = observations.units if options.by_patient else np.arange(len(observations))
    pos = same_code_pairs(codes, queries, cand_pos)
    neg = same_code_pairs(codes, queries, cand_neg)
    gone_pos = np.bincount(pos[0], minlength=count)
    gone_neg = np.bincount(neg[0], minlength=count)
    removed = np.where(positive, gone_pos, gone_neg) > 0
    if options.sets == "patient":
        # At most one image of a patient is in a set, so the sides differ by at most one, and the last-ranked
        # candidate of the larger side is still in it: nothing was taken from that side.
        drop_pos = np.flatnonzero(gone_pos < gone_neg)
        drop_neg = np.flatnonzero(gone_neg < gone_pos)
    elif options.balance_removed:
        own = (
            same_code_pairs(np.arange(len(observations)), queries, cand_pos)[0],
            same_code_pairs(np.arange(len(observations)), queries, cand_neg)[0],
        )
        drop_neg, drop_pos = own[0], own[1]
    else:
        drop_pos = drop_neg = np.empty(0, np.int64)
    last = len(cand_pos) - 1
    pos = _and_dropped(observations, options, key, queries, pos, drop_pos, last)
    neg = _and_dropped(observations, options, key, queries, neg, drop_neg, len(cand_neg) - 1)
    return Exclusions(
        pos,
        neg,
        removed,
        len(cand_pos) - np.bincount(pos[0], minlength=count),
        len(cand_neg) - np.bincount(neg[0], minlength=count),
    )


def draw_key(observations: Observations, options: Options, finding: str, group: str, redraw: int) -> tuple:
    """The key of a draw: (seed, task, finding, group, redraw)."""
    return (options.seed, observations.task, finding, group, redraw)


def set_size(observations: Observations, options: Options, rows_pos: np.ndarray, rows_neg: np.ndarray) -> int:
    """n = min(max_candidates, positives, negatives), in patients for ``sets="patient"``."""
    if options.sets == "patient":
        sizes = [len(np.unique(observations.units[rows])) for rows in (rows_pos, rows_neg)]
    else:
        sizes = [len(rows_pos), len(rows_neg)]
    return min(options.max_candidates, *sizes)


def candidate_sets(
    observations: Observations,
    options: Options,
    finding: str,
    group: str,
    rows_pos: np.ndarray,
    rows_neg: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, str | None]:
    """R⁺ and R⁻ of one finding in one group, for whoever labels images one after the other.

    They are those of the first of :func:`draws` whenever the same images are labelled.

    Args:
        observations: the images; their labels are not looked at.
        options: ``sets``, ``seed``, ``k`` and ``max_candidates`` are used.
        finding, group: names.
        rows_pos, rows_neg: the labelled images of the group, two int64 arrays.

    Returns:
        the sets, each in the order of the draw, and why they are empty, or None.
    """
    n = set_size(observations, options, rows_pos, rows_neg)
    reason = _too_few(observations, options, n, len(rows_pos), len(rows_neg))
    if reason is not None:
        return rows_pos[:0], rows_neg[:0], reason
    pos, neg = DrawnSets(observations, options, (rows_pos, rows_neg), (finding, group), n)[0]
    return pos, neg, None


def groups(observations: Observations, matched: bool) -> Iterator[tuple[str, np.ndarray, list[tuple[str, np.ndarray]]]]:
    """What is compared within: the matched groups, or one pooled group with the same queries.

    Yields:
        name, rows (ascending, int64), and (name, rows) of each matched group in it.
    """
    parts = [(name, np.flatnonzero(observations.group == code)) for code, name in enumerate(observations.group_names)]
    if matched:
        for name, rows in parts:
            yield name, rows, [(name, rows)]
    else:
        yield POOLED_GROUP, np.arange(len(observations)), parts


def query_order(observations: Observations, options: Options, rows: np.ndarray, group: str) -> np.ndarray:
    """The rows of a matched group in the order in which query images are sampled: one sample for all its findings."""
    return rows[keyed_rank(observations.digests[rows], "queries", options.seed, observations.task, group)]


def _draw(
    observations: Observations,
    options: Options,
    label: np.ndarray,
    column: int,
    group: str,
    rows: np.ndarray,
    sampled: list[np.ndarray],
    shared: RowSets,
) -> Draw:
    finding = observations.findings[column]
    masks = [label[rows] == wanted for wanted in (1, 0)]
    keys = [(options.matched, group, np.packbits(mask).tobytes()) for mask in masks]
    rows_pos, rows_neg = (shared.setdefault(key, rows[mask]) for key, mask in zip(keys, masks, strict=True))
    queries = np.sort(np.concatenate([_queries(observations, options, label, column, part) for part in sampled]))
    n = set_size(observations, options, rows_pos, rows_neg)
    reason = _too_few(observations, options, n, len(rows_pos), len(rows_neg))
    if reason is None and not (label[queries] == 1).any():
        reason = f"no query ({options.queries})"
    sets: Sequence[tuple[np.ndarray, np.ndarray]] = ()
    if reason is None:
        sets = DrawnSets(observations, options, (rows_pos, rows_neg), (finding, group), n)
    else:
        queries = queries[:0]
    return Draw(finding, group, rows_pos, rows_neg, sets, queries, label[queries], reason)


def _queries(
    observations: Observations, options: Options, label: np.ndarray, column: int, order: np.ndarray
) -> np.ndarray:
    if options.queries == "test":
        assert observations.test is not None
        return order[observations.test[order] & (label[order] >= 0)]
    if options.queries == "image_sample":
        order = order[: options.max_queries]
    positive = order[label[order] == 1]
    if options.queries == "all":
        return positive[: options.max_queries]
    if options.queries == "boxed":
        assert observations.boxed is not None
        return positive[observations.boxed[positive, column]]
    return positive


def _too_few(observations: Observations, options: Options, n: int, positives: int, negatives: int) -> str | None:
    """Why n candidates a side are too few, or None."""
    if positives + negatives == 0:
        return "no labelled image"
    if n < options.k + 1:
        unit = "patients" if options.sets == "patient" and observations.patient is not None else "images"
        have = f"{positives} positive and {negatives} negative images"
        return f"n = {n} {unit} a side, k + 1 = {options.k + 1} are needed ({have})"
    return None


class DrawnSets(Sequence[tuple[np.ndarray, np.ndarray]]):
    """(R⁺, R⁻) of each draw. The first is kept; a thousand further ones of many findings would fill the memory.

    The first is ranked by the keyed hash of (seed, task, finding, group, 0, image id). The further ones are ranked by a
    hash of the same parts that costs less for each of many draws (:class:`.keyed_hash.KeyedRanks`).
    """

    def __init__(
        self,
        observations: Observations,
        options: Options,
        sides: tuple[np.ndarray, np.ndarray],
        cell: tuple[str, str],
        n: int,
    ) -> None:
        self._observations, self._options, self._cell, self._n = observations, options, cell, n
        self._sides = sides
        self._ranks: list[KeyedRanks] | None = None
        key = ("draw", *draw_key(observations, options, *cell, 0))
        pos, neg = (self._first_units(partial(_keyed_first, observations, rows, key), len(rows)) for rows in sides)
        self._kept = pos, neg

    def __len__(self) -> int:
        return self._options.redraws

    def __getitem__(self, redraw: int) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[override]
        if not 0 <= redraw < len(self):
            raise IndexError(f"there are {len(self)} draws, not {redraw + 1}")
        if not redraw:
            return self._kept
        pos, neg = (self._first_units(partial(ranks.first, number=redraw), len(ranks)) for ranks in self.further())
        return pos, neg

    def unordered(self, redraw: int) -> tuple[np.ndarray, np.ndarray]:
        """The images of the sets of a further draw, in any order: for less, where thousands are drawn.

        Args:
            redraw: number of the draw, at least 1.
        """
        if self._options.sets != "image":
            return self[redraw]
        pos, neg = (ranks.first_unordered(self._n, redraw) for ranks in self.further())
        return pos, neg

    def further(self) -> list[KeyedRanks]:
        """What the further draws of each side share; call it once before several threads ask for draws."""
        if self._ranks is None:
            key = ("further draws", *draw_key(self._observations, self._options, *self._cell, 0)[:-1])
            self._ranks = [KeyedRanks(self._observations.digests[rows], *key, items=rows) for rows in self._sides]
        return self._ranks

    def _first_units(self, first: Callable[[int], np.ndarray], images: int) -> np.ndarray:
        """The first n images, or the first images of the first n patients, in the order of a draw.

        Args:
            first: number -> the first so many images of one label in the order of the draw.
            images: of that label.
        """
        n = self._n
        if self._options.sets == "image":
            return first(n)
        units = self._observations.units
        length = 2 * n
        while True:
            ranked = first(length)
            ranked = ranked[first_of_code(units[ranked], len(self._observations.unit_names))]
            if len(ranked) >= n or length >= images:
                return ranked[:n]
            length *= 2


def _keyed_first(observations: Observations, rows: np.ndarray, key: tuple[str | int, ...], count: int) -> np.ndarray:
    return rows[keyed_first(observations.digests[rows], count, *key)]


def first_of_code(codes: np.ndarray, count: int) -> np.ndarray:
    """Whether each code, below ``count``, is the first of its kind."""
    place = np.empty(count, np.int64)
    backwards = np.arange(len(codes) - 1, -1, -1)
    place[codes[backwards]] = backwards
    return place[codes] == np.arange(len(codes))


def same_code_pairs(codes: np.ndarray, queries: np.ndarray, candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(index of the query, index of the candidate) of every pair of one code.

    Args:
        codes: of each image, shape (N,), int64, whole numbers from 0.
        queries: rows, int64.
        candidates: rows, int64.
    """
    place = np.full(int(codes.max(initial=-1)) + 1, -1)
    place[codes[candidates]] = np.arange(len(candidates))
    if bool((place[codes[candidates]] == np.arange(len(candidates))).all()):
        found = place[codes[queries]]
        query = np.flatnonzero(found >= 0)
        return query, found[query]
    by_code = np.argsort(codes[candidates], kind="stable")
    query, at = matches(codes[queries], codes[candidates][by_code])
    return query, by_code[at]


def matches(wanted: np.ndarray, ranked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(place in ``wanted``, place in ``ranked``, which ascends) of every pair of equal values, by the first."""
    start = np.searchsorted(ranked, wanted, side="left")
    count = np.searchsorted(ranked, wanted, side="right") - start
    place = np.repeat(np.arange(len(wanted)), count)
    within = np.arange(len(place)) - np.repeat(np.cumsum(count) - count, count)
    return place, np.repeat(start, count) + within


def _and_dropped(
    observations: Observations,
    options: Options,
    key: tuple[str | int, ...],
    queries: np.ndarray,
    pairs: tuple[np.ndarray, np.ndarray],
    drop: np.ndarray,
    last: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs, and one further candidate of each query in ``drop``: the last-ranked one, or a random one."""
    if not len(drop):
        return pairs
    if options.sets == "patient":
        place = np.full(len(drop), last)
    else:
        fraction = stable_fraction(observations.digests[queries[drop]], "balance", *key)
        place = np.floor(fraction * (last + 1)).astype(np.int64)
    both = np.unique(np.concatenate([pairs[0], drop]) * (last + 1) + np.concatenate([pairs[1], place]))
    return both // (last + 1), both % (last + 1)


def _isolated(labels: np.ndarray, uncertain: np.ndarray | None) -> np.ndarray:
    other = (labels == 1) if uncertain is None else (labels == 1) | uncertain
    count = other.sum(axis=1, keepdims=True)
    alone = (labels == 1) & (count - other == 0)
    none = (labels == 0) & (count == 0)
    return np.where(alone | none, labels, np.int8(-1)).astype(np.int8)
