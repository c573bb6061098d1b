"""Run ids of tools.yaml, in this process."""

import json

import pytest

from candor_monai.networks.cards import list_cards

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


def test_export_encoder(tmp_path):
    run_bundle("export_encoder", config="tools.yaml", encoder="blind", output=str(tmp_path / "bundle"))
    assert (tmp_path / "bundle" / "configs" / "metadata.json").is_file()


@pytest.mark.parametrize("run_id", ["check_encoder", "golden", "convert", "export_encoder"])
def test_what_is_needed_is_named(run_id):
    with pytest.raises(SystemExit, match="--encoder is needed"):
        run_bundle(run_id, config="tools.yaml")
