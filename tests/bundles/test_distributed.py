"""``torchrun``: an evaluation on several processes gives what one process gives, to the last bit."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from candor_monai.utils import bundle_config
from candor_monai.visualize.results_files import read_results

from .small_cohort import IMAGES, exit_codes, forked_ranks, run_bundle, table_options, write_small_cohort

LIMIT = 1200


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    return write_small_cohort(tmp_path_factory.mktemp("cohort") / "data")


@pytest.fixture(scope="module", autouse=True)
def one_thread_a_process():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def of_one_process(cohort, tmp_path_factory):
    """The output folder of one process, for blocks of 16 and of 32."""
    folders = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for size in (16, 32):
        folders[size] = tmp_path_factory.mktemp("one") / "eval"
        run_bundle("candor_eval", **options_of(cohort, folders[size], batch_size=size))
    torch.set_num_threads(threads)
    return folders


def options_of(cohort, output, **more):
    return table_options(cohort, output, probe=False, write_report=False, permutations=0, **more)


def launch(processes, run_id, options, nodes=1, port=0, **popen):
    """A launcher, an agent of as many ``nodes`` that meet at ``port`` of this machine."""
    files = [bundle_config(), bundle_config("multi_gpu_evaluate.yaml")]
    written = {**options, "findings": "['Edema','Mass']", "match_on": "['view']"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes)]
    command += ["--nnodes", str(nodes), "--rdzv_id", "candor", "--local_addr", "localhost"]
    command += ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"localhost:{port}"]
    command += ["-m", "monai.bundle", "run", run_id, "--config_file", str(files)]
    command += [part for name, value in written.items() for part in (f"--{name}", str(value))]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **popen)


def finish(process):
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, err[-3000:]
    return out, err


def stored(output):
    """Every feature row of a store, in the order of ids, and the number of shards."""
    shards = sorted((output / "features").rglob("features-*.arrow"))
    tables = [pa.ipc.open_file(pa.OSFile(str(path))).read_all().select(["image_id", "feature"]) for path in shards]
    table = pa.concat_tables(tables).combine_chunks()
    ids = table["image_id"].to_pylist()
    features = table["feature"].combine_chunks().flatten().to_numpy().reshape(len(ids), -1)
    order = np.argsort(ids)
    return [ids[i] for i in order], features[order], len(shards)


def assert_same(output, one):
    ids, features, _ = stored(output)
    expected_ids, expected, _ = stored(one)
    assert ids == expected_ids, "each image exactly once"
    assert features.tobytes() == expected.tobytes()
    found, wanted = read_results(output / "results.json"), read_results(one / "results.json")
    assert found["discordance"] == wanted["discordance"]
    assert found["accounting"] == wanted["accounting"]
    for name in ("queries", "candidates"):
        pd.testing.assert_frame_equal(
            pd.read_parquet(output / f"{name}.parquet"), pd.read_parquet(one / f"{name}.parquet"), check_exact=True
        )
    assert (output / "metrics.csv").read_text() == (one / "metrics.csv").read_text()


def test_two_processes_give_what_one_gives(cohort, of_one_process, tmp_path):
    out, _ = finish(launch(2, "candor_eval", options_of(cohort, tmp_path / "eval"), cwd=tmp_path))
    assert_same(tmp_path / "eval", of_one_process[16])
    assert stored(tmp_path / "eval")[2] == 2, "a shard each"
    assert out.count(f"{IMAGES} images in, {IMAGES} scored, 0 rejected") == 1
    assert out.count("2 processes share the encoding") == 1
    assert out.count(f"encoding {IMAGES} images") == 1, "the first process alone tells"


def test_three_processes_and_two_blocks(cohort, of_one_process, tmp_path):
    finish(launch(3, "candor_eval", options_of(cohort, tmp_path / "eval", batch_size=32), cwd=tmp_path))
    assert_same(tmp_path / "eval", of_one_process[32])


@pytest.mark.parametrize("processes", [1, 4])
def test_forked_processes_give_what_one_gives(processes, cohort, of_one_process, tmp_path):
    files = ["evaluate.yaml", "multi_gpu_evaluate.yaml"]
    options = options_of(cohort, tmp_path / "eval")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what a forked child can rely on
    codes = exit_codes(forked_ranks(processes, lambda rank: run_bundle("candor_eval", files, **options)))
    torch.set_num_threads(threads)
    assert codes == [0] * processes
    assert_same(tmp_path / "eval", of_one_process[16])
    assert stored(tmp_path / "eval")[2] == min(processes, 3), "a shard each, as far as there are blocks"


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 4])
def test_one_and_four_processes(processes, cohort, of_one_process, tmp_path):
    options = options_of(cohort, tmp_path / "eval")
    finish(launch(processes, "candor_eval", options, cwd=tmp_path))
    assert_same(tmp_path / "eval", of_one_process[16])
    before = sorted((tmp_path / "eval" / "features").rglob("*.arrow"))
    finish(launch(processes, "candor_eval", options, cwd=tmp_path))
    assert sorted((tmp_path / "eval" / "features").rglob("*.arrow")) == before, "zero blocks: nothing is encoded"
    assert_same(tmp_path / "eval", of_one_process[16])


@pytest.mark.slow
def test_two_nodes_of_two_processes(cohort, of_one_process, tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    options = options_of(cohort, tmp_path / "eval")
    agents = [launch(2, "candor_eval", options, nodes=2, port=port, cwd=tmp_path) for _ in range(2)]
    told = [finish(agent) for agent in agents]
    assert_same(tmp_path / "eval", of_one_process[16])
    assert stored(tmp_path / "eval")[2] == 3, "three blocks, each by a process of its own"
    assert sum(out.count("4 processes share the encoding") for out, _ in told) == 1
    assert sum(out.count(f"{IMAGES} images in, {IMAGES} scored, 0 rejected") for out, _ in told) == 1


@pytest.mark.slow
def test_a_mistyped_option_is_told_once(cohort, tmp_path):
    process = launch(2, "candor_eval", {**options_of(cohort, tmp_path / "eval"), "encodr": "blind"}, cwd=tmp_path)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode != 0
    assert err.count("candor_monai: unknown option '--encodr'") == 1
    assert not (tmp_path / "eval").exists()


@pytest.mark.slow
def test_a_study_on_two_processes(cohort, tmp_path):
    options = {**options_of(cohort, tmp_path / "eval"), "encoders": "['blind','marker']"}
    out, _ = finish(launch(2, "candor_eval", options, cwd=tmp_path))
    assert out.count("study study: 2 encoders") == 1
    results = read_results(tmp_path / "eval" / "results.json")
    assert {encoder["name"] for encoder in results["encoders"]} == {"blind", "marker"}


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_dies_and_the_next_run_finishes_the_rest(victim, tmp_path):
    cohort = write_small_cohort(tmp_path / "data", images=1200)
    # Shards of one block: what was finished when the process dies is in the store.
    options = options_of(cohort, tmp_path / "eval", batch_size=4) | {"embedding::handlers::0::shard_rows": 4}
    launcher = launch(2, "encode", options, cwd=tmp_path)
    deadline = time.monotonic() + LIMIT
    while len(list((tmp_path / "eval").rglob("features-*.arrow"))) < 8 and launcher.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process_of_rank(launcher.pid, victim), signal.SIGKILL)
    launcher.communicate(timeout=LIMIT)
    assert launcher.returncode != 0
    saved = {path: path.stat().st_mtime_ns for path in (tmp_path / "eval").rglob("features-*.arrow")}
    assert len(saved) >= 8
    finish(launch(2, "candor_eval", options, cwd=tmp_path))
    assert {path: path.stat().st_mtime_ns for path in saved} == saved, "what was saved is used, not made again"
    torch.set_num_threads(1)
    run_bundle("candor_eval", **options_of(cohort, tmp_path / "one", batch_size=4))
    assert_same(tmp_path / "eval", tmp_path / "one")


def process_of_rank(launcher, rank):
    """Process id of the child of a launcher that has a rank."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            variables = (folder / "environ").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue
        if parent == launcher and f"RANK={rank}".encode() in variables:
            return int(folder.name)
    raise AssertionError(f"no process of rank {rank}")
