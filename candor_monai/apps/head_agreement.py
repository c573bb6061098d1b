"""Do D, head AUROC, margin AUROC and LogME rank encoders alike, and what do D and D_all follow?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from ..metrics.rankings import Agreement, clustered_slope, clustered_spearman, mean_spearman, spearman

#: Measure -> the table and the column that hold it.
MEASURES = {
    "D": ("discordance", "D"),
    "D_all": ("discordance", "D_all"),
    "margin AUROC": ("discordance", "margin_auroc"),
    "head AUROC": ("probe", "auroc"),
    "LogME": ("probe", "logme"),
}
MEAN = "mean over findings"

AGREEMENT_COLUMNS = ("task", "finding", "measure_a", "measure_b", "spearman", "p", "n_encoders", "status", "reason")
TREND_COLUMNS = ("task", "measure", "against", "kind", "value", "p", "clusters", "status", "reason")


def agreement_rows(
    probe: Sequence[Mapping[str, Any]], discordance: Mapping[str, Sequence[Mapping[str, Any]]], task: str
) -> list[dict[str, Any]]:
    """Spearman's correlation over encoders of each two measures: pooled, per finding, and its mean over findings.

    Small D is good and large AUROC is good: encoders that both like correlate negatively.

    Args:
        probe: rows of ``probe.csv``.
        discordance: encoder -> rows of ``discordance.csv``.
        task: name of the task.
    """
    encoders = list(dict.fromkeys(row["encoder"] for row in probe))
    findings = list(dict.fromkeys(row["finding"] for row in probe if row["level"] == "finding"))
    rows = []
    for first, second in combinations(MEASURES, 2):
        tables = [_values(probe, discordance, name, encoders, findings) for name in (first, second)]
        base = {"task": task, "measure_a": first, "measure_b": second}
        for f, finding in enumerate([None, *findings]):
            found = _over_encoders(tables[0][:, f], tables[1][:, f])
            rows.append({**base, "finding": finding, **_columns(found, "spearman", "n_encoders")})
        mean = mean_spearman(tables[0][:, 1:], tables[1][:, 1:])
        columns = {**_columns(mean, "spearman", "n_encoders"), "n_encoders": len(encoders)}
        rows.append({**base, "finding": MEAN, **columns})
    return rows


def trend_rows(
    probe: Sequence[Mapping[str, Any]],
    discordance: Mapping[str, Sequence[Mapping[str, Any]]],
    cards: Mapping[str, Mapping[str, Any]],
    sizes: Mapping[str, float],
    task: str,
) -> list[dict[str, Any]]:
    """What D and D_all follow, over encoder × finding: positives, year, parameters, size of the finding.

    Args:
        probe: rows of ``probe.csv``, which name encoders and findings.
        discordance: encoder -> rows of ``discordance.csv``.
        cards: encoder -> its ``year`` and ``parameters``; an untrained encoder (no year) is left out of both slopes,
            one without parameters (a formula) out of that on them.
        sizes: finding -> its size, on a scale of the user's; without one there is no trend on size.
        task: name of the task.
    """
    encoders = list(dict.fromkeys(row["encoder"] for row in probe))
    findings = list(dict.fromkeys(row["finding"] for row in probe if row["level"] == "finding"))
    rows = []
    for measure in ("D", "D_all"):
        values = _values(probe, discordance, measure, encoders, findings)[:, 1:]
        cells = [(e, f) for e in range(len(encoders)) for f in range(len(findings)) if np.isfinite(values[e, f])]
        d = [float(values[e, f]) for e, f in cells]
        names = [findings[f] for _, f in cells]
        positives = [_positives(discordance, encoders[e], findings[f]) for e, f in cells]
        base = {"task": task, "measure": measure}
        found = clustered_spearman(d, positives, names) if d else _nothing(measure)
        rows.append({**base, "against": "positives", "kind": "spearman", **_columns(found, "value", "clusters")})
        for against in ("year", "parameters"):
            said = [_card_value(cards.get(encoders[e], {}), against) for e, _ in cells]
            known = [i for i, value in enumerate(said) if value is not None]
            x = [value for value in said if value is not None]
            slope = clustered_slope(x, [d[i] for i in known], [names[i] for i in known]) if known else _nothing(against)
            rows.append({**base, "against": against, "kind": "slope", **_columns(slope, "value", "clusters")})
        known = [i for i, (_, f) in enumerate(cells) if findings[f] in sizes]
        size = [float(sizes[names[i]]) for i in known]
        slope = clustered_slope(size, [d[i] for i in known], [names[i] for i in known]) if known else _nothing("size")
        rows.append({**base, "against": "size", "kind": "slope", **_columns(slope, "value", "clusters")})
    return rows


def _values(
    probe: Sequence[Mapping[str, Any]],
    discordance: Mapping[str, Sequence[Mapping[str, Any]]],
    measure: str,
    encoders: Sequence[str],
    findings: Sequence[str],
) -> np.ndarray:
    """The task's value in column 0, then those of the findings: shape (encoders, 1 + findings), NaN where undefined or
    where features tie, which have no place in a ranking."""
    table, column = MEASURES[measure]
    values = np.full((len(encoders), 1 + len(findings)), np.nan)
    for e, encoder in enumerate(encoders):
        rows = discordance.get(encoder, ()) if table == "discordance" else [r for r in probe if r["encoder"] == encoder]
        for row in rows:
            place = 0 if row["level"] == "task" else None
            if row["level"] == "finding" and row["finding"] in findings:
                place = 1 + findings.index(row["finding"])
            if place is not None and row.get(column) is not None and row.get("status") != "tied":
                values[e, place] = row[column]
    return values


def _over_encoders(first: np.ndarray, second: np.ndarray) -> Agreement:
    missing = int((~(np.isfinite(first) & np.isfinite(second))).sum())
    if missing:
        return Agreement(None, None, len(first) - missing, f"{missing} of {len(first)} encoders have no value")
    return spearman(first.tolist(), second.tolist())


def _positives(discordance: Mapping[str, Sequence[Mapping[str, Any]]], encoder: str, finding: str) -> float:
    rows = discordance.get(encoder, ())
    return float(next(r["n_positive"] for r in rows if r["level"] == "finding" and r["finding"] == finding))


def _card_value(card: Mapping[str, Any], name: str) -> float | None:
    """Year in years; parameters as their decimal logarithm; None where the encoder is untrained, or has none."""
    if not card.get("year") or not card.get(name):
        return None
    return float(np.log10(card[name])) if name == "parameters" else float(card[name])


def _nothing(name: str) -> Agreement:
    return Agreement(None, None, 0, f"nothing is known of {name}")


def _columns(found: Agreement, value: str, count: str) -> dict[str, Any]:
    status = "ok" if found.value is not None else "insufficient"
    return {value: found.value, "p": found.p, count: found.count, "status": status, "reason": found.reason}
