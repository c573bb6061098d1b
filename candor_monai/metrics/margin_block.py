"""A block of images against the drawn sets of all sides of a batch, by one thread.

An image is scored once against all images that any set holds (:mod:`.score_tables`), which are fewer than the sets
together. A pair of several sets is settled once. Only the k nearest similarities are needed, not whose they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import neighbours as nb
from .discordance import neighbour_mean
from .largest import write_largest
from .neighbours import Counts, Request
from .options import Options
from .score_tables import Block, Pairs, ScoreTables, joined, union
from .similarity import FeatureRows
from .sweep_space import SweepSpace

# Pairs that are settled together; more only where one set adds them.
_PAIRS = 2**18


@dataclass(frozen=True)
class OfSide:
    """What a block found for one side.

    Attributes:
        images: places in ``Request.queries``, int64.
        means: of their k nearest, float64; NaN where fewer are left.
        slow: places of the images that :meth:`Batch.slow_means` is left with, int64.
    """

    images: np.ndarray
    means: np.ndarray
    slow: np.ndarray


class Batch:
    """Sides that are scored together.

    Args:
        rows: the features.
        space: of the scores.
        sides: images (the queries) and sets of at least k candidates.
        options: ``k`` and ``memory_bytes`` are used.
        threads: that work on blocks at a time.
    """

    def __init__(
        self, rows: FeatureRows, space: SweepSpace, sides: Sequence[Request], options: Options, threads: int
    ) -> None:
        self._rows, self._space, self._k = rows, space, options.k
        self._candidates = union([side.candidates for side in sides], len(rows))
        self._tables = ScoreTables(
            space,
            sides,
            [options.k] * len(sides),
            self._candidates,
            space.candidates(self._candidates),
            space.queries,
            options.memory_bytes // 4,
            threads,
        )

    def starts(self) -> range:
        """Where the blocks of images begin."""
        return self._tables.starts()

    def block(self, start: int) -> tuple[list[OfSide], Counts]:
        """What the block of images that begins there gives for each side; it can be called from several threads."""
        block = self._tables.block(start)
        sides, width = len(self._tables.requests), len(block.rows)
        counts = Counts(scored=len(self._candidates) * width)
        largest = np.full((sides * width, self._k), -np.inf)
        asked: list[tuple[np.ndarray, np.ndarray]] = []
        waiting: list[Pairs] = []
        for at in range(sides):
            places, pairs, served = block.listed(at)
            asked.append((places, served))
            waiting.append(pairs.after(at * width))
            if sum(map(len, waiting)) > _PAIRS:
                self._settle(block, waiting, largest, counts)
                waiting = []
        self._settle(block, waiting, largest, counts)
        means = _means(largest).reshape(sides, width)
        return [
            OfSide(places, means[at, : len(places)], places[~served]) for at, (places, served) in enumerate(asked)
        ], counts

    def slow_means(self, at: int, places: np.ndarray, order: np.ndarray, counts: Counts) -> np.ndarray:
        """Means of some images of a side, scored against its set alone: any scores and near ties will do.

        Args:
            at: place of the side.
            places: in ``Request.queries``, ascending, int64.
            order: place of each row among equal similarities, shape (N,), int64.
            counts: is added to.
        """
        request = self._tables.requests[at].of_queries(places)
        space = self._space.finer()
        listed = nb.shortlist(space, space.queries(request.queries), request, self._k, counts)
        return _means(nb.settle_together(self._rows, [request], [listed], [self._k], order, counts)[0].similarities)

    def _settle(self, block: Block, waiting: Sequence[Pairs], largest: np.ndarray, counts: Counts) -> None:
        """Write the k largest exact similarities of each target; a pair of several sides is settled once."""
        if not waiting:
            return
        pairs = block.trimmed(joined(waiting), len(largest), self._k)
        # Candidate by candidate: the images of a block stay in a cache.
        distinct, back = _distinct(pairs.member * len(block.rows) + pairs.query)
        member, image = np.divmod(distinct, len(block.rows))
        exact = self._rows.similarities(block.rows[image], self._candidates[member])
        of_pairs = exact[back]
        write_largest(pairs.target, of_pairs, largest)
        used = np.zeros(len(distinct), bool)
        used[back[of_pairs >= largest[pairs.target, -1]]] = True
        counts.settled += len(distinct)
        counts.undecided += int((~used).sum())


def _means(largest: np.ndarray) -> np.ndarray:
    """Means of rows of k similarities, shape (S, k), descending; NaN where fewer are there."""
    out = np.full(len(largest), np.nan)
    enough = np.isfinite(largest[:, -1])
    out[enough] = neighbour_mean(largest[enough], largest.shape[1])
    return out


def _distinct(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct keys, ascending, and the place of each key among them.

    >>> _distinct(np.array([7, 2, 7]))
    (array([2, 7]), array([1, 0, 1]))
    """
    bits = len(keys).bit_length()
    both = np.sort((keys << bits) | np.arange(len(keys)))  # one number sorts faster than a key with its place
    ranked, by = both >> bits, both & ((1 << bits) - 1)
    new = np.ones(len(keys), bool)
    new[1:] = ranked[1:] != ranked[:-1]
    back = np.empty(len(keys), np.int64)
    back[by] = np.cumsum(new) - 1
    return ranked[new], back
