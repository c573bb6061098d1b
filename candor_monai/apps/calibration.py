"""The calibration experiment: D of two encoders whose D is known, over many independent cohorts of phantoms.

The blind encoder cannot see the marker that makes the finding: its D is at chance. The sensitive one sees little else:
its D is 0. With labels shuffled, D is at chance and D_all, which compares few positives with many negatives, is near 1.
Source: measures.md, section 11; arXiv 2607.18451, calibration.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from candor_monai.data.phantom import add_marker, backgrounds, canonical_pixels, random_marker
from candor_monai.metrics.evaluation import evaluate
from candor_monai.metrics.observations import Observations
from candor_monai.metrics.options import Options
from candor_monai.networks.calibration import blind, marker

CHANCE, TOLERANCE = 0.5, 0.02
LEVEL, LEAST_P = 0.95, 0.01  # of the total interval; of the test that it is not held
SHUFFLED_TOLERANCE, RARE_LEVEL = 0.05, 0.95
PIECE = 50  # images made and encoded at a time


def run_calibration(
    seeds: int = 24,
    positives: int = 200,
    negatives: int = 200,
    seed: int = 0,
    total_interval: bool = True,
    told: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Run the experiment.

    Args:
        seeds: number of independent cohorts, one image a patient.
        positives, negatives: images of each label in a cohort.
        seed: of the first cohort; the others follow.
        total_interval: also count how often the total interval holds 1/2.
        told: called with the cohorts done and their number.

    Returns:
        ``blind``: n_seeds, D (one a seed), mean_D, sd_D, expected_sd (of a binomial), coverage of the conditional and
        of the total 95 % interval, total_coverage_p (chance of so few if the total interval holds its level), ok.
        ``marker``: n_seeds, max_D, max_D_all, min_margin_auroc, ok. ``shuffled``: n_cells, median_D, median_D_all, ok.
        ``passed``: all three; ``seconds``.

    Raises:
        ValueError: fewer than 4 seeds.
    """
    if seeds < 4:
        raise ValueError(f"seeds is {seeds}: at least 4 are needed")
    start = time.perf_counter()
    labels = np.arange(positives + negatives) < positives
    features: dict[str, list[np.ndarray]] = {"blind": [], "marker": []}
    rows: dict[str, list[dict[str, Any]]] = {"blind": [], "marker": []}
    for number in range(seeds):
        for name, found in encoded_cohort(labels, seed + number).items():
            features[name].append(found)
            blind_total = total_interval and name == "blind"
            options = Options(seed=seed + number, permutation_test=False, total_interval=blind_total)
            rows[name].append(_scored(found, labels, options))
        if told is not None:
            told(number + 1, seeds)
    result: dict[str, Any] = {
        "blind": _blind_summary(rows["blind"], positives),
        "marker": _marker_summary(rows["marker"]),
        "shuffled": shuffled(features, labels, seed),
    }
    result["passed"] = all(part["ok"] for part in result.values())
    result["seconds"] = time.perf_counter() - start
    return result


def encoded_cohort(labels: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Features of one cohort of phantoms with independent backgrounds.

    Args:
        labels: shape (N,), bool: which images carry a marker.
        seed: of everything in it.

    Returns:
        encoder -> shape (N, d), float32.
    """
    encoders = {"blind": blind().eval(), "marker": marker().eval()}

    def piece(number: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([seed, number])
        shown = labels[number * PIECE : (number + 1) * PIECE]
        images = backgrounds(rng, len(shown))
        for place in np.flatnonzero(shown):
            add_marker(images[place], random_marker(rng, "vertical"))
        grey = torch.from_numpy(canonical_pixels(images)[:, :1].copy())
        with torch.inference_mode():
            return {name: encoder(grey).numpy() for name, encoder in encoders.items()}

    with ThreadPoolExecutor(2) as pool:
        pieces = list(pool.map(piece, range(-(-len(labels) // PIECE))))
    return {name: np.concatenate([part[name] for part in pieces]) for name in encoders}


def shuffled(features: dict[str, list[np.ndarray]], labels: np.ndarray, seed: int = 0) -> dict[str, Any]:
    """D and D_all with labels exchanged within groups, for rare findings.

    The cohorts are dealt out to four groups; in each, five findings keep all images without a marker as negatives and
    a few of those with one (one in forty) as positives.

    Args:
        features: encoder -> one array (N, d) a cohort.
        labels: shape (N,), bool, the same in every cohort.
        seed: of the draws.
    """
    groups, findings = 4, 5
    cohorts = len(next(iter(features.values())))
    marked = np.tile(labels, cohorts)
    group = np.repeat(np.arange(cohorts) % groups, len(labels))
    rng = np.random.default_rng([seed, cohorts])
    table = np.full((len(marked), findings), -1, dtype=np.int8)
    table[~marked] = 0
    for code in range(groups):
        own = np.flatnonzero((group == code) & marked)
        few = max(20, int((group == code).sum() - len(own)) // 40)
        for finding in range(findings):
            table[rng.permutation(own)[:few], finding] = 1
    observations = Observations(
        image_id=[f"image{row}" for row in range(len(marked))],
        labels=table,
        findings=[f"rare{finding}" for finding in range(findings)],
        group=group,
        group_names=tuple(f"group={code}" for code in range(groups)),
        task="shuffled",
    )
    options = Options(
        seed=seed, shuffle_labels="image", resamples=0, total_interval=False, permutation_test=False, margin=False
    )
    cells = []
    for found in features.values():
        rows = evaluate(np.concatenate(found), observations, options).rows
        cells += [row for row in rows if row["level"] == "group" and row["status"] == "ok"]
    median_d = statistics.median(row["D"] for row in cells)
    median_all = statistics.median(row["D_all"] for row in cells)
    ok = abs(median_d - CHANCE) <= SHUFFLED_TOLERANCE and median_all >= RARE_LEVEL
    return {"n_cells": len(cells), "median_D": median_d, "median_D_all": median_all, "ok": ok}


def _scored(features: np.ndarray, labels: np.ndarray, options: Options) -> dict[str, Any]:
    ids = [f"image{row}" for row in range(len(labels))]
    observations = Observations(ids, labels.astype(np.int8)[:, None], ["marker"], patient=ids, task="calibration")
    return next(row for row in evaluate(features, observations, options).rows if row["level"] == "group")


def _blind_summary(rows: list[dict[str, Any]], queries: int) -> dict[str, Any]:
    values = [row["D"] for row in rows]
    mean = statistics.fmean(values)
    total, p = _coverage(rows, "D_total_lo", "D_total_hi")
    return {
        "n_seeds": len(values),
        "D": values,
        "mean_D": mean,
        "sd_D": statistics.stdev(values),
        "expected_sd": (0.25 / queries) ** 0.5,
        "conditional_coverage": _coverage(rows, "D_lo", "D_hi")[0],
        "total_coverage": total,
        "total_coverage_p": p,
        "ok": abs(mean - CHANCE) <= TOLERANCE and (p is None or p >= LEAST_P),
    }


def _marker_summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    worst = {
        "max_D": max(row["D"] for row in rows),
        "max_D_all": max(row["D_all"] for row in rows),
        "min_margin_auroc": min(row["margin_auroc"] for row in rows),
    }
    return {"n_seeds": len(rows), **worst, "ok": worst["max_D"] == 0.0}


def _coverage(rows: list[dict[str, Any]], low: str, high: str) -> tuple[float | None, float | None]:
    """Share of the intervals that hold 1/2, and the chance of so few at the nominal level; None: no interval."""
    bounds = [(row.get(low), row.get(high)) for row in rows]
    held = [lo <= CHANCE <= hi for lo, hi in bounds if lo is not None and hi is not None]
    if not held:
        return None, None
    count, n = sum(held), len(held)
    return count / n, sum(math.comb(n, i) * LEVEL**i * (1 - LEVEL) ** (n - i) for i in range(count + 1))
