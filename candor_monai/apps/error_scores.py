"""Scores that guess a head's errors without the label, on the test images of each finding and site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..metrics.auroc_tests import Auroc, PairedAuroc, paired_aurocs
from ..metrics.draw import Draw, draws
from ..metrics.error_detection import (
    CONFIDENCE,
    SCORES,
    ReferenceSet,
    confidence_scores,
    ensemble_disagreement,
    fit_tied_gaussians,
    knn_distance,
    mahalanobis_doubt,
    neighborhood_impurity,
    proxy_margin,
    threshold_doubt,
)
from ..metrics.observations import Observations
from ..metrics.options import Options
from ..networks.probing import Probe, unit_rows

#: Views of the training site that stand in for a view that it lacks, the first that it has. Postero-anterior and
#: antero-posterior images stand in for each other last of all; laterals only for laterals.
VIEW_MAP: dict[str, tuple[str, ...]] = {
    "AP_horizontal": ("AP", "PA"),
    "AP AXIAL": ("AP", "PA"),
    "AP LLD": ("AP",),
    "AP RLD": ("AP",),
    "PA LLD": ("PA",),
    "COSTAL": ("AP", "PA"),
    "L": ("LATERAL", "LL"),
    "LL": ("LATERAL", "L"),
    "RL": ("LATERAL", "LL", "L"),
    "LATERAL": ("LL", "L"),
    "PA": ("AP",),
    "AP": ("PA",),
    "(missing)": ("PA", "AP"),
    "all": ("PA", "AP"),
}

COLUMNS = (
    "encoder",
    "task",
    "finding",
    "site",
    "train_site",
    "level",
    "score",
    "n",
    "n_errors",
    "n_left_out",
    "auroc",
    "auroc_sd",
    "auroc_lo",
    "auroc_hi",
    "difference",
    "difference_sd",
    "difference_lo",
    "difference_hi",
    "p",
    "q",
    "verdict",
    "rows",
    "missing_rows",
    "n_better",
    "n_worse",
    "status",
    "reason",
)


@dataclass(frozen=True)
class ErrorScores:
    """Rows of ``error_detection.csv`` of one encoder, and the view whose candidates each view was compared with.

    Args:
        rows: one for each finding × site × score.
        views: view of the test images -> view of the training site; None where there is none.
    """

    rows: list[dict[str, Any]]
    views: dict[str, str | None]


def error_scores(
    features: np.ndarray, probe: Probe, measure: Options, view_map: Mapping[str, Sequence[str]] = VIEW_MAP
) -> ErrorScores:
    """Every score of a probed encoder on its capped test images, compared with confidence on the same images.

    Candidates of impurity and proxy margin are the draw of the measure from the training part, equal numbers of both
    labels, in the matched group of the query; with ``train_site`` in the query's view at that site.

    Args:
        features: shape (N, d), float32.
        probe: the encoder's probe.
        measure: k, seed, sets and max_candidates of the draw.
        view_map: see :data:`VIEW_MAP`.
    """
    observations, test = probe.observations, probe.rows.test
    views, mapped = _candidate_views(probe, view_map)
    drawn = {(draw.finding, draw.group): draw for draw in _training_draws(probe, views, measure)}
    train = unit_rows(features, probe.rows.train)
    tested = unit_rows(features, test)
    k = min(measure.k, len(train))
    distance = knn_distance(ReferenceSet(train), tested, k)
    site = np.full(len(test), "all") if observations.site is None else observations.site[test]
    rows: list[dict[str, Any]] = []
    for f, finding in enumerate(observations.findings):
        base = {
            **dict.fromkeys(COLUMNS),
            "encoder": probe.encoder,
            "task": observations.task,
            "finding": finding,
            "train_site": probe.options.train_site,
            "level": "site",
        }
        scores, reasons = _finding_scores(probe, f, train, tested, distance)
        if probe.points[f].threshold is not None:
            scores.update(_neighbour_scores(features, probe, f, drawn, views[test], mapped, measure.k))
        for name in np.unique(site):
            inside = np.flatnonzero((site == name) & (observations.labels[test, f] >= 0))
            rows += [{**base, "site": str(name), **row} for row in _site_rows(probe, f, inside, scores, reasons)]
    return ErrorScores(rows, mapped)


def _candidate_views(probe: Probe, view_map: Mapping[str, Sequence[str]]) -> tuple[np.ndarray, dict[str, str | None]]:
    """The view (matched group without its site) of each image, and what it is mapped to."""
    observations = probe.observations
    names = np.array(observations.group_names)[observations.group]
    if probe.options.train_site is None:
        return names, {str(name): str(name) for name in np.unique(names)}
    assert observations.site is not None
    own = {name: _view(name) for name in np.unique(names).tolist()}
    views = np.array([own[name] for name in names.tolist()])
    home = observations.site == probe.options.train_site
    here = set(views[home & (probe.rows.part == "train")].tolist())
    mapped: dict[str, str | None] = {}
    for view in np.unique(views).tolist():
        options = (view, *view_map.get(view, ()))
        mapped[view] = next((option for option in options if option in here), None)
    return views, mapped


def _view(group: str) -> str:
    """The view that a group's name holds: its parts without the site, and without ``view=`` when that is all.

    >>> _view("site=mimic|view=AP"), _view("site=vindr"), _view("site=a|view=PA|width=2048")
    ('AP', 'all', 'view=PA|width=2048')
    """
    parts = [part for part in group.split("|") if not part.startswith("site=")]
    if len(parts) == 1 and parts[0].startswith("view="):
        return parts[0].removeprefix("view=")
    return "|".join(parts) or "all"


def _training_draws(probe: Probe, views: np.ndarray, measure: Options) -> list[Draw]:
    """The measure's draw from the training images, one for each finding and view."""
    observations = probe.observations
    labels = np.full_like(observations.labels, -1)
    labels[probe.rows.all_train] = observations.labels[probe.rows.all_train]
    names, codes = np.unique(views, return_inverse=True)
    training: Observations = replace(
        observations,
        labels=labels,
        group=codes.astype(np.int64),
        group_names=tuple(names.tolist()),
        boxed=None,
        test=None,
    )
    options = replace(measure, queries="all", redraws=1, matched=True, roles="positives", ks=(), sizes=())
    return list(draws(training, options))


def _finding_scores(
    probe: Probe, f: int, train: np.ndarray, tested: np.ndarray, distance: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Scores that need no candidate sets, on all test images; and why some are not there."""
    threshold = probe.points[f].threshold
    if threshold is None:
        return {}, dict.fromkeys(SCORES, str(probe.points[f].reason))
    logits = probe.test_logits[:, :, f]
    scores = {
        **confidence_scores(logits[0]),
        "threshold distance": threshold_doubt(logits[0], threshold),
        "ensemble disagreement": ensemble_disagreement(logits),
        "kNN distance": distance,
    }
    reasons = {
        "neighborhood impurity": "too few training images of one label in every view",
        "proxy margin": "too few training images of one label in every view",
    }
    labels = probe.observations.labels[probe.rows.train, f]
    try:
        gaussians = fit_tied_gaussians(train[labels >= 0], labels[labels >= 0] == 1)
    except ValueError as error:
        reasons["Mahalanobis"] = f"training images: {error}"
    else:
        scores["Mahalanobis"] = mahalanobis_doubt(tested, gaussians)
    return scores, reasons


def _neighbour_scores(
    features: np.ndarray,
    probe: Probe,
    f: int,
    drawn: Mapping[tuple[str, str], Draw],
    views: np.ndarray,
    mapped: Mapping[str, str | None],
    k: int,
) -> dict[str, np.ndarray]:
    """Impurity and proxy margin of the test images, NaN where a view has no candidates; empty when none has."""
    finding = probe.observations.findings[f]
    test = probe.rows.test
    decisions = probe.decisions()[0][:, f]
    impurity, margin = np.full(len(test), np.nan), np.full(len(test), np.nan)
    for target in dict.fromkeys(view for view in mapped.values() if view is not None):
        inside = np.flatnonzero([mapped[view] == target for view in views.tolist()])
        draw = drawn.get((finding, target))
        if draw is None or not draw.sets or not len(inside):
            continue
        c_pos, c_neg = (ReferenceSet(features[side]).nearest(features[test[inside]], k)[0] for side in draw.sets[0])
        cosines = np.concatenate([c_pos, c_neg], axis=1)
        near = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
        impurity[inside] = neighborhood_impurity(near < k)
        margin[inside] = proxy_margin(c_pos.mean(axis=1), c_neg.mean(axis=1), decisions[inside])
    if np.isnan(impurity).all():
        return {}
    return {"neighborhood impurity": impurity, "proxy margin": margin}


def _site_rows(
    probe: Probe, f: int, inside: np.ndarray, scores: Mapping[str, np.ndarray], reasons: Mapping[str, str]
) -> list[dict[str, Any]]:
    """All scores on the images of one site that have all of them."""
    if not scores:
        return [_missing(score, len(inside), reasons[score]) for score in SCORES]
    if not len(inside):
        return [_missing(score, 0, "no labelled test image") for score in SCORES]
    usable = {name: score[inside] for name, score in scores.items()}
    absent = {name for name, score in usable.items() if np.isnan(score).all()}
    names = [name for name in SCORES if name in usable and name not in absent]
    whole = ~np.isnan(np.stack([usable[name] for name in names])).any(axis=0)
    rows = inside[whole]
    threshold = probe.points[f].threshold
    assert threshold is not None
    errors = (probe.test_logits[0, rows, f] >= threshold) != (probe.observations.labels[probe.rows.test[rows], f] == 1)
    aurocs, pairs = paired_aurocs(
        np.stack([usable[name][whole] for name in names]),
        errors.astype(np.int8),
        probe.patient[rows],
        probe.resampling,
    )
    assert names[0] == CONFIDENCE
    found = {
        name: _row(name, value, pair, len(inside) - len(rows))
        for name, value, pair in zip(names, aurocs, pairs, strict=True)
    }
    view = "no candidates in the views of this site"
    return [
        found.get(score) or _missing(score, len(inside), view if score in scores else reasons[score])
        for score in SCORES
    ]


def _row(score: str, value: Auroc, pair: PairedAuroc, left_out: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "score": score,
        "n": value.n_positive + value.n_negative,
        "n_errors": value.n_positive,
        "n_left_out": left_out,
    }
    if value.value is None:
        kind = {"no positive": "the head makes no error", "no negative": "the head is always wrong"}
        return {**row, "status": "insufficient", "reason": kind.get(str(value.reason), value.reason)}
    row.update(auroc=value.value, auroc_sd=value.sd, auroc_lo=value.lo, auroc_hi=value.hi)
    if score != CONFIDENCE:
        row.update(
            difference=pair.difference,
            difference_sd=pair.sd,
            difference_lo=pair.lo,
            difference_hi=pair.hi,
            p=pair.p,
        )
    return {**row, "status": "ok", "reason": value.reason}


def _missing(score: str, n: int, reason: str) -> dict[str, Any]:
    return {"score": score, "n": n, "status": "insufficient", "reason": reason}
