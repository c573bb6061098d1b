"""The pages for users say what the files hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import candor_monai
from candor_monai.apps.ablations import COLUMNS as ABLATION_COLUMNS
from candor_monai.apps.error_scores import COLUMNS as DETECTION_COLUMNS
from candor_monai.apps.head_agreement import TREND_COLUMNS
from candor_monai.apps.head_study import HEAD_ERROR_COLUMNS, RULE_COLUMNS
from candor_monai.apps.sites import COLUMNS as SITE_COLUMNS
from candor_monai.handlers.retention import RETENTION_COLUMNS
from candor_monai.metrics.table import COLUMNS
from candor_monai.networks.probing import COLUMNS as PROBE_COLUMNS
from candor_monai.visualize.report import glossary
from candor_monai.visualize.results_files import results_schema
from candor_monai.visualize.verdicts import LABELS, LEAST_CANDIDATES, LEAST_PATIENTS

PACKAGE = Path(candor_monai.__file__).parent
DOCS = PACKAGE.parent / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="the docs are in the checkout, not in the installed package")


def named(page, heading):
    """Words in backticks in the first column of the tables of a section."""
    section = (DOCS / page).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


def test_every_column_of_discordance_csv_is_explained():
    assert {"encoder", *COLUMNS} == named("outputs.md", "discordance.csv")


def test_the_schema_knows_every_column():
    properties = results_schema()["properties"]["discordance"]["items"]["properties"]
    assert {"encoder", *COLUMNS} == set(properties)


def test_every_key_of_results_json_is_explained():
    assert set(results_schema()["properties"]) - {"cohorts"} == named("outputs.md", "results.json")


def test_every_reason_code_has_a_meaning_in_the_report():
    codes = named("outputs.md", "Reason codes")
    images = (DOCS / "images.md").read_text(encoding="utf-8").split("has a reason code")[1]
    codes |= set(re.findall(r"^\| `([a-z_]+)` \|", images, re.M))
    assert codes - set(glossary()["reasons"]) == set()
    assert len(codes) > 25


def test_every_reason_code_of_the_package_is_explained():
    """Codes as they stand where an image is rejected: in the pages and in the report's glossary."""
    raised = re.compile(r'(?:DecodeError|HeaderError|_Dead)\(\s*"([a-z_]+)"')
    listed = re.compile(r'(?:draft|lookup)\.(?:add_)?reject(?:ed)?\([^"=]*"([a-z_]+)"')
    found = {"left_out", "unlabelled", "not_encoded", "feature_zero", "feature_not_finite"}
    for file in (PACKAGE / "data").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        found |= set(raised.findall(text)) | set(listed.findall(text))
    pages = "".join((DOCS / page).read_text(encoding="utf-8") for page in ("images.md", "outputs.md"))
    of_views = (DOCS / "retention.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"`([a-z_]+)`", pages))
    assert len(found) > 40
    assert {code for code in found - explained if f"`{code}`" not in of_views} == set()
    assert {code for code in found - set(glossary()["reasons"]) if f"`{code}`" not in of_views} == set()


@pytest.mark.parametrize(
    ("file", "columns"),
    [
        ("probe.csv", PROBE_COLUMNS),
        ("head_errors.csv", HEAD_ERROR_COLUMNS),
        ("rules.csv", RULE_COLUMNS),
        ("error_detection.csv", DETECTION_COLUMNS),
        ("retention.csv", [name for name in RETENTION_COLUMNS if not name.endswith(("_lo", "_hi"))]),
        ("trends.csv", TREND_COLUMNS),
        ("ablations.csv", ABLATION_COLUMNS),
        ("sites.csv", SITE_COLUMNS),
    ],
)
def test_every_column_of_the_other_tables_is_named(file, columns):
    section = (DOCS / "outputs.md").read_text(encoding="utf-8").split("\n## Columns of the other tables\n")[1]
    (line,) = [line for line in section.splitlines() if line.startswith(f"| `{file}` |")]
    named_here = re.findall(r"`([A-Za-z]\w*)`", re.sub(r"\([^)]*\)", "", line.split("|")[2]))
    assert named_here == list(columns)


def test_every_verdict_is_explained():
    page = (DOCS / "reading_d.md").read_text(encoding="utf-8")
    for label in LABELS.values():
        assert f"\n| {label} |" in page
    assert f"fewer than {LEAST_CANDIDATES} candidates a side, or fewer than {LEAST_PATIENTS} positive patients" in page
