"""Several sites' results in one table, and planning from an evaluation."""

import shutil

import numpy as np
import pandas as pd
import pytest

from candor_monai.metrics import Observations, Options, evaluate

from ..bundles.small_cohort import run_bundle

COMMON = {"permutations": 0, "permutation_test": False, "resamples": 50, "probe": False, "write_report": False}


def write_features(folder, seed, n=160, shift=0.5):
    """Features whose first value knows a little of the label, one image a patient."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    features = rng.standard_normal((n, 6)).astype(np.float32)
    features[:, 0] += shift * labels
    folder.mkdir()
    ids = [f"s{seed}i{k:03d}" for k in range(n)]
    np.savez(folder / "lite.npz", image_id=np.array(ids), features=features)
    pd.DataFrame({"image_id": ids, "Edema": labels, "patient_id": ids}).to_csv(folder / "labels.csv", index=False)
    return folder, features, labels, ids


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    base = tmp_path_factory.mktemp("sites")
    for seed, name in enumerate(("north", "south")):
        folder, *_ = write_features(base / f"data_{name}", seed)
        run_bundle(
            "candor_eval",
            cohort="features",
            dataset_dir=str(folder),
            features="lite.npz",
            labels="labels.csv",
            findings=["Edema"],
            output_dir=str(base / name),
            progress=False,
            **COMMON,
        )
    return base


def test_two_sites_and_their_pooled_value(sites, tmp_path, capsys):
    folders = [str(sites / "north"), str(sites / "south")]
    run_bundle("compare_sites", config="tools.yaml", results=folders, output=str(tmp_path))
    table = pd.read_csv(tmp_path / "sites.csv")
    edema = table[table["finding"] == "Edema"].set_index("site")
    by_hand = (80 * edema.loc["north", "D"] + 80 * edema.loc["south", "D"]) / 160
    assert edema.loc["all sites", "D"] == pytest.approx(by_hand, abs=1e-12)
    one, pooled = (edema.loc[s, "D_total_hi"] - edema.loc[s, "D_total_lo"] for s in ("north", "all sites"))
    assert 0.5 * one < pooled < 0.95 * one, "twice as many independent patients: narrower, by about the root of two"
    assert "all sites" in capsys.readouterr().out


def test_a_site_measured_otherwise_is_refused(sites, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(sites / "south", other)
    text = (other / "results.json").read_text()
    assert '"k": 5' in text
    (other / "results.json").write_text(text.replace('"k": 5', '"k": 7'))
    with pytest.raises(SystemExit, match="option k is 7"):
        run_bundle("compare_sites", config="tools.yaml", results=[str(sites / "north"), str(other)])


def test_a_finding_that_one_site_lacks_is_not_pooled(sites, tmp_path):
    from candor_monai.apps.comparison import read_cell
    from candor_monai.apps.sites import site_rows

    north, south = read_cell(sites / "north"), read_cell(sites / "south")
    for row in south.results["discordance"]:
        row["D"] = None
    pooled = next(row for row in site_rows([north, south], ["north", "south"]) if row["site"] == "all sites")
    assert pooled["status"] == "incomplete"
    assert pooled["D"] is None
    assert "1 of 2 sites" in pooled["reason"]


def test_a_plan_from_an_evaluations_own_clustering(sites, capsys):
    run_bundle("plan", config="tools.yaml", D=0.4, results=str(sites / "north"))
    printed = capsys.readouterr().out
    assert "labelled positive images" in " ".join(printed.split())
    run_bundle("plan", config="tools.yaml", D=0.4, difference=0.05)
    assert "D = 0.450" in capsys.readouterr().out


@pytest.mark.parametrize(
    "given, told",
    [({}, "--D is needed"), ({"D": 0.5}, "theta is chance"), ({"D": 0.4, "difference": 0}, "difference is 0")],
)
def test_plans_that_cannot_be(given, told):
    with pytest.raises(SystemExit, match=told):
        run_bundle("plan", config="tools.yaml", **given)


def test_a_plan_holds_in_brute_force_simulation():
    """Cohorts with as many positives as planned find D = 0.40 or so in about the planned share of cases."""
    from candor_monai.metrics.planning import Clustering, plan_against_chance, power_against_chance

    rng = np.random.default_rng(0)
    shift, n, cohorts = 1.1, 120, 40
    values = []
    found = 0
    for _ in range(cohorts):
        labels = np.arange(2 * n) % 2
        features = rng.standard_normal((2 * n, 8)).astype(np.float32)
        features[:, 0] += shift * labels
        seen = Observations([f"i{k}" for k in range(2 * n)], labels[:, None], ["Edema"])
        row = evaluate(features, seen, Options(permutation_test=False, resamples=0, margin=False)).rows[0]
        values.append(row["D"])
        found += row["D_total_hi"] < 0.5 or row["D_total_lo"] > 0.5
    theta = float(np.mean(values))
    effect = float(np.var(values, ddof=1)) * n / (theta * (1 - theta))
    planned = power_against_chance(theta, n, Clustering(design_effect=max(effect, 0.3)))
    assert abs(found / cohorts - planned) < 0.3
    assert plan_against_chance(theta, 0.5, Clustering(design_effect=max(effect, 0.3))).queries > 0
