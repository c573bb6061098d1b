"""Several cohorts' results as one document."""

import pandas as pd

from candor_monai.apps.options import RunOptions
from candor_monai.apps.study_results import CohortResults, _named, _prefix, whole_document
from candor_monai.visualize.results_files import validate_results

from ..visualize import synthetic


def part(label, task, encoders=("A", "B")):
    document = synthetic.results([synthetic.encoder(name) for name in encoders], {task: ("Edema",)})
    document["cohort"] = {**document["cohort"], "name": label, "task": task}
    document["warnings"] = ["for all", f"of {label}"]
    document["timings"] = {"score": 1.5}
    table = pd.DataFrame({"image_id": ["a"], "task": [task]})
    return CohortResults(label, document, table, table, table[["image_id"]], {}, RunOptions())


def test_counts_are_added_up_and_numbers_stay():
    parts = [part("one", "chest"), part("two", "skin", ("B", "C"))]
    whole = whole_document([p.document for p in parts])
    validate_results(whole)
    assert [card["title"] for card in whole["encoders"]] == ["A", "B", "C"]
    assert [cohort["name"] for cohort in whole["cohorts"]] == ["one", "two"]
    for key in ("images_in", "scored", "rejected"):
        assert whole["accounting"][key] == sum(p.document["accounting"][key] for p in parts)
    assert whole["timings"] == {"score": 3.0}
    assert whole["discordance"] == parts[0].document["discordance"] + parts[1].document["discordance"]
    assert whole["warnings"] == ["for all", "chest: of one", "skin: of two"]


def test_one_task_on_two_cohorts_gets_two_names_and_ids_are_told_apart():
    named = _named(part("north", "chest"), "chest (north)")
    assert {row["task"] for row in named.document["discordance"]} == {"chest (north)"}
    assert named.document["cohort"]["task"] == "chest (north)"
    assert named.queries.to_dict("records") == [{"image_id": "north:a", "task": "chest (north)"}]
    assert _prefix("north:2:a", {"north:": 1, "north:2:": 2}) == "north:2:"
