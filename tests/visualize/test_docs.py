"""The pages for users say what the files hold."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import candor_monai
from candor_monai.data.occlusion import VIEW_REASONS
from candor_monai.data.store_rows import unusable_features
from candor_monai.metrics.table import COLUMNS
from candor_monai.visualize.report import glossary
from candor_monai.visualize.results_files import results_schema
from candor_monai.visualize.verdicts import LABELS, LEAST_CANDIDATES, LEAST_PATIENTS

DOCS = Path(candor_monai.__file__).parents[1] / "docs"
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
    images = (DOCS / "images.md").read_text(encoding="utf-8")
    codes |= set(re.findall(r"^\| `([a-z_]+)` \|", images, re.M))
    assert codes - set(glossary()["reasons"]) == set()
    assert len(codes) > 25


def raised():
    """Reason codes that stand in the code where an image is refused."""
    places = {"DecodeError": 0, "HeaderError": 0, "add_rejected": 2, "reject": 1, "_reject": 2}
    for path in Path(candor_monai.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(getattr(node, "func", None), "id", getattr(getattr(node, "func", None), "attr", ""))
            if isinstance(node, ast.Call) and name in places:
                for argument in node.args[places[name] : places[name] + 2]:
                    if isinstance(argument, ast.Constant) and re.fullmatch(r"[a-z_]+", str(argument.value)):
                        yield argument.value
    for features in (np.zeros((1, 2), np.float32), np.full((1, 2), np.nan, np.float32)):
        yield unusable_features(features)[0][0]
    yield from ("modality", "sop_class", "body_part", "bad_name", "unreadable", "bad_archive")


def test_every_reason_code_that_is_given_is_explained():
    codes = set(raised()) - set(VIEW_REASONS)
    assert {"gone", "no_image", "selected", "not_dicom", "feature_zero", "corrupt"} <= codes
    assert codes - set(glossary()["reasons"]) == set()
    images = (DOCS / "images.md").read_text(encoding="utf-8")
    assert codes - named("outputs.md", "Reason codes") - set(re.findall(r"^\| `([a-z_]+)` \|", images, re.M)) == set()


def test_every_verdict_is_explained():
    page = (DOCS / "reading_d.md").read_text(encoding="utf-8")
    for label in LABELS.values():
        assert f"\n| {label} |" in page
    assert f"fewer than {LEAST_CANDIDATES} candidates a side, or fewer than {LEAST_PATIENTS} positive patients" in page


def test_links_between_the_pages_lead_somewhere():
    for page in ("reading_d.md", "outputs.md"):
        text = (DOCS / page).read_text(encoding="utf-8")
        headings = {
            re.sub(r"[^a-z0-9 _-]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)
        }
        for target in re.findall(r"\]\(([^)]+)\)", text):
            if target.startswith("#"):
                assert target[1:] in headings, (page, target)
            elif target != "uncertainty.md":  # written with the intervals
                assert (DOCS / target).exists(), (page, target)
