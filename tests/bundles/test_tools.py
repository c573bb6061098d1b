"""Run ids of tools.yaml, in this process."""

import json

import numpy as np
import pandas as pd
import pytest

from candor_monai.apps.label import LabelDesk, LabelImages
from candor_monai.metrics.options import Options
from candor_monai.networks.cards import list_cards
from candor_monai.utils import read_yaml, resource

from .small_cohort import run_bundle


def test_list_encoders_tells_licence_gate_and_whether_weights_are_here(tmp_path, capsys):
    run_bundle("list_encoders", config="tools.yaml", weights_dir=str(tmp_path))
    printed = capsys.readouterr().out
    assert all(name in printed for name in list_cards())
    (line,) = [line for line in printed.splitlines() if line.startswith("rad_dino ")]
    assert "missing" in line
    assert "768" in line


def test_list_cohorts(capsys):
    run_bundle("list_cohorts", config="tools.yaml")
    assert "nih_cxr" in capsys.readouterr().out


def test_describe_cohort(tmp_path, capsys):
    options = {"cohort_options": {"write": False, "check_files": False}}
    run_bundle("describe_cohort", config="tools.yaml", cohort="calibration", dataset_dir=str(tmp_path / "c"), **options)
    assert "images: expected 560, found 560" in capsys.readouterr().out


def test_check_encoder_passes_the_calibration_encoder(capsys):
    run_bundle("check_encoder", config="tools.yaml", encoder="blind")
    assert "failed" not in capsys.readouterr().out


def test_golden_is_recorded_and_found_at_load(tmp_path):
    from candor_monai.networks.encoders import load_encoder

    run_bundle("golden", config="tools.yaml", encoder="blind", weights_dir=str(tmp_path))
    recorded = json.loads((tmp_path / "blind" / "golden.json").read_text())
    assert recorded["encoder"] == "blind"
    load_encoder("blind", weights_dir=tmp_path)


def test_a_golden_embedding_of_a_name_with_a_dot_lies_in_its_folder(tmp_path, capsys):
    card = read_yaml(resource("configs", "encoders", "blind.yaml")) | {"name": "blind.v1"}
    run_bundle("golden", config="tools.yaml", encoder=card, weights_dir=str(tmp_path))
    assert (tmp_path / "blind.v1" / "golden.json").is_file(), "where load_encoder looks for it"
    assert f"in {tmp_path / 'blind.v1' / 'golden.json'}" in capsys.readouterr().out


def test_export_encoder(tmp_path):
    run_bundle("export_encoder", config="tools.yaml", encoder="blind", output=str(tmp_path / "bundle"))
    assert (tmp_path / "bundle" / "configs" / "metadata.json").is_file()


@pytest.mark.parametrize("run_id", ["check_encoder", "golden", "convert", "export_encoder", "export_classifier"])
def test_what_is_needed_is_named(run_id):
    with pytest.raises(SystemExit, match="--encoder is needed"):
        run_bundle(run_id, config="tools.yaml")


def test_export_classifier_names_what_is_needed(tmp_path):
    with pytest.raises(SystemExit, match="--heads is needed"):
        run_bundle("export_classifier", config="tools.yaml", encoder="blind", output=str(tmp_path))
    heads = str(tmp_path / "no.safetensors")
    with pytest.raises(SystemExit, match=r"no.safetensors: there is no such heads file"):
        run_bundle("export_classifier", config="tools.yaml", encoder="blind", output=str(tmp_path / "b"), heads=heads)


def test_copy_label_app(tmp_path, capsys):
    run_bundle("copy_label_app", config="tools.yaml", output=str(tmp_path / "app"))
    assert "start_server --app" in capsys.readouterr().out
    assert "CandorLabelApp" in (tmp_path / "app" / "main.py").read_text()
    assert "monailabel==" in (tmp_path / "app" / "requirements.txt").read_text()
    run_bundle("copy_label_app", config="tools.yaml", output=str(tmp_path / "app"))
    (tmp_path / "app" / "main.py").write_text("my own")
    with pytest.raises(SystemExit, match="is not this app's"):
        run_bundle("copy_label_app", config="tools.yaml", output=str(tmp_path / "app"))
    with pytest.raises(SystemExit, match="--output is needed"):
        run_bundle("copy_label_app", config="tools.yaml")


def test_labels_are_exported_and_drawn_again(tmp_path, capsys):
    desk = LabelDesk(tmp_path / "state", ["Edema"], Options(k=1))
    ids = [f"i{i}" for i in range(12)]
    desk.set_images(LabelImages.of(ids), np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32))
    for i, image_id in enumerate(ids):
        desk.save(image_id, {"findings": {"Edema": i % 2}})
    desk.set_images(LabelImages.of(ids), np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32))
    state, output = str(tmp_path / "state"), str(tmp_path / "out")
    run_bundle("export_labels", config="tools.yaml", label_dir=state, output=output)
    assert len(pd.read_csv(tmp_path / "out" / "labels.csv")) == 12
    run_bundle("draw_rereads", config="tools.yaml", label_dir=state, number=1)
    assert "2 images to read again" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="--label_dir is needed"):
        run_bundle("draw_rereads", config="tools.yaml")
