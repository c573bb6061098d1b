"""The bundle on a table that says how its images came to be labelled: warned, accounted for, refused."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from .small_cohort import run_bundle

COUNT = 40


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CANDOR_MONAI_KEY_FILE", str(tmp_path / "pseudonym.key"))
    rng = np.random.default_rng(0)
    ids = [f"i{i:02}" for i in range(COUNT)]
    np.savez(tmp_path / "f.npz", features=rng.standard_normal((COUNT, 8)).astype(np.float32), image_id=np.array(ids))
    table = pd.DataFrame({"image_id": ids, "Edema": np.arange(COUNT) % 2, "selected_by": "random", "reread_by": ""})
    table.loc[:4, "selected_by"] = "candor_uncertain"
    table.loc[10:12, "reread_by"] = "candor_review"
    table["first_reading:Edema"] = np.where(table["reread_by"] == "", "", "1")
    table.to_csv(tmp_path / "labels.csv", index=False)
    return tmp_path


def evaluated(folder, **more):
    options = {"labels": "labels.csv", "features": "f.npz", "findings": ["Edema"], "probe": False, "resamples": 20}
    options |= {"permutations": 19, "total_interval": False, "write_report": False, "progress": False}
    output = folder / "eval"
    run_bundle("candor_eval", cohort="features", dataset_dir=str(folder), output_dir=str(output), **options, **more)
    return json.loads((output / "results.json").read_text()), pd.read_csv(output / "rejected.csv")


def test_by_default_what_was_selected_is_left_out_and_accounted_for(folder):
    results, rejected = evaluated(folder)
    assert results["accounting"] == {
        "images_in": COUNT,
        "scored": COUNT - 5,
        "rejected": 5,
        "rejected_by_reason": {"selected": 5},
    }
    assert set(rejected["stage"]) == {"labels"}
    told = results["cohort"]["counts"]["selection"]
    assert (told["policy"], told["first_readings"], told["changed_by_review"]) == ("unbiased", 3, 2)
    assert not [text for text in results["warnings"] if "reviewed" in text]


def test_what_is_kept_is_warned_of(folder):
    results, _ = evaluated(folder, selection="keep")
    assert results["accounting"]["scored"] == COUNT
    assert len([text for text in results["warnings"] if "selection: unbiased" in text]) == 2


def test_too_few_blinded_rereads_end_the_run_in_a_line(folder):
    with pytest.raises(SystemExit, match="3 more are needed for selection: reread"):
        evaluated(folder, selection="reread")
