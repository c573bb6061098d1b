"""Cards of datasets: where they come from, under which terms, how they are laid out, what they should hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...utils import UserError, read_yaml, resource, unknown
from ...utils.typed import build


@dataclass(frozen=True)
class CohortCard:
    """Card of one dataset (configs/cohorts/<name>.yaml).

    Args:
        name: name of the cohort, as in the results.
        adapter: name of the adapter that reads it.
        task: name of a task (configs/tasks) or its fields; None leaves it to the adapter.
        match_on: covariates of the matched groups; None takes the task's.
        options: defaults of the adapter's and the common options.
        title, access, licence, citation, obtain, tree: for people.
        expected: what the publisher says it holds, by what is counted.
        notes: what to know before trusting a number.
    """

    name: str
    adapter: str
    task: str | dict[str, Any] | None = None
    match_on: tuple[str, ...] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    access: str = ""
    licence: str = ""
    citation: str = ""
    obtain: str = ""
    tree: str = ""
    expected: dict[str, int] = field(default_factory=dict)
    notes: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The card as plain values."""
        return asdict(self)


def list_cohorts() -> list[str]:
    """Names of the shipped cards.

    >>> "nih_cxr" in list_cohorts()
    True
    """
    return sorted(path.stem for path in resource("configs", "cohorts").glob("*.yaml"))


def load_card(card: str | Path | Mapping[str, Any] | CohortCard) -> CohortCard:
    """A card by name, from a YAML file, or from a mapping of its fields.

    Raises:
        UserError: unknown name or key, or a field is missing.

    >>> load_card("nih_cxr").adapter
    'nih_cxr'
    """
    if isinstance(card, CohortCard):
        return card
    if isinstance(card, Mapping):
        return _from_mapping(dict(card), "the cohort's card")
    path = Path(card)
    if path.suffix not in (".yaml", ".yml"):
        if str(card) not in list_cohorts():
            raise unknown("cohort", str(card), list_cohorts())
        path = resource("configs", "cohorts", f"{card}.yaml")
    return _from_mapping(read_yaml(path), str(path))


def _from_mapping(fields: dict[str, Any], where: str) -> CohortCard:
    fields = {key: value for key, value in fields.items() if value is not None}
    for key in ("name", "adapter"):
        if not fields.get(key):
            raise UserError(f"{where}: {key} is missing.")
    card: CohortCard = build(CohortCard, fields, where, lenient=True)
    return card
