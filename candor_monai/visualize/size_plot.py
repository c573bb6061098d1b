"""D of the encoders of a task against their number of parameters, trained and untrained ones told apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from .answer import summary_rows, titles
from .report_facts import untrained
from .verdicts import is_ranked
from .wording import number

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 20, 14, 46


def sized_rows(results: Mapping[str, Any], task: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """The task's ranked rows with the cards of their encoders, where the number of parameters is known."""
    cards = {card["name"]: card for card in results["encoders"]}
    rows = [(row, cards[row["encoder"]]) for row in summary_rows(results, task) if is_ranked(row)]
    return [(row, card) for row, card in rows if card.get("parameters")]


def size_plot(results: Mapping[str, Any], task: str) -> Markup:
    """One mark an encoder, over its number of parameters on a logarithmic axis.

    Args:
        results: the document of results.json.
        task: its name.

    Returns:
        an ``<svg>`` element with a text alternative; empty without three encoders of two sizes.
    """
    shown = sized_rows(results, task)
    sizes = sorted({card["parameters"] for _, card in shown})
    if len(shown) < 3 or len(sizes) < 2:
        return Markup("")
    name = titles(results)
    low, high = math.log10(sizes[0]) - 0.1, math.log10(sizes[-1]) + 0.1
    top = max(0.55, *(row["D"] + 0.05 for row, _ in shown))

    def x(size: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(size) - low) / (high - low)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top)

    axis = [f'<path class="ln" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>']
    for tick in (step / 10 for step in range(int(top * 10) + 1)):
        axis.append(f'<path class="gr" d="M{LEFT} {y(tick):.0f}H{WIDTH - RIGHT}"/>')
        axis.append(f'<text x="{LEFT - 6}" y="{y(tick) + 4:.0f}" text-anchor="end">{tick:g}</text>')
    for size in _ticks(low, high):
        axis.append(f'<path class="ln" d="M{x(size):.0f} {HEIGHT - BOTTOM}v5"/>')
        axis.append(f'<text x="{x(size):.0f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{_short(size)}</text>')
    axis.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">'
        "parameters (logarithmic)</text>"
    )
    axis.append(f'<path class="ch" d="M{LEFT} {y(0.5):.0f}H{WIDTH - RIGHT}"/>')
    marks = []
    for row, card in sorted(shown, key=lambda pair: -pair[0]["D"]):
        at, height = x(card["parameters"]), y(row["D"])
        title = f"<title>{escape(name[row['encoder']])}: D {number(row['D'])}</title>"
        if untrained(card):
            marks.append(f'<path class="al" d="M{at:.0f} {height - 5:.0f}l5 5-5 5-5-5z">{title}</path>')
        else:
            marks.append(f'<path class="dt" d="M{at:.0f} {height:.0f}h0">{title}</path>')
    ends = sorted(shown, key=lambda pair: pair[1]["parameters"])
    label = (
        f"D of {len(shown)} encoders against their number of parameters, from {_said(ends[0], name)} to "
        f"{_said(ends[-1], name)}; the same numbers are in the table"
    )
    return Markup(
        f'<svg class="sc" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f'<g class="tx">{"".join(axis)}</g>{"".join(marks)}</svg>'
    )


def _ticks(low: float, high: float) -> Sequence[float]:
    """Powers of ten inside, or the ends where there are fewer than two."""
    powers = [10.0**power for power in range(math.ceil(low), math.floor(high) + 1)]
    return powers if len(powers) > 1 else [10**low, *powers, 10**high]


def _short(size: float) -> str:
    """A number of parameters.

    >>> _short(1e9), _short(86_600_000), _short(34)
    ('1 G', '87 M', '34')
    """
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= factor:
            return f"{size / factor:.0f} {unit}"
    return f"{size:.0f}"


def _said(pair: tuple[Mapping[str, Any], Mapping[str, Any]], name: Mapping[str, str]) -> str:
    row, card = pair
    return f"{name[row['encoder']]} ({_short(card['parameters'])}, D {number(row['D'])})"
