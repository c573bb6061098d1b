"""Trackers: MLflow with and without a server, TensorBoard; read back by their own clients."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pandas as pd
import pytest

from candor_monai.utils import bundle_config
from candor_monai.visualize.results_files import read_results

from .small_cohort import IMAGES, run_bundle, table_options, write_small_cohort

needs_mlflow = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed (extra `tracking`)"
)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    return write_small_cohort(tmp_path_factory.mktemp("tracked") / "data")


@needs_mlflow
def test_mlflow_tracks_a_run(cohort, tmp_path):
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    options = table_options(cohort, tmp_path / "eval")
    run_bundle("candor_eval", tracking="mlflow", tracking_uri=uri, run_name="small", **options)
    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("monai_experiment").experiment_id])
    assert run.info.status == "FINISHED"
    assert 0 <= run.data.metrics["D/Edema"] <= 1


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Address of an MLflow server of its own, with a SQLite backend."""
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination",
        str(folder / "files"),
    ]
    address = f"http://127.0.0.1:{port}"
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
        try:
            end = time.monotonic() + 300
            while True:
                try:
                    with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
                        assert answer.status == 200
                    break
                except OSError:
                    assert process.poll() is None, (folder / "log").read_text()[-2000:]
                    assert time.monotonic() < end, (folder / "log").read_text()[-2000:]
                    time.sleep(0.5)
            yield address
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@needs_mlflow
def test_a_server_holds_intervals_tables_figures_and_report_of_runs_that_compare(cohort, tmp_path, server):
    from mlflow import MlflowClient

    settings = bundle_config("tracking_mlflow.yaml")
    for encoder in ("blind", "marker"):
        options = {**table_options(cohort, tmp_path / encoder), "encoder": encoder}
        run_bundle("candor_eval", tracking=settings, tracking_uri=server, **options)
    client = MlflowClient(server)
    runs = client.search_runs([client.get_experiment_by_name("candor_eval").experiment_id])
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert {run.info.run_name for run in runs} == {"blind on table", "marker on table"}
    for run in runs:
        document = read_results(tmp_path / run.data.params["encoder"] / "results.json")
        row = next(r for r in document["discordance"] if (r["level"], r["finding"]) == ("finding", "Edema"))
        logged = run.data.metrics
        for key, column in (("D", "D"), ("D_lo", "D_total_lo"), ("D_hi", "D_total_hi"), ("D_all_lo", "D_all_lo")):
            assert logged[f"{key}/Edema"] == row[column]
        heads = next(r for r in document["probe"] if (r["level"], r["finding"]) == ("finding", "Edema"))
        assert logged.get("head_auroc_lo/Edema") == heads["auroc_lo"]
        names = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
        assert names >= {"results.json", "discordance.csv", "report.html", "metrics.csv", "figures", "tables"}
        figures = {artifact.path for artifact in client.list_artifacts(run.info.run_id, "figures")}
        assert {"figures/positives.svg", "figures/positives.png", "figures/tasks.png"} <= figures
        fetched = client.download_artifacts(run.info.run_id, "results.json", str(tmp_path))
        assert read_results(fetched) == document
    # the comparison of the two: the same numbers in both, and the parameters that differ are what was changed
    assert set(runs[0].data.metrics) == set(runs[1].data.metrics)
    differ = {key for key in runs[0].data.params if runs[0].data.params[key] != runs[1].data.params[key]}
    assert differ == {"encoder", "dimension", "folder"}
    assert all(len(value) <= 500 for run in runs for value in run.data.params.values())


@needs_mlflow
def test_a_study_is_a_run_beside_those_of_its_cells(cohort, tmp_path):
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/study/mlruns.db"  # the default
    options = table_options(cohort, tmp_path / "study", encoders=["blind", "marker"], resamples=50, probe=False)
    del options["encoder"]
    run_bundle("candor_eval", tracking=bundle_config("tracking_mlflow.yaml"), **options)
    client = MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("candor_eval").experiment_id])
    assert {run.info.run_name for run in runs} == {"study", "blind on table", "marker on table"}
    assert {run.info.status for run in runs} == {"FINISHED"}
    (whole,) = (run for run in runs if run.info.run_name == "study")
    assert whole.data.params == {"study": "study", "encoders": "blind, marker", "cohorts": "table", "folder": "study"}
    names = {artifact.path for artifact in client.list_artifacts(whole.info.run_id)}
    assert names >= {"results.json", "report.html", "ranking.csv", "comparisons.csv", "figures", "tables"}
    assert not names & {"cells", "features"}
    for folder in ("figures", "tables"):
        logged = {artifact.path for artifact in client.list_artifacts(whole.info.run_id, folder)}
        assert logged == {f"{folder}/{path.name}" for path in (tmp_path / "study" / folder).iterdir()}
    assert "figures/neighbours_own.png" in {a.path for a in client.list_artifacts(whole.info.run_id, "figures")}
    fetched = client.download_artifacts(whole.info.run_id, "results.json", str(tmp_path))
    assert read_results(fetched) == read_results(tmp_path / "study" / "results.json")


@needs_mlflow
def test_a_server_that_is_not_there_is_told_in_a_line(cohort, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    options = table_options(cohort, tmp_path / "eval", probe=False)
    settings = bundle_config("tracking_mlflow.yaml")
    with pytest.raises(SystemExit, match=r"MLflow at http://127\.0\.0\.1:9: "):
        run_bundle("candor_eval", tracking=settings, tracking_uri="http://127.0.0.1:9", **options)


@pytest.fixture(scope="module")
def board(cohort, tmp_path_factory):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (extra `tracking`)")
    output = tmp_path_factory.mktemp("board") / "eval"
    settings = bundle_config("tracking_tensorboard.yaml")
    for _ in range(2):  # the second replaces what the first left
        run_bundle("candor_eval", tracking=settings, **table_options(cohort, output))
    return output


def test_tensorboard_reads_every_number_with_its_interval(board):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (events,) = (board / "tensorboard").glob("events.out.tfevents.*")
    found = EventAccumulator(str(events))
    found.Reload()
    scalars = {tag: found.Scalars(tag) for tag in found.Tags()["scalars"]}
    assert all(len(values) == 1 for values in scalars.values())
    document = read_results(board / "results.json")
    for row in document["discordance"]:
        if row["level"] == "finding" and row["status"] == "ok":
            for key, column in (
                ("D", "D"),
                ("D_lo", "D_total_lo"),
                ("D_all", "D_all"),
                ("margin_auroc", "margin_auroc"),
            ):
                tag = f"{key}/{row['finding']}"
                assert (tag in scalars) == (row[column] is not None)
                if tag in scalars:
                    assert scalars[tag][0].value == pytest.approx(row[column], abs=1e-6)
    heads = next(r for r in document["probe"] if (r["level"], r["finding"]) == ("finding", "Edema"))
    for key, column in (("head_auroc", "auroc"), ("head_auroc_lo", "auroc_lo"), ("head_auroc_hi", "auroc_hi")):
        assert (f"{key}/Edema" in scalars) == (heads[column] is not None)
        if heads[column] is not None:
            assert scalars[f"{key}/Edema"][0].value == pytest.approx(heads[column], abs=1e-6)


def test_the_projector_has_features_labels_and_discordance_but_no_ids(board, cohort):
    from google.protobuf import text_format
    from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

    folder = board / "tensorboard"
    config = text_format.Parse((folder / "projector_config.pbtxt").read_text(), ProjectorConfig())
    (embedding,) = config.embeddings
    vectors = np.loadtxt(folder / embedding.tensor_path, delimiter="\t")
    assert len(vectors) == IMAGES
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    metadata = pd.read_csv(folder / embedding.metadata_path, sep="\t")
    assert list(metadata) == ["row", "group", "Edema", "Edema: discordant", "Mass", "Mass: discordant"]
    labels = pd.read_csv(cohort / "labels.csv")
    assert (metadata["Edema"] == "positive").tolist() == (labels["Edema"] == 1).tolist()
    queries = pd.read_parquet(board / "queries.parquet")
    of = queries[(queries["finding"] == "Edema") & queries["discordant"]]
    assert (metadata["Edema: discordant"] == "discordant").sum() == len(of) > 0
    text = "".join(path.read_text() for path in folder.rglob("*.tsv"))
    assert "subject-" not in text
    assert ".png" not in text
    assert (folder / embedding.sprite.image_path).is_file()


def test_pictures_of_the_projector_can_be_turned_off_and_images_be_fewer(cohort, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (extra `tracking`)")
    options = table_options(cohort, tmp_path / "eval", probe=False, report_images=False, tensorboard_images=10)
    run_bundle("candor_eval", tracking=bundle_config("tracking_tensorboard.yaml"), **options)
    assert not list((tmp_path / "eval" / "tensorboard").rglob("*.png"))
    (metadata,) = (tmp_path / "eval" / "tensorboard").rglob("metadata.tsv")
    assert len(metadata.read_text().splitlines()) == 11
