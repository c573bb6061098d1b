"""What a row of discordance.csv allows one to say against chance, in words.

A statement against chance needs both the total interval and the permutation test, at least 20 candidates a side and
at least 10 positive patients; everything else is said to be untested, or not to be tellable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .wording import number, probability

LEAST_CANDIDATES = 20
LEAST_PATIENTS = 10
LEVEL = 0.05

LABELS = {
    "better": "better than chance",
    "worse": "worse than chance",
    "unclear": "cannot be told",
    "untested": "not tested",
    "small": "too few to test",
    "tied": "tied",
    "insufficient": "not estimable",
}


@dataclass(frozen=True)
class Verdict:
    """What can be said about one number.

    Args:
        code: a key of :data:`LABELS`.
        why: one sentence that gives the reason.
    """

    code: str
    why: str

    @property
    def label(self) -> str:
        """The verdict in two or three words."""
        return LABELS[self.code]


def reference(row: Mapping[str, Any]) -> float | None:
    """The value of D that stands for chance in this row, or None when the run did not determine it.

    With ``sets: patient`` that is (1 − tie rate)/2; with ``sets: image`` it is the mean of D under the permutation of
    patients, because several images a patient move D away from 1/2 without any knowledge of the finding.

    >>> reference({"sets": "patient", "chance": 0.5}), reference({"sets": "image", "chance": 0.5})
    (0.5, None)
    """
    return row.get("chance_null") if row.get("sets") == "image" else row.get("chance")


def verdict(row: Mapping[str, Any]) -> Verdict:
    """The statement that a row of discordance.csv supports.

    >>> row = {"status": "ok", "D": 0.3, "D_total_lo": 0.2, "D_total_hi": 0.4, "q_chance": 0.01, "chance": 0.5}
    >>> verdict(row).label
    'better than chance'
    >>> verdict(row | {"D_total_hi": 0.51}).label
    'cannot be told'
    >>> verdict(row | {"q_chance": None}).label
    'not tested'
    """
    reason = row.get("reason")
    if row.get("status") == "insufficient" or row.get("D") is None:
        return Verdict("insufficient", reason or "the run gives no reason")
    if row.get("status") == "tied":
        return Verdict("tied", reason or "more than 1 % of the images lie exactly between the two sides")
    candidates, patients = row.get("n_candidates"), row.get("n_pos_patients")
    if candidates is not None and candidates < LEAST_CANDIDATES:
        return Verdict("small", f"{candidates} candidates a side, {LEAST_CANDIDATES} are needed for a statement")
    if patients is not None and patients < LEAST_PATIENTS:
        return Verdict("small", f"{patients} positive patients, {LEAST_PATIENTS} are needed for a statement")
    return _tested(row, reason)


def _tested(row: Mapping[str, Any], reason: str | None) -> Verdict:
    low, high, chance, p = row.get("D_total_lo"), row.get("D_total_hi"), reference(row), corrected_p(row)
    if low is None or high is None or p is None or chance is None:
        lacking = {
            "interval": low is None or high is None,
            "permutation test": p is None,
            "chance level": chance is None,
        }
        why = {"interval": row.get("interval_reason"), "permutation test": row.get("chance_reason")}
        names = [f"no {'total ' if name == 'interval' else ''}{name}" for name, lacks in lacking.items() if lacks]
        reasons = [why[name] for name, lacks in lacking.items() if lacks and why.get(name)] or [reason]
        told = "; ".join(dict.fromkeys(text for text in reasons if text))
        return Verdict("untested", f"{' and '.join(names)}: {told}" if told else f"{' and '.join(names)} in this run")
    name = "q" if row.get("q_chance") is not None else "p"
    shown = f"{name} {probability(p)}" if p < 0.001 else f"{name} = {probability(p)}"
    if p <= LEVEL and high < chance:
        return Verdict("better", f"the whole interval lies below chance ({number(chance)}), {shown}")
    if p <= LEVEL and low > chance:
        return Verdict("worse", f"the whole interval lies above chance ({number(chance)}), {shown}")
    if low <= chance <= high:
        return Verdict("unclear", f"the interval includes chance ({number(chance)}), {shown}")
    return Verdict(
        "unclear", f"the interval excludes chance ({number(chance)}) but the permutation test does not, {shown}"
    )


def corrected_p(row: Mapping[str, Any]) -> float | None:
    """The p-value that a statement rests on: corrected for the number of tests where the run did so."""
    return row.get("q_chance") if row.get("q_chance") is not None else row.get("p_chance")


def is_ranked(row: Mapping[str, Any]) -> bool:
    """Whether the row may take a place in a ranking: defined and not tied."""
    return row.get("status") == "ok" and row.get("D") is not None
