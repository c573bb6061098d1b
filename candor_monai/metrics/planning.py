"""How many labelled positives are needed: power by simulation, from a cohort's own clustering or given numbers.

D is taken to vary over cohorts as a share of `queries / design_effect` independent queries would; the design
effect holds what patients with several images and hubs among the candidates do, and is read off a cohort that
was evaluated (its total interval), or guessed: near 1.3 without hubs and clusters, 3 to 5 with strong hubs, more
with many images of the same patient. It is taken as constant in the number of positives. The tests are those of
the total interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from .comparison import total_difference
from .resampling import MIN_POSITIVE_PATIENTS
from .total_interval import SplitReplicates, total_interval

_SIMULATIONS = 4000
_MOST = 10_000_000


@dataclass(frozen=True)
class Clustering:
    """What planning needs to know of a kind of cohort.

    Args:
        design_effect: variance of D over that of as many independent queries.
        images_per_patient: positive images (queries) of a positive patient, on average.
        correlation: of D of two encoders over cohorts.

    Raises:
        ValueError: a number is out of range.
    """

    design_effect: float = 1.3
    images_per_patient: float = 1.0
    correlation: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.design_effect < np.inf:
            raise ValueError(f"design_effect must be positive, not {self.design_effect}")
        if not 1 <= self.images_per_patient < np.inf:
            raise ValueError(f"images_per_patient must be at least 1, not {self.images_per_patient}")
        if not -1 < self.correlation < 1:
            raise ValueError(f"correlation must be between −1 and 1, not {self.correlation}")


@dataclass(frozen=True)
class Plan:
    """An answer.

    Args:
        queries: positive images to label.
        patients: positive patients that they come from.
        power: probability that the test at `alpha` finds the effect with that many.
    """

    queries: int
    patients: int
    power: float


def clustering_of(first: SplitReplicates, second: SplitReplicates | None = None) -> Clustering:
    """The clustering of a cohort that was evaluated, from its splits.

    Args:
        first: a cell or pooled level.
        second: the same of another encoder, for the correlation; None: 0.5.

    Raises:
        ValueError: a total interval does not exist, or every query agrees.
    """
    alone = [total_interval(one) for one in (first, second) if one is not None]
    for interval in alone:
        if interval.sd is None:
            raise ValueError(f"first and second need a total interval: {interval.reason}")
    value, sd = float(first.estimate or 0.0), float(alone[0].sd or 0.0)
    queries = float(np.sum(first.queries))
    if not 0 < value < 1 or sd == 0:
        raise ValueError("first: every query agrees, so its clustering is not known")
    correlation = 0.5
    if second is not None and alone[1].sd:
        gap = float(total_difference(first, second).sd or 0.0)
        correlation = (sd**2 + alone[1].sd ** 2 - gap**2) / (2 * sd * alone[1].sd)
    return Clustering(
        design_effect=sd**2 * queries / (value * (1 - value)),
        images_per_patient=queries / max(int((first.queries > 0).sum()), 1),
        correlation=float(np.clip(correlation, -0.99, 0.99)),
    )


def power_against_chance(
    theta: float, queries: int, clustering: Clustering | None = None, alpha: float = 0.05, chance: float = 0.5
) -> float:
    """Probability that D is found to differ from chance.

    Args:
        theta: the D to be told from chance.
        queries: positive images.
        clustering: of the cohort.
        alpha: level of the two-sided test.
        chance: value of D under chance.

    Raises:
        ValueError: a number is out of range.

    Examples:
        >>> power_against_chance(0.5, 200) < 0.08
        True
    """
    _check(alpha=alpha, theta=theta, chance=chance)
    clustering = clustering or Clustering()
    rng = np.random.Generator(np.random.Philox(key=1))
    number, freedom = _numbers(queries, clustering)
    value = _shares(rng, theta, number)
    found = _noisy(rng, number, freedom)
    ratio = np.abs(value - chance) / np.sqrt(chance * (1 - chance) / found)
    return float(np.mean(2 * stats.t.sf(ratio, freedom) <= alpha))


def power_of_difference(
    theta: float, difference: float, queries: int, clustering: Clustering | None = None, alpha: float = 0.05
) -> float:
    """Probability that two encoders are found to differ.

    Args:
        theta: D of the better one.
        difference: how much larger D of the other is.
        queries: positive images.
        clustering: of the cohort; its correlation says how alike the encoders' errors are.
        alpha: level of the two-sided test.

    Raises:
        ValueError: a number is out of range.
    """
    _check(alpha=alpha, theta=theta, worse=theta + difference)
    clustering = clustering or Clustering()
    rng = np.random.Generator(np.random.Philox(key=2))
    number, freedom = _numbers(queries, clustering)
    spreads = [np.sqrt(level * (1 - level) / number) for level in (theta, theta + difference)]
    rho = clustering.correlation
    spread = np.sqrt(spreads[0] ** 2 + spreads[1] ** 2 - 2 * rho * spreads[0] * spreads[1])
    value = difference + spread * rng.standard_normal(_SIMULATIONS)
    ratio = np.abs(value) / (spread * np.sqrt(number / _noisy(rng, number, freedom)))
    return float(np.mean(2 * stats.t.sf(ratio, freedom) <= alpha))


def plan_against_chance(
    theta: float, power: float = 0.8, clustering: Clustering | None = None, alpha: float = 0.05, chance: float = 0.5
) -> Plan:
    """Positives needed to tell D = `theta` from chance.

    Raises:
        ValueError: `theta` is chance, or a number is out of range.

    Examples:
        >>> plan = plan_against_chance(0.40)
        >>> 200 < plan.queries < 320, plan.power >= 0.8
        (True, True)
    """
    if theta == chance:
        raise ValueError("theta is chance: no number of positives can tell them apart")
    kind = clustering or Clustering()
    return _smallest(lambda queries: power_against_chance(theta, queries, kind, alpha, chance), power, kind)


def plan_difference(
    theta: float, difference: float, power: float = 0.8, clustering: Clustering | None = None, alpha: float = 0.05
) -> Plan:
    """Positives needed to tell two encoders apart whose D are `theta` and `theta + difference`.

    Raises:
        ValueError: `difference` is 0, or a number is out of range.
    """
    if difference == 0:
        raise ValueError("difference is 0: no number of positives can tell the encoders apart")
    kind = clustering or Clustering()
    return _smallest(lambda queries: power_of_difference(theta, difference, queries, kind, alpha), power, kind)


def _smallest(found: Callable[[int], float], power: float, clustering: Clustering) -> Plan:
    _check(power=power)
    low = int(np.ceil(MIN_POSITIVE_PATIENTS * clustering.images_per_patient))
    high = low
    while found(high) < power:
        low, high = high, 2 * high
        if high > _MOST:
            raise ValueError(f"power {power} needs more than {_MOST} positives")
    while high - low > max(1, high // 200):
        middle = (low + high) // 2
        low, high = (middle, high) if found(middle) < power else (low, middle)
    return Plan(high, int(np.ceil(high / clustering.images_per_patient)), found(high))


def _numbers(queries: int, clustering: Clustering) -> tuple[float, float]:
    """Effective number of queries, and degrees of freedom."""
    if queries < MIN_POSITIVE_PATIENTS * clustering.images_per_patient:
        raise ValueError(f"queries: {queries} come from fewer than {MIN_POSITIVE_PATIENTS} patients")
    return max(queries / clustering.design_effect, 1.5), max(queries / clustering.images_per_patient - 1.0, 1.0)


def _shares(rng: np.random.Generator, theta: float, number: float) -> np.ndarray:
    """Shares with mean `theta` and variance θ(1 − θ)/number: beta-distributed."""
    return rng.beta(theta * (number - 1), (1 - theta) * (number - 1), _SIMULATIONS)


def _noisy(rng: np.random.Generator, number: float, freedom: float) -> np.ndarray:
    """The effective number as it is estimated."""
    return number / (rng.chisquare(freedom, _SIMULATIONS) / freedom)


def _check(**numbers: float) -> None:
    for name, value in numbers.items():
        if not 0 < value < 1:
            raise ValueError(f"{name} must lie between 0 and 1, not {value}")
