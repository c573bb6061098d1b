"""The commands of the quick start and of the page on studies are run as printed, on small data in their place."""

import ast
import re
import shlex

import numpy as np
import pandas as pd
import pytest

from .bundles.small_cohort import run_bundle, write_small_cohort
from .support import ROOT

# What the pages name -> what stands in for it here.
INSTEAD = {"rad_dino": "blind", "dinov3_s": "marker", "random_vit_l": None, "efficientnet_lite0": "marker"}
QUICK = {"permutations": 99, "resamples": 100, "progress": False, "probe": False}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a dataset of the pages' columns, and the outputs of two sites."""
    folder = tmp_path_factory.mktemp("pages")
    data = write_small_cohort(folder / "chest")
    labels = pd.read_csv(data / "labels.csv").rename(columns={"Mass": "Pneumothorax"}).assign(site="A")
    labels.assign(image_id=labels["image"]).to_csv(data / "labels.csv", index=False)
    features = np.random.default_rng(0).standard_normal((len(labels), 8)).astype(np.float32)
    np.savez(data / "features.npz", image_id=labels["image"].to_numpy(dtype=str), features=features)
    for site in ("north", "south"):
        options = {"cohort": "table", "dataset_dir": str(data), "labels": "labels.csv", "findings": ["Edema"]}
        options |= {"patient_column": "patient_id", "encoder": "blind", "output_dir": str(folder / site / "eval")}
        run_bundle("candor_eval", **options, **QUICK, write_report=False)
    return folder


def commands(page):
    """Run id, config file and options of each command of a page's shell blocks."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
        for line in block.replace("\\\n", " ").replace("$(dirname $CONFIG)/", "").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["candor"]:
                yield words[1], "evaluate.yaml", words[2:]
            elif words[1:4] == ["-m", "monai.bundle", "run"]:
                yield words[4], words[6], words[7:]


def value(text, folder):
    """An option's value as the command line reads it, with what stands in for the page's names."""
    if text[:1] in "[{":
        read = ast.literal_eval(text)
        return [new for item in read if (new := INSTEAD.get(item, item))] if isinstance(read, list) else read
    return INSTEAD.get(text, text.replace("/data/chest", str(folder / "chest")))


@pytest.mark.parametrize(("page", "count"), [("quick_start.md", 4), ("study.md", 3)])
def test_commands_of_the_page_work(page, count, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    done = 0
    for run_id, config, words in commands(page):
        options = {words[i].removeprefix("--"): value(words[i + 1], place) for i in range(0, len(words), 2)}
        more = QUICK if config == "evaluate.yaml" else {}
        run_bundle(run_id, config=config, **{**more, **options})
        assert capsys.readouterr().out.strip(), (run_id, options)
        done += 1
    assert done == count
