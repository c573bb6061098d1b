"""Several sites' results in one table, and planning from an evaluation."""

import shutil

import numpy as np
import pandas as pd
import pytest

from candor_monai.apps import tools
from candor_monai.apps.comparison import CellResults
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


def renamed(site, folder, encoder):
    """A copy of a site's results that says to be of another encoder."""
    shutil.copytree(site, folder)
    text = (folder / "results.json").read_text()
    text = text.replace('"name": "lite"', f'"name": "{encoder}"').replace(
        '"encoder": "lite"', f'"encoder": "{encoder}"'
    )
    (folder / "results.json").write_text(text)
    return str(folder)


def test_several_encoders_of_each_site(sites, tmp_path):
    folders = [renamed(sites / s, tmp_path / s / e, e) for s in ("north", "south") for e in ("x", "y")]
    named = ["north", "north", "south", "south"]
    run_bundle("compare_sites", config="tools.yaml", results=folders, sites=named, output=str(tmp_path))
    table = pd.read_csv(tmp_path / "sites.csv")
    pooled = table[(table["site"] == "all sites") & (table["finding"] == "Edema")]
    assert pooled[["encoder", "n_queries"]].to_numpy().tolist() == [["x", 160], ["y", 160]]
    with pytest.raises(SystemExit, match="both hold encoder 'x' at site 'north'"):
        run_bundle("compare_sites", config="tools.yaml", results=folders, sites=["north", "north", "north", "south"])


def test_sites_whose_folders_are_called_alike_must_be_named(sites, tmp_path):
    """Else an encoder that one of them lacks would be pooled over what there is, and called all sites."""
    folders = [
        renamed(sites / "north", tmp_path / "a" / "eval", "x"),
        renamed(sites / "south", tmp_path / "b" / "eval", "x"),
        renamed(sites / "south", tmp_path / "c" / "eval", "y"),
    ]
    with pytest.raises(SystemExit, match="several folders are called 'eval': name their sites with --sites"):
        run_bundle("compare_sites", config="tools.yaml", results=folders)
    run_bundle("compare_sites", config="tools.yaml", results=folders, sites=["a", "b", "b"], output=str(tmp_path))
    table = pd.read_csv(tmp_path / "sites.csv").set_index(["site", "encoder", "finding"])
    assert table.loc[("all sites", "y", "Edema"), "reason"] == "1 of 2 sites have no value"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"shuffle_labels": null', '"shuffle_labels": "image"', "option shuffle_labels is 'image'"),
        ('"dimension": 6', '"dimension": 7', "encoder 'lite' has other dimension"),
        ('"dimension": 6', '"dimension": 6, "fingerprint": {"weights": "ab"}', "encoder 'lite' has other weights"),
    ],
)
def test_a_control_or_another_encoder_of_the_same_name_is_refused(sites, tmp_path, old, new, told):
    other = tmp_path / "other"
    shutil.copytree(sites / "south", other)
    text = (other / "results.json").read_text()
    assert old in text
    (other / "results.json").write_text(text.replace(old, new))
    with pytest.raises(SystemExit, match=told):
        run_bundle("compare_sites", config="tools.yaml", results=[str(sites / "north"), str(other)])


def test_companions_of_another_run_are_refused(sites, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(sites / "south", other)
    shutil.copy(sites / "north/companions.npz", other)
    with pytest.raises(SystemExit, match=r"other: companions\.npz .* of two runs \(finding 'Edema'\)"):
        run_bundle("compare_sites", config="tools.yaml", results=[str(sites / "north"), str(other)])


def test_an_unknown_finding_is_no_cause_of_itself(sites):
    with pytest.raises(SystemExit, match="unknown finding") as told:
        run_bundle("plan", config="tools.yaml", D=0.4, results=str(sites / "north"), finding="Nope")
    assert told.value.__cause__.__cause__ is not told.value.__cause__


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


def test_a_plan_takes_the_first_finding_whose_clustering_is_known(tmp_path, monkeypatch, capsys):
    """Mass has too few patients for an interval, and Fracture cannot be estimated in one of its groups."""
    rng = np.random.default_rng(0)
    n = 160
    labels = np.stack([np.arange(n) % 12 == 0, np.arange(n) % 3 == 0, np.arange(n) % 2 == 0], axis=1).astype(int)
    labels[100:, :2] = 0
    labels[100, 1] = 1
    seen = Observations(
        [f"i{k}" for k in range(n)], labels, ["Mass", "Fracture", "Edema"], group=(np.arange(n) >= 100).astype(int)
    )
    options = Options(permutation_test=False, resamples=0, margin=False)
    found = evaluate(rng.standard_normal((n, 6)).astype(np.float32), seen, options)
    companions = {tuple(part.row[k] for k in ("level", "finding", "group")): part.companions for part in found.parts}
    cell = CellResults("x", {"discordance": found.rows}, companions, pd.DataFrame(), tmp_path)
    monkeypatch.setattr("candor_monai.apps.comparison.read_cell", lambda folder: cell)
    tools.plan(D=0.4, results=str(tmp_path))
    assert "1.00 positive images a patient" in capsys.readouterr().out
    for finding, why in (
        ("Mass", r"Mass: .*fewer than 10 positive patients \(9\)"),
        ("Fracture", "Fracture: groups not estimable: 1"),
        ("Edma", "Did you mean 'Edema'"),
    ):
        with pytest.raises(SystemExit, match=why):
            tools.plan(D=0.4, results=str(tmp_path), finding=finding)


@pytest.mark.parametrize(
    "given, told",
    [({}, "--D is needed"), ({"D": 0.5}, "--D is chance"), ({"D": 0.4, "difference": 0}, "difference is 0")],
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
