"""The commands and the Python of the pages for users are run as printed, on small data in the place of their own."""

import ast
import json
import re
import shlex

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from candor_monai.data import load_cohort
from candor_monai.networks import load_encoder
from candor_monai.utils import UserError
from candor_monai.visualize.results_files import read_results

from .bundles.small_cohort import run_bundle, write_small_cohort
from .data.dicom_corpus import dicom_bytes
from .support import ROOT

# What the pages name -> what stands in for it here: gated or large weights are not downloaded.
INSTEAD = {"rad_dino": "blind", "dinov3_s": "marker", "random_vit_l": None, "efficientnet_lite0": "marker"}
QUICK = {"permutations": 99, "resamples": 100, "progress": False, "probe": False}
# Python blocks that are not run, by their last line, and why.
NOT_RUN = {
    "evaluator = SupervisedEvaluator(..., val_handlers=[CandorHandler(observations)])": "leaves out the reader's own "
    "network and data; tests/handlers/test_candor.py attaches the handler to an evaluator",
}
# Cards and settings that are not run here: ward_pacs of own_data.md names a PACS, and is read until the server does not
# answer (tests/data/cohorts/test_dicomweb.py has one that does); the cards of own_encoder.md are loaded by
# tests/networks/test_own_loaders.py; the tracking settings of outputs.md run in tests/bundles/test_tracking.py.


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what the pages have in /data, and the outputs of two sites."""
    folder = tmp_path_factory.mktemp("pages")
    data = write_small_cohort(folder / "data" / "chest")
    labels = pd.read_csv(data / "labels.csv").rename(columns={"Mass": "Pneumothorax"}).assign(site="A", orig_width="48")
    labels.assign(image_id=labels["image"]).to_csv(data / "labels.csv", index=False)
    features = np.random.default_rng(0).standard_normal((len(labels), 8)).astype(np.float32)
    np.savez(data / "features.npz", image_id=labels["image"].to_numpy(dtype=str), features=features)
    _write_study(folder / "data" / "study", labels)
    np.savez(folder / "data" / "study" / "f.npz", image_id=[f"A{i}" for i in range(len(labels))], features=features)
    _write_encoder(folder / "data")
    (folder / "ward_study.yaml").write_text(cards("own_data.md")["ward_study"])
    for site in ("north", "south"):
        options = {"cohort": "table", "dataset_dir": str(data), "labels": "labels.csv", "findings": ["Edema"]}
        options |= {"patient_column": "patient_id", "encoder": "blind", "output_dir": str(folder / site / "eval")}
        run_bundle("candor_eval", **options, **QUICK, write_report=False)
    return folder


def _write_study(folder, labels):
    """DICOM files with what the card ward_study asks of headers and table."""
    rng = np.random.default_rng(1)
    (folder / "files").mkdir(parents=True)
    for i, view in enumerate(labels["view"]):
        named = {"SOPInstanceUID": f"1.2.{i}", "AccessionNumber": f"A{i}", "ViewPosition": view}
        pixels = rng.integers(0, 256, (64, 48), dtype=np.uint8)
        (folder / "files" / f"IM{i}").write_bytes(dicom_bytes(pixels, **named, ManufacturerModelName="M"))
    table = labels.drop(columns=["view", "image"]).assign(AccessionNumber=[f"A{i}" for i in range(len(labels))])
    table.to_csv(folder / "labels.csv", index=False)


def _write_encoder(folder):
    """The first card of own_encoder.md as the reader's own, with the weights of a small network of the same library."""
    import timm
    from safetensors.torch import save_file

    for part in ("cards", "weights/ours", "bundles", "exported"):
        (folder / part).mkdir(parents=True)
    model = timm.create_model("test_resnet", num_classes=1000)
    card = cards("own_encoder.md")["timm_resnet18"].replace("resnet18", "test_resnet")
    card = card.replace("dimension: 512", f"dimension: {model.num_features}")
    (folder / "cards" / "ours.yaml").write_text(card)
    save_file(model.state_dict(), folder / "weights" / "ours" / "model.safetensors")
    stated = {key: value for key, value in model.pretrained_cfg.items() if isinstance(value, (str, int, float, tuple))}
    stated |= {"num_classes": 1000}
    (folder / "weights" / "ours" / "config.json").write_text(
        json.dumps({"architecture": "test_resnet", "pretrained_cfg": stated})
    )


def blocks(page, language):
    """The fenced blocks of a page in one language."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def cards(page):
    """Name -> text of the cards of a page."""
    found = {}
    for block in blocks(page, "yaml"):
        first = re.match(r"(?:# card: (\S+)\.yaml|name: (\S+))\n", block)
        found[first[1] or first[2]] = block
    return found


def commands(page):
    """Run id, config file and options of each command of a page's shell blocks."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").replace("$(dirname $CONFIG)/", "").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["candor"]:
                yield words[1], "evaluate.yaml", words[2:]
            elif words[1:4] == ["-m", "monai.bundle", "run"]:
                yield words[4], words[6].rsplit("/", 1)[-1], words[7:]


def value(text, folder):
    """An option's value as the command line reads it, with what stands in for the page's names."""
    if text[:1] in "[{":
        read = ast.literal_eval(text)
        return [new for item in read if (new := INSTEAD.get(item, item))] if isinstance(read, list) else read
    return INSTEAD.get(text, re.sub("^/data/", f"{folder}/data/", text))


@pytest.mark.parametrize(
    ("page", "count"), [("quick_start.md", 4), ("study.md", 3), ("own_data.md", 3), ("own_encoder.md", 4)]
)
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


def test_options_that_reading_d_proposes_change_the_result(place, monkeypatch):
    monkeypatch.chdir(place)
    text = (ROOT / "docs" / "reading_d.md").read_text(encoding="utf-8")
    proposed = [shlex.split(found) for found in re.findall(r"`(--\w+ [^`]+)`", text)]
    base = {
        "cohort": "table",
        "dataset_dir": str(place / "data" / "chest"),
        "labels": "labels.csv",
        "findings": ["Edema"],
    }
    said = []
    for option, words in [*proposed, ("--seed", "0")]:
        name = option.removeprefix("--")
        changed = {name: value(words, place)} if words != "0" else {}
        run_bundle("candor_eval", **base, **QUICK, encoder="blind", output_dir=name, write_report=False, **changed)
        document = read_results(place / name / "results.json")
        said.append((document["options"].get("shuffle_labels"), tuple(document["cohort"]["match_on"])))
    assert said[0][0] == "patient"
    assert said[1][1] == ("site", "view", "orig_width")
    assert len(set(said)) == len(said) == 3


@pytest.mark.parametrize(
    ("page", "count"),
    [("quick_start.md", 2), ("own_data.md", 1), ("own_encoder.md", 2), ("outputs.md", 1), ("reading_d.md", 1)],
)
def test_python_of_the_page_works(page, count, place, monkeypatch, capsys):
    monkeypatch.chdir(place / "north")
    (place / "north" / "exported").mkdir(exist_ok=True)
    stored = np.load(place / "data" / "chest" / "features.npz")
    labels = pd.read_csv(place / "data" / "chest" / "labels.csv")
    names = {
        "image_ids": stored["image_id"].tolist(),
        "features": stored["features"],
        "labels": labels[["Edema"]].to_numpy(),
        "view_codes": labels["view"].map({"PA": 0, "AP": 1}).to_numpy(),
        "patient_ids": labels["patient_id"].tolist(),
        "model": torch.nn.Sequential(torch.nn.Conv2d(3, 64, 16, 16), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()),
    }
    done = 0
    for block in blocks(page, "python"):
        if block.strip().splitlines()[-1] in NOT_RUN:
            continue
        exec(compile(block.replace('"/data/', f'"{place}/data/'), page, "exec"), names)
        done += 1
    assert done == count
    if page in ("quick_start.md", "own_data.md", "reading_d.md"):
        assert "Edema" in capsys.readouterr().out
    if page == "own_encoder.md":
        (place / "north" / "exported.yaml").write_text(cards(page)["exported"])
        exported = load_encoder(place / "north" / "exported.yaml")
        assert exported(torch.zeros(2, 3, 224, 224, dtype=torch.uint8)).shape == (2, 64)
    if page == "outputs.md":
        assert (place / "north" / "eval" / "figures" / "tasks.svg").is_file()
        assert (place / "north" / "eval" / "tables").is_dir()


def test_card_of_a_pacs_is_read_up_to_the_server(place, tmp_path, monkeypatch):
    certifi = pytest.importorskip("certifi", reason="requests is not installed (extra `pacs`)")
    card = yaml.safe_load(cards("own_data.md")["ward_pacs"])
    card["options"] |= {"url": "https://127.0.0.1:9/dicom-web", "labels": str(place / "data" / "study" / "labels.csv")}
    card["options"] |= {"ca_bundle": certifi.where(), "cache_dir": str(tmp_path), "retry_seconds": 0}
    monkeypatch.setenv("PACS_TOKEN", "a token")
    with pytest.raises(UserError, match=r"127\.0\.0\.1"):
        load_cohort(card)
