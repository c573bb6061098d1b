"""The total interval: what D would vary by over new cohorts, not only over new queries.

The estimand is θ = E[D] over cohorts with the same group sizes, patient structure, n and k. The
conditional interval holds the candidates fixed; where a few of them are near everything, most of the
variance of D is theirs. Here the patients of a cell are split at random into two halves, each with
its own queries and its own candidates. The two halves are two independent, smaller cohorts, so

    E[(D₁₁ − D₂₂)²] / 2 = Var(D at half the size),

exactly and whatever D is (D_ab: queries of half a, candidates of half b). Halved once more for the
size, and averaged over splits, this is the complementary half-sample estimator of survey statistics
(McCarthy 1969); unlike subsampling or the jackknife it does not count interactions of patients twice.
The shared candidate term of strong hubs shrinks more slowly than 1/n; a share of its own estimate is
added for that (`hub_share`). The interval is a score (Wilson) interval with the effective number of queries
D(1 − D)/Var + 1 and a t quantile. The derivation and the simulations are in docs/uncertainty.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from .cells import Cell
from .half_samples import Halves
from .nearest_lists import NearestLists, nearest_lists
from .options import Options
from .resampling import MIN_POSITIVE_PATIENTS, Interval, uniform_bits
from .roc import auroc
from .similarity import FeatureRows

SPLITS = 400
# Of the variance that a half's candidates have in common, what is added; and of a difference of two values.
HUB_SHARE, PAIRED_SHARE = 0.175, 0.2
# Degrees of freedom of the part that hubs cause, for each effective neighbour.
_HUB_FREEDOM = 0.4
MAX_SCORED = 500
MARGIN_SPLITS = 200
# Scores of several splits that are put in order at once: 5 arrays of 8 bytes each are held.
_ORDERED = 100_000
# Bytes of a listed candidate, at their peak.
_LISTED_BYTES = 128


@dataclass(frozen=True)
class SplitReplicates:
    """D (or an AUROC) in both halves of B random splits of the patients, kept so that pooling is a sum.

    Args:
        estimate: the value on the whole cell, or None.
        weight: number of queries of the whole cell, by which it is pooled.
        numerators: shape (2, 2, B), float64: [a, b] is the number of queries of half a times their value
            against the candidates of half b.
        denominators: shape (2, B), float64: the number of queries of half a; 0: the split is not used.
        units: codes of the patients involved, shape (U,), int64, ascending.
        queries: queries of each of these patients, shape (U,), float64.
        hubs: how often each patient's images are among the k nearest of a query, shape (U,), float64.
        influence: how many of each patient's queries are discordant, less what D lets expect of so many, shape (U,),
            float64; zero for an AUROC.
        negatives: codes of patients with negatives, ten of them at most, shape (≤ 10,), int64, ascending.
        most: largest effective number of queries (infinite for an AUROC).
        crowding: neighbours over candidates, k/n (of pooled levels: the weighted mean).
        thinned: the queries' own variance over what it is in the splits, where only some of the scored images
            are taken (an AUROC); 1: all are.
        reason: why nothing is known of the variance, or None.
    """

    estimate: float | None
    weight: float
    numerators: np.ndarray
    denominators: np.ndarray
    units: np.ndarray
    queries: np.ndarray
    hubs: np.ndarray
    influence: np.ndarray
    negatives: np.ndarray
    most: float
    crowding: float = 0.0
    thinned: float = 1.0
    reason: str | None = None

    def table(self) -> np.ndarray:
        """The value of queries of half a against candidates of half b, shape (2, 2, B), NaN where undefined."""
        out = np.full(self.numerators.shape, np.nan)
        below = np.broadcast_to(self.denominators[:, None, :], self.numerators.shape)
        used = np.broadcast_to((self.denominators > 0).all(axis=0), self.numerators.shape)
        return np.divide(self.numerators, below, out=out, where=used)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the variance of a difference.

        The effective number of patients as queries or as neighbours, less one; and fewer because the splits are a
        sample too, each of them one degree of freedom.
        """
        patients = max(min(effective_number(self.queries), effective_number(self.hubs)) - 1.0, 1.0)
        return 1.0 / (1.0 / patients + 1.0 / max(self.splits, 1))

    @property
    def splits(self) -> int:
        """Splits that can be used: both halves hold queries."""
        return int((self.denominators > 0).all(axis=0).sum())


def split_bits(unit_names: Sequence[str], seed: int, splits: int = SPLITS) -> np.ndarray:
    """The random numbers that split the patients, the same for every cell and every encoder.

    Returns:
        shape (U, splits), uint16; row u depends on the name of unit u alone.

    Examples:
        >>> split_bits(["a", "b"], seed=42, splits=3).shape
        (2, 3)
    """
    return uniform_bits(unit_names, ("halves", seed), splits)


#: Lists of the nearest drawn positives and negatives of images of a cell.
Lists = Sequence[NearestLists]


def total_replicates(
    cell: Cell,
    features: np.ndarray,
    units: np.ndarray,
    bits: np.ndarray,
    k: int = 5,
    same_patient: bool = True,
    lists: Lists | None = None,
) -> SplitReplicates:
    """D of one cell in both halves of every split.

    Args:
        cell: from the exact engine.
        features: the stored rows, shape (N, d).
        units: code of each image's patient, shape (N,), int64.
        bits: from `split_bits`, row u for unit u, shape (U, B).
        k: neighbours a side.
        same_patient: leave the query's patient out of its candidates (`sets="patient"`); else only its own image.
        lists: of `cell_lists`, where several calls share them; `features` are not looked at then.
    """
    rows, discordant = cell.queries[cell.own], cell.discordant[cell.own]
    estimate = float(discordant.mean()) if len(rows) else None
    if estimate is None or not cell.n:
        return _without(estimate, len(rows), bits.shape[1], cell.reason or "no query")
    halves, lists = _prepared(cell, rows, features, units, bits, k, same_patient, lists)
    near = [
        halves.mean_distance(lists[0], halves.positive_half),
        halves.mean_distance(lists[1], halves.negative_half),
    ]
    value = (near[1] < near[0]).astype(np.float32)  # (half of the candidates, query, split)
    inside = np.stack([halves.query_half == side for side in (1, 2)]).astype(np.float32)
    numerators = np.stack([[(a * b).sum(axis=0, dtype=np.float64) for b in value] for a in inside])
    made = _replicates(rows, units, halves, lists, estimate, numerators, inside.sum(axis=1), float(len(rows)))
    place = np.searchsorted(made.units, units[rows])
    # Whole numbers are added up, so that the order of the images changes no bit.
    differ, asked = (np.bincount(place, one, minlength=len(made.units)) for one in (discordant, None))
    influence = differ - estimate * asked
    return replace(made, influence=influence, negatives=_some(units[cell.rows_neg]))


def total_margin_replicates(
    cell: Cell,
    features: np.ndarray,
    units: np.ndarray,
    bits: np.ndarray,
    rank: np.ndarray,
    k: int = 5,
    same_patient: bool = True,
    max_scored: int = MAX_SCORED,
    lists: Lists | None = None,
) -> SplitReplicates:
    """The margin classifier's AUROC of one cell in both halves of every split.

    Of each label at most `max_scored` images are scored in the splits, the first by `rank`, and the first
    `MARGIN_SPLITS` splits are taken. The estimate is of all images; the part of the variance that is the scored
    images' own is scaled to all of them, by the ratio of the two conditional variances (DeLong, by patient).

    Args:
        cell, features, units, bits, k, same_patient, lists: as in `total_replicates`.
        rank: a random number of each image that knows nothing of labels, shape (N,).
        max_scored: images of each label that are scored.
    """
    bits = bits[:, :MARGIN_SPLITS]
    scores, label, everything = cell.scored
    estimate, weight = auroc(scores, label), float(cell.own.sum())
    if estimate is None or not weight:
        return _without(estimate, weight, bits.shape[1], cell.reason or "no margin classifier")
    chosen = _scored_in_splits(label, rank[everything], max_scored)
    rows, positive = everything[chosen], label[chosen]
    halves, lists = _prepared(cell, rows, features, units, bits, k, same_patient, lists)
    with np.errstate(invalid="ignore"):  # a half without candidates of either kind: undefined, and left out below
        near = halves.mean_distance(lists[1], halves.negative_half)
        near -= halves.mean_distance(lists[0], halves.positive_half)
    inside = np.stack([halves.query_half == side for side in (1, 2)])
    below = inside[:, positive].sum(axis=1) * (weight / positive.sum())
    table = _auroc_table(near, inside, positive)
    below = below * np.isfinite(table).all(axis=(0, 1))
    numerators = np.where(below[:, None] > 0, table, 0.0) * below[:, None]
    made = _replicates(rows[positive], units, halves, lists, estimate, numerators, below, np.inf)
    thinned = 1.0
    if len(rows) < len(everything):
        part = auroc_variance(scores[chosen], positive, units[rows])
        thinned = min(auroc_variance(scores, label, units[everything]) / part, 1.0) if part > 0 else 1.0
    return replace(made, weight=weight, thinned=thinned, negatives=_some(units[cell.rows_neg]))


def cell_lists(
    rows: FeatureRows,
    cells: Sequence[Cell],
    units: np.ndarray,
    rank: np.ndarray,
    order: np.ndarray,
    options: Options,
) -> list[Lists]:
    """Lists of the images of cells of one group that the splits ask for, scored once for all cells.

    Args:
        rows: the features.
        cells: from the exact engine, with queries.
        units: code of each image's patient, shape (N,), int64.
        rank: as in `total_margin_replicates`.
        order: place of each image among equally near ones, shape (N,), int64.
        options: of the evaluation.
    """
    pairs = []
    for cell in cells:
        _, label, everything = cell.scored
        scored = everything[_scored_in_splits(label, rank[everything], MAX_SCORED)]
        asked = np.union1d(cell.queries[cell.own], scored)
        pairs += [(asked, cell.cand_pos), (asked, cell.cand_neg)]
    lists = nearest_lists(rows, pairs, units, options.by_patient, _length(options.k), order, options)
    return [lists[first : first + 2] for first in range(0, len(lists), 2)]


def lists_bytes(cell: Cell, k: int) -> int:
    """About how many bytes the lists of a cell take while they are looked for."""
    return 2 * (int(cell.own.sum()) + 2 * MAX_SCORED) * _length(k) * _LISTED_BYTES


def splits_bytes(cell: Cell) -> int:
    """About how many bytes the splits of a cell take while they are made: bytes a split of candidates and queries."""
    return SPLITS * (14 * cell.n + 41 * max(int(cell.own.sum()), 2 * MAX_SCORED))


def pool_splits(parts: Sequence[SplitReplicates]) -> SplitReplicates:
    """The value pooled over cells by number of queries.

    Raises:
        ValueError: no part is given, or the numbers of splits differ.
    """
    _same_splits(parts)
    present = [part for part in parts if part.weight > 0]
    reasons = [part.reason for part in present if part.reason is not None]
    total = sum(part.weight for part in present)
    units, (queries, hubs, influence) = _merged(present, [1.0] * len(present))
    known = [part.estimate for part in present]
    value = None
    if total > 0 and None not in known:
        value = sum(part.weight * float(one or 0.0) for part, one in zip(present, known, strict=True)) / total
    return SplitReplicates(
        value,
        total,
        np.sum([part.numerators for part in parts], axis=0),
        np.sum([part.denominators for part in parts], axis=0),
        units,
        queries,
        hubs,
        influence,
        _some(*(part.negatives for part in present)),
        sum(part.most for part in present),
        sum(part.weight * part.crowding for part in present) / total if total > 0 else 0.0,
        max((part.thinned for part in present), default=1.0),
        reasons[0] if reasons else None,
    )


def weighted_mean_splits(parts: Sequence[SplitReplicates], weights: Sequence[float]) -> SplitReplicates:
    """The weighted mean of several values (the severity-weighted mean over findings), split by split.

    Raises:
        ValueError: no part is given, the lengths or numbers of splits differ, or no weight is positive.
    """
    _same_splits(parts)
    if len(parts) != len(weights) or min(weights) < 0 or sum(weights) <= 0:
        raise ValueError("weights must be non-negative, with a positive sum, and as many as the parts")
    share = np.asarray(weights, dtype=np.float64) / float(sum(weights))
    reasons = [part.reason for part in parts if part.reason is not None]
    table = np.sum([s * part.table() for s, part in zip(share, parts, strict=True)], axis=0)
    used = np.isfinite(table).all(axis=(0, 1))
    known = [part.estimate for part in parts]
    scale = [s / part.weight if part.weight > 0 else 0.0 for s, part in zip(share, parts, strict=True)]
    units, (queries, hubs, influence) = _merged(parts, scale)
    return SplitReplicates(
        None if None in known else float(np.dot(share, np.array(known, dtype=np.float64))),
        1.0,
        np.where(used, table, 0.0),
        np.broadcast_to(used, (2, len(used))).astype(np.float64),
        units,
        queries,
        hubs,
        influence,
        _some(*(part.negatives for part in parts)),
        sum(part.most for part in parts),
        float(np.dot(share, [part.crowding for part in parts])),
        max(part.thinned for part in parts),
        reasons[0] if reasons else None,
    )


def total_variance(table: np.ndarray, share: float = HUB_SHARE, thinned: float = 1.0, own: float = 0.0) -> float:
    """Variance of a value from what it is in the two halves of many splits.

    Args:
        table: [a, b] is the value of queries of half a against candidates of half b, shape (2, 2, B); NaN where
            a split cannot be used.
        share: of the variance that the candidates of a half have in common, to be added.
        thinned: what is left of the queries' own variance when all images are scored, not those of the splits.
        own: the queries' own variance as the whole cell shows it, if that may be larger than in the halves.

    Returns:
        mean (T₁₁ − T₂₂)²/4, plus that share, less what all queries take away, plus what `own` is larger.

    Raises:
        ValueError: fewer than two splits can be used.

    Examples:
        >>> queries_differ = np.array([[[0.6, 0.4], [0.6, 0.4]], [[0.4, 0.6], [0.4, 0.6]]])
        >>> round(float(total_variance(queries_differ)), 6)
        0.01
    """
    return _added_up(_variances(table), share, thinned, own)


def _added_up(variances: tuple[float, float, float], share: float, thinned: float, own: float = 0.0) -> float:
    """What `total_variance` makes of `_variances`."""
    halves, common, queries = variances
    shrunk = (1 - thinned) * min(queries, halves)
    return halves + share * common - shrunk + max(own - queries, 0.0)


def _variances(table: np.ndarray) -> tuple[float, float, float]:
    """Of the whole: the halves' variance V₀, V_G that the candidates of a half have in common, and the queries' own."""
    used = table[:, :, np.isfinite(table).all(axis=(0, 1))]
    if used.shape[2] < 2:
        raise ValueError("table: fewer than two splits can be used")
    (first, across), (back, second) = used
    halves = np.mean((first - second) ** 2) / 4
    candidates = np.mean(((first + back - across - second) / 2) ** 2)
    chance = np.var((first - across - back + second) / 2)
    queries = (np.mean(((first + across - back - second) / 2) ** 2) + chance) / 4
    return float(halves), max(float(candidates - chance) / 2, 0.0), float(queries)


def difference_variance(first: SplitReplicates, second: SplitReplicates) -> float:
    """Variance of the difference of two encoders' values, of the same cell or pooled level with the same splits.

    What two encoders have in common cancels, and with it most of the variance that falls as 1/n: of what the candidates
    of a half share, more is added than for a single value. Queries that two like encoders answer differently are
    few, so their variance is taken where it is larger, in the halves or in the whole cell (docs/uncertainty.md).

    Raises:
        ValueError: fewer than two splits can be used.
    """
    share = min(max(PAIRED_SHARE, 2 * max(first.crowding, second.crowding)), 0.5)
    units = np.concatenate([first.units, second.units])
    codes, place = np.unique(units, return_inverse=True)
    apart = np.bincount(place, np.concatenate([first.influence, -second.influence]), len(codes))
    own = float(np.sum(apart**2)) / first.weight**2
    return total_variance(first.table() - second.table(), share, max(first.thinned, second.thinned), own)


def total_interval(replicates: SplitReplicates, level: float = 0.95) -> Interval:
    """The total interval of D or an AUROC, for a cell or a pooled level.

    Args:
        replicates: from `total_replicates`, `pool_splits` or `weighted_mean_splits`.
        level: of the interval.
    """
    value, reason = replicates.estimate, interval_reason(replicates)
    if value is None or reason is not None:
        return Interval(estimate=value, reason=reason)
    variance, number, freedom = _spread(replicates)
    quantile = float(stats.t.ppf(0.5 + level / 2, freedom))
    ratio = quantile**2 / number
    centre = (value + ratio / 2) / (1 + ratio)
    reach = quantile / (1 + ratio) * np.sqrt(value * (1 - value) / number + ratio / (4 * number))
    lo = 0.0 if value == 0 else max(float(centre - reach), 0.0)
    hi = 1.0 if value == 1 else min(float(centre + reach), 1.0)
    return Interval(value, float(np.sqrt(variance)), lo, hi)


def interval_reason(replicates: SplitReplicates) -> str | None:
    """Why a cell or pooled level has no total interval, or None."""
    if replicates.reason is not None:
        return replicates.reason
    if replicates.estimate is None:
        return "no query"
    for count, name in (
        (int((replicates.queries > 0).sum()), "positive"),
        (len(replicates.negatives), "negative"),
    ):
        if count < MIN_POSITIVE_PATIENTS:
            return f"fewer than {MIN_POSITIVE_PATIENTS} {name} patients ({count})"
    if replicates.splits < 2:
        return "too few candidates to split"
    return None


def total_p(replicates: SplitReplicates, null: float = 0.5) -> float | None:
    """Two-sided p of θ = `null`: the level at which the total interval just reaches it; None without interval."""
    value = replicates.estimate
    if value is None or interval_reason(replicates) is not None:
        return None
    _, number, freedom = _spread(replicates)
    ratio = abs(value - null) / np.sqrt(null * (1 - null) / number)
    return float(2 * stats.t.sf(ratio, freedom))


def auroc_variance(scores: np.ndarray, positive: np.ndarray, units: np.ndarray) -> float:
    """Variance of an AUROC over patients, the scores being given (DeLong et al. 1988, by patient: Obuchowski 1997).

    Args:
        scores: shape (N,).
        positive: shape (N,), bool, some of either.
        units: code of each image's patient, shape (N,), int64.

    Examples:
        >>> round(auroc_variance(np.array([1.0, 3.0, 2.0, 0.0]), np.array([1, 1, 0, 0], bool), np.arange(4)), 4)
        0.0625
    """
    # Sums of floating-point numbers keep one order, whatever that of the images.
    by = np.lexsort((units, positive, scores))
    scores, positive, units = scores[by], positive[by], units[by]
    wins, losses = int(positive.sum()), int((~positive).sum())
    ranks = stats.rankdata(scores)
    share = np.empty(len(scores))
    share[positive] = (ranks[positive] - stats.rankdata(scores[positive])) / losses
    share[~positive] = 1 - (ranks[~positive] - stats.rankdata(scores[~positive])) / wins
    share -= share[positive].mean()
    share[positive] /= wins
    share[~positive] /= losses
    by_patient = np.bincount(np.unique(units, return_inverse=True)[1], share)
    return float(np.sum(by_patient**2))


def effective_number(counts: np.ndarray) -> float:
    """Kish's effective number (Σc)²/Σc² of unequal shares.

    Examples:
        >>> float(effective_number(np.array([5.0, 5.0, 0.0])))
        2.0
    """
    squares = float(np.sum(counts**2))
    return float(np.sum(counts)) ** 2 / squares if squares > 0 else 0.0


def hub_share(crowding: float) -> float:
    """The share added for hubs: how much more slowly than 1/n their variance shrinks from half the size to the whole.

    Of a variance ∝ n^−α the whole size keeps 2^−α; a half of it is already there. With α = 1 nothing is to be
    added, with α = 0 a half. The smaller n is beside k, the nearer the hubs are to deciding every query.

    Args:
        crowding: k/n.

    Examples:
        >>> hub_share(5 / 20), hub_share(5 / 4000)
        (0.25, 0.175)
    """
    return min(max(HUB_SHARE, crowding), 0.5)


def _some(*codes: np.ndarray) -> np.ndarray:
    """So many distinct codes as a statement takes, ascending."""
    return np.unique(np.concatenate([np.empty(0, np.int64), *codes]))[:MIN_POSITIVE_PATIENTS]


def _spread(replicates: SplitReplicates) -> tuple[float, float, float]:
    """Variance, effective number of queries, and the degrees of freedom of the variance.

    Hubs and queries each have some of the variance, and degrees of freedom of their own (Satterthwaite 1946); the
    splits are a sample too.
    """
    table, share = replicates.table(), hub_share(replicates.crowding)
    variances = _variances(table)
    variance = _added_up(variances, share, replicates.thinned)
    part = min((0.5 + share) * variances[1] / variance, 1.0) if variance > 0 else 0.0
    by_hubs = max(_HUB_FREEDOM * effective_number(replicates.hubs), 1.0)
    by_queries = max(effective_number(replicates.queries) - 1, 1.0)
    freedom = 1 / (part**2 / by_hubs + (1 - part) ** 2 / by_queries + 1 / max(replicates.splits, 1))
    return variance, _effective_queries(replicates, table, variance), freedom


def _effective_queries(replicates: SplitReplicates, table: np.ndarray, variance: float) -> float:
    """How many independent queries would vary as much: θ(1 − θ)/variance.

    A value p has E[p(1 − p)] = θ(1 − θ) − Var(p), so p(1 − p) + variance stands for θ(1 − θ). The level p is half-way
    between the value and its mean in the halves, where the variance comes from: a value of exactly 0 or 1 that the
    halves do not share is no certainty.
    """
    halves = float(np.nanmean((table[0, 0] + table[1, 1]) / 2))
    level = (float(replicates.estimate or 0.0) + halves) / 2
    if variance > 0 and 0 < level < 1:
        return min(level * (1 - level) / variance + 1, replicates.most)
    return effective_number(replicates.queries)  # all agree: as many answers as there are patients


def _without(estimate: float | None, weight: float, splits: int, reason: str) -> SplitReplicates:
    none = np.empty(0)
    table, below = np.zeros((2, 2, splits)), np.zeros((2, splits))
    codes = none.astype(np.int64)
    return SplitReplicates(estimate, float(weight), table, below, codes, none, none, none, codes, 0.0, reason=reason)


def _scored_in_splits(label: np.ndarray, rank: np.ndarray, most: int) -> np.ndarray:
    """Places of the images that are scored in the splits: of positives, then of negatives, the first by rank."""
    return np.concatenate(
        [one[np.argsort(rank[one], kind="stable")[:most]] for one in map(np.flatnonzero, (label, ~label))]
    )


def _length(k: int) -> int:
    """Of lists that hold k candidates of either half nearly always."""
    return 6 * k + 6


def _prepared(
    cell: Cell,
    rows: np.ndarray,
    features: np.ndarray,
    units: np.ndarray,
    bits: np.ndarray,
    k: int,
    same_patient: bool,
    lists: Lists | None,
) -> tuple[Halves, Lists]:
    halves = Halves(bits, units[cell.cand_pos], units[cell.cand_neg], units[rows], k)
    if lists is not None:
        return halves, [one.of(rows) for one in lists]
    pairs = [(rows, side) for side in (cell.cand_pos, cell.cand_neg)]
    return halves, nearest_lists(FeatureRows(features), pairs, units, same_patient, _length(k))


def _replicates(
    rows: np.ndarray,
    units: np.ndarray,
    halves: Halves,
    lists: Lists,
    estimate: float | None,
    numerators: np.ndarray,
    denominators: np.ndarray,
    most: float,
) -> SplitReplicates:
    usable = (halves.neighbours > 0) & (denominators > 0).all(axis=0)
    near = np.concatenate([one.units_of_nearest(halves.full).ravel() for one in lists])
    asked = units[rows]
    involved = np.unique(np.concatenate([near, asked]))
    queries, hubs = (
        np.bincount(np.searchsorted(involved, one), minlength=len(involved)).astype(np.float64) for one in (asked, near)
    )
    return SplitReplicates(
        estimate,
        float(len(rows)),
        numerators * usable,
        denominators * usable,
        involved,
        queries,
        hubs,
        np.zeros(len(involved)),
        np.empty(0, np.int64),
        most,
        halves.full / len(lists[0]),
        reason=None if usable.sum() >= 2 else "too few candidates to split",
    )


def _auroc_table(near: np.ndarray, inside: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """AUROC of the images of half a by the candidates of half b, shape (2, 2, B); NaN where there is none.

    The pairs are counted in whole numbers, as `auroc` does, so the values are its own to the bit.

    Args:
        near: scores by the candidates of half b, shape (2, images, B), float32.
        inside: whether an image is in half a, shape (2, images, B).
        positive: shape (images,).
    """
    out = np.full((2, 2, near.shape[2]), np.nan)
    step = max(1, _ORDERED // max(1, len(positive)))
    for first in range(0, near.shape[2], step):
        part = slice(first, first + step)
        for b in (0, 1):
            out[:, b, part] = _auroc_of_halves(near[b, :, part].T, inside[:, :, part].transpose(0, 2, 1), positive)
    return out


def _auroc_of_halves(score: np.ndarray, inside: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """AUROC of the images of each half, shape (2, S), by scores (S, images), float32; one sort serves both halves."""
    there = np.isfinite(score)
    # The order of float32 numbers as whole numbers (0.0 in place of -0.0), with what an image is behind it: its half
    # (0: neither) and whether it is positive. Equal scores stand with the negatives first.
    ranked = (score + np.float32(0)).view(np.int32)
    ranked ^= (ranked >> 31) & np.int32(0x7FFFFFFF)
    key = ranked.astype(np.int64) << 3
    key |= (inside[0] & there) + 2 * (inside[1] & there).astype(np.int64)
    key |= 4 * positive.astype(np.int64)
    key.sort(axis=1)
    kind = key.astype(np.int8) & 7
    key >>= 3
    tied = key[:, 1:] == key[:, :-1]
    out = np.full((2, len(score)), np.nan)
    for half in (0, 1):
        wins, losses = kind == 5 + half, kind == 1 + half
        below = np.cumsum(losses, axis=1, dtype=np.int32)
        # Pairs in order count twice; those of equal scores, which `below` holds already, are to count once.
        twice = 2 * np.sum(below, axis=1, dtype=np.int64, where=wins) - _tied_pairs(tied, wins, losses)
        pairs = 2 * np.count_nonzero(wins, axis=1) * np.count_nonzero(losses, axis=1)
        np.divide(twice, pairs, out=out[half], where=pairs > 0)
    return out


def _tied_pairs(tied: np.ndarray, wins: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Pairs of a positive and a negative of the same score in each sorted row, shape (S,), int64.

    Args:
        tied: whether an image has the score of the one before it, shape (S, images - 1).
        wins, losses: positive and negative images, shape (S, images).
    """
    out = np.zeros(len(wins), np.int64)
    rows = np.flatnonzero(tied.any(axis=1))
    if len(rows):
        first = np.ones((len(rows), wins.shape[1]), bool)
        first[:, 1:] = ~tied[rows]
        run = np.cumsum(first).reshape(first.shape) - 1
        both = [np.bincount(run[one[rows]], minlength=run[-1, -1] + 1) for one in (wins, losses)]
        out[rows] = np.add.reduceat(both[0] * both[1], run[:, 0])
    return out


def _same_splits(parts: Sequence[SplitReplicates]) -> None:
    if not parts:
        raise ValueError("parts: nothing to pool")
    if len({part.numerators.shape[2] for part in parts}) > 1:
        raise ValueError("parts: the numbers of splits differ")


def _merged(parts: Sequence[SplitReplicates], scale: Sequence[float]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Patients of several cells with their queries, neighbourhoods and influences, each cell scaled."""
    codes = np.concatenate([part.units for part in parts]) if parts else np.empty(0, np.int64)
    units, place = np.unique(codes, return_inverse=True)
    summed = []
    for name in ("queries", "hubs", "influence"):
        values = [one * getattr(part, name) for one, part in zip(scale, parts, strict=True)]
        summed.append(np.bincount(place, np.concatenate(values) if values else None, len(units)))
    return units, summed
