"""Licences of what a default installation brings, and what an audit says when it could not ask."""

import csv
import doctest
import re

import pytest

from .support import ROOT, module_from

SCRIPT = ROOT / ".ci" / "dependencies.py"
pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="outside the repository")


@pytest.fixture(scope="module")
def script():
    module = module_from(SCRIPT, "dependencies")
    assert doctest.testmod(module).failed == 0
    return module


def test_no_default_dependency_is_under_the_gpl(script):
    found = script.licences()
    assert len(found) > 40
    assert [(name, licence) for name, licence, _ in found if script.is_gpl(licence)] == []
    assert "pylibjpeg-libjpeg" not in {name for name, _, _ in found}


def test_every_dependency_of_the_setup_is_in_the_list(script):
    with open(ROOT / "docs" / "licences.csv", newline="", encoding="utf-8") as file:
        listed = {row["package"]: row for row in csv.DictReader(file)}
    section = (ROOT / "setup.cfg").read_text(encoding="utf-8").split("install_requires =")[1].split("[options")[0]
    wanted = {script.canonicalize_name(re.match(r"[\w.-]+", line.strip())[0]) for line in section.split("\n") if line}
    assert wanted == {name for name, row in listed.items() if row["dependency"] == "direct"}
    assert [name for name, row in listed.items() if script.is_gpl(row["licence"])] == []
    for name, licence, _ in script.licences():
        if name in wanted:
            assert licence, f"{name} states no licence"


@pytest.mark.parametrize(
    "licence, gpl",
    [
        *(("GPL-3.0-or-later", True), ("GNU General Public License v3 (GPLv3)", True), ("AGPL-3.0", True)),
        *(("MIT AND GPL-2.0", True), ("LGPL-3.0", False), ("GNU Lesser General Public License v3 (LGPLv3)", False)),
        *(("MIT OR GPL-2.0", False), ("", False), ("Apache-2.0", False)),
    ],
)
def test_what_counts_as_the_gpl(script, licence, gpl):
    assert script.is_gpl(licence) is gpl


REPORT = {
    "dependencies": [
        {"name": "good", "version": "1", "vulns": []},
        {"name": "bad", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"], "aliases": []}]},
        {"name": "unknown", "skip_reason": "Dependency not found"},
    ]
}


def test_a_report_by_hand(script):
    assert script.audited(REPORT) == (["good", "bad"], ["unknown"], ["bad 2: CVE-1, fixed in 3"])


@pytest.mark.parametrize(
    "report, status, told",
    [
        (REPORT, 1, "2 packages looked up, 1 vulnerabilities known"),
        ({"dependencies": REPORT["dependencies"][:1]}, 0, "1 packages looked up, 0 vulnerabilities known"),
        ({"dependencies": REPORT["dependencies"][2:]}, 3, "NOT AUDITED: no advisory database can be reached"),
        (None, 3, "NOT AUDITED: no advisory database can be reached"),
    ],
)
def test_what_was_not_looked_up_is_not_called_clean(script, report, status, told, monkeypatch, capsys):
    """pip-audit itself says "no known vulnerabilities" of packages that it could not look up."""
    monkeypatch.setattr(script.venv, "create", lambda *arguments, **options: None)
    monkeypatch.setattr(script.subprocess, "run", lambda *arguments, **options: type("Done", (), {"returncode": 0}))
    monkeypatch.setattr(script, "run_audit", lambda *arguments: report)
    assert script.audit() == status
    assert told in capsys.readouterr().out
    assert script.main(["audit", "--lenient"]) == (0 if status == 3 else status)


def test_no_tool_no_verdict(script, monkeypatch, capsys):
    monkeypatch.setattr(script.venv, "create", lambda *arguments, **options: None)
    monkeypatch.setattr(script.subprocess, "run", lambda *arguments, **options: type("Done", (), {"returncode": 1}))
    assert script.audit() == 3
    assert "NOT AUDITED: pip-audit could not be installed" in capsys.readouterr().out
