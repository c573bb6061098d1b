"""The numbers that a reader is shown: a finding pooled over its groups, or, where a group is missing, group by group.

A finding whose pooled number is not given, because one of its groups cannot be estimated, still has numbers in the
other groups; they take its place, named by finding and group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .wording import group_name


@dataclass(frozen=True)
class Estimate:
    """What a number stands for.

    Args:
        finding: the finding.
        group: the matched group, or None for the finding pooled over its groups.
    """

    finding: str
    group: str | None = None

    @property
    def label(self) -> str:
        """The finding, with the group where there is one.

        >>> Estimate("Edema", "site=A|view=AP").label
        'Edema (site A, view AP)'
        """
        return self.finding if self.group is None else f"{self.finding} ({group_name(self.group)})"


def rows_of(results: Mapping[str, Any], task: str, level: str) -> list[Mapping[str, Any]]:
    """Rows of one task and level."""
    return [row for row in results["discordance"] if row["task"] == task and row["level"] == level]


def findings_of(results: Mapping[str, Any], task: str) -> list[str]:
    """The task's findings, in the order in which they first occur."""
    return list(dict.fromkeys(row["finding"] for row in rows_of(results, task, "finding")))


def shown_rows(results: Mapping[str, Any], task: str) -> list[tuple[Estimate, list[Mapping[str, Any]]]]:
    """What to show of a task: each estimate with the rows of the encoders.

    A finding is shown pooled when it has a pooled number under some encoder; else by those groups that have a number
    under some encoder; else as the pooled row that says why there is none.
    """
    pooled: dict[str, list[Mapping[str, Any]]] = {}
    grouped: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows_of(results, task, "finding"):
        pooled.setdefault(row["finding"], []).append(row)
    for row in rows_of(results, task, "group"):
        grouped.setdefault(row["finding"], {}).setdefault(row["group"], []).append(row)
    shown: list[tuple[Estimate, list[Mapping[str, Any]]]] = []
    for finding, rows in pooled.items():
        parts = {group: part for group, part in grouped.get(finding, {}).items() if _any(part)}
        if _any(rows) or not parts:
            shown.append((Estimate(finding), rows))
        else:
            shown += [(Estimate(finding, group), part) for group, part in parts.items()]
    return shown


def not_estimable_rows(results: Mapping[str, Any], task: str) -> list[tuple[Estimate, Mapping[str, Any]]]:
    """Rows of groups and findings that have no number and hold a positive image, or are the finding's only row."""
    found = [
        (Estimate(row["finding"], row["group"]), row)
        for row in rows_of(results, task, "group")
        if row.get("D") is None and row.get("n_positive") != 0
    ]
    told = {(row["encoder"], estimate.finding) for estimate, row in found}
    return found + [
        (Estimate(row["finding"]), row)
        for row in rows_of(results, task, "finding")
        if row.get("D") is None and (row["encoder"], row["finding"]) not in told
    ]


def _any(rows: Sequence[Mapping[str, Any]]) -> bool:
    return any(row.get("D") is not None for row in rows)
