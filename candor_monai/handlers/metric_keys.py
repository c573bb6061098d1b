"""Keys of ``engine.state.metrics``: from rows of results to names that every tracker takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_NOT_A_KEY = re.compile(r"[^A-Za-z0-9_./: -]")


def metric_key(*parts: str) -> str:
    """A key of ``engine.state.metrics`` that every tracker takes: only ``[A-Za-z0-9_./: -]``.

    >>> metric_key("D", "Pleural effusion", "site=a|view=AP")
    'D/Pleural effusion/site_a_view_AP'
    """
    return "/".join(_NOT_A_KEY.sub("_", part) for part in parts if part)


def metrics_of_rows(rows: Iterable[Mapping[str, Any]], names: Mapping[str, str], prefix: str = "") -> dict[str, float]:
    """Metrics of rows that have a ``level`` (group, finding or task), a ``finding`` and a ``group``.

    Args:
        rows: the rows.
        names: column to publish -> the metric's name; values that are None are left out.
        prefix: put before every key.

    >>> metrics_of_rows([{"level": "group", "finding": "Mass", "group": "view=AP", "D": 0.25}], {"D": "D"})
    {'D/Mass/view_AP': 0.25}
    """
    metrics: dict[str, float] = {}
    for row in rows:
        finding = "" if row["level"] == "task" else row["finding"]
        group = row["group"] if row["level"] == "group" else ""
        for column, name in names.items():
            if row.get(column) is not None:
                key = metric_key(prefix + name, finding, group)
                while key in metrics:  # two groups may differ only in characters that a key cannot hold
                    key += "_"
                metrics[key] = float(row[column])
    return metrics
