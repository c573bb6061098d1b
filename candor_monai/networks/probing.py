"""The probe: one encoder's linear heads, trained, thresholded and scored on patient-disjoint images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from candor_monai.metrics.auroc_tests import auroc, spread
from candor_monai.metrics.head_errors import WARNING
from candor_monai.metrics.keyed_hash import keyed_rank
from candor_monai.metrics.logme import LogMe, logme
from candor_monai.metrics.observations import Observations
from candor_monai.metrics.operating_point import (
    SENSITIVITY,
    OperatingPoint,
    decide,
    error_rates,
    operating_point,
)
from candor_monai.metrics.resampling import patient_weights, resample_auroc
from candor_monai.metrics.retrieval import Retrieval, retrieval
from candor_monai.metrics.splits import check_disjoint, hashed_split, publishers_split

from .head_files import head_card, save_heads
from .heads import LinearHeads
from .linear_heads import HeadOptions, HeadWeights, train_linear_heads

# Rows scored at a time: fixed, so that a logit does not depend on how many images are scored.
BLOCK = 1024
# Rows turned to float64 at a time.
ROWS = 8192

COLUMNS = (
    "encoder",
    "task",
    "finding",
    "group",
    "level",
    "n_train",
    "n_train_positive",
    "n_val_positive",
    "n_val_negative",
    "n_test_positive",
    "n_test_negative",
    "auroc",
    "auroc_sd",
    "auroc_lo",
    "auroc_hi",
    "auroc_ensemble",
    "auroc_ungrouped",
    "threshold",
    "val_sensitivity",
    "miss_rate",
    "false_positive_rate",
    "logme",
    "logme_reason",
    "r_precision",
    "r_precision_chance",
    "map_at_r",
    "map_at_r_chance",
    "parts",
    "missing_parts",
    "status",
    "reason",
)


RETRIEVAL = ("r_precision", "r_precision_chance", "map_at_r", "map_at_r_chance")


@dataclass(frozen=True)
class ProbeOptions:
    """How an encoder is probed.

    Args:
        split: ``publisher``: the split given with the cohort, hashed by patient where there is none; ``hash``: hashed
            by patient everywhere (the study ``paper``).
        fractions: training, validation and test shares of the hashed split.
        max_train, max_test: caps by a stable hash of the image id; None: no cap.
        train_site: train and validate on this site alone, test everywhere; None: all sites.
        sensitivity: of the operating point on validation images.
        heads: how heads are trained.
        resamples: patient bootstrap resamples.
        max_queries: positives a finding and group that are queries of the retrieval scores.
        pool_missing: give pooled numbers although a part is missing.
        retrieval: whether to compute the retrieval scores.
        seed: seed of splits, caps and resamples.

    Raises:
        ValueError: a value is not allowed.
    """

    split: str = "publisher"
    fractions: tuple[float, float, float] = (0.7, 0.1, 0.2)
    max_train: int | None = 25_000
    max_test: int | None = 20_000
    train_site: str | None = None
    sensitivity: float = SENSITIVITY
    heads: HeadOptions = field(default_factory=HeadOptions)
    resamples: int = 1000
    max_queries: int = 1000
    pool_missing: bool = False
    retrieval: bool = True
    seed: int = 42

    def __post_init__(self) -> None:
        if self.split not in ("publisher", "hash"):
            raise ValueError(f"split must be 'publisher' or 'hash', is {self.split!r}")
        for name in ("max_train", "max_test"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1 or None, is {value}")
        if self.resamples < 2:
            raise ValueError(f"resamples must be at least 2, is {self.resamples}")


class EmptyPart(ValueError):
    """The split leaves nothing to train on or to test on: there is no probe, and nothing is wrong with the input."""


@dataclass(frozen=True, eq=False)
class ProbeRows:
    """Who trains, validates and tests: rows of the cohort, in the order of a stable hash of the image id.

    Args:
        part: part of every image, shape (N,), ``train``, ``val`` or ``test``.
        train: capped training rows.
        all_train: training rows before the cap.
        val: validation rows.
        test: capped test rows: the first of ``all_test``.
        all_test: test rows before the cap.
    """

    part: np.ndarray
    train: np.ndarray
    all_train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    all_test: np.ndarray


def probe_rows(observations: Observations, split: Sequence[str | None] | None, options: ProbeOptions) -> ProbeRows:
    """Split and cap a cohort, by patient and image id alone: the same for every encoder.

    Images that are labelled for no finding are left out. Images of one cluster (identical pixels) or patient share a
    part.

    Args:
        observations: the cohort.
        split: the publisher's part of each image, None (or NaN) where it has none; None: no split at all.
        options: how to split.

    Raises:
        ValueError: a patient in two parts, an unknown part, an unknown ``train_site``.
        EmptyPart: no labelled training or test image.
    """
    units = observations.unit_names[observations.units]
    given = np.full(len(units), "") if split is None else np.array([v if isinstance(v, str) else "" for v in split])
    if len(given) != len(units):
        raise ValueError(f"split has {len(given)} rows, the cohort {len(units)}")
    part = hashed_split(units.tolist(), options.seed, options.fractions)
    known = given != ""
    if options.split == "publisher" and known.any():
        part = part.copy()
        part[known] = publishers_split(given[known].tolist(), units[known].tolist(), options.seed)
        check_disjoint(part, units.tolist())
    labelled = (observations.labels >= 0).any(axis=1)
    home = labelled
    if options.train_site is not None:
        if observations.site is None or not (observations.site == options.train_site).any():
            sites = [] if observations.site is None else np.unique(observations.site).tolist()
            raise ValueError(f"train_site {options.train_site!r} is not a site of the cohort: {sites}")
        home = labelled & (observations.site == options.train_site)

    def ordered(mask: np.ndarray, name: str) -> np.ndarray:
        rows = np.flatnonzero(mask)
        return rows[keyed_rank(observations.digests[rows], options.seed, "cap", name)]

    train = ordered(home & (part == "train"), "train")
    test = ordered(labelled & (part == "test"), "test")
    if not len(train) or not len(test):
        empty = "training" if not len(train) else "test"
        raise EmptyPart(f"the split leaves no labelled {empty} image")
    return ProbeRows(
        part, train[: options.max_train], train, ordered(home & (part == "val"), "val"), test[: options.max_test], test
    )


@dataclass(frozen=True, eq=False)
class Probe:
    """A probed encoder.

    Args:
        encoder: its name.
        observations: the cohort.
        rows: who trained, validated and tested.
        options: how it was probed.
        weights: trained heads.
        points: operating point of each finding's head.
        val_logits: the head's logits on ``rows.val``, shape (V, F), float64.
        test_logits: the members' logits on ``rows.test``, shape (M, T, F), float64.
        all_test_logits: the head's logits on ``rows.all_test``, shape (U, F), float64.
        logme: LogME of each finding on ``rows.train``.
        retrieval: (finding, group) -> retrieval scores over all labelled images of the group.
        resampling: bootstrap weights of the test patients, shape (P, B), uint8.
        patient: row of ``resampling`` of every image of ``rows.all_test``, shape (U,).
    """

    encoder: str
    observations: Observations
    rows: ProbeRows
    options: ProbeOptions
    weights: HeadWeights
    points: list[OperatingPoint]
    val_logits: np.ndarray
    test_logits: np.ndarray
    all_test_logits: np.ndarray
    logme: list[LogMe]
    retrieval: dict[tuple[str, str], Retrieval]
    resampling: np.ndarray
    patient: np.ndarray

    def decisions(self) -> tuple[np.ndarray, np.ndarray]:
        """ŷ of the head on ``rows.test``, (T, F), bool, and which findings have one, (F,)."""
        known = np.array([point.threshold is not None for point in self.points])
        tau = np.array([np.inf if point.threshold is None else point.threshold for point in self.points])
        return self.test_logits[0] >= tau, known

    def card(self, fingerprint: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The card that is saved with the heads."""
        return head_card(
            self.observations.findings,
            [point.threshold for point in self.points],
            self.options.heads,
            self.observations.image_id[self.rows.train].tolist(),
            {"name": self.encoder, "fingerprint": dict(fingerprint or {})},
            task=self.observations.task,
            sensitivity=self.options.sensitivity,
            no_operating_point={
                finding: point.reason
                for finding, point in zip(self.observations.findings, self.points, strict=True)
                if point.reason
            },
            split=self.options.split,
            train_site=self.options.train_site,
            warning=WARNING,
        )

    def save(self, path: str | Path, fingerprint: Mapping[str, Any] | None = None) -> None:
        """Write the heads and their card as safetensors.

        Args:
            path: the file.
            fingerprint: fingerprint of the encoder whose features these are.
        """
        save_heads(path, self.weights, self.card(fingerprint))

    def table(self) -> list[dict[str, Any]]:
        """The rows of ``probe.csv``: a row for each finding × group, each finding, and the task."""
        return [dict(row) for row in self._rows]

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        """Computed once: their bootstrap is the slowest part of a probe."""
        return _table(self)


def run_probe(
    features: np.ndarray,
    observations: Observations,
    split: Sequence[str | None] | None = None,
    options: ProbeOptions = ProbeOptions(),
    encoder: str = "encoder",
    device: str | torch.device = "cpu",
) -> Probe:
    """Train and score the heads of one encoder from its stored features.

    Args:
        features: raw features, shape (N, d), float32, in memory or memory-mapped; row i is of image i.
        observations: ids, labels, groups, patients and sites of the N images.
        split: the publisher's part of each image (``train``, ``val``, ``test`` or None).
        options: how to probe.
        encoder: name of the encoder, for the tables.
        device: where heads are trained.

    Raises:
        ValueError: shapes differ, a feature is zero or not finite (names the first such row), or the split is unusable.
        EmptyPart: no labelled training or test image.
    """
    if features.ndim != 2 or len(features) != len(observations):
        raise ValueError(f"features {features.shape} must have one row for each of {len(observations)} images")
    rows = probe_rows(observations, split, options)
    _check_rows(features, np.flatnonzero((observations.labels >= 0).any(axis=1)))
    train = unit_rows(features, rows.train)
    labels = observations.labels[rows.train]
    weights = train_linear_heads(torch.from_numpy(train).to(device), labels, observations.findings, options.heads)
    network = LinearHeads(observations.findings, weights.weight, weights.bias, [None] * len(observations.findings))
    val = _logits(network, features, rows.val)[0]
    test = _logits(network, features, rows.all_test)
    points = [
        operating_point(val[:, f], observations.labels[rows.val, f], options.sensitivity)
        for f in range(len(observations.findings))
    ]
    names, patient = np.unique(observations.units[rows.all_test], return_inverse=True)
    return Probe(
        encoder,
        observations,
        rows,
        options,
        weights,
        points,
        val,
        np.ascontiguousarray(test[:, : len(rows.test)]),
        np.ascontiguousarray(test[0]),
        logme(train, labels),
        _retrieval(features, observations, options) if options.retrieval else {},
        patient_weights(observations.unit_names[names].tolist(), options.seed, options.resamples),
        patient,
    )


def unit_rows(features: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """z of some rows: float32 rows of length one.

    Raises:
        ValueError: a row is zero or not finite.
    """
    unit = np.empty((len(rows), features.shape[1]), dtype=np.float32)
    for start in range(0, len(rows), ROWS):
        block, norm = _block(features, rows[start : start + ROWS])
        unit[start : start + ROWS] = block / norm
    return unit


def _block(features: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Some rows in float64, and their norms, shape (n, 1), refused when zero or not finite."""
    block = np.asarray(features[rows], dtype=np.float64)
    norm = np.sqrt((block**2).sum(axis=1, keepdims=True))
    bad = np.flatnonzero(~(np.isfinite(norm[:, 0]) & (norm[:, 0] > 0)))
    if len(bad):
        raise ValueError(f"features[{rows[bad[0]]}] is zero or not finite")
    return block, norm


def _check_rows(features: np.ndarray, rows: np.ndarray) -> None:
    """Refuse features that cannot be normalised, also of labelled images that only the retrieval scores look at."""
    for start in range(0, len(rows), ROWS):
        _block(features, rows[start : start + ROWS])


def _logits(network: LinearHeads, features: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Logits of every member, shape (M, n, F), in padded blocks of one size."""
    members, count, width = network.weight.shape
    result = np.empty((members, len(rows), count))
    padded = np.ones((BLOCK, width), dtype=np.float32)
    for start in range(0, len(rows), BLOCK):
        part = unit_rows(features, rows[start : start + BLOCK])
        padded[: len(part)] = part
        logits = network.member_logits(torch.from_numpy(padded))[: len(part)]
        result[:, start : start + BLOCK] = logits.permute(1, 0, 2).numpy()
    return result


def _retrieval(
    features: np.ndarray, observations: Observations, options: ProbeOptions
) -> dict[tuple[str, str], Retrieval]:
    results = {}
    for f, finding in enumerate(observations.findings):
        for g, group in enumerate(observations.group_names):
            rows = np.flatnonzero((observations.group == g) & (observations.labels[:, f] >= 0))
            if not len(rows):
                continue
            rows = rows[keyed_rank(observations.digests[rows], options.seed, "retrieval", finding, group)]
            positive = observations.labels[rows, f] == 1
            queries = np.flatnonzero(positive)[: options.max_queries]
            results[finding, group] = retrieval(features[rows], positive, queries, observations.units[rows])
    return results


@dataclass(frozen=True)
class _Part:
    """AUROCs of one finding and group on the capped test images: head, ensemble, and resamples of the head's."""

    n_positive: int
    n_negative: int
    head: float | None
    ensemble: float | None
    resampled: np.ndarray
    weight: np.ndarray
    misses: int
    false_positives: int


def _table(probe: Probe) -> list[dict[str, Any]]:
    observations, rows = probe.observations, probe.rows
    table: list[dict[str, Any]] = []
    pooled: list[dict[str, Any]] = []
    resamples: list[np.ndarray] = []
    for f, finding in enumerate(observations.findings):
        base = _finding_columns(probe, f)
        parts = {}
        for g, group in enumerate(observations.group_names):
            inside = np.flatnonzero((observations.group[rows.test] == g) & (observations.labels[rows.test, f] >= 0))
            scores = probe.retrieval.get((finding, group))
            if not len(inside) and scores is None:
                continue
            parts[group] = _part(probe, f, inside)
            table.append({**base, "group": group, "level": "group", **_part_columns(probe, f, parts[group], scores)})
        columns, resampled = _pooled_columns(probe, f, parts)
        pooled.append({**base, "group": None, "level": "finding", **columns})
        resamples.append(resampled)
    return [*table, *pooled, _task_row(probe, pooled, resamples)]


def _finding_columns(probe: Probe, f: int) -> dict[str, Any]:
    observations, rows = probe.observations, probe.rows
    train, val = observations.labels[rows.train, f], observations.labels[rows.val, f]
    point, evidence = probe.points[f], probe.logme[f]
    return {
        **dict.fromkeys(COLUMNS),
        "encoder": probe.encoder,
        "task": observations.task,
        "finding": observations.findings[f],
        "n_train": int((train >= 0).sum()),
        "n_train_positive": int((train == 1).sum()),
        "n_val_positive": int((val == 1).sum()),
        "n_val_negative": int((val == 0).sum()),
        "threshold": point.threshold,
        "val_sensitivity": point.sensitivity,
        "logme": evidence.value,
        "logme_reason": evidence.reason,
    }


def _part(probe: Probe, f: int, inside: np.ndarray) -> _Part:
    labels = probe.observations.labels[probe.rows.test[inside], f]
    head = probe.test_logits[0, inside, f]
    codes = probe.patient[inside]
    positive = labels == 1
    weight = probe.resampling[codes[positive]].sum(axis=0, dtype=np.int64)
    tau = probe.points[f].threshold
    rates = error_rates(decide(head, np.inf if tau is None else tau), labels)
    value = auroc(head, labels)
    ensemble = auroc((1 / (1 + np.exp(-probe.test_logits[:, inside, f]))).mean(axis=0), labels)
    resampled = (
        resample_auroc(head, positive, codes, probe.resampling) if value is not None else np.full(len(weight), np.nan)
    )
    return _Part(
        rates.n_positive,
        rates.n_negative,
        value,
        ensemble,
        resampled,
        weight,
        rates.misses,
        rates.false_positives,
    )


def _part_columns(probe: Probe, f: int, part: _Part, scores: Retrieval | None) -> dict[str, Any]:
    columns: dict[str, Any] = {**_error_columns(probe, f, [part]), **_retrieval_columns(scores)}
    if part.head is None:
        reason = _without(part.n_positive, part.n_negative)
        return {**columns, "status": "insufficient", "reason": reason}
    sd, lo, hi, why = spread(part.resampled)
    return {
        **columns,
        "auroc": part.head,
        "auroc_ensemble": part.ensemble,
        "auroc_sd": sd,
        "auroc_lo": lo,
        "auroc_hi": hi,
        **_status(probe, f, why),
    }


def _pooled_columns(probe: Probe, f: int, parts: dict[str, _Part]) -> tuple[dict[str, Any], np.ndarray]:
    """AUROC over groups, weighted by their positives as D is; also resampled."""
    finding = probe.observations.findings[f]
    columns: dict[str, Any] = _error_columns(probe, f, list(parts.values()))
    columns.update(
        _pooled_retrieval([probe.retrieval.get((finding, group)) for group in probe.observations.group_names])
    )
    # A group without a test positive has no weight; one with positives but no negative is a part that is missing.
    used = {group: part for group, part in parts.items() if part.head is not None}
    missing = [group for group, part in parts.items() if part.n_positive and part.head is None]
    columns["parts"], columns["missing_parts"] = len(used), len(missing)
    labels = probe.observations.labels[probe.rows.test, f]
    columns["auroc_ungrouped"] = auroc(probe.test_logits[0, :, f], labels)
    undefined = np.full(probe.resampling.shape[1], np.nan)
    if not used:
        reason = _without(sum(p.n_positive for p in parts.values()), sum(p.n_negative for p in parts.values()))
        return {**columns, "status": "insufficient", "reason": reason}, undefined
    if missing and not probe.options.pool_missing:
        reason = f"no test negative in {len(missing)} of {len(used) + len(missing)} groups with positives"
        return {**columns, "status": "insufficient", "reason": reason}, undefined
    n = np.array([part.n_positive for part in used.values()], dtype=np.float64)
    columns["auroc"] = float((n * [part.head for part in used.values()]).sum() / n.sum())
    columns["auroc_ensemble"] = float((n * [part.ensemble for part in used.values()]).sum() / n.sum())
    weight = np.stack([part.weight for part in used.values()])
    values = np.stack([part.resampled for part in used.values()])
    # A group that a resample leaves without positives has no weight there; one without negatives leaves no value.
    total = np.where(weight > 0, weight * values, 0.0).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        resampled = total / weight.sum(axis=0)
    columns["auroc_sd"], columns["auroc_lo"], columns["auroc_hi"], why = spread(resampled)
    return {**columns, **_status(probe, f, why)}, resampled


def _task_row(probe: Probe, pooled: list[dict[str, Any]], resamples: list[np.ndarray]) -> dict[str, Any]:
    """Unweighted mean over the findings."""
    used = [f for f, row in enumerate(pooled) if row["auroc"] is not None]
    missing = len(pooled) - len(used)
    row: dict[str, Any] = {
        **dict.fromkeys(COLUMNS),
        "encoder": probe.encoder,
        "task": probe.observations.task,
        "level": "task",
        "n_train": len(probe.rows.train),
        "parts": len(used),
        "missing_parts": missing,
        "status": "ok",
    }
    ungrouped = [finding["auroc_ungrouped"] for finding in pooled]
    if all(value is not None for value in ungrouped):
        row["auroc_ungrouped"] = float(np.mean(ungrouped))
    if not used or (missing and not probe.options.pool_missing):
        return {**row, "status": "insufficient", "reason": f"{missing} of {len(pooled)} findings have no AUROC"}
    for column in ("auroc", "auroc_ensemble"):
        row[column] = float(np.mean([pooled[f][column] for f in used]))
    row["auroc_sd"], row["auroc_lo"], row["auroc_hi"], row["reason"] = spread(
        np.mean([resamples[f] for f in used], axis=0)
    )
    for column in ("logme", "miss_rate", "false_positive_rate", *RETRIEVAL):
        values = [pooled[f][column] for f in used]
        if all(value is not None for value in values):
            row[column] = float(np.mean(values))
    return row


def _error_columns(probe: Probe, f: int, parts: list[_Part]) -> dict[str, Any]:
    n_positive, n_negative = sum(part.n_positive for part in parts), sum(part.n_negative for part in parts)
    known = probe.points[f].threshold is not None
    return {
        "n_test_positive": n_positive,
        "n_test_negative": n_negative,
        "miss_rate": sum(p.misses for p in parts) / n_positive if known and n_positive else None,
        "false_positive_rate": sum(p.false_positives for p in parts) / n_negative if known and n_negative else None,
    }


def _retrieval_columns(scores: Retrieval | None) -> dict[str, Any]:
    if scores is None:
        return {}
    values = (scores.r_precision, scores.chance_r_precision, scores.map_at_r, scores.chance_map_at_r)
    return dict(zip(RETRIEVAL, values, strict=True))


def _pooled_retrieval(scores: Sequence[Retrieval | None]) -> dict[str, Any]:
    """Means over groups, weighted by their queries."""
    used = [part for part in scores if part is not None and part.n_queries]
    if not used:
        return {}
    total = sum(part.n_queries for part in used)

    def mean(values: Iterable[float | None]) -> float:
        return float(sum(part.n_queries * (value or 0.0) for part, value in zip(used, values, strict=True)) / total)

    values = (
        mean(part.r_precision for part in used),
        mean(part.chance_r_precision for part in used),
        mean(part.map_at_r for part in used),
        mean(part.chance_map_at_r for part in used),
    )
    return dict(zip(RETRIEVAL, values, strict=True))


def _status(probe: Probe, f: int, why: str | None) -> dict[str, Any]:
    point = probe.points[f]
    if point.threshold is None:
        return {"status": "no_operating_point", "reason": point.reason}
    return {"status": "ok", "reason": why}


def _without(n_positive: int, n_negative: int) -> str:
    if not n_positive and not n_negative:
        return "no labelled test image"
    return "no test positive" if not n_positive else "no test negative"
