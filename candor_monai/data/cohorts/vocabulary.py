"""The names that each site gives to the twelve chest findings: one table, read from configs/chest_vocabulary.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...utils import UserError, read_yaml, resource, unknown
from ...utils.typed import typed


@dataclass(frozen=True)
class Vocabulary:
    """Site -> finding -> names at that site.

    Args:
        sites: the table, with preset and extras applied.
    """

    sites: Mapping[str, Mapping[str, tuple[str, ...]]]

    def of(self, site: str, findings: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Finding -> the site's names, for those of ``findings`` that the site knows, in their order.

        Raises:
            UserError: the site is not in the table, or knows none of the findings.
        """
        if site not in self.sites:
            raise unknown("site in the chest vocabulary:", site, self.sites)
        known = {finding: self.sites[site][finding] for finding in findings if finding in self.sites[site]}
        if not known:
            raise UserError(
                f"the chest vocabulary maps none of {', '.join(findings)} at site {site!r}; it knows "
                f"{', '.join(self.sites[site])}."
            )
        return known


def load_vocabulary(
    table: str | Path | Mapping[str, Any] | None = None, preset: str = "all", extras: Sequence[str] = ()
) -> Vocabulary:
    """Read the vocabulary.

    Args:
        table: a YAML file or its content in place of the shipped one.
        preset: ``"all"``, or ``"paper"`` (what the paper's site counts imply).
        extras: names of additions that are off by default.

    Raises:
        UserError: unknown preset or extra, or a badly formed table.

    >>> load_vocabulary().of("nih_cxr", ["Pleural Effusion"])
    {'Pleural Effusion': ('Effusion',)}
    """
    data = _shipped() if table is None else dict(table) if isinstance(table, Mapping) else read_yaml(table)
    where = "the chest vocabulary" if table is None or isinstance(table, Mapping) else str(table)
    for key in data:
        if key not in ("sites", "presets", "extras"):
            raise unknown(f"key in {where}:", str(key), ("sites", "presets", "extras"))
    presets = {"all": {}, **_mapping(data, "presets", where)}
    additions = _mapping(data, "extras", where)
    if preset not in presets:
        raise unknown(f"preset of {where}:", preset, presets)
    sites = _names(_mapping(data, "sites", where), f"{where}: sites")
    for extra in extras:
        if extra not in additions:
            raise unknown(f"extra of {where}:", extra, additions)
        for site, row in _names(additions[extra], f"{where}: extras: {extra}").items():
            for finding, names in row.items():
                sites.setdefault(site, {}).setdefault(finding, []).extend(names)
    for site, change in _names(presets[preset], f"{where}: presets: {preset}").items():
        for key in change:
            if key != "without":
                raise unknown(f"key in {where}: presets: {preset}: {site}:", key, ("without",))
        for finding in change.get("without", ()):
            sites.get(site, {}).pop(finding, None)
    return Vocabulary({site: {f: tuple(names) for f, names in row.items()} for site, row in sites.items()})


@cache
def _shipped() -> dict[str, Any]:
    return read_yaml(resource("configs", "chest_vocabulary.yaml"))


def _mapping(data: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    content = data.get(key)
    if content is not None and not isinstance(content, Mapping):
        raise UserError(f"{where}: {key}: must be a mapping, got {content!r}.")
    return dict(content or {})


def _names(table: Any, where: str) -> dict[str, dict[str, list[str]]]:
    """Site -> finding -> names; one name may stand without brackets."""
    rows = typed(table or {}, Mapping[str, Mapping[str, Sequence[str]]], where, lenient=True)
    return {
        str(site): {str(f): [names] if isinstance(names, str) else list(names) for f, names in row.items()}
        for site, row in rows.items()
    }
