"""The dependencies of an installation: their licences, and whether vulnerabilities of them are known.

    .venv/bin/python .ci/dependencies.py licences [FILE]   list of everything that a default installation brings
    .venv/bin/python .ci/dependencies.py audit             pip-audit over this environment, in an environment of its own

``audit`` asks the advisory databases that pip-audit knows (PyPI's, OSV). Exit status 0: asked, and nothing is known;
1: something is; 3: no database could be asked, so nothing is said. With ``--lenient`` 3 becomes 0 (still said).
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OURS = "candor-monai"
SERVICES = ("pypi", "osv")
CLEAN, VULNERABLE, NOT_ASKED = 0, 1, 3
# Long texts in a field that should hold a name.
MOST = 120
# GPL, but not LGPL; what GCC's runtime exception or a choice lets out is no obligation.
GPL = re.compile(r"(?<!L)\bA?GPL|GNU (Affero )?General Public", re.IGNORECASE)
LET_OUT = re.compile(r"Lesser|GCC-exception|\bOR\b")


def default_dependencies(root: str = OURS) -> dict[str, bool]:
    """Name of everything that an installation without extras brings, and whether it is a direct dependency."""
    found: dict[str, bool] = {}
    waiting: list[tuple[str, frozenset[str], bool]] = [(root, frozenset(), False)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras, _ = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            requirements = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        for line in requirements:
            wanted = Requirement(line)
            if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                other = str(canonicalize_name(wanted.name))
                found[other] = found.get(other, False) or name == root
                waiting.append((other, frozenset(wanted.extras), name == root))
    return dict(sorted(found.items()))


def licence_of(package: Distribution) -> str:
    """The licence as the package's own metadata states it; empty when they do not."""
    about = package.metadata
    stated = str(about.get("License-Expression") or "")
    if not stated:
        classifiers = [c.split("::")[-1].strip() for c in about.get_all("Classifier") or () if c.startswith("License")]
        stated = " AND ".join(c for c in classifiers if c != "OSI Approved")
    if not stated:
        stated = str(about.get("License") or "").strip().splitlines()[0] if about.get("License") else ""
    return stated[:MOST]


def is_gpl(licence: str) -> bool:
    """Whether a part of a licence is the GPL or AGPL without a choice or an exception.

    >>> [is_gpl(text) for text in ("GPL-3.0-only", "LGPL-2.1", "MIT OR GPL-2.0", "GPL-3.0 WITH GCC-exception-3.1")]
    [True, False, False, False]
    """
    return any(GPL.search(part) and not LET_OUT.search(part) for part in re.split(r"\bAND\b|;", licence))


def licences() -> list[tuple[str, str, str]]:
    """(package, licence, direct or indirect) of every default dependency that is installed."""
    rows = []
    for name, direct in default_dependencies().items():
        try:
            rows.append((name, licence_of(distribution(name)), "direct" if direct else "indirect"))
        except PackageNotFoundError:
            continue
    return rows


def installed() -> list[str]:
    """``name==version`` of everything in this environment but this project; local parts of versions are left out."""
    found = {str(canonicalize_name(d.metadata["Name"])): d.version.split("+")[0] for d in distributions()}
    found.pop(OURS, None)
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def audited(report: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """Packages that were looked up, those that could not be, and lines about what is known, of a pip-audit report."""
    asked, skipped, known = [], [], []
    for item in report["dependencies"]:
        (skipped if "skip_reason" in item else asked).append(item["name"])
        for found in item.get("vulns", ()):
            fixed = ", ".join(found.get("fix_versions") or ()) or "no version"
            known.append(f"{item['name']} {item['version']}: {found['id']}, fixed in {fixed}")
    return asked, skipped, known


def run_audit(tool: Sequence[str], requirements: Iterable[str], service: str, folder: Path) -> dict[str, Any] | None:
    """pip-audit's report, or None when its database cannot be asked."""
    listed, report = folder / "requirements.txt", folder / "report.json"
    listed.write_text("\n".join(requirements) + "\n", encoding="utf-8")
    report.unlink(missing_ok=True)
    command = [*tool, "-r", str(listed), "--no-deps", "--disable-pip", "-s", service, "-f", "json", "-o", str(report)]
    subprocess.run([*command, "--progress-spinner", "off"], capture_output=True, check=False, timeout=900)
    return json.loads(report.read_text(encoding="utf-8")) if report.is_file() else None


def audit() -> int:
    """Ask the databases, print what they know, give the exit status."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        venv.create(folder / "venv", with_pip=True)
        python = str(folder / "venv" / "bin" / "python")
        install = subprocess.run([python, "-m", "pip", "install", "-q", "pip-audit"], capture_output=True, check=False)
        if install.returncode:
            print("NOT AUDITED: pip-audit could not be installed.")
            return NOT_ASKED
        tool, wanted = [python, "-m", "pip_audit"], installed()
        for service in SERVICES:
            probe = run_audit(tool, [line for line in wanted if line.startswith("numpy==")], service, folder)
            if probe is None or not audited(probe)[0]:
                print(f"advisory database {service}: cannot be reached")
                continue
            report = run_audit(tool, wanted, service, folder)
            if report is None:
                continue
            asked, skipped, known = audited(report)
            print(f"advisory database {service}: {len(asked)} packages looked up, {len(known)} vulnerabilities known")
            if skipped:
                print(f"not in the database: {', '.join(skipped)}")
            print("\n".join(known))
            return VULNERABLE if known else CLEAN
    print("NOT AUDITED: no advisory database can be reached from here; run this where one can.")
    return NOT_ASKED


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says."""
    if arguments[:1] == ["audit"]:
        status = audit()
        return 0 if status == NOT_ASKED and "--lenient" in arguments else status
    if arguments[:1] == ["licences"]:
        with open(arguments[1], "w", newline="", encoding="utf-8") if arguments[1:] else sys.stdout as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("package", "licence", "dependency"))
            writer.writerows(licences())
        return 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
