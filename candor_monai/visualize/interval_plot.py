"""D with its intervals against chance, as a small inline SVG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup, escape

from .verdicts import reference, verdict
from .wording import interval, number

WIDTH, HEIGHT, MARGIN = 240, 22, 8
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


def _x(value: float) -> str:
    position = MARGIN + (WIDTH - 2 * MARGIN) * min(max(value, 0.0), 1.0)
    return f"{position:.1f}".rstrip("0").rstrip(".")


def interval_plot(row: Mapping[str, Any]) -> Markup:
    """One row of discordance.csv as a plot: a dot for D, a thick bar for the total interval, a thin one for the
    conditional interval, a dashed line for chance (grey band: what permuted labels give), a hollow diamond for D_all.

    Returns:
        an ``<svg>`` element with a text alternative; empty when D is not defined.
    """
    if row.get("D") is None:
        return Markup("")
    middle = HEIGHT // 2
    chance = reference(row) if reference(row) is not None else row.get("chance")
    parts = []
    null, spread = row.get("chance_null"), row.get("chance_null_sd")
    if null is not None and spread and row.get("p_chance") is not None:
        left, right = float(_x(null - 1.96 * spread)), float(_x(null + 1.96 * spread))
        parts.append(f'<rect class="nb" x="{left:g}" y="1" width="{right - left:.1f}" height="{HEIGHT - 2}"/>')
    if chance is not None:
        parts.append(f'<path class="ch" d="M{_x(chance)} 0v{HEIGHT}"/>')
    if row.get("D_total_lo") is not None and row.get("D_total_hi") is not None:
        parts.append(f'<path class="to" d="M{_x(row["D_total_lo"])} {middle}H{_x(row["D_total_hi"])}"/>')
    if row.get("D_lo") is not None and row.get("D_hi") is not None:
        low, high = _x(row["D_lo"]), _x(row["D_hi"])
        parts.append(f'<path class="co" d="M{low} {middle - 4}v8m0-4H{high}m0-4v8"/>')
    if row.get("D_all") is not None:
        parts.append(f'<path class="al" d="M{_x(row["D_all"])} {middle - 5}l5 5-5 5-5-5z"/>')
    parts.append(f'<circle cx="{_x(row["D"])}" cy="{middle}" r="4.5"/>')
    return Markup(
        f'<svg class="iv v-{verdict(row).code}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(_alternative(row, chance))}">{"".join(parts)}</svg>'
    )


def _alternative(row: Mapping[str, Any], chance: float | None) -> str:
    text = f"D {number(row['D'])}"
    if row.get("D_total_lo") is not None and row.get("D_total_hi") is not None:
        text += f", interval {interval(row['D_total_lo'], row['D_total_hi'])}"
    elif row.get("D_lo") is not None and row.get("D_hi") is not None:
        text += f", conditional interval {interval(row['D_lo'], row['D_hi'])}"
    return text + f", chance {number(chance)}"


def interval_axis() -> Markup:
    """The axis of a column of interval plots: 0 (all with their own kind) to 1, for the table's head."""
    ticks = "".join(
        f'<path d="M{_x(t)} 13v4"/><text x="{_x(t)}" y="10" text-anchor="middle">{t:g}</text>' for t in TICKS
    )
    return Markup(
        f'<svg class="ax" viewBox="0 0 {WIDTH} 18" aria-hidden="true"><path d="M{_x(0)} 17H{_x(1)}"/>{ticks}</svg>'
    )


def interval_key() -> Markup:
    """A large annotated example: how to read the plots."""
    return Markup(
        '<svg class="key" viewBox="0 0 640 190" role="img" aria-labelledby="key-title">'
        '<title id="key-title">How to read the plots. The dot is D. The thick bar is the total interval, the thin one '
        "with end marks the conditional interval. The dashed line is chance, the grey band around it is what shuffled "
        "labels give. The hollow diamond is D_all. Left is better.</title>"
        '<rect class="nb" x="300" y="62" width="56" height="56"/>'
        '<path class="ch" d="M328 52v76"/>'
        '<path class="to" d="M150 90H262"/><path class="co" d="M172 82v16m0-8H238m0-8v16"/>'
        '<path class="al" d="M508 80l10 10-10 10-10-10z"/><circle cx="205" cy="90" r="8"/>'
        '<path class="ln" d="M40 140H616M40 135v10M184 135v10M328 135v10M472 135v10M616 135v10"/>'
        '<g class="tx"><text x="40" y="160" text-anchor="middle">0</text>'
        '<text x="184" y="160" text-anchor="middle">0.25</text><text x="328" y="160" text-anchor="middle">0.5</text>'
        '<text x="472" y="160" text-anchor="middle">0.75</text><text x="616" y="160" text-anchor="middle">1</text>'
        '<text x="40" y="182">← every positive image lies among positives</text>'
        '<text x="616" y="182" text-anchor="end">every positive lies among negatives →</text>'
        '<text x="205" y="40" text-anchor="middle">D</text>'
        '<text x="110" y="20" text-anchor="middle">total 95 % interval</text>'
        '<text x="262" y="66" text-anchor="middle" class="sm">conditional</text>'
        '<text x="328" y="20" text-anchor="middle">chance</text><text x="328" y="36" text-anchor="middle" class="sm">'
        "(band: shuffled labels)</text>"
        '<text x="508" y="60" text-anchor="middle">D_all</text></g>'
        '<path class="ln" d="M205 46v30M110 26L154 84M250 70L236 84M508 66v10"/></svg>'
    )
