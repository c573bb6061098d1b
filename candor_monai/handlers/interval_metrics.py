"""Intervals of an evaluation's numbers as metrics, beside those of ``engine.state.metrics``: for trackers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .metric_keys import metrics_of_rows

# Column -> what the metric is called; of D and the margin AUROC the total interval, on which statements rest.
OF_DISCORDANCE = {
    "D_total_lo": "D_lo",
    "D_total_hi": "D_hi",
    "p_chance": "D_p_chance",
    "D_all_lo": "D_all_lo",
    "D_all_hi": "D_all_hi",
    "margin_auroc_total_lo": "margin_auroc_lo",
    "margin_auroc_total_hi": "margin_auroc_hi",
}
OF_PROBE = {"auroc_lo": "head_auroc_lo", "auroc_hi": "head_auroc_hi"}


def interval_metrics(results: Mapping[str, Any]) -> dict[str, float]:
    """Ends of the intervals and p against chance, under keys like those of the numbers themselves.

    Args:
        results: the document of results.json.

    >>> row = {"level": "finding", "finding": "Edema", "group": None, "status": "ok", "D_total_lo": 0.1}
    >>> interval_metrics({"discordance": [row]})
    {'D_lo/Edema': 0.1}
    """
    scored: Iterable[Any] = (row for row in results["discordance"] if row.get("status") == "ok")
    return metrics_of_rows(scored, OF_DISCORDANCE) | metrics_of_rows(results.get("probe") or (), OF_PROBE)
