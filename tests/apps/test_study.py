"""A study from end to end on a small cohort: cells, comparison, resuming, ablations."""

import logging

import pandas as pd
import pytest

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
