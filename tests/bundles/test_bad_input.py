"""What goes wrong in a hospital: each case ends in a clear message, or in rejected rows and results for the rest."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from candor_monai.utils import bundle_config
from candor_monai.visualize.results_files import read_results

from .small_cohort import IMAGES, run_bundle, table_options, write_small_cohort


@pytest.fixture
def cohort(tmp_path):
    return write_small_cohort(tmp_path / "data")


def refusal(run_id, options):
    with pytest.raises(SystemExit) as refused:
        run_bundle(run_id, **options)
    text = str(refused.value)
    assert text.startswith("candor_monai: ")
    assert len(text.splitlines()) <= 5
    return text


def rewrite(cohort, change):
    table = pd.read_csv(cohort / "labels.csv", dtype=str)
    change(table)
    table.to_csv(cohort / "labels.csv", index=False)


def test_a_folder_where_the_results_must_be_written(cohort, tmp_path):
    (tmp_path / "eval" / "results.json").mkdir(parents=True)
    told = refusal("candor_eval", table_options(cohort, tmp_path / "eval"))
    assert told == f"candor_monai: {tmp_path / 'eval' / 'results.json'}: Is a directory."


def test_an_empty_folder(tmp_path):
    (tmp_path / "data").mkdir()
    told = refusal("candor_eval", table_options(tmp_path / "data", tmp_path / "eval"))
    assert "labels.csv" in told
    assert not (tmp_path / "eval" / "results.json").exists()


def test_a_table_that_names_no_image_that_is_there(cohort, tmp_path):
    rewrite(cohort, lambda t: t.update({"image": "elsewhere/" + t["image"].str.replace("images/", "x")}))
    told = refusal("candor_eval", table_options(cohort, tmp_path / "eval"))
    assert "elsewhere/" in told


@pytest.mark.parametrize(
    "option, value, told",
    [
        ("patient_column", "patient", "patient_id"),
        ("match_on", ["veiw"], "view"),
        ("findings", ["Edma"], "Edema"),
        ("image_column", "imag", "image"),
    ],
)
def test_a_column_that_does_not_exist_is_told_with_the_nearest(cohort, tmp_path, option, value, told):
    message = refusal("candor_eval", table_options(cohort, tmp_path / "eval", **{option: value}))
    assert f"Did you mean '{told}'" in message


def test_text_in_a_label_column(cohort, tmp_path):
    rewrite(cohort, lambda t: t.__setitem__("Edema", ["perhaps", *t["Edema"][1:]]))
    told = refusal("candor_eval", table_options(cohort, tmp_path / "eval"))
    assert "Edema" in told
    assert "perhaps" in told


def test_two_rows_that_disagree_are_rejected_and_the_others_scored(cohort, tmp_path):
    table = pd.read_csv(cohort / "labels.csv", dtype=str)
    second = table.iloc[[0]].assign(Edema="0")
    pd.concat([table, second, table.iloc[[1]]]).to_csv(cohort / "labels.csv", index=False)
    run_bundle("candor_eval", **table_options(cohort, tmp_path / "eval"))
    results = read_results(tmp_path / "eval" / "results.json")
    assert results["accounting"]["images_in"] == IMAGES
    assert results["accounting"]["scored"] == IMAGES - 1
    assert results["accounting"]["rejected"] == 1
    rejected = pd.read_csv(tmp_path / "eval" / "rejected.csv")
    assert rejected["image_id"].tolist() == ["images/000.png"]


def test_all_images_unlabelled(cohort, tmp_path):
    rewrite(cohort, lambda t: t.__setitem__("Edema", ""))
    rewrite(cohort, lambda t: t.__setitem__("Mass", ""))
    told = refusal("candor_eval", table_options(cohort, tmp_path / "eval", blank="exclude"))
    assert "label" in told


@pytest.mark.parametrize("positives", [0, 1, 5, 6])
def test_groups_around_k(tmp_path, positives):
    folder = write_small_cohort(tmp_path / "data")
    rewrite(
        folder, lambda t: t.__setitem__("Edema", [str(int(i // 2 < positives and i % 2 == 0)) for i in range(len(t))])
    )
    options = table_options(folder, tmp_path / "eval", findings=["Edema"], sets="image", patient_column="image")
    run_bundle("candor_eval", **options)
    rows = read_results(tmp_path / "eval" / "results.json")["discordance"]
    row = next(r for r in rows if r["level"] == "group" and r["group"] == "view=PA")
    assert row["n_positive"] == positives
    if positives < 6:
        assert row["status"] == "insufficient"
        assert row["reason"]
        assert row["D"] is None
    else:
        assert row["n_candidates"] == 6
        assert row["D"] is not None


def test_bad_files_are_one_row_each(cohort, tmp_path):
    images = cohort / "images"
    (images / "000.png").write_bytes(b"")
    (images / "001.png").write_bytes((images / "002.png").read_bytes()[:200])
    (images / "002.png").write_bytes(b"PK\x03\x04 encrypted with a password" * 20)
    Image.fromarray(np.full((32, 32), 7, np.uint8)).save(images / "003.png")
    (images / "004.png").unlink()
    run_bundle("candor_eval", **table_options(cohort, tmp_path / "eval"))
    rejected = pd.read_csv(tmp_path / "eval" / "rejected.csv").set_index("image_id")["reason"].to_dict()
    assert rejected.pop("images/004.png") == "no_image"
    assert rejected.pop("images/001.png") in ("truncated", "corrupt")
    assert rejected == {
        "images/000.png": "empty_file",
        "images/002.png": "unknown_format",
        "images/003.png": "constant",
    }
    accounting = read_results(tmp_path / "eval" / "results.json")["accounting"]
    assert (accounting["images_in"], accounting["scored"]) == (IMAGES, IMAGES - 5)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_an_output_folder_that_cannot_be_written(cohort, tmp_path):
    (tmp_path / "eval").mkdir(mode=0o500)
    assert "cannot be written" in refusal("candor_eval", table_options(cohort, tmp_path / "eval"))


def test_an_output_folder_that_is_a_file(cohort, tmp_path):
    (tmp_path / "eval").write_text("a file")
    assert str(tmp_path / "eval") in refusal("candor_eval", table_options(cohort, tmp_path / "eval"))


def test_a_full_disk_leaves_nothing_half_written(cohort, tmp_path, monkeypatch):
    options = table_options(cohort, tmp_path / "eval")
    run_bundle("encode", **options)
    import candor_monai.utils.atomic as atomic

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", full)
        with pytest.raises((SystemExit, RuntimeError)) as refused:
            run_bundle("score", **options)
    assert "the disk is full" in str(refused.value)
    assert not (tmp_path / "eval" / "results.json").exists()
    assert not list((tmp_path / "eval").glob(".*.tmp"))
    run_bundle("score", **options)
    assert read_results(tmp_path / "eval" / "results.json")["accounting"]["scored"] == IMAGES


def command(run_id, options):
    parts = [sys.executable, "-W", "ignore", "-m", "monai.bundle", "run", run_id, "--config_file", bundle_config()]
    return parts + [part for name, value in options.items() for part in (f"--{name}", str(value))]


def test_killed_and_started_again_and_a_second_run_beside_it(tmp_path):
    cohort = write_small_cohort(tmp_path / "data", images=400)
    options = table_options(cohort, tmp_path / "killed", batch_size=4, findings="['Edema','Mass']", match_on="['view']")
    first = subprocess.Popen(
        command("encode", options), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    lock = tmp_path / "killed" / ".lock"
    deadline = time.monotonic() + 120
    while not lock.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert first.poll() is None, first.stderr.read().decode()[-2000:]
    assert "is in use by another run" in refusal("encode", {**options, "findings": ["Edema"], "match_on": ["view"]})
    first.send_signal(signal.SIGKILL)
    first.wait()
    here = {**options, "findings": ["Edema", "Mass"], "match_on": ["view"]}
    run_bundle("candor_eval", **here)
    run_bundle("candor_eval", **{**here, "output_dir": str(tmp_path / "undisturbed")})
    killed, undisturbed = (read_results(tmp_path / name / "results.json") for name in ("killed", "undisturbed"))
    assert killed["discordance"] == undisturbed["discordance"]
    assert killed["accounting"] == undisturbed["accounting"]
