"""A square table of numbers as an inline SVG with colours and the numbers themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

from .wording import number

CELL, ROW, LABEL, BOTTOM = 46, 26, 150, 108
# Luminance at which black and white text are equally legible (4.6 : 1).
EVEN = 0.179
# Blue to white to orange: told apart by colour-blind readers, and by lightness in print.
BLUE, WHITE, ORANGE = (33, 102, 172), (255, 255, 255), (178, 90, 10)


def colour(value: float, largest: float = 1.0) -> str:
    """Colour of a value between −largest (orange) and +largest (blue).

    >>> colour(0.0), colour(1.0), colour(-2.0)
    ('#ffffff', '#2166ac', '#b25a0a')
    """
    share = max(-1.0, min(1.0, value / largest))
    end = BLUE if share >= 0 else ORANGE
    mixed = (round(w + (e - w) * abs(share)) for w, e in zip(WHITE, end, strict=True))
    return "#" + "".join(f"{c:02x}" for c in mixed)


def luminance(colour: str) -> float:
    """Relative luminance of a colour as WCAG defines it: 0 black, 1 white.

    >>> luminance("#000000"), luminance("#ffffff")
    (0.0, 1.0)
    """
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def heat_map(
    names: Sequence[str], values: Mapping[tuple[int, int], float | None], title: str, largest: float = 1.0
) -> Markup:
    """A symmetric heat map, lower triangle.

    Args:
        names: what rows and columns stand for.
        values: (row, column) with row > column -> value; missing or None is drawn empty.
        title: text alternative.
        largest: the absolute value with the full colour.

    Returns:
        an ``<svg>`` element; the numbers are text in it.
    """
    n = len(names)
    width, height = LABEL + CELL * (n - 1) + 8, ROW * (n - 1) + BOTTOM
    parts = []
    for i in range(1, n):
        y = ROW * (i - 1)
        parts.append(f'<text x="{LABEL - 6}" y="{y + 17}" text-anchor="end">{escape(_cut(names[i]))}</text>')
        for j in range(i):
            x = LABEL + CELL * j
            value = values.get((i, j))
            if value is None:
                parts.append(f'<rect class="no" x="{x}" y="{y}" width="{CELL - 2}" height="24"/>')
                continue
            fill = colour(value, largest)
            parts.append(f'<rect fill="{fill}" x="{x}" y="{y}" width="{CELL - 2}" height="24"/>')
            shade = "dk" if luminance(fill) > EVEN else "lt"
            parts.append(
                f'<text class="{shade}" x="{x + CELL // 2 - 1}" y="{y + 16}" text-anchor="middle">'
                f"{number(value, 2)}</text>"
            )
    for j in range(n - 1):
        x, y = LABEL + CELL * j + CELL // 2, ROW * (n - 1) + 8
        parts.append(
            f'<text transform="translate({x} {y}) rotate(-55)" text-anchor="end">{escape(_cut(names[j]))}</text>'
        )
    return Markup(
        f'<svg class="hm" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def _cut(name: str, limit: int = 20) -> str:
    return name if len(name) <= limit else name[: limit - 1] + "…"
