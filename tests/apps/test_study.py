"""A study from end to end on a small cohort: cells, comparison, resuming, ablations."""

import logging
import os
import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from candor_monai.visualize.results_files import read_results

from ..bundles.small_cohort import IMAGES, run_bundle, table_options, write_small_cohort


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    folder = write_small_cohort(tmp_path_factory.mktemp("study") / "data")
    (folder / "images" / "007.png").write_bytes(b"not an image")
    return folder


def study_options(cohort, output, **more):
    options = table_options(cohort, output, encoders=["blind", "marker"], ablations=["k_1", "mean_patch"], **more)
    del options["encoder"]
    return options


@pytest.fixture(scope="module")
def finished(cohort, tmp_path_factory):
    output = tmp_path_factory.mktemp("output")
    run_bundle("candor_eval", **study_options(cohort, output))
    return output


def test_one_document_holds_both_encoders_and_their_comparison(finished):
    results = read_results(finished / "results.json")
    assert [encoder["name"] for encoder in results["encoders"]] == ["blind", "marker"]
    assert results["accounting"]["scored"] == IMAGES - 1
    edema = [row for row in results["ranking"] if row["finding"] == "Edema"]
    assert sorted(row["encoder"] for row in edema) == ["blind", "marker"]
    values = {
        r["encoder"]: r["D"] for r in results["discordance"] if r["level"] == "finding" and r["finding"] == "Edema"
    }
    (difference,) = [row for row in results["comparisons"] if row["finding"] == "Edema"]
    assert difference["difference"] == values["blind"] - values["marker"]
    assert (finished / "report.html").stat().st_size > 10_000
    assert {f"neighbours_own.{kind}" for kind in ("svg", "png")} < {p.name for p in (finished / "figures").iterdir()}
    assert not list((finished / "cells").rglob("neighbours_*"))
    assert (finished / "tables" / "error_detection.md").is_file()
    assert {row["encoder"] for row in results["head_errors"] if row["encoder"]} == {"blind", "marker"}


def test_a_cell_is_what_a_single_run_gives(finished, cohort, tmp_path):
    run_bundle("candor_eval", **table_options(cohort, tmp_path / "single"))
    single = read_results(tmp_path / "single" / "results.json")["discordance"]
    (cell,) = (finished / "cells").glob("*--blind")
    assert read_results(cell / "results.json")["discordance"] == single


def test_each_image_is_decoded_once_for_all_encoders(cohort, tmp_path, monkeypatch):
    from candor_monai.data import decode_pool

    decoded = []
    original = decode_pool.DecodePool.map

    def counted(self, items):
        for result in original(self, items):
            decoded.append(result[0])
            yield result

    monkeypatch.setattr(decode_pool.DecodePool, "map", counted)
    options = study_options(cohort, tmp_path / "eval", write_report=False, probe=False)
    run_bundle("candor_eval", **{**options, "ablations": None})
    bad = 1  # an image that cannot be decoded is tried once for each encoder
    assert len(decoded) == IMAGES + bad


def test_again_only_an_added_encoder_is_run(finished, cohort, caplog, capsys):
    before = read_results(finished / "results.json")["discordance"]
    with caplog.at_level(logging.INFO):
        run_bundle("candor_eval", **study_options(cohort, finished))
    printed = capsys.readouterr().out
    assert printed.count(f"{IMAGES} features are there, results are there, 1 of 2 ablations") == 2  # one cannot be run
    assert ": scoring" not in printed
    assert "encoding" not in caplog.text
    assert read_results(finished / "results.json")["discordance"] == before


def test_a_changed_image_is_measured_again_and_nothing_of_the_old_results_stays(finished, cohort, tmp_path, capsys):
    data, output = shutil.copytree(cohort, tmp_path / "data"), shutil.copytree(finished, tmp_path / "output")
    before = pd.read_parquet(output / "queries.parquet")
    (output / "figures" / "overlap_gone.svg").write_text("of another task")
    (output / "tables" / "table_4_gone.md").write_text("of another task")
    options = {**study_options(data, output, write_report=False), "ablations": None}
    image = data / "images" / "012.png"
    Image.fromarray(255 - np.asarray(Image.open(image))).save(image)
    run_bundle("candor_eval", **options)
    assert capsys.readouterr().out.count(": scoring") == 2
    assert not pd.read_parquet(output / "queries.parquet")["dm"].equals(before["dm"])
    for name in ("report.html", "ablations.csv", "figures/overlap_gone.svg", "tables/table_4_gone.md"):
        assert not (output / name).exists(), name
    assert (output / "tables" / "error_detection.md").is_file()
    assert (output / "figures" / "overlap_own.svg").is_file()
    os.utime(image)  # encoded again, to the same pixels
    run_bundle("candor_eval", **options)
    assert ": scoring" not in capsys.readouterr().out


def test_a_cell_that_was_cut_off_while_it_was_written_is_not_taken_for_the_one_before(
    finished, cohort, tmp_path, monkeypatch, capsys
):
    from candor_monai.handlers import results_saver

    output = shutil.copytree(finished, tmp_path / "output")
    options = {**study_options(cohort, output, write_report=False), "ablations": None}
    (cell,) = (output / "cells").glob("*--blind")

    def cut_off(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(results_saver, "write_companions_file", cut_off)
        with pytest.raises(KeyboardInterrupt):
            run_bundle("candor_eval", **{**options, "k": 3, "probe": False})
    assert not (cell / "results.json").exists(), "it would tell of tables that are another run's"
    capsys.readouterr()
    run_bundle("candor_eval", **options)
    printed = capsys.readouterr().out
    assert printed.count(": scoring") == 1
    assert (
        read_results(output / "results.json")["discordance"] == read_results(finished / "results.json")["discordance"]
    )


def test_ablations_tell_their_change_and_what_cannot_be_run(finished):
    table = pd.read_csv(finished / "ablations.csv")
    changed = table[(table["ablation"] == "k_1") & (table["encoder"] == "blind") & (table["finding"] == "Edema")]
    assert changed["change"].item() == pytest.approx(changed["D"].item() - changed["D_main"].item())
    failed = table[(table["ablation"] == "mean_patch") & table["encoder"].notna()]
    assert set(failed["status"]) == {"failed"}
    assert failed["reason"].str.contains("feature point").all()


def test_an_image_that_one_encoder_has_no_feature_of_is_left_out_for_all(cohort, tmp_path):
    from candor_monai.data.feature_store import FeatureStore
    from candor_monai.data.store_rows import Rejection, stat_sources

    options = study_options(cohort, tmp_path / "eval")
    workflow = run_bundle("encode", **{**options, "encoders": None, "ablations": None, "encoder": "blind"})
    context = workflow.parser.get_parsed_content("context")
    shared = {**options, "feature_dir": str(tmp_path / "eval" / "features"), "ablations": None}
    store = FeatureStore(context.store.folder, context.store.fingerprint)
    state = stat_sources([cohort / "images" / "010.png"])
    place = {"source_size": int(state.size[0]), "source_mtime_ns": int(state.mtime_ns[0])}
    store.reject([Rejection("images/010.png", "images/010.png", "encode", "feature_zero", "planted", **place)])
    run_bundle("candor_eval", **shared)
    results = read_results(tmp_path / "eval" / "results.json")
    assert results["accounting"]["scored"] == IMAGES - 2
    (cell,) = (tmp_path / "eval" / "cells").glob("*--marker")
    rejected = pd.read_csv(cell / "rejected.csv").set_index("image_id")["reason"]
    assert rejected["images/010.png"] == "left_out"
    chosen = tmp_path / "chosen.txt"
    for image in ("images/011.png", "images/012.png"):  # the user's own list is left out beside it, and as it is now
        chosen.write_text(f"{image}\n")
        run_bundle("candor_eval", **shared, leave_out=str(chosen))
        rejected = pd.read_csv(cell / "rejected.csv").set_index("image_id")["reason"]
        assert rejected[rejected == "left_out"].index.tolist() == ["images/010.png", image]


def test_unknown_names_end_the_study_before_any_work(cohort, tmp_path):
    options = study_options(cohort, tmp_path / "eval")
    with pytest.raises(SystemExit, match="Did you mean 'marker'"):
        run_bundle("candor_eval", **{**options, "encoders": ["blind", "markr"]})
    with pytest.raises(SystemExit, match="unknown study 'smok'"):
        run_bundle("candor_eval", study="smok", output_dir=str(tmp_path / "eval"))
    assert not (tmp_path / "eval").exists()


TOGETHER = {
    "negatives": {"roles": "negatives"},
    "k_1": {"k": 1},
    "sets_image": {"sets": "image"},
    "isolated": {"isolated": True},
    "unmatched": {"matched": False},
}


def ablation_options(cohort, output):
    options = {**study_options(cohort, output, write_report=False, probe=False), "encoders": ["blind"]}
    return {**options, "ablations": list(TOGETHER)}


@pytest.fixture(scope="module")
def ablated(cohort, tmp_path_factory):
    output = tmp_path_factory.mktemp("ablated")
    run_bundle("candor_eval", **ablation_options(cohort, output))
    return output


def ablation_of(output, name):
    (folder,) = (output / "ablations").glob(f"*--{name}")
    assert not (folder / "scored").exists(), "what the results hold is not kept twice"
    return read_results(folder / "results.json")


@pytest.mark.parametrize("name", TOGETHER)
def test_ablations_are_scored_together_and_are_what_each_run_alone_gives(name, ablated, cohort, tmp_path):
    found = ablation_of(ablated, name)
    more = {**TOGETHER[name], "feature_dir": str(ablated / "features")}
    alone = dict.fromkeys(("write_report", "probe", "margin", "total_interval", "permutation_test"), False)
    run_bundle("score", **{**table_options(cohort, tmp_path), **alone, **more})
    want = read_results(tmp_path / "results.json")
    assert found["discordance"] == want["discordance"]
    (folder,) = (ablated / "ablations").glob(f"*--{name}")
    for table in ("queries", "candidates"):
        tables = [pd.read_parquet(path / f"{table}.parquet") for path in (folder, tmp_path)]
        pd.testing.assert_frame_equal(*tables, check_exact=True)
    assert found["run"]["counts"].get("score.together") == (None if name == "unmatched" else len(TOGETHER) - 1)


def test_ablations_that_were_scored_and_cut_off_are_not_scored_again(ablated, cohort, tmp_path, monkeypatch):
    from candor_monai.apps import scoring, study

    def cut_off(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(study.CellRunner, "variant", cut_off)
        with pytest.raises(KeyboardInterrupt):
            run_bundle("candor_eval", **ablation_options(cohort, tmp_path))
    assert len(list(tmp_path.glob("ablations/*/scored"))) == len(TOGETHER)

    def scored_again(*_):
        raise AssertionError("it is on disk")

    with monkeypatch.context() as patched:
        patched.setattr(scoring, "score_together", scored_again)
        run_bundle("candor_eval", **ablation_options(cohort, tmp_path))
    assert (tmp_path / "ablations.csv").read_text() == (ablated / "ablations.csv").read_text()
    shutil.rmtree(next((tmp_path / "ablations").glob("*--k_1")))  # one alone is scored alone
    run_bundle("candor_eval", **ablation_options(cohort, tmp_path))
    assert "score.together" not in ablation_of(tmp_path, "k_1")["run"]["counts"]
    assert (tmp_path / "ablations.csv").read_text() == (ablated / "ablations.csv").read_text()


def test_ablations_that_cannot_be_scored_together_are_scored_one_by_one(ablated, cohort, tmp_path, monkeypatch, caplog):
    from candor_monai.apps import study
    from candor_monai.utils.errors import UserError

    def full(*_):
        raise UserError("the disk is full")

    monkeypatch.setattr(study, "score_variants", full)
    run_bundle("candor_eval", **ablation_options(cohort, tmp_path))
    assert "ablations are scored one by one: candor_monai: the disk is full" in caplog.text
    assert "score.together" not in ablation_of(tmp_path, "negatives")["run"]["counts"]
    assert (tmp_path / "ablations.csv").read_text() == (ablated / "ablations.csv").read_text()


def test_an_ablation_that_a_cohort_cannot_do_takes_no_other_with_it(tmp_path):
    from candor_monai.apps.scoring import GroupScorer, score_variants
    from candor_monai.metrics import evaluate
    from candor_monai.metrics.observations import Observations
    from candor_monai.metrics.options import Options

    rng = np.random.default_rng(0)
    seen = Observations([f"i{i}" for i in range(60)], (np.arange(60) % 3 == 0).astype(int)[:, None], ["Edema"])
    features = rng.standard_normal((60, 5)).astype(np.float32)
    plain = {"margin": False, "total_interval": False, "permutation_test": False, "resamples": 20}
    asked = {"boxed": {"queries": "boxed"}, "negatives": {"roles": "negatives"}, "k_1": {"k": 1}}
    options = {name: Options(**plain, **more) for name, more in asked.items()}
    score_variants({tmp_path / name: one for name, one in options.items()}, features, seen)
    assert {path.parent.parent.name for path in tmp_path.glob("*/scored/*.npz")} == {"negatives", "k_1"}
    for name in ("negatives", "k_1"):
        found = GroupScorer(tmp_path / name / "scored")(features, seen, options[name])
        assert found.together == 2
        assert found.rows == evaluate(features, seen, options[name]).rows
    with pytest.raises(ValueError, match=r"observations\.boxed is None"):
        GroupScorer(tmp_path / "boxed" / "scored")(features, seen, options["boxed"])
