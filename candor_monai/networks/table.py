"""The table of encoders: what is known of each, and whether its weights are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .cards import list_cards, load_card
from .locations import weights_here

COLUMNS = (
    "name",
    "title",
    "weights",
    "dimension",
    "feature_point",
    "parameters",
    "input",
    "objective",
    "year",
    "trained_on",
    "overlaps",
    "licence",
    "gate",
    "hub_id",
)


def encoder_table(weights_dir: str | Path | None = None) -> list[dict[str, Any]]:
    """One row an encoder card, by name.

    Args:
        weights_dir: folder with one folder an encoder.

    Returns:
        rows with the columns COLUMNS. ``weights`` says where they are on this machine, or ``missing``; ``overlaps``
        names the evaluation sets whose images the encoder was trained on. The hub is not asked.

    >>> [row["dimension"] for row in encoder_table() if row["name"] == "rad_dino"]
    [768]
    """
    rows = []
    for name in list_cards():
        card = load_card(name)
        rows.append(
            {
                "name": card.name,
                "title": card.title,
                "weights": weights_here(card, weights_dir),
                "dimension": card.dimension,
                "feature_point": card.feature_point,
                "parameters": card.parameters,
                "input": card.processor.input_size if card.processor else None,
                "objective": card.objective,
                "year": card.year,
                "trained_on": ", ".join(card.trained_on) or None,
                "overlaps": ", ".join(card.overlaps) or None,
                "licence": card.licence,
                "gate": card.gate,
                "hub_id": card.hub_id,
            }
        )
    return rows


def format_table(rows: list[dict[str, Any]], columns: tuple[str, ...] = COLUMNS) -> str:
    """The table as text of aligned columns; long cells are cut.

    >>> print(format_table([{"name": "a", "dimension": 2}], ("name", "dimension")))
    name  dimension
    a     2
    """
    cells = [list(columns), *([_cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells)


def _cell(value: Any, longest: int = 40) -> str:
    text = "-" if value is None else f"{value:,}" if isinstance(value, int) and value > 9999 else str(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"
