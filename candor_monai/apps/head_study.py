"""Heads of several encoders beside their discordance: the probe, head errors, combination rules, error detection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..metrics.auroc_tests import spread
from ..metrics.combination_rules import ORACLE, RULES, RuleDecisions, combine, patient_sums
from ..metrics.evaluation import evaluate
from ..metrics.head_errors import WARNING, CountedStratum, Stratum, compare_by_encoder, compare_errors, count
from ..metrics.keyed_hash import stable_fraction
from ..metrics.multiplicity import benjamini_hochberg
from ..metrics.observations import Observations
from ..metrics.options import Options
from ..metrics.split_margins import split_margins
from ..networks.probing import COLUMNS as PROBE_COLUMNS
from ..networks.probing import Probe, ProbeOptions, run_probe
from ..utils.atomic import atomic_write
from ..visualize.csv_files import write_csv
from ..visualize.table_files import TextTable
from .error_scores import COLUMNS as DETECTION_COLUMNS
from .error_scores import VIEW_MAP, ErrorScores, error_scores
from .head_agreement import AGREEMENT_COLUMNS, TREND_COLUMNS, agreement_rows, trend_rows
from .head_tables import table_2, table_3, table_4, write_tables

#: Features of an encoder: shape (N, d), or a function that gives them, so that one encoder is in memory at a time.
Features = np.ndarray | Callable[[], np.ndarray]

#: Fewer optimiser steps than this leave heads near where they started.
FEW_STEPS = 500

COMPARISON = (
    "exposed",
    "exposed_errors",
    "others",
    "other_errors",
    "exposed_rate",
    "other_rate",
    "difference",
    "sd",
    "lo",
    "hi",
    "n_strata",
    "n_skipped",
)
HEAD_ERROR_COLUMNS = ("encoder", "task", "finding", "level", "role", "candidates", *COMPARISON, "status", "reason")
RULE_COLUMNS = (
    "rule",
    "task",
    "sample",
    "subset",
    "measure",
    "rate",
    "sd",
    "lo",
    "hi",
    "complement",
    "rate_macro",
    "n_pairs",
    "n_findings",
    "missing_findings",
    "encoders",
    "status",
    "reason",
)
ROLES = {"positives": 1, "negatives": 0}
#: Which images the candidates of DM are drawn from: the whole cohort (the default), or none that a head was trained on.
#: A head and the candidates share the training images under ``all``, and both follow their accidents: features that
#: know nothing of the finding then show a difference too (docs/heads.md).
CANDIDATES = ("all", "held out")
SUBSETS = ("positives", "majority-discordant positives", "negatives")


@dataclass(frozen=True)
class HeadStudyOptions:
    """How heads and discordance are set side by side.

    Args:
        probe: how each encoder is probed.
        measure: k, seed, sets and candidates of D on test images, and of the candidate sets of error detection.
        folds: patient-disjoint folds of the validation images for the stacker.
        view_map: view -> views of the training site that stand in for it, in order of preference, when it has none of
            its own (used with ``probe.train_site``).
        margin: evaluate D and the margin classifier as well (columns of Table 2; agreement and trends need them).
        pool_missing: give rates over findings although some finding has no decision.
        sizes: finding -> its size on a scale of one's own, for the trend of D on size.

    Raises:
        ValueError: fewer than two folds.
    """

    probe: ProbeOptions = field(default_factory=ProbeOptions)
    measure: Options = field(default_factory=Options)
    folds: int = 5
    view_map: Mapping[str, Sequence[str]] = field(default_factory=lambda: dict(VIEW_MAP))
    margin: bool = True
    pool_missing: bool = False
    sizes: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise ValueError(f"folds must be at least 2, is {self.folds}")


@dataclass(frozen=True, eq=False)
class StudiedEncoder:
    """What is kept of one encoder: small beside its features.

    Args:
        probe: heads and scores.
        dm: discordance margin of each image of ``probe.rows.all_test``, shape (U, F), float64, NaN where undefined.
        dm_held_out: the same with candidates from the validation and test parts only.
        scores: rows of ``error_detection.csv`` before correction for multiplicity.
        discordance: rows of the evaluation, with D and margin AUROC; empty when not asked for.
    """

    probe: Probe
    dm: np.ndarray
    dm_held_out: np.ndarray
    scores: ErrorScores
    discordance: list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class HeadStudy:
    """Everything that heads say beside discordance, as tables of plain values.

    Args:
        probe, head_errors, rules, error_detection, agreement, trends: rows of the CSV files of these names.
        tables: the paper's Tables 2, 3 and 4.
        warnings: what a reader must know; the first travels with every output.
        encoders: what was kept of each encoder, by name.
    """

    probe: list[dict[str, Any]]
    head_errors: list[dict[str, Any]]
    rules: list[dict[str, Any]]
    error_detection: list[dict[str, Any]]
    agreement: list[dict[str, Any]]
    trends: list[dict[str, Any]]
    tables: list[TextTable]
    warnings: list[str]
    encoders: dict[str, StudiedEncoder]

    def results(self) -> dict[str, Any]:
        """The tables as they stand in results.json."""
        return {
            "probe": self.probe,
            "head_errors": self.head_errors,
            "rules": self.rules,
            "error_detection": self.error_detection,
            "agreement": self.agreement,
            "trends": self.trends,
        }

    def write(self, output_dir: str | Path) -> list[Path]:
        """Write the CSV files, their warnings, and the paper's tables as Markdown, LaTeX and CSV.

        Args:
            output_dir: the folder; made when missing.

        Returns:
            the files, those of the tables in ``tables/``.

        Raises:
            OSError: a file cannot be written.
        """
        folder = Path(output_dir)
        files = []
        for name, columns in (
            ("probe", PROBE_COLUMNS),
            ("head_errors", HEAD_ERROR_COLUMNS),
            ("rules", RULE_COLUMNS),
            ("error_detection", DETECTION_COLUMNS),
            ("agreement", AGREEMENT_COLUMNS),
            ("trends", TREND_COLUMNS),
        ):
            files.append(folder / f"{name}.csv")
            write_csv(files[-1], getattr(self, name), columns)
        files.append(folder / "head_warnings.txt")
        atomic_write(files[-1], "\n\n".join(self.warnings) + "\n")
        return [*files, *write_tables(self.tables, folder / "tables", self.warnings)]


def run_head_study(
    encoders: Mapping[str, Features],
    observations: Observations,
    split: Sequence[str | None] | None = None,
    options: HeadStudyOptions | None = None,
    device: str = "cpu",
    cards: Mapping[str, Mapping[str, Any]] | None = None,
) -> HeadStudy:
    """Probe several encoders on one cohort and compare their heads' errors with their discordance.

    Args:
        encoders: name -> raw features, shape (N, d), float32, or a function that gives them; row i is of image i.
        observations: the N images, the same for all encoders: an image that lacks a feature of one must be left out.
        split: the publisher's part of each image (``train``, ``val``, ``test`` or None).
        options: None: the defaults.
        device: where heads are trained.
        cards: encoder -> what is known of it (``year``, ``parameters``), for the trends.

    Raises:
        ValueError: no encoder, a feature is zero or not finite, or the split is unusable.
    """
    if not encoders:
        raise ValueError("encoders is empty")
    options = options or HeadStudyOptions()
    studied = {
        name: _study(name, source() if callable(source) else source, observations, split, options, device)
        for name, source in encoders.items()
    }
    detection = _corrected([row for one in studied.values() for row in one.scores.rows])
    probe = [row for one in studied.values() for row in one.probe.table()]
    rules = _rules(list(studied.values()), options)
    discordance = {name: one.discordance for name, one in studied.items()}
    tables = [table_2(probe, discordance), table_3(detection), table_4(rules)]
    first = next(iter(studied.values())).probe
    task = first.observations.task
    agreement = agreement_rows(probe, discordance, task) if options.margin else []
    trends = trend_rows(probe, discordance, cards or {}, options.sizes, task) if options.margin else []
    errors = _head_errors(studied)
    return HeadStudy(probe, errors, rules, detection, agreement, trends, tables, _warnings(first), studied)


def _study(
    name: str,
    features: np.ndarray,
    observations: Observations,
    split: Sequence[str | None] | None,
    options: HeadStudyOptions,
    device: str,
) -> StudiedEncoder:
    probe = run_probe(features, observations, split, options.probe, name, device)
    test = np.zeros(len(observations), dtype=np.bool_)
    test[probe.rows.all_test] = True
    seen = replace(observations, test=test)
    margins = split_margins(features, seen, options.measure)
    unseen = observations.labels.copy()
    unseen[probe.rows.part == "train"] = -1
    held_out = split_margins(features, replace(seen, labels=unseen), options.measure)
    discordance: list[dict[str, Any]] = []
    if options.margin:
        quick = replace(options.measure, total_interval=False, permutation_test=False, margin=True)
        discordance = evaluate(features, observations, quick).rows
    scores = error_scores(features, probe, options.measure, options.view_map)
    rows = probe.rows.all_test
    return StudiedEncoder(probe, margins.dm[rows], held_out.dm[rows], scores, discordance)


def _warnings(probe: Probe) -> list[str]:
    warnings = [WARNING]
    heads = probe.options.heads
    steps = heads.epochs * -(-len(probe.rows.train) // heads.batch_size)
    if steps < FEW_STEPS:
        warnings.append(
            f"Heads were trained for {steps} steps only ({len(probe.rows.train)} training images, {heads.epochs} "
            f"epochs of batches of {heads.batch_size}): they are still near their random start, and so are their "
            "AUROCs. More epochs or smaller batches give heads that have converged."
        )
    return warnings


def _head_errors(studied: Mapping[str, StudiedEncoder]) -> list[dict[str, Any]]:
    """2×2 comparisons on the capped test sample: per encoder × finding, per encoder, over all."""
    return [
        row
        for candidates in CANDIDATES
        for role, label in ROLES.items()
        for row in _comparisons(studied, candidates, role, label)
    ]


def _comparisons(studied: Mapping[str, StudiedEncoder], candidates: str, role: str, label: int) -> list[dict[str, Any]]:
    task = next(iter(studied.values())).probe.observations.task

    def named(encoder: str | None, finding: str | None, level: str) -> dict[str, Any]:
        names = {"encoder": encoder, "task": task, "finding": finding, "level": level, "role": role}
        return {**names, "candidates": candidates}

    rows = []
    counted: list[tuple[str, CountedStratum]] = []
    for name, one in studied.items():
        for f, finding in enumerate(one.probe.observations.findings):
            stratum = _stratum(name, one, f, label, candidates)
            if isinstance(stratum, str):
                nothing = {**dict.fromkeys(COMPARISON), "status": "insufficient", "reason": stratum}
                rows.append({**named(name, finding, "stratum"), **nothing})
                continue
            counted.append((name, count(stratum, one.probe.resampling)))
            rows.append({**named(name, finding, "stratum"), **_comparison(compare_errors([counted[-1][1]]))})
    for name, comparison in compare_by_encoder(counted).items():
        rows.append({**named(name, None, "encoder"), **_comparison(comparison)})
    if counted:
        overall = compare_errors([stratum for _, stratum in counted])
        rows.append({**named(None, None, "all"), **_comparison(overall)})
    return rows


def _stratum(name: str, one: StudiedEncoder, f: int, label: int, candidates: str) -> Stratum | str:
    probe = one.probe
    test = len(probe.rows.test)
    labels = probe.observations.labels[probe.rows.test, f]
    decisions, known = probe.decisions()
    if not known[f]:
        return str(probe.points[f].reason)
    dm = (one.dm if candidates == "all" else one.dm_held_out)[:test, f]
    inside = (labels == label) & ~np.isnan(dm)
    if not inside.any():
        kind = "positive" if label else "negative"
        return f"no test {kind} with a discordance margin"
    error = decisions[inside, f] != bool(label)
    exposed = dm[inside] > 0 if label else dm[inside] < 0
    return Stratum(name, probe.observations.findings[f], error, exposed, probe.patient[:test][inside])


def _comparison(found: Any) -> dict[str, Any]:
    status = "ok" if found.difference is not None else "insufficient"
    return {**{name: getattr(found, name) for name in COMPARISON}, "status": status, "reason": found.reason}


def _rules(studied: list[StudiedEncoder], options: HeadStudyOptions) -> list[dict[str, Any]]:
    """Miss and false-positive rates of the rules over image–finding pairs, on the capped and the uncapped sample."""
    first = studied[0].probe
    findings = first.observations.findings
    decided = [_decisions(studied, f, options) for f in range(len(findings))]
    patients = len(first.resampling)
    rows = []
    for sample, size in (("capped", len(first.rows.test)), ("uncapped", len(first.rows.all_test))):
        members = {subset: [_members(studied, f, subset, size) for f in range(len(findings))] for subset in SUBSETS}
        for rule in (*RULES, ORACLE):
            for subset in SUBSETS:
                sums, reasons = [], []
                for f, found in enumerate(decided):
                    if rule not in found.positive:
                        reasons.append(f"{findings[f]}: {found.reasons.get(rule)}")
                        continue
                    share = found.positive[rule][:size]
                    missed = share if subset == "negatives" else 1 - share
                    sums.append(patient_sums(missed, members[subset][f], first.patient[:size], patients))
                base = {"rule": rule, "task": first.observations.task, "sample": sample, "subset": subset}
                rows.append({**base, **_rate(sums, reasons, first.resampling, len(studied), options, subset, rule)})
    return rows


def _decisions(studied: list[StudiedEncoder], f: int, options: HeadStudyOptions) -> RuleDecisions:
    first = studied[0].probe
    observations, rows = first.observations, first.rows
    units = observations.unit_names[observations.units[rows.val]].tolist()
    fold = (stable_fraction(units, options.probe.seed, "folds of validation") * options.folds).astype(np.int64)
    return combine(
        np.stack([one.probe.val_logits[:, f] for one in studied]),
        observations.labels[rows.val, f],
        fold,
        np.stack([one.probe.all_test_logits[:, f] for one in studied]),
        observations.labels[rows.all_test, f],
        options.probe.sensitivity,
    )


def _members(studied: list[StudiedEncoder], f: int, subset: str, size: int) -> np.ndarray:
    first = studied[0].probe
    labels = first.observations.labels[first.rows.all_test[:size], f]
    if subset == "negatives":
        return labels == 0
    if subset == "positives":
        return labels == 1
    dm = np.stack([one.dm[:size, f] for one in studied])
    # NaN is not above 0: an image without a margin under every encoder is in no majority
    majority = (dm > 0).sum(axis=0) * 2 > len(studied)
    return (labels == 1) & majority & ~np.isnan(dm).any(axis=0)


def _rate(
    sums: list[np.ndarray],
    reasons: list[str],
    weights: np.ndarray,
    encoders: int,
    options: HeadStudyOptions,
    subset: str,
    rule: str,
) -> dict[str, Any]:
    row: dict[str, Any] = {
        **dict.fromkeys(RULE_COLUMNS[4:]),
        "measure": "false_positive_rate" if subset == "negatives" else "miss_rate",
        "n_findings": len(sums),
        "missing_findings": len(reasons),
        "encoders": encoders,
    }
    missing = f"{len(reasons)} findings have no decision ({reasons[0]})" if reasons else None
    if not sums or (reasons and not options.pool_missing):
        return {**row, "status": "insufficient", "reason": missing}
    total = np.sum(sums, axis=0)
    pairs = int(total[1].sum())
    if not pairs:
        return {**row, "n_pairs": 0, "status": "insufficient", "reason": f"no test image is among {subset}"}
    rate = float(total[0].sum() / total[1].sum())
    by_finding = [float(part[0].sum() / part[1].sum()) for part in sums if part[1].any()]
    resampled = np.concatenate([total @ block for block in _blocks(weights)], axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        row["sd"], row["lo"], row["hi"], reason = spread(resampled[0] / resampled[1])
    row.update(rate=rate, rate_macro=float(np.mean(by_finding)), n_pairs=pairs, status="ok", reason=reason or missing)
    if rule == ORACLE:
        row["complement"] = 1 - rate
    return row


def _blocks(weights: np.ndarray, size: int = 100) -> Iterable[np.ndarray]:
    for start in range(0, weights.shape[1], size):
        yield weights[:, start : start + size].astype(np.float64)


def _corrected(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """q-values and verdicts: one Benjamini–Hochberg family a score, over encoders, findings and sites; and means."""
    scores = list(dict.fromkeys(row["score"] for row in rows))
    for score in scores:
        family = [row for row in rows if row["score"] == score]
        for row, q in zip(family, benjamini_hochberg([row["p"] for row in family]), strict=True):
            if q is not None:
                row["q"] = q
                row["verdict"] = "no difference" if q >= 0.05 else "better" if row["difference"] > 0 else "worse"
    names = [None, *dict.fromkeys(row["encoder"] for row in rows)]
    return [*rows, *(_mean_row(rows, name, score) for name in names for score in scores)]


def _mean_row(rows: list[dict[str, Any]], encoder: str | None, score: str) -> dict[str, Any]:
    """Mean AUROC of a score over findings and sites, and how often it beats confidence."""
    part = [row for row in rows if row["score"] == score and encoder in (None, row["encoder"])]
    used = [row for row in part if row["auroc"] is not None]
    verdicts = [row["verdict"] for row in used]
    return {
        **dict.fromkeys(DETECTION_COLUMNS),
        "encoder": encoder,
        "task": part[0]["task"],
        "train_site": part[0]["train_site"],
        "level": "encoder" if encoder else "all",
        "score": score,
        "auroc": float(np.mean([row["auroc"] for row in used])) if used else None,
        "rows": len(used),
        "missing_rows": len(part) - len(used),
        "n_better": verdicts.count("better"),
        "n_worse": verdicts.count("worse"),
        "status": "ok" if used else "insufficient",
        "reason": None if used else "no finding and site has this score",
    }
