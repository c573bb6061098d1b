"""Hostile input and dangerous habits: names that are scripts or formulas, paths that leave, code that runs data."""

import ast
import csv
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from candor_monai.utils import resource
from candor_monai.utils.yaml_files import read_yaml
from candor_monai.visualize.csv_files import FORMULA_STARTS, plain_text
from candor_monai.visualize.results_files import read_results

from .small_cohort import run_bundle, table_options

SCRIPT = "<script>alert(1)</script>"
FORMULA = '=HYPERLINK("http://evil.example","x")'
IMAGES = 24
PACKAGE = resource("bundles").parent / "candor_monai"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A cohort in which every text is a script or a formula."""
    folder = tmp_path_factory.mktemp("hostile") / "data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    rows = []
    for i in range(IMAGES):
        name = f"<img src=x onerror=alert({i})>.png" if i % 2 else f"=cmd|' -C calc'!A{i}.png"
        if i == 5:
            (folder / name).write_bytes(b"not an image")
        else:
            Image.fromarray(rng.integers(0, 256, (40, 40), dtype=np.uint8)).save(folder / name, format="png")
        site = SCRIPT if i % 4 < 2 else "@SUM(1+1)"
        rows.append([name, f"{FORMULA}{SCRIPT}{i % 12}", site, "'\"><b>", int(i % 3 == 0), int(i % 5 == 0)])
    columns = ["image", "patient_id", "site", "view", SCRIPT, FORMULA]
    pd.DataFrame(rows, columns=columns).to_csv(folder / "labels.csv", index=False)
    return folder


class Tags(HTMLParser):
    """The tags of a page, and attributes that run code or fetch something."""

    def __init__(self):
        super().__init__()
        self.tags, self.handlers, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name.startswith("on"):
                self.handlers.append((tag, name))
            if name in ("src", "href") and value and not value.startswith(("data:image/", "data:,", "#")):
                self.links.append((tag, value))


def test_scripts_and_formulas_stay_text(hostile, tmp_path):
    options = table_options(hostile, tmp_path / "eval", findings=[SCRIPT, FORMULA], match_on=["site", "view"], k=1)
    run_bundle("candor_eval", **options)
    results = read_results(tmp_path / "eval" / "results.json")
    assert results["cohort"]["findings"] == [SCRIPT, FORMULA], "in the data they are what they were"
    assert results["accounting"]["rejected"] == 1
    page = (tmp_path / "eval" / "report.html").read_text()
    found = Tags()
    found.feed(page)
    assert page.count("&lt;script&gt;alert(1)") > 5
    assert found.tags.count("script") <= 1, "the page's own"
    assert found.handlers == []
    assert all(link.startswith("https://") for _, link in found.links), found.links
    assert "evil.example" not in str(found.links)
    tables = sorted((tmp_path / "eval").rglob("*.csv"))
    assert {"discordance.csv", "rejected.csv", "metrics.csv"} <= {path.name for path in tables}
    for path in tables:
        for row in csv.reader(path.open(newline="", encoding="utf-8")):
            for cell in row:
                assert not cell.startswith(FORMULA_STARTS) or is_number(cell), (path.name, cell)
    with (tmp_path / "eval" / "discordance.csv").open(newline="", encoding="utf-8") as file:
        names = {plain_text(row["finding"]) for row in csv.DictReader(file)}
    assert {SCRIPT, FORMULA} <= names


def is_number(cell):
    try:
        float(cell)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("escape", ["../outside.png", "images/../../outside.png", "{absolute}", "a/\0b.png"])
def test_a_path_of_a_table_cannot_leave_the_dataset(escape, tmp_path):
    folder = tmp_path / "data"
    (folder / "images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for path in (folder / "a.png", tmp_path / "outside.png"):
        Image.fromarray(rng.integers(0, 256, (32, 32), dtype=np.uint8)).save(path)
    written = escape.format(absolute=tmp_path / "outside.png")
    pd.DataFrame({"image": ["a.png", written], "Edema": [0, 1]}).to_csv(folder / "labels.csv", index=False)
    options = table_options(folder, tmp_path / "eval", findings=["Edema"], match_on=[], join_on="path")
    options.pop("match_on")
    with pytest.raises(SystemExit, match="labels"):
        run_bundle("doctor", **options)


# ---- the package's own code

MODULES = sorted(PACKAGE.rglob("*.py"))
# Where a name that is dangerous elsewhere is used with its reason: module -> names.
EXCEPTIONS = {
    "networks/weights.py": {"import pickle"},  # to catch UnpicklingError of torch's restricted unpickler
    # The one door for a publisher's pickled weights: an own run id, an unpickler with a closed list of names.
    "networks/convert.py": {"import pickle", "torch.load"},
}


def dangers(tree):
    """Dangerous names of a module and their lines."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for name in names:
                if name.split(".")[0] in ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"):
                    yield f"import {name}", node.lineno
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        given = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if called in ("eval", "exec", "compile", "__import__", "os.system", "os.popen"):
            yield called, node.lineno
        if called.endswith("torch.load") and given.get("weights_only") != "True":
            yield "torch.load", node.lineno
        if called in ("np.load", "numpy.load") and given.get("allow_pickle") != "False":
            yield "np.load", node.lineno
        if called in ("yaml.load", "yaml.load_all") and given.get("Loader") != "_Loader":
            yield called, node.lineno
        if called.endswith(("read_pickle", "to_pickle")) or given.get("shell") == "True":
            yield called, node.lineno
        if given.get("trust_remote_code", "False") != "False":
            yield "trust_remote_code", node.lineno
        if called.endswith(("tempfile.mktemp", "extractall")):
            yield called, node.lineno


def test_dangers_are_found():
    code = {
        "import pickle": "import pickle",
        "torch.load": "torch.load(f)",
        "np.load": "np.load(f, allow_pickle=True)",
        "yaml.load": "yaml.load(t, Loader=yaml.Loader)",
        "eval": "eval(x)",
        "trust_remote_code": "m(trust_remote_code=True)",
    }
    found = [name for text in code.values() for name, _ in dangers(ast.parse(text))]
    assert found == list(code)
    assert list(dangers(ast.parse("torch.load(f, weights_only=True); yaml.safe_load(t); network.eval()"))) == []


def test_no_module_runs_data_as_code():
    found = []
    for module in MODULES:
        name = str(module.relative_to(PACKAGE))
        dangerous = dangers(ast.parse(module.read_text(encoding="utf-8")))
        found += [(name, what, line) for what, line in dangerous if what not in EXCEPTIONS.get(name, ())]
    assert found == []
    assert len(MODULES) > 100


def test_the_yaml_loader_takes_no_python_tags(tmp_path):
    (tmp_path / "card.yaml").write_text("name: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(ValueError, match="YAML"):
        read_yaml(tmp_path / "card.yaml")


# ---- the shipped configs

# Every form of expression that the bundle's configs may hold. None of them computes with a value that comes from data:
# they read attributes of our own typed objects.
ALLOWED = [
    r"import torch",
    r"(not )?@options(\.\w+)+",
    r"@context\.\w+(\['name'\])?",
    r"@(\w+::)*\w+ is None",
    r"getattr\(@(\w+::)*dataloader, 'images', 0\)",
    r"str\(@results_dir( / '[\w.]+')?\)",
    r"str\(@tensorboard_dir\)",
    r"@results_dir(\.name| / '\w+')",
    r"@context\.encoder\['name'\] \+ ' on ' \+ @cohort_data\.name",
    r"@context\.encoder\.get\('\w+'\)",
    r"len\(@cohort_data\)",
    r"', '\.join\(@cohort_data\.(findings|task\.match_on)\)(\[:500\])?",
    r"@cohort_data\.(name|fingerprint\(\)|task\.name)",
    r"monai\.utils\.path_to_sqlite_uri\(str\(@results_dir / '[\w.]+'\)\)",
    r"torch\.distributed\.is_available\(\) and torch\.distributed\.is_initialized\(\)"
    r" and torch\.distributed\.get_rank\(\) > 0",
    r"torch\.nn\.Identity\(\)",
    r"torch\.device\('cuda:0' if torch\.cuda\.is_available\(\) else 'cpu'\)",
    r"'image_list' if @dataset_dir or @images else 'calibration'",
]
CONFIGS = sorted(resource("bundles").glob("*/configs/*.yaml"))


def expressions(value):
    if isinstance(value, str) and value.startswith("$"):
        yield value[1:]
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from expressions(key)
            yield from expressions(part)
    elif isinstance(value, list):
        for part in value:
            yield from expressions(part)


@pytest.mark.parametrize(
    "config", [path for path in CONFIGS if "candor_eval" in path.parts], ids=lambda path: path.name
)
def test_configs_hold_no_other_expressions(config):
    for expression in expressions(read_yaml(config)):
        assert any(re.fullmatch(form, expression) for form in ALLOWED), expression


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: f"{path.parts[-3]}-{path.name}")
def test_no_config_reaches_for_the_system(config):
    for expression in expressions(read_yaml(config)):
        assert not re.search(r"__|\b(eval|exec|open|os|sys|subprocess|compile|input|globals|shutil)\b", expression)


def test_cards_hold_no_expressions_at_all():
    cards = sorted(resource("configs").rglob("*.yaml"))
    assert [(card.name, text) for card in cards for text in expressions(read_yaml(card))] == []
    assert len(cards) > 30


def test_a_card_s_text_is_never_run(tmp_path):
    """Cards are read by the package's own loader: an expression in one is a text like any other."""
    mark = tmp_path / "ran"
    card = tmp_path / "card.yaml"
    card.write_text(f"name: x\nadapter: table\noptions:\n  labels: \"$open('{mark}', 'w')\"\n")
    with pytest.raises(SystemExit):
        run_bundle("doctor", cohort=str(card), dataset_dir=str(tmp_path), output_dir=str(tmp_path / "eval"))
    assert not mark.exists()


def test_the_repository_tells_where_to_report():
    root = Path(__file__).resolve().parent.parent.parent
    if not (root / "SECURITY.md").is_file():
        pytest.skip("outside the repository")
    assert "docs/security.md" in (root / "SECURITY.md").read_text()
