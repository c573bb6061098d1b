"""The drawing that explains why D compares sets of equal size."""

from __future__ import annotations

from markupsafe import Markup

# Offsets from the image asked about: the same five positives on both sides, few or many negatives.
POSITIVES = ((-16, -22), (20, -14), (-30, 6), (8, 28), (32, 22))
FEW = ((-46, -30), (44, -34), (-48, 30), (50, 34), (-4, -50))
CROWD = (
    *((-12, 12), (14, 6), (-20, -8), (4, -16), (24, 8), (-8, 22), (-26, 22), (30, -8), (-4, -30), (18, 36)),
    *((-38, -14), (40, 4), (-34, 38), (34, 44), (6, 46), (-14, 44), (26, -34), (-24, -40), (-54, 4), (56, -14)),
    *((10, -42), (-58, -24), (60, 20), (-60, 28)),
)
STAR = "l3 6 7 .8-5 5 1.3 7-6.3-3.5-6.3 3.5 1.3-7-5-5 7-.8z"
ALTERNATIVE = (
    "Left: a positive image among five positives and five negatives; its nearest neighbours are positive. Right: the "
    "same image and the same positives among many more negatives; its nearest neighbours are negative although "
    "nothing about the image has changed."
)


def equal_sets_drawing() -> Markup:
    """One positive image among equal sets (left) and among all images (right), as an ``<svg>`` element."""
    few = _panel(115, "equal sets: D", ("5 positives, 5 negatives:", "the positives are nearer"), FEW, 42)
    crowd = _panel(
        345, "all images: D_all", ("5 positives, 29 negatives:", "the negatives are nearer"), FEW + CROWD, 24
    )
    return Markup(
        '<svg class="es" viewBox="0 0 460 212" role="img" aria-labelledby="es-title">'
        f'<title id="es-title">{ALTERNATIVE}</title>{few}{crowd}</svg>'
    )


def _panel(at: int, title: str, caption: tuple[str, str], negatives: tuple[tuple[int, int], ...], reach: int) -> str:
    squares = "".join(f'<rect x="{at + x - 4}" y="{y + 96}" width="8" height="8"/>' for x, y in negatives)
    discs = "".join(f'<circle cx="{at + x}" cy="{100 + y}" r="4.5"/>' for x, y in POSITIVES)
    return (
        f'<circle class="reach" cx="{at}" cy="100" r="{reach}"/><g class="ng">{squares}</g><g class="ps">{discs}</g>'
        f'<path class="qu" d="M{at} 91{STAR}"/>'
        f'<text x="{at}" y="16" text-anchor="middle" class="st">{title}</text>'
        f'<text x="{at}" y="188" text-anchor="middle">{caption[0]}</text>'
        f'<text x="{at}" y="205" text-anchor="middle">{caption[1]}</text>'
    )
