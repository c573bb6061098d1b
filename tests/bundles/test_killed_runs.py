"""SIGKILL at random moments of a whole run: the next one ends as an undisturbed one, computing only what was lost.

The long tier, fifty kills of command-line runs: ``pytest -m slow tests/bundles/test_killed_runs.py -s``.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pandas as pd
import pyarrow as pa
import pytest
import torch

from candor_monai.utils import bundle_config
from candor_monai.visualize.results_files import read_results

from .small_cohort import forked, run_bundle, table_options, write_small_cohort

LIMIT = 1200  # of one command-line run, on a machine that has other work


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    return write_small_cohort(tmp_path_factory.mktemp("cohort") / "data")


@pytest.fixture(scope="module", autouse=True)
def quiet():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what a forked child can rely on
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def undisturbed(cohort, tmp_path_factory):
    output = tmp_path_factory.mktemp("undisturbed") / "eval"
    run_bundle("candor_eval", **options_of(cohort, output))
    return output


def options_of(cohort, output):
    """Shards of one block, so that there is something to lose and something to keep."""
    return {
        **table_options(cohort, output, batch_size=4, probe=False, report_images=False),
        "embedding::handlers::0::shard_rows": 4,
    }


def stored(output):
    """Statements in the store: image ids of features and rejections, each file whole."""
    ids = []
    for shard in (output / "features").glob("*/*.arrow"):
        with pa.memory_map(str(shard)) as file:
            ids += pa.ipc.open_file(file).read_all()["image_id"].to_pylist()
    return ids


def check_next_run(cohort, output, undisturbed):
    kept = stored(output)
    assert len(kept) == len(set(kept))
    pid = forked(lambda: run_bundle("candor_eval", **options_of(cohort, output)))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    found, expected = (read_results(folder / "results.json") for folder in (output, undisturbed))
    assert found["discordance"] == expected["discordance"]
    assert found["accounting"] == expected["accounting"]
    assert found["run"]["counts"]["images_stored"] == len(kept), "what is complete is not computed again"
    assert sorted(stored(output)) == sorted(stored(undisturbed)), "each image once"
    for name in ("queries", "candidates"):
        tables = [pd.read_parquet(folder / f"{name}.parquet") for folder in (output, undisturbed)]
        pd.testing.assert_frame_equal(*tables, check_exact=True)
    assert (output / "report.html").is_file()
    return len(kept)


def test_a_run_killed_at_random_moments(cohort, undisturbed, tmp_path):
    chance = random.Random(20260705)
    began = time.monotonic()
    pid = forked(lambda: run_bundle("candor_eval", **options_of(cohort, tmp_path / "timed")))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    whole = time.monotonic() - began
    kills = 0
    for number in range(3):
        output = tmp_path / f"eval{number}"
        pid = forked(lambda output=output: run_bundle("candor_eval", **options_of(cohort, output)))
        time.sleep(whole * (number + chance.random()) / 3)  # one in each third of the run
        os.kill(pid, signal.SIGKILL)
        kills += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        check_next_run(cohort, output, undisturbed)
    assert kills >= 1


def command(run_id, options):
    written = {**options, "findings": "['Edema','Mass']", "match_on": "['view']"}
    parts = [sys.executable, "-W", "ignore", "-m", "monai.bundle", "run", run_id, "--config_file", bundle_config()]
    return parts + [part for name, value in written.items() for part in (f"--{name}", str(value))]


def start(run_id, options, folder):
    """A command-line run that has just claimed its output folder."""
    lock = folder / ".lock"
    lock.unlink(missing_ok=True)
    process = subprocess.Popen(command(run_id, options), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + LIMIT
    while not lock.exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


@pytest.mark.slow
@pytest.mark.parametrize("run_id", ["encode", "score"])
def test_twenty_five_kills_by_command_line(run_id, cohort, undisturbed, tmp_path):
    chance = random.Random(run_id)

    if run_id == "score":  # what is scored was encoded before
        pid = forked(lambda: run_bundle("encode", **options_of(cohort, tmp_path / "encoded")))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    def begin(output):
        if run_id == "score":
            shutil.copytree(tmp_path / "encoded", output)
        return start(run_id, options_of(cohort, output), output)

    process = begin(tmp_path / "timed")
    began = time.monotonic()
    assert process.wait(LIMIT) == 0
    whole = time.monotonic() - began
    kills, kept = 0, []
    for number in range(25):
        output = tmp_path / f"eval{number}"
        process = begin(output)
        time.sleep(whole * chance.random())
        process.kill()
        kills += process.wait(LIMIT) == -signal.SIGKILL
        scored = len(list((output / "scored").glob("*.npz")))
        kept.append(check_next_run(cohort, output, undisturbed))
        print(f"{run_id} {number + 1}: {kills} killed, {kept[-1]} images kept, {scored} groups kept", flush=True)
    print(f"{run_id}: {kills} of 25 killed within {whole:.1f} s; images kept: {kept}")
    assert kills >= 15
