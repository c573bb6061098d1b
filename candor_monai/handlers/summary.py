"""Prints what an evaluation found, a line a finding, when its epoch completes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from ..utils.names import on_one_line
from ..visualize.verdicts import reference
from .rank_zero import RankZeroHandler

if TYPE_CHECKING:
    from ignite.engine import Engine

    from .run_context import RunContext

HEADER = ("finding", "D", "95 % total interval", "chance", "p", "D_all", "margin AUROC", "queries")


class SummaryHandler(RankZeroHandler):
    """Print the pooled rows of :class:`~candor_monai.handlers.candor.CandorHandler` as a table.

    Args:
        context: the run; names the encoder, the files and how many images were scored.
        stream: where it is written; None: standard output.
        save_rank: only this process prints.
    """

    def __init__(self, context: RunContext, stream: TextIO | None = None, save_rank: int = 0) -> None:
        super().__init__(save_rank)
        self.context = context
        self.stream = stream

    def act(self, engine: Engine) -> None:
        """Print."""
        stream = self.stream or sys.stdout
        state: Any = engine.state
        accounting = state.results["accounting"]
        print(f"\nEncoder {self.context.encoder['name']} on cohort {self.context.cohort.name}", file=stream)
        print(summary(state.candor.rows), file=stream)
        print(
            f"{accounting['images_in']} images in, {accounting['scored']} scored, {accounting['rejected']} rejected. "
            f"Results: {self.context.output_dir}",
            file=stream,
            flush=True,
        )


def summary(rows: Iterable[Mapping[str, Any]]) -> str:
    """The pooled rows as an aligned text table; a finding that is not estimable says why.

    >>> print(summary([{"level": "finding", "finding": "Edema", "status": "ok", "D": 0.25, "n_queries": 8}]))
    finding  D      95 % total interval  chance  p  D_all  margin AUROC  queries
    Edema    0.250  -                    -       -  -      -             8
    """
    lines: list[tuple[str, ...]] = [HEADER]
    notes = []
    for row in rows:
        if row["level"] == "group":
            continue
        name = on_one_line(row["finding"]) if row["level"] == "finding" else "all findings"
        if row.get("D") is None:
            reason = on_one_line(row.get("reason") or "no reason given")
            notes.append(f"{name}: {row['status']}: {reason}")
            continue
        lo, hi = row.get("D_total_lo"), row.get("D_total_hi")
        lines.append(
            (
                name,
                _number(row["D"]),
                "-" if lo is None or hi is None else f"{lo:.3f} to {hi:.3f}",
                _number(reference(row)),
                _number(row.get("p_chance"), 4),
                _number(row.get("D_all")),
                _number(row.get("margin_auroc")),
                str(row["n_queries"]),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*table, *notes])


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
