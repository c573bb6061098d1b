"""The bundle run from end to end on small cohorts, in this process."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from candor_monai.metrics import Observations, Options, evaluate
from candor_monai.utils import bundle_config, resource
from candor_monai.visualize.results_files import read_results

from .small_cohort import IMAGES, run_bundle, table_options, write_small_cohort

HANGS = 1200  # seconds; only a command that hangs takes that long


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    return write_small_cohort(tmp_path_factory.mktemp("cohort") / "data")


@pytest.fixture(scope="module")
def finished(cohort, tmp_path_factory):
    output = tmp_path_factory.mktemp("eval")
    workflow = run_bundle("candor_eval", **table_options(cohort, output))
    return output, workflow


def test_every_file_of_the_outputs_is_there(finished):
    output, _ = finished
    names = {path.name for path in output.iterdir()}
    assert names >= {
        "results.json",
        "discordance.csv",
        "queries.parquet",
        "candidates.parquet",
        "rejected.csv",
        "metrics.csv",
        "report.html",
        "features",
    }


def test_results_are_valid_and_account_for_every_image(finished):
    results = read_results(finished[0] / "results.json")
    assert results["accounting"] == {"images_in": IMAGES, "scored": IMAGES, "rejected": 0, "rejected_by_reason": {}}
    assert {row["level"] for row in results["discordance"]} == {"group", "finding", "task"}


def test_the_time_of_every_stage_is_kept_and_the_slowest_named(finished):
    results = read_results(finished[0] / "results.json")
    stages = ("read", "decode", "transform", "transfer", "forward", "write")
    for stage in stages:
        assert results["timings"][f"encode.{stage}"] > 0, stage
    assert results["timings"]["encode.wait"] >= 0
    assert results["run"]["bottleneck"]["encode"] in stages
    assert {"score.sweep", "score.permutation test"} <= set(results["timings"])


def test_numbers_are_those_of_the_measure_on_the_stored_features(finished, cohort):
    output, workflow = finished
    context = workflow.parser.get_parsed_content("context")
    features, present = context.features()
    table = pd.read_csv(cohort / "labels.csv")
    assert present.all()
    seen = Observations(
        image_id=[str(name) for name in context.image_ids],
        labels=table[["Edema", "Mass"]].to_numpy(),
        findings=["Edema", "Mass"],
        group=(table["view"] == "PA").to_numpy(dtype=np.int64),
        group_names=["view=AP", "view=PA"],
        patient=table["patient_id"].tolist(),
        task=context.cohort.task.name,
    )
    expected = evaluate(features, seen, Options(permutations=99)).rows
    found = read_results(output / "results.json")["discordance"]
    for row in expected:
        match = [
            r for r in found if (r["finding"], r["group"], r["level"]) == (row["finding"], row["group"], row["level"])
        ]
        assert len(match) == 1
        for name in ("D", "D_all", "margin_auroc", "n_candidates", "n_queries", "D_lo", "D_hi"):
            assert match[0][name] == row[name], (row["finding"], row["group"], name)


def test_metrics_are_where_monai_handlers_look(finished):
    output, workflow = finished
    engine = workflow.parser.get_parsed_content("evaluator")
    assert 0 <= engine.state.metrics["D/Edema"] <= 1
    assert "D/Edema" in (output / "metrics.csv").read_text()


def test_patients_leave_as_pseudonyms_only(finished):
    output, _ = finished
    for path in output.rglob("*"):
        if path.is_file() and "features" not in path.relative_to(output).parts:
            assert b"subject-07" not in path.read_bytes(), path
    assert pq.read_table(output / "queries.parquet")["patient"].to_pylist()


def test_again_nothing_is_encoded_and_the_numbers_stay(cohort, tmp_path, caplog):
    options = table_options(cohort, tmp_path / "eval")
    run_bundle("encode", **options)
    shards = sorted((tmp_path / "eval" / "features").rglob("*.arrow"))
    with caplog.at_level(logging.INFO):
        run_bundle("candor_eval", **options)
    first = read_results(tmp_path / "eval" / "results.json")["discordance"]
    assert f"nothing to encode: all {IMAGES} images are in the feature store" in caplog.text
    run_bundle("score", **options)
    assert read_results(tmp_path / "eval" / "results.json")["discordance"] == first
    assert sorted((tmp_path / "eval" / "features").rglob("*.arrow")) == shards
    drawn = {f"neighbours_own.{kind}" for kind in ("png", "svg")}
    for path in (tmp_path / "eval" / "report.html", tmp_path / "eval" / "figures" / "neighbours_own.svg"):
        path.unlink()
    run_bundle("report", **options)
    assert (tmp_path / "eval" / "report.html").stat().st_size > 10_000
    assert {path.name for path in (tmp_path / "eval" / "figures").iterdir()} == drawn
    run_bundle("report", **options, report_images=False)
    assert not list((tmp_path / "eval" / "figures").iterdir())
    with pytest.raises(SystemExit, match="the encoder or the cohort has changed since: run `score` first"):
        run_bundle("report", **options, channels_last="true")  # its features, and so the neighbours, are others


def test_a_feature_is_kept_for_its_own_preprocessing_only(cohort, tmp_path):
    options = table_options(cohort, tmp_path / "eval")
    run_bundle("encode", **options)
    flipped = {"_target_": "Compose", "transforms": [{"_target_": "Flipd", "keys": "image", "spatial_axis": 1}]}
    workflow = run_bundle("candor_eval", preprocessing=flipped, **options)
    assert len(list((tmp_path / "eval" / "features").iterdir())) == 2
    assert workflow.parser.get_parsed_content("context").counts["images_encoded"] == IMAGES


def test_how_an_encoder_is_run_reaches_it_and_its_features_are_kept_apart(cohort, tmp_path):
    options = table_options(cohort, tmp_path / "eval")
    run_bundle("encode", **options)
    workflow = run_bundle("encode", channels_last="true", **options)
    assert workflow.parser.get_parsed_content("network_def").channels_last
    assert len(list((tmp_path / "eval" / "features").iterdir())) == 2
    with pytest.raises(SystemExit, match="at_225"):
        run_bundle("encode", encoder_processor="at_225", **options)


def test_a_card_of_ones_own_by_its_path(cohort, tmp_path):
    card = (resource("configs", "encoders") / "blind.yaml").read_text().replace("name: blind", "name: mine")
    (tmp_path / "mine.yaml").write_text(card)
    options = {**table_options(cohort, tmp_path / "eval"), "encoder": str(tmp_path / "mine.yaml")}
    run_bundle("encode", **options)
    (tmp_path / "typo.yaml").write_text(card.replace("licence", "lisence"))
    with pytest.raises(SystemExit, match="Did you mean 'licence'"):
        run_bundle("encode", **{**options, "encoder": str(tmp_path / "typo.yaml")})


def test_what_an_earlier_run_left_does_not_lie_beside_other_results(cohort, tmp_path):
    options = table_options(cohort, tmp_path / "eval")
    run_bundle("candor_eval", **options)
    made = {path.name for path in (tmp_path / "eval").rglob("*")}
    assert made >= {"report.html", "probe.csv", "heads.safetensors", "neighbours_own.png"}
    of_a_study = {"ranking.csv", "rules.csv", "figures/overlap_own.svg", "tables/table_4.md"}
    (tmp_path / "eval" / "tables").mkdir()
    for name in of_a_study:
        (tmp_path / "eval" / name).touch()
    run_bundle("score", write_report=False, probe=False, **options)
    left = {path.name for path in (tmp_path / "eval").rglob("*")}
    assert not left & {"report.html", "probe.csv", "heads.safetensors", "neighbours_own.png"}
    assert not left & {name.split("/")[-1] for name in of_a_study}


def test_scoring_before_encoding_says_so(cohort, tmp_path):
    with pytest.raises(SystemExit, match="run `encode` or `candor_eval` first"):
        run_bundle("score", **table_options(cohort, tmp_path / "eval"))


@pytest.mark.parametrize("queries, told", [("test", "has a split"), ("boxed", "no expert boxes")])
def test_queries_that_the_cohort_cannot_have_end_the_run_before_work(cohort, tmp_path, queries, told):
    with pytest.raises(SystemExit, match=told):
        run_bundle("candor_eval", queries=queries, **table_options(cohort, tmp_path / "eval"))
    assert not (tmp_path / "eval" / "features").exists()


def test_another_dataset_takes_the_place_of_the_shipped_one(cohort, tmp_path):
    dataset = {
        "_target_": "tests.bundles.test_run.GreyImages",
        "data": "$[{'grey': i} for i in range(len(@cohort_data))]",
    }
    workflow = run_bundle("candor_eval", dataset=dataset, **table_options(cohort, tmp_path / "eval"))
    assert workflow.parser.get_parsed_content("context").counts["images_encoded"] == IMAGES


class GreyImages:
    """A map-style dataset of plain images, as a user's own might be."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        rng = np.random.default_rng(self.data[index]["grey"])
        return {"image": rng.integers(0, 256, (3, 224, 224), dtype=np.uint8)}


def test_features_of_a_list_of_images(cohort, tmp_path):
    (tmp_path / "list.txt").write_text("images/000.png\nimages/001.png\n")
    run_bundle(
        "inference",
        config="inference.yaml",
        dataset_dir=str(cohort),
        images=str(tmp_path / "list.txt"),
        encoder="blind",
        output_dir=str(tmp_path / "eval"),
        progress=False,
    )
    table = pq.read_table(tmp_path / "eval" / "features.parquet")
    assert table["image_id"].to_pylist() == ["images/000.png", "images/001.png"]
    assert len(table["feature"][0]) == 32


def test_precomputed_features_need_no_images(tmp_path):
    rng = np.random.default_rng(0)
    ids = [f"img{i}" for i in range(60)]
    labels = np.arange(60) % 2
    np.savez(
        tmp_path / "features.npz",
        image_id=np.array(ids),
        features=(rng.standard_normal((60, 8)) + 3 * labels[:, None]).astype(np.float32),
    )
    table = pd.DataFrame({"image_id": ids, "Edema": labels, "Noise": rng.permutation(labels)})
    table.to_csv(tmp_path / "labels.csv", index=False)
    run_bundle(
        "candor_eval",
        cohort="features",
        dataset_dir=str(tmp_path),
        features="features.npz",
        labels="labels.csv",
        findings=["Edema", "Noise"],
        output_dir=str(tmp_path / "eval"),
        permutations=99,
        progress=False,
    )
    rows = read_results(tmp_path / "eval" / "results.json")["discordance"]
    assert rows[0]["D"] == 0.0
    assert next(row["D"] for row in rows if row["finding"] == "Noise") > 0
    assert not list((tmp_path / "eval").rglob("neighbours_*"))  # there are no pictures to show
    assert rows[0]["encoder"] == "features"


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["candor_evil"], "unknown run id 'candor_evil'. Did you mean 'candor_eval'?"),
        (["candor_eval", "--encodr", "blind"], "unknown option '--encodr'. Did you mean '--encoder'?"),
        (["candor_eval", "--encoder", "rad_dnio"], "Did you mean 'rad_dino'?"),
    ],
)
def test_a_mistyped_command_ends_in_a_few_lines(arguments, told, tmp_path):
    command = [sys.executable, "-W", "ignore", "-m", "monai.bundle", "run", *arguments]
    command += ["--config_file", bundle_config(), "--output_dir", str(tmp_path / "eval")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=HANGS)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "eval").exists()


def test_the_command_line_runs_the_whole_job(cohort, tmp_path):
    options = table_options(cohort, tmp_path / "eval", findings="['Edema','Mass']", match_on="['view']")
    command = [sys.executable, "-W", "ignore", "-m", "monai.bundle", "run", "--config_file", bundle_config()]
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=HANGS)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"{IMAGES} images in, {IMAGES} scored, 0 rejected" in done.stdout
    assert json.loads((tmp_path / "eval" / "results.json").read_text())["schema_version"] == 1
    assert Path(tmp_path / "eval" / "report.html").is_file()
