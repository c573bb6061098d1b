"""D and D_all against the number of positive images: the picture that explains why the two sets must be equal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 14, 46


def scatter_plot(rows: Iterable[Mapping[str, Any]]) -> Markup:
    """One dot (D) and one hollow diamond (D_all) a row, over the number of positives on a logarithmic axis.

    Args:
        rows: rows of discordance.csv of one level; those without D, D_all or positives are passed over.

    Returns:
        an ``<svg>`` element with a text alternative; empty without two points.
    """
    points = [
        (row["n_positive"], row["D"], row["D_all"])
        for row in rows
        if row.get("n_positive") and row.get("D") is not None and row.get("D_all") is not None
    ]
    if len(points) < 2:
        return Markup("")
    low = math.floor(math.log10(min(p[0] for p in points)))
    high = max(low + 1, math.ceil(math.log10(max(p[0] for p in points))))

    def x(n: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(n) - low) / (high - low)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value)

    axis = [f'<path class="ln" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>']
    for tick in (0, 0.25, 0.5, 0.75, 1):
        axis.append(f'<path class="gr" d="M{LEFT} {y(tick):.0f}H{WIDTH - RIGHT}"/>')
        axis.append(f'<text x="{LEFT - 6}" y="{y(tick) + 4:.0f}" text-anchor="end">{tick:g}</text>')
    for power in range(low, high + 1):
        at = x(10.0**power)
        axis.append(f'<path class="ln" d="M{at:.0f} {HEIGHT - BOTTOM}v5"/>')
        place, anchor = (WIDTH, "end") if power == high else (at, "middle")  # the last would leave the picture
        axis.append(f'<text x="{place:.0f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="{anchor}">{10**power:,}</text>')
    axis.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">'
        "positive images (logarithmic)</text>"
    )
    axis.append(f'<path class="ch" d="M{LEFT} {y(0.5):.0f}H{WIDTH - RIGHT}"/>')
    dots = "".join(f"M{x(n):.0f} {y(d):.0f}h0" for n, d, _ in points)
    diamonds = "".join(f"M{x(n):.0f} {y(d) - 4:.0f}l4 4-4 4-4-4z" for n, _, d in points)
    return Markup(
        f'<svg class="sc" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="D and D_all of {len(points)} encoder '
        f"and finding pairs against the number of positive images. Median D {_median([p[1] for p in points]):.2f}, "
        f'median D_all {_median([p[2] for p in points]):.2f}.">'
        f'<g class="tx">{"".join(axis)}</g><path class="al" d="{diamonds}"/><path class="dt" d="{dots}"/></svg>'
    )


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
