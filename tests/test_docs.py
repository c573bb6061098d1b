"""The documentation names files, options and run ids that are there."""

import re

import pytest

from candor_monai.apps.workflow import shipped_keys
from candor_monai.utils import read_yaml, resource

from .support import ROOT

PAGES = [*(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "SECURITY")), *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)]*))?\)")
OPTION = re.compile(r"(?<![\w-])--([a-z][a-z_0-9]+)")
# Options of other programs, and of this package's scripts, that the pages also show.
FOREIGN = {
    *("config_file", "run_id", "tracking", "nproc_per_node", "images", "encoder", "dicom", "rounds", "batch"),
    *("app", "studies"),
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, place in LINK.findall(page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "mailto:")):
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name} links to {target}"
            assert not place or place in places(file), f"{page.name} links to {target}#{place}"


def places(page):
    """Names of a page's headings as links have them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page", ["options", "quick_start", "own_data", "own_encoder", "study", "reading_d", "retention"]
)
def test_options_shown_are_options(page):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for name in OPTION.findall(text):
        assert name in shipped_keys() | FOREIGN, f"{page} shows --{name}"


def test_the_architecture_page_names_every_package_and_files_that_are_there():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    there = [str(path) for part in ("candor_monai", "bundles", "tests") for path in (ROOT / part).rglob("*")]
    for name in re.findall(r"`([\w/]+\.(?:py|yaml))`", text):
        assert any(path.endswith(f"/{name}") for path in there), name
    packages = [path.parent.relative_to(ROOT) for path in (ROOT / "candor_monai").glob("*/__init__.py")]
    for package in [*packages, "candor_monai/apps/label"]:
        assert f"`{package}/`" in text, package


def test_run_ids_of_the_bundles_page_are_run_ids():
    text = (ROOT / "bundles" / "candor_eval" / "docs" / "README.md").read_text(encoding="utf-8")
    for name in ("evaluate.yaml", "inference.yaml", "tools.yaml"):
        config = read_yaml(resource("bundles", "candor_eval", "configs", name))
        (line,) = [line for line in text.splitlines() if line.startswith(f"| `{name}`")]
        assert set(re.findall(r"`(\w+)`", line.split("|")[2])) | {"run"} == set(config["run_ids"])


def test_messages_and_cards_name_options_that_there_are():
    """An option of a cohort's adapter is named by ``--cohort_options``: the bundle knows no other keys."""
    files = [*(ROOT / "configs").rglob("*.yaml"), *(ROOT / "candor_monai" / "data").rglob("*.py")]
    for file in [*files, *(ROOT / "candor_monai" / "apps").glob("*.py")]:
        for name in OPTION.findall(file.read_text(encoding="utf-8")):
            assert name in shipped_keys() | FOREIGN, f"{file.name} names --{name}"


def test_the_page_of_options_has_them_all_with_their_defaults():
    text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    cells = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    shown = {name: row for row in cells for name in re.findall(r"`(\w+)`", row[0])}
    config = read_yaml(resource("bundles", "candor_eval", "configs", "evaluate.yaml"))
    known = {*config["options"], *config["cohort_keys"], "device"}
    known -= {"_target_", "cohort_keys"}
    assert set(shown) == known
    for name, row in shown.items():
        default = config[name]
        if len(row) == 3 and default is not None and name != "device":
            assert row[1] == f"`{str(default).lower() if isinstance(default, bool) else default}`", name


def test_readme_opens_with_two_commands():
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert "monai.bundle run candor_eval" in blocks[0]
    assert "pytest" in blocks[1]
    assert all(len(block.strip().splitlines()) == 1 for block in blocks[:2])
