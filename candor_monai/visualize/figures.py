"""The study's figures with matplotlib, as SVG and PNG: nothing in them depends on the screen or on the day."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..utils.atomic import atomic_path
from .answer import summary_rows, tasks_of, titles
from .estimates import shown_rows
from .pictures import as_rows_columns
from .report_facts import untrained
from .report_rows import MATRIX_FINDINGS, encoder_order
from .results_files import remove_matching
from .size_plot import sized_rows
from .verdicts import is_ranked, reference, verdict
from .wording import measure_name, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, PURPLE, ORANGE, GREY, PALE = "#1b5a9c", "#6d3a8c", "#9a4a00", "#5b6773", "#7f9fc4"
SUFFIXES = (".svg", ".png")
# Names of the files of write_figures, without suffix.
STEMS = ("positives", "tasks", "sizes", "findings_*", "agreement_*", "overlap_*")


def save_figure(figure: Figure, path: str | Path, dpi: int = 200) -> list[Path]:
    """Write a figure as SVG and PNG, each whole or not at all; the same figure gives the same bytes.

    Args:
        figure: the figure.
        path: the file without its suffix.
        dpi: resolution of the PNG.

    Returns:
        the files.

    Raises:
        OSError: a file cannot be written.
    """
    import matplotlib

    files = []
    with matplotlib.rc_context({"svg.hashsalt": "candor_monai", "svg.fonttype": "path"}):
        for suffix in SUFFIXES:
            file = Path(f"{path}{suffix}")
            metadata = {"Date": None} if suffix == ".svg" else {"Software": None}
            with atomic_path(file) as temporary:
                figure.savefig(temporary, format=suffix[1:], dpi=dpi, metadata=metadata, bbox_inches="tight")
            files.append(file)
    return files


def positives_figure(results: Mapping[str, Any]) -> Figure:
    """D and D_all of every encoder and finding against the number of positive images.

    Args:
        results: the document of results.json.
    """
    rows = [
        row
        for task in tasks_of(results)
        for _, part in shown_rows(results, task)
        for row in part
        if is_ranked(row) and row.get("n_positive") and row.get("D_all") is not None
    ]
    figure, axes = _figure(6.4, 3.8)
    positives = [row["n_positive"] for row in rows]
    axes.plot(positives, [row["D_all"] for row in rows], "D", ms=4, mfc="none", mec=PURPLE, label="D_all: all images")
    axes.plot(positives, [row["D"] for row in rows], "o", ms=4, color=BLUE, alpha=0.8, label="D: equal sets")
    _chance_line(axes, horizontal=True)
    if rows:
        axes.set_xscale("log")
    axes.set(xlabel="positive images", ylabel="share of discordant images", ylim=(-0.02, 1.02))
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def tasks_figure(results: Mapping[str, Any]) -> Figure:
    """D of every encoder on every task, with its interval against chance; one panel a task, best on top.

    Args:
        results: the document of results.json.
    """
    name = titles(results)
    tasks = [task for task in tasks_of(results) if any(is_ranked(row) for row in summary_rows(results, task))]
    largest = max((len(summary_rows(results, task)) for task in tasks), default=1)
    columns = min(4, max(1, len(tasks)))
    lines = max(1, -(-len(tasks) // columns))
    figure, _ = _figure(3.6 * columns, lines * (0.9 + 0.21 * largest), bare=True)
    for place, task in enumerate(tasks, 1):
        axes = figure.add_subplot(lines, columns, place)
        rows = sorted((row for row in summary_rows(results, task) if is_ranked(row)), key=lambda row: -row["D"])
        _intervals(axes, rows, [name[row["encoder"]] for row in rows])
        axes.set_title(task, fontsize=9)
    figure.supxlabel("D (thick: total interval, thin: conditional; dashed: chance)", fontsize=8)
    figure.tight_layout()
    return figure


def findings_figure(results: Mapping[str, Any], task: str) -> Figure:
    """D of every encoder for each finding of a task; one panel a finding.

    Args:
        results: the document of results.json.
        task: its name.
    """
    name = titles(results)
    shown = [(estimate, [r for r in rows if r.get("D") is not None]) for estimate, rows in shown_rows(results, task)]
    shown = [(estimate, rows) for estimate, rows in shown if rows]
    order = {encoder: i for i, encoder in enumerate(encoder_order(results, [task]))}
    columns = min(4, max(1, len(shown)))
    lines = max(1, -(-len(shown) // columns))
    largest = max((len(rows) for _, rows in shown), default=1)
    figure, _ = _figure(3.6 * columns, lines * (0.9 + 0.21 * largest), bare=True)
    for place, (estimate, rows) in enumerate(shown, 1):
        axes = figure.add_subplot(lines, columns, place)
        rows = sorted(rows, key=lambda row: -order[row["encoder"]])
        _intervals(axes, rows, [name[row["encoder"]] for row in rows])
        axes.set_title(estimate.label, fontsize=9)
    figure.supxlabel("D (thick: total interval, thin: conditional; dashed: chance)", fontsize=8)
    figure.tight_layout()
    return figure


def sizes_figure(results: Mapping[str, Any]) -> Figure:
    """D of the encoders against their number of parameters; one panel a task, untrained encoders as diamonds.

    Args:
        results: the document of results.json.
    """
    tasks = _sized_tasks(results)
    columns = min(4, max(1, len(tasks)))
    lines = max(1, -(-len(tasks) // columns))
    figure, _ = _figure(3.4 * columns, 2.6 * lines, bare=True)
    for place, task in enumerate(tasks, 1):
        axes = figure.add_subplot(lines, columns, place)
        for kind, marker, colour in ((False, "o", BLUE), (True, "D", PURPLE)):
            part = [(row, card) for row, card in sized_rows(results, task) if untrained(card) == kind]
            sizes = [card["parameters"] for _, card in part]
            axes.plot(sizes, [row["D"] for row, _ in part], marker, ms=4, mfc="none" if kind else colour, mec=colour)
        _chance_line(axes, horizontal=True)
        axes.set_xscale("log")
        axes.set_ylim(bottom=-0.02)
        axes.set_title(task, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("parameters", fontsize=8)
    figure.supylabel("D", fontsize=8)
    figure.tight_layout()
    return figure


def _sized_tasks(results: Mapping[str, Any]) -> list[str]:
    """Tasks with encoders of two sizes at least."""
    return [t for t in tasks_of(results) if len({card["parameters"] for _, card in sized_rows(results, t)}) > 1]


def neighbours_figure(
    example: Mapping[str, Any], neighbours: pd.DataFrame, thumbnails: Callable[[str], np.ndarray | None]
) -> Figure:
    """One positive image with its nearest neighbours of both kinds and their similarities.

    Args:
        example: a row of queries.parquet: encoder, task, finding, group, image_id, c_pos, c_neg, dm.
        neighbours: rows of :func:`~.neighbours.nearest_neighbours` for this example.
        thumbnails: pixels of an image id, or None.
    """
    same = (neighbours["query"] == example["image_id"]) & (neighbours["finding"] == example["finding"])
    found = neighbours[same & (neighbours["encoder"] == example["encoder"])]
    sides = {label: found[found["label"] == label].sort_values("rank") for label in (0, 1)}
    k = max(1, *(len(side) for side in sides.values()))
    figure, _ = _figure(1.3 * (k + 2) + 0.3, 3.6, bare=True)
    grid = figure.add_gridspec(2, k + 2, wspace=0.06, hspace=0.3)
    _picture(
        figure.add_subplot(grid[:, :2]),
        thumbnails(str(example["image_id"])),
        "black",
        f"positive for {example['finding']}\nmargin {number(example['dm'], 4)}",
    )
    for line, (label, colour, what) in enumerate(((0, ORANGE, "negative"), (1, BLUE, "positive"))):
        side = zip(sides[label]["image_id"], sides[label]["similarity"], strict=True)
        for place, (image_id, similarity) in enumerate(side):
            axes = figure.add_subplot(grid[line, place + 2])
            text = f"{what}\n{similarity:.4f}" if not place else f"\n{similarity:.4f}"
            _picture(axes, thumbnails(str(image_id)), colour, text)
    return figure


def agreement_figure(results: Mapping[str, Any], task: str) -> Figure:
    """Spearman correlation over the encoders of every pair of measures, as a heat map.

    Args:
        results: the document of results.json, with ``agreement``.
        task: its name.
    """
    rows = [row for row in results.get("agreement") or () if row["task"] == task and not row.get("finding")]
    names = list(dict.fromkeys(row[key] for row in rows for key in ("measure_a", "measure_b")))
    values = _square(names, [(row["measure_a"], row["measure_b"], row["spearman"]) for row in rows])
    return _heat_map([measure_name(name) for name in names], values, "Agreement of rankings (Spearman)", 1.0)


def overlap_figure(results: Mapping[str, Any], task: str) -> Figure:
    """Overlap of discordant sets beyond chance (ΔJ, mean over the findings) of every pair of encoders, as a heat map.

    Args:
        results: the document of results.json, with ``overlap``.
        task: its name.
    """
    pairs: dict[tuple[str, str], list[float]] = {}
    for row in results.get("overlap") or ():
        if row["task"] == task:
            found = pairs.setdefault((row["encoder_a"], row["encoder_b"]), [])
            found += [] if row.get("delta_jaccard") is None else [row["delta_jaccard"]]
    known = {encoder for pair in pairs for encoder in pair}
    names = [encoder for encoder in encoder_order(results, [task]) if encoder in known]
    values = _square(names, [(a, b, sum(f) / len(f) if f else None) for (a, b), f in pairs.items()])
    largest = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 1.0
    title = titles(results)
    return _heat_map([title.get(n, n) for n in names], values, "ΔJ of the discordant sets", largest or 1.0)


def write_figures(folder: str | Path, results: Mapping[str, Any], dpi: int = 200) -> list[Path]:
    """Write every figure that the results have the numbers for, as SVG and PNG.

    Args:
        folder: where to; made when missing.
        results: the document of results.json.
        dpi: resolution of the PNG files.

    Returns:
        the files: positives, tasks, sizes, findings_<task>, agreement_<task>, overlap_<task>.

    Raises:
        OSError: a file cannot be written.
    """
    folder = Path(folder)
    files: list[Path] = []
    if any(row.get("D_all") is not None for row in results["discordance"]):
        files += save_figure(positives_figure(results), folder / "positives", dpi)
    if any(is_ranked(row) for task in tasks_of(results) for row in summary_rows(results, task)):
        files += save_figure(tasks_figure(results), folder / "tasks", dpi)
    if _sized_tasks(results):
        files += save_figure(sizes_figure(results), folder / "sizes", dpi)
    for task in tasks_of(results):
        stem = file_stem(task)
        shown = shown_rows(results, task)
        if len(shown) <= MATRIX_FINDINGS and any(row.get("D") is not None for _, rows in shown for row in rows):
            files += save_figure(findings_figure(results, task), folder / f"findings_{stem}", dpi)
        whole = [row for row in results.get("agreement") or () if row["task"] == task and not row.get("finding")]
        if whole:
            files += save_figure(agreement_figure(results, task), folder / f"agreement_{stem}", dpi)
        if any(row["task"] == task for row in results.get("overlap") or ()):
            files += save_figure(overlap_figure(results, task), folder / f"overlap_{stem}", dpi)
    return files


def remove_figures(folder: str | Path, but: Collection[Path] = ()) -> None:
    """Remove what :func:`write_figures` drew from other results.

    Args:
        folder: where it was drawn.
        but: files that stay.

    Raises:
        OSError: a file cannot be removed.
    """
    remove_matching(folder, [f"{stem}{suffix}" for stem in STEMS for suffix in SUFFIXES], but)


def file_stem(task: str) -> str:
    """A task's name as it stands in the names of files.

    >>> file_stem("chest (north)")
    'chest__north_'
    """
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in task)


def _figure(width: float, height: float, bare: bool = False) -> tuple[Figure, Axes]:
    """A figure outside pyplot's state, and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(width, height))
    FigureCanvasAgg(figure)
    if bare:
        return figure, None  # type: ignore[return-value]
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _chance_line(axes: Axes, horizontal: bool, value: float = 0.5) -> None:
    draw = axes.axhline if horizontal else axes.axvline
    draw(value, color=GREY, lw=1, ls=(0, (3, 2)), zorder=0)


def _intervals(axes: Axes, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """One line a row: dot, total and conditional interval, chance."""
    for y, row in enumerate(rows):
        chance = reference(row) if reference(row) is not None else row.get("chance")
        if row.get("D_total_lo") is not None and row.get("D_total_hi") is not None:
            axes.plot([row["D_total_lo"], row["D_total_hi"]], [y, y], color=PALE, lw=4, solid_capstyle="butt")
        if row.get("D_lo") is not None and row.get("D_hi") is not None:
            axes.plot([row["D_lo"], row["D_hi"]], [y, y], color="#17212b", lw=0.9)
        colour = {"better": BLUE, "worse": ORANGE, "tied": ORANGE}.get(verdict(row).code, GREY)
        axes.plot(row["D"], y, "o", ms=4, color=colour, zorder=3)
        if chance is not None:
            axes.plot([chance, chance], [y - 0.45, y + 0.45], color=GREY, lw=1, ls=(0, (3, 2)), zorder=0)
    axes.set_yticks(range(len(rows)), [_cut(name) for name in names], fontsize=7)
    axes.set(xlim=(0, 1), ylim=(-0.6, len(rows) - 0.4))
    axes.tick_params(axis="x", labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def _picture(axes: Axes, pixels: np.ndarray | None, colour: str, title: str) -> None:
    if pixels is None:
        axes.text(0.5, 0.5, "no picture", ha="center", va="center", fontsize=7, transform=axes.transAxes)
    else:
        axes.imshow(as_rows_columns(pixels), cmap="gray", vmin=0, vmax=255)
    axes.set_title(title, fontsize=7, color="black" if colour == "black" else colour)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color=colour, linewidth=2)


def _square(names: Sequence[str], triples: Sequence[tuple[str, str, float | None]]) -> np.ndarray:
    place = {name: i for i, name in enumerate(names)}
    values = np.full((len(names), len(names)), np.nan)
    for first, second, value in triples:
        if value is not None:
            values[place[first], place[second]] = values[place[second], place[first]] = value
    return values


def _heat_map(names: Sequence[str], values: np.ndarray, label: str, largest: float) -> Figure:
    size = 1.6 + 0.36 * len(names)
    figure, axes = _figure(size + 0.8, size)
    shown = np.ma.masked_invalid(np.where(np.tri(len(names), k=-1, dtype=bool), values, np.nan))
    image = axes.imshow(shown, cmap="PuOr", vmin=-largest, vmax=largest)
    for i, j in zip(*np.nonzero(~np.ma.getmaskarray(shown)), strict=True):
        light = abs(values[i, j]) > 0.65 * largest
        axes.text(
            j,
            i,
            number(float(values[i, j]), 2),
            ha="center",
            va="center",
            fontsize=6,
            color="white" if light else "black",
        )
    axes.set_xticks(range(len(names)), [_cut(n) for n in names], rotation=60, ha="right", fontsize=7)
    axes.set_yticks(range(len(names)), [_cut(n) for n in names], fontsize=7)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, shrink=0.7, label=label).ax.tick_params(labelsize=7)
    return figure


def _cut(name: str, limit: int = 22) -> str:
    return name if len(name) <= limit else name[: limit - 1] + "…"
