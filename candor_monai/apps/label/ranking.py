"""What to read next: images in the order of each strategy, made when labels change and not when a client asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...metrics.keyed_hash import keyed_rank
from .margins import signed_margin

STRATEGIES = ("random", "candor_review", "candor_uncertain", "candor_diverse", "reread")


@dataclass(frozen=True)
class Ranking:
    """Images in the order in which a strategy serves them.

    Args:
        image_ids: the order.
        scores: what they were ranked by, as many; None: by nothing that a reader should see.
    """

    image_ids: list[str] = field(default_factory=list)
    scores: np.ndarray | None = None


class Ranker:
    """Rankings of N images.

    Args:
        image_ids: N ids.
        digests: their digests, shape (N, 2), uint64 (:func:`~candor_monai.metrics.keyed_hash.id_digests`).
        seed: of the random order.
    """

    def __init__(self, image_ids: Sequence[str], digests: np.ndarray, seed: int) -> None:
        self._ids = np.array(list(image_ids), dtype=object)
        self._order = np.empty(len(self._ids), np.int64)
        self._order[np.argsort(np.array(list(image_ids), dtype=np.str_), kind="stable")] = np.arange(len(self._ids))
        self._random = keyed_rank(digests, "label next", seed)

    def random(self, labelled: np.ndarray) -> Ranking:
        """Images without a label, in an order that depends on their ids and the seed alone."""
        return self._ranking(self._random[~labelled[self._random]], None)

    def review(self, dm: np.ndarray, labels: np.ndarray, reread: np.ndarray) -> Ranking:
        """Discordant labelled images that were not read again since, the most discordant first.

        An image's score is its largest margin on the other label's side over its findings (DM of a positive, −DM of a
        negative).

        Args:
            dm: shape (N, F), float64; NaN where there is none.
            labels: shape (N, F): 1, 0 or -1.
            reread: images that were read again, shape (N,), bool.
        """
        score = discordance(dm, labels)
        return self._best(np.where(reread | ~(score > 0), np.nan, score))

    def uncertain(self, impurity: np.ndarray, dm: np.ndarray, labelled: np.ndarray) -> Ranking:
        """Images without a label, by mean neighbourhood impurity r over the findings; among equals those with the
        smaller mean |DM| first.

        Args:
            impurity, dm: shape (N, F), float64; NaN where there is none.
            labelled: shape (N,), bool.
        """
        score = np.where(labelled, np.nan, row_mean(impurity))
        return self._best(score, row_mean(np.abs(dm)))

    def diverse(self, rows: np.ndarray, labelled: np.ndarray) -> Ranking:
        """Images without a label, in the order of :func:`~candor_monai.apps.label.diverse.farthest_first`."""
        return self._ranking(rows[~labelled[rows]], None)

    def _best(self, score: np.ndarray, second: np.ndarray | None = None) -> Ranking:
        rows = np.flatnonzero(~np.isnan(score))
        keys = [self._order[rows], -score[rows]]
        if second is not None:
            keys.insert(1, second[rows])
        rows = rows[np.lexsort(keys)]
        return self._ranking(rows, score[rows])

    def _ranking(self, rows: np.ndarray, scores: np.ndarray | None) -> Ranking:
        return Ranking(self._ids[rows].tolist(), scores)


def discordance(dm: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The largest signed margin of each image over its findings, shape (N,), float64; NaN where there is none.

    >>> discordance(np.array([[0.1, -0.3], [0.2, np.nan]]), np.array([[1, 0], [-1, 1]]))
    array([0.3, nan])
    """
    signed = signed_margin(dm, labels)
    known = ~np.isnan(signed)
    largest = np.where(known, signed, -np.inf).max(axis=1, initial=-np.inf)
    return np.where(known.any(axis=1), largest, np.nan)


def row_mean(values: np.ndarray) -> np.ndarray:
    """Mean of each row over what is not NaN; NaN where nothing is.

    >>> row_mean(np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan]]))
    array([ 2., nan])
    """
    known = ~np.isnan(values)
    count = known.sum(axis=1)
    total = np.where(known, values, 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
