"""Matched groups of an evaluation cut into portions of work, and an estimate of what each costs."""

from __future__ import annotations

from collections.abc import Mapping

from ..metrics.draw import Draw
from ..metrics.evaluation import Plan
from ..metrics.options import Options

# At least so many portions of about equal size are made where there are groups enough, so that a run that is killed
# loses little, and so many for each process, so that none of them waits long for the last one.
PORTIONS, PORTIONS_EACH = 16, 4
# One number looked up and compared, in multiplications of a matrix product.
_LOOKED_UP = 20.0
# Queries that the permutation test takes of a large group.
_TESTED = 4096


def group_costs(plan: Plan, options: Options, dimension: int) -> dict[str, float]:
    """About how much work each group is, in multiplications. It decides who scores what, and no number.

    Args:
        plan: of the evaluation.
        options: of the measure.
        dimension: length of a feature.
    """
    costs: dict[str, float] = {}
    for draw in plan.drawn:
        costs[draw.group] = costs.get(draw.group, 0.0) + _cost(draw, options, dimension)
    return costs


def _cost(draw: Draw, options: Options, dimension: int) -> float:
    images, queries, n = len(draw.rows_pos) + len(draw.rows_neg), len(draw.queries), draw.n
    if draw.reason or not n:
        return float(images)
    cost = float(queries) * (images + 2 * n) * dimension + images * options.resamples
    if options.margin:
        cost += float(images) * 2 * n * dimension
    if options.permutation_test:
        compared = min(2 * n, 1.5 * options.k * images / n + 8)
        cost += options.permutations * (min(queries, _TESTED) * compared + images) * _LOOKED_UP
    return cost


def portions(costs: Mapping[str, float], processes: int = 1) -> list[list[str]]:
    """Names of groups put together to portions of work, the largest first.

    A group whose cost is a portion's share or more is a portion of its own.

    Args:
        costs: of each group.
        processes: that share the work.

    >>> portions({"a": 1, "b": 100, "c": 1, "d": 40})
    [['b'], ['d'], ['a', 'c']]
    """
    share = sum(costs.values()) / max(PORTIONS, PORTIONS_EACH * processes)
    made: list[tuple[float, list[str]]] = []
    small: list[str] = []
    gathered = 0.0
    for name in sorted(costs, key=lambda name: (-costs[name], name)):
        if costs[name] >= share:
            made.append((costs[name], [name]))
            continue
        small.append(name)
        gathered += costs[name]
        if gathered >= share:
            made.append((gathered, small))
            small, gathered = [], 0.0
    if small:
        made.append((gathered, small))
    return [names for _, names in sorted(made, key=lambda item: -item[0])]
