"""The names that each site gives to the twelve chest findings: one table, read from configs/chest_vocabulary.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...utils import UserError, read_yaml, resource, unknown


@dataclass(frozen=True)
class Vocabulary:
    """Site -> finding -> names at that site.

    Args:
        sites: the table, with preset and extras applied.
        preset: name of the preset applied.
        extras: names of the extras applied.
    """

    sites: Mapping[str, Mapping[str, tuple[str, ...]]]
    preset: str
    extras: tuple[str, ...] = ()

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
    path = resource("configs", "chest_vocabulary.yaml") if table is None else table
    data = dict(path) if isinstance(path, Mapping) else read_yaml(path)
    where = "the chest vocabulary" if isinstance(path, Mapping) else str(path)
    for key in data:
        if key not in ("sites", "presets", "extras"):
            raise unknown(f"key in {where}:", str(key), ("sites", "presets", "extras"))
    presets, additions = {"all": {}, **(data.get("presets") or {})}, data.get("extras") or {}
    if preset not in presets:
        raise unknown(f"preset of {where}:", preset, presets)
    sites = {site: {f: list(names) for f, names in row.items()} for site, row in (data.get("sites") or {}).items()}
    for extra in extras:
        if extra not in additions:
            raise unknown(f"extra of {where}:", extra, additions)
        for site, row in additions[extra].items():
            for finding, names in row.items():
                sites.setdefault(site, {}).setdefault(finding, []).extend(names)
    for site, change in (presets[preset] or {}).items():
        for finding in change.get("without", ()):
            sites.get(site, {}).pop(finding, None)
    frozen = {site: {f: tuple(str(n) for n in names) for f, names in row.items()} for site, row in sites.items()}
    return Vocabulary(frozen, preset, tuple(extras))
