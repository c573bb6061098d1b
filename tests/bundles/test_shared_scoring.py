"""Scoring dealt out by group over processes (gloo, forked): one process's bits, and nothing lost with a process."""

import os
import signal
import time

import numpy as np
import pandas as pd
import pytest
import torch

from candor_monai.apps import scoring
from candor_monai.handlers.scored_files import FOLDER
from candor_monai.visualize.results_files import read_results

from .small_cohort import exit_codes, forked, forked_ranks, run_bundle

SIZES = {"AP": 120, "PA": 80, "lateral": 60, "oblique": 60, "lordotic": 50, "decubitus": 50}
FILES = ["evaluate.yaml", "multi_gpu_evaluate.yaml"]
LIMIT = 120


@pytest.fixture(scope="module", autouse=True)
def quiet(tmp_path_factory):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what a forked child can rely on
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CANDOR_MONAI_KEY_FILE", str(tmp_path_factory.mktemp("key") / "pseudonym.key"))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    """Features of six views, patients in several of them, some images without a feature."""
    folder = tmp_path_factory.mktemp("cohort")
    rng = np.random.default_rng(0)
    images = sum(SIZES.values())
    labels = (rng.random((images, 2)) < (0.4, 0.3)).astype(int)
    features = rng.standard_normal((images, 12)) + labels @ rng.standard_normal((2, 12))
    table = pd.DataFrame(
        {
            "image_id": [f"image{i:03d}" for i in range(images)],
            "patient_id": [f"patient{i:03d}" for i in rng.integers(0, 250, images)],
            "view": np.repeat(list(SIZES), list(SIZES.values())),
            "Edema": labels[:, 0],
            "Mass": labels[:, 1],
        }
    )
    np.save(folder / "features.npy", features.astype(np.float32))
    table.to_csv(folder / "labels.csv", index=False)
    return folder


def options_of(cohort, output, **more):
    return {
        "cohort": "features",
        "dataset_dir": str(cohort),
        "features": "features.npy",
        "labels": "labels.csv",
        "findings": ["Edema", "Mass"],
        "match_on": ["view"],
        "output_dir": str(output),
        "permutations": 99,
        "resamples": 100,
        "probe": False,
        "write_report": False,
        "progress": False,
        **more,
    }


@pytest.fixture(scope="module")
def of_one(cohort, tmp_path_factory):
    output = tmp_path_factory.mktemp("one") / "eval"
    run_bundle("score", **options_of(cohort, output))
    return output


def assert_same(output, one):
    found, wanted = read_results(output / "results.json"), read_results(one / "results.json")
    assert found["discordance"] == wanted["discordance"]
    assert found["accounting"] == wanted["accounting"]
    assert found["run"]["counts"] == wanted["run"]["counts"]
    for name in ("queries", "candidates"):
        tables = [pd.read_parquet(folder / f"{name}.parquet") for folder in (output, one)]
        pd.testing.assert_frame_equal(*tables, check_exact=True)
    with np.load(output / "companions.npz") as here, np.load(one / "companions.npz") as there:
        assert here.files == there.files
        for name in here.files:
            assert here[name].tobytes() == there[name].tobytes(), name
    assert (output / "metrics.csv").read_text() == (one / "metrics.csv").read_text()
    assert not (output / FOLDER).exists(), "what is written in the results is not kept twice"


@pytest.fixture
def told(tmp_path, monkeypatch):
    """A folder with a file for each group that was scored, which names the process."""
    folder = tmp_path / "told"
    folder.mkdir()
    plain = scoring.score_together

    def score_together(rows, observations, portions):
        for name in portions[0].names:
            (folder / name.replace("/", "_")).write_text(os.environ.get("RANK", "0"))
        return plain(rows, observations, portions)

    monkeypatch.setattr(scoring, "score_together", score_together)
    return folder


def everybody_scores(monkeypatch, folder, processes):
    """Every process takes a portion before any takes its second."""
    told = scoring.score_together
    begun = []

    def score_together(*arguments):
        if not begun:
            (folder.parent / f"begun-{os.environ['RANK']}").touch()
            deadline = time.monotonic() + LIMIT
            while len(list(folder.parent.glob("begun-*"))) < processes:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            begun.append(True)
        return told(*arguments)

    monkeypatch.setattr(scoring, "score_together", score_together)


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_any_number_of_processes_gives_what_one_gives(processes, cohort, of_one, tmp_path, told, monkeypatch):
    everybody_scores(monkeypatch, told, processes)
    output = tmp_path / "eval"
    options = options_of(cohort, output)
    assert exit_codes(forked_ranks(processes, lambda rank: run_bundle("score", FILES, **options))) == [0] * processes
    assert_same(output, of_one)
    assert len(list(told.iterdir())) == len(SIZES)
    assert {path.read_text() for path in told.iterdir()} == {str(rank) for rank in range(processes)}


def test_more_processes_than_groups(cohort, of_one, tmp_path):
    output = tmp_path / "eval"
    options = options_of(cohort, output)
    assert exit_codes(forked_ranks(8, lambda rank: run_bundle("score", FILES, **options))) == [0] * 8
    assert_same(output, of_one)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_dies_in_scoring_and_the_next_run_finishes_the_rest(
    victim, cohort, of_one, tmp_path, told, monkeypatch
):
    output = tmp_path / "eval"
    options = options_of(cohort, output)
    with monkeypatch.context() as patch:
        everybody_scores(patch, told, 2)
        written = scoring.write_scored

        def dies(*arguments):
            path = written(*arguments)
            if os.environ["RANK"] == str(victim):
                os.kill(os.getpid(), signal.SIGKILL)
            return path

        patch.setattr(scoring, "write_scored", dies)
        codes = exit_codes(forked_ranks(2, lambda rank: run_bundle("score", FILES, **options)))
    assert codes[victim] == -signal.SIGKILL
    assert not (output / "results.json").exists()
    kept = len(list((output / FOLDER).glob("*.npz")))
    assert kept >= 1
    for path in told.iterdir():
        path.unlink()
    assert exit_codes(forked_ranks(3, lambda rank: run_bundle("score", FILES, **options))) == [0] * 3
    assert len(list(told.iterdir())) == len(SIZES) - kept, "what was scored is used, not scored again"
    assert_same(output, of_one)


def killed_after(portions, options, patch):
    """One process that is killed when it has scored some portions."""
    written, done = scoring.write_scored, []

    def dies(*arguments):
        path = written(*arguments)
        done.append(path)
        if len(done) == portions:
            os.kill(os.getpid(), signal.SIGKILL)
        return path

    patch.setattr(scoring, "write_scored", dies)
    assert exit_codes([forked(lambda: run_bundle("score", **options))]) == [-signal.SIGKILL]


def test_one_process_goes_on_where_it_was_killed(cohort, of_one, tmp_path, told, monkeypatch):
    output = tmp_path / "eval"
    with monkeypatch.context() as patch:
        killed_after(2, options_of(cohort, output), patch)
    for path in told.iterdir():
        path.unlink()
    run_bundle("score", **options_of(cohort, output))
    assert len(list(told.iterdir())) == len(SIZES) - 2
    assert_same(output, of_one)


def test_a_damaged_file_is_named_and_its_groups_scored_again(cohort, of_one, tmp_path, told, monkeypatch, caplog):
    output = tmp_path / "eval"
    with monkeypatch.context() as patch:
        killed_after(3, options_of(cohort, output), patch)
    files = sorted((output / FOLDER).glob("*.npz"))
    flipped, cut = files[:2]
    content = bytearray(flipped.read_bytes())
    content[content.index(b'"seconds"')] ^= 1  # in what is stored: not all of a zip file's own bytes are looked at
    flipped.write_bytes(content)
    cut.write_bytes(cut.read_bytes()[:-100])
    for path in told.iterdir():
        path.unlink()
    run_bundle("score", **options_of(cohort, output))
    assert caplog.text.count("is damaged") == 2
    assert len(list(told.iterdir())) == len(SIZES) - 1
    assert_same(output, of_one)


def test_files_of_other_options_are_not_used(cohort, tmp_path, told, monkeypatch):
    output = tmp_path / "eval"
    with monkeypatch.context() as patch:
        killed_after(2, options_of(cohort, output), patch)
    for path in told.iterdir():
        path.unlink()
    run_bundle("score", **options_of(cohort, output, seed=7))
    assert len(list(told.iterdir())) == len(SIZES)
    assert not (output / FOLDER).exists()


def test_a_full_disk_is_told(cohort, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scoring, "write_scored", full)
    with pytest.raises(SystemExit, match="the disk is full"):
        run_bundle("score", **options_of(cohort, tmp_path / "eval"))


def test_a_process_that_sees_other_labels_ends_the_run(cohort, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    os.link(cohort / "features.npy", other / "features.npy")
    (other / "labels.csv").write_text((cohort / "labels.csv").read_text().replace(",1,0", ",0,0", 1))
    messages = tmp_path / "messages"

    def work(rank):
        try:
            run_bundle("score", FILES, **options_of((cohort, other)[rank], tmp_path / "eval"))
        except SystemExit as end:
            messages.write_text(f"{rank}: {end}")
            raise

    codes = exit_codes(forked_ranks(2, work))
    assert codes[1] == 1
    assert messages.read_text().startswith("1: candor_monai: process 1 finds other features or labels")
    assert not (tmp_path / "eval" / "results.json").exists()
