"""The paper's study on its small twin: eight tasks, every ablation, every table and figure."""

import pandas as pd
import pytest

from candor_monai.apps.ablations import ABLATIONS
from candor_monai.apps.options import run_options
from candor_monai.apps.study_file import read_study
from candor_monai.visualize.results_files import read_results

from ..bundles.small_cohort import run_bundle

TASKS = ("chest", "tumor", "variant", "species", "referable_retinopathy", "malignancy", "glaucoma", "mammography")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    output = tmp_path_factory.mktemp("smoke")
    run_bundle("candor_eval", study="smoke", output_dir=str(output), progress=False)
    return output


def test_one_document_and_report_hold_all_eight_tasks(finished):
    document = read_results(finished / "results.json")
    assert tuple(dict.fromkeys(row["task"] for row in document["discordance"])) == TASKS
    assert len(document["cohorts"]) == 8
    assert [card["name"] for card in document["encoders"]] == ["marker", "blind", "untrained"]
    assert document["accounting"]["images_in"] == sum(
        read_results(finished / label / "results.json")["accounting"]["images_in"]
        for label in ("chest", "tumor", "aircraft", "birds", "retinopathy", "skin", "glaucoma", "mammogram")
    )
    sensitive = [
        row["D"] for row in document["discordance"] if row["encoder"] == "marker" and row["level"] == "finding"
    ]
    assert max(sensitive) == 0.0
    assert all(
        row["task"] in TASKS for name in ("ranking", "comparisons", "overlap", "trends") for row in document[name]
    )
    page = (finished / "report.html").read_text()
    assert "The lowest D of the 8 tasks: Calibration, sensitive on 8." in page
    assert (finished / "report.html").stat().st_size < 10_000_000


def test_pooled_tasks_compare_within_each_cohort(finished):
    table = pd.read_csv(finished / "tumor" / "discordance.csv")
    groups = table[(table["level"] == "group") & (table["encoder"] == "blind")]
    assert {group.split("|")[0] for group in groups["group"]} == {"cohort=frontal", "cohort=back"}
    whole = table[(table["level"] == "finding") & (table["encoder"] == "blind")].iloc[0]
    assert whole["D"] == pytest.approx((groups["D"] * groups["n_queries"]).sum() / groups["n_queries"].sum())
    assert whole["n_queries"] == groups["n_queries"].sum()
    assert whole[["D_total_lo", "D_total_hi", "p_chance"]].notna().all()


def test_every_ablation_is_run_or_says_why_not(finished):
    (chest, *_) = read_study(run_options(study="smoke")).cohorts
    assert set(chest.ablations) == set(ABLATIONS)
    table = pd.read_csv(finished / "ablations.csv")
    assert set(table["ablation"]) == set(ABLATIONS)
    assert set(table["task"]) == {"chest"}
    whole = table[table["encoder"].notna() & table["finding"].isna()]
    assert whole.groupby("ablation")["encoder"].nunique().eq(3).all()
    failed = whole[whole["status"] == "failed"]
    assert set(zip(failed["ablation"], failed["encoder"], strict=True)) == {
        ("mean_patch", "marker"),
        ("mean_patch", "blind"),
    }
    ranked = table[table["encoder"].isna()].set_index("ablation")
    assert ranked.drop("mean_patch")["spearman"].notna().sum() > 10


def test_every_table_and_figure_of_the_paper(finished):
    tables = {path.name for path in (finished / "tables").iterdir()}
    assert tables >= {f"table_{n}.{kind}" for n in (1, 2, 3, 4) for kind in ("csv", "md", "tex")}
    second = pd.read_csv(finished / "tables" / "table_2.csv")
    assert {"D", "D_all", "head AUROC", "margin AUROC", "retention"} <= set(second)
    third = pd.read_csv(finished / "tables" / "table_3.csv")
    assert {"tumor", "aircraft", "birds", "retinopathy", "skin", "glaucoma", "mammogram"} <= set(third)
    figures = {path.name for path in (finished / "figures").iterdir()}
    assert figures >= {f"{name}.{kind}" for name in ("positives", "tasks", "findings_chest") for kind in ("svg", "png")}
    assert {"agreement_chest.svg", "overlap_chest.svg"} <= figures
    assert {"neighbours_chest.svg", "neighbours_chest.png"} <= figures


def test_again_nothing_is_computed_and_the_plan_says_so(finished, capsys):
    before = read_results(finished / "results.json")["discordance"]
    run_bundle("candor_eval", study="smoke", output_dir=str(finished), write_report=False, progress=False)
    told = capsys.readouterr().out
    assert "chest--untrained        560 features are there, results are there, 0 of 23 ablations" in told
    assert "nothing to compute but the comparison" not in told  # two encoders have no patch tokens, and are tried again
    assert "scoring" not in told
    assert read_results(finished / "results.json")["discordance"] == before
