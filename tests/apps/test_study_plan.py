"""The plan of a study: what is there, what is to do, how long it will take and where that is from."""

import pytest

from candor_monai.apps.study_plan import _costs, plan_study, speed_record, tell_plan
from candor_monai.visualize.results_files import write_results

from ..support import ROOT
from ..visualize import synthetic


def cell(name="chest--mine", **more):
    encoder = name.partition("--")[2]
    fields = {"name": name, "encoder": encoder, "cohort": "chest", "images": 100, "to_encode": 0, "views": 0}
    return {**fields, "scored": False, "ablations": (0, 0), **more}


def test_what_was_measured_here_comes_before_the_table_of_encoders(tmp_path):
    (there,) = plan_study([cell("chest--dinov3_s", to_encode=50)], tmp_path)
    assert (there.encode.seconds, there.encode.source) == (pytest.approx(5.2), "the table of encoders, one thread")
    speed_record(tmp_path / "cells" / "skin--dinov3_s", 200, 4.0)
    speed_record(tmp_path / "cells" / "birds--dinov3_s", 0, 4.0)  # nothing was encoded: nothing is known
    (there,) = plan_study([cell("chest--dinov3_s", to_encode=50, views=50)], tmp_path)
    assert (there.encode.seconds, there.encode.source) == (2.0, "measured here")


def test_times_of_scoring_come_from_earlier_results(tmp_path):
    document = synthetic.one_encoder() | {"timings": {"score": 8.0}}
    write_results(tmp_path / "cells" / "chest--other" / "results.json", document)
    (tmp_path / "cells" / "chest--torn").mkdir()
    (tmp_path / "cells" / "chest--torn" / "results.json").write_text("{")
    one, two = plan_study(
        [cell(), cell("skin--mine", cohort="skin", images=document["accounting"]["scored"])], tmp_path
    )
    assert (one.score.seconds, one.score.source) == (8.0, "measured here")
    assert (two.score.seconds, two.score.source) == (pytest.approx(8.0), "measured here on other cohorts")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"images": "many", "seconds": 1}', '{"images": 5, "seconds": null}'])
def test_a_record_that_cannot_be_read_estimates_nothing(tmp_path, text):
    path = tmp_path / "cells" / "chest--mine" / "encoded.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (there,) = plan_study([cell(to_encode=10)], tmp_path)
    assert there.encode.seconds is None


def test_the_plan_is_told_in_lines(tmp_path):
    speed_record(tmp_path / "cells" / "chest--mine", 10, 20.0)
    parts = [
        cell(to_encode=40, views=20, ablations=(3, 1)),
        cell("chest--new", to_encode=100),
        cell("chest--done", scored=True),
    ]
    text = tell_plan("ours", plan_study(parts, tmp_path)).splitlines()
    assert text[0] == "study ours: 3 cells of 3 encoders and 1 cohorts"
    assert text[1] == "  chest--mine  encode 40 of 100 images and 20 views (about 2 min 0 s), score, 2 of 3 ablations"
    assert text[2] == "  chest--new   encode 100 of 100 images, score"
    assert text[3] == "  chest--done  100 features are there, results are there"
    assert text[4] == "  about 2 min 0 s to go (measured here); nothing like 3 of 4 parts was measured before"


def test_nothing_to_do_and_nothing_known(tmp_path):
    assert "nothing to compute" in tell_plan("ours", plan_study([cell(scored=True)], tmp_path))
    told = tell_plan("ours", plan_study([cell(to_encode=5)], tmp_path))
    assert told.endswith("how long is not known: nothing like 2 of 2 parts was measured before")


def test_costs_are_those_of_the_docs():
    page = (ROOT / "docs" / "encoders.md").read_text()
    rows = [
        line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `") and line.count("|") == 6
    ]
    told = {row[0].strip("`"): row[2] if row[2] != "–" else row[1] for row in rows}
    assert {name: f"{seconds:g}" for name, seconds in _costs().items()} == {n: f"{float(s):g}" for n, s in told.items()}
