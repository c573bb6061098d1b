from __future__ import annotations

import copy

import pytest

from candor_monai.visualize.answer import across_tasks, answer, not_worse, summary_rows, task_answer

from . import synthetic


def small(*rows, ranking=None, trained=True):
    """Results with one finding: a row is (encoder, D, total low, total high, p)."""
    base = {"task": "chest", "finding": "Edema", "group": None, "level": "finding", "status": "ok", "chance": 0.5}
    document = {
        "cohort": {"name": "c"},
        "encoders": [{"name": name, "title": name.upper(), "trained": trained} for name, *_ in rows],
        "discordance": [
            {**base, "encoder": name, "D": d, "D_total_lo": low, "D_total_hi": high, "p_chance": p}
            for name, d, low, high, p in rows
        ],
    }
    if ranking is not None:
        document["ranking"] = [
            {"task": "chest", "finding": "Edema", "encoder": e, **more} for e, more in ranking.items()
        ]
    return document


def test_one_encoder_by_hand():
    (said,) = answer(small(("a", 0.2, 0.1, 0.3, 0.01)))
    assert said.headline == (
        "A separates Edema better than chance (D = 0.200, 95 % interval 0.100 to 0.300; chance 0.500)."
    )
    assert said.sentences == ()


def test_one_encoder_not_to_be_told():
    assert task_answer(small(("a", 0.4, 0.2, 0.6, 0.3)), "chest").headline.startswith(
        "Whether A separates Edema better than chance cannot be told from these data"
    )
    untested = task_answer(small(("a", 0.4, None, None, None)), "chest").headline
    assert "cannot be told from this run" in untested
    assert "no total interval and no permutation test" in untested


def test_worse_than_chance_is_no_success():
    assert "wrong side" in task_answer(small(("a", 0.8, 0.7, 0.9, 0.01)), "chest").headline


def test_best_of_two():
    clear = small(("a", 0.2, 0.1, 0.3, 0.01), ("b", 0.4, 0.35, 0.45, 0.01))
    said = task_answer(clear, "chest")
    assert said.headline == "A separates Edema best of 2 encoders (D = 0.200, 95 % interval 0.100 to 0.300)."
    assert "Next: B, D = 0.400." in said.sentences
    overlapping = small(("a", 0.2, 0.1, 0.3, 0.01), ("b", 0.25, 0.15, 0.35, 0.01))
    said = task_answer(overlapping, "chest")
    assert "whether it is really better than B cannot be told from these data" in said.headline


def test_paired_comparisons_go_before_separate_intervals():
    rows = (("a", 0.2, 0.1, 0.3, 0.01), ("b", 0.25, 0.15, 0.35, 0.01))
    both = {"a": {"not_worse_than_best": True, "p_best": 0.02}, "b": {"not_worse_than_best": False}}
    said = task_answer(small(*rows, ranking=both), "chest")
    assert said.headline.startswith("A separates Edema best of 2 encoders")
    assert any("probability 0.020" in sentence for sentence in said.sentences)


def test_no_intervals_no_winner():
    said = task_answer(small(("a", 0.2, None, None, None), ("b", 0.4, None, None, None)), "chest")
    assert "whether it really is the best of the 2 encoders cannot be told from this run" in said.headline


def test_a_best_encoder_at_chance_is_not_called_best():
    said = task_answer(small(("a", 0.45, 0.3, 0.6, 0.4), ("b", 0.7, 0.65, 0.75, 0.01)), "chest")
    assert said.headline.startswith("Which encoder separates Edema best cannot be told")


def test_tied_encoders_do_not_win():
    document = small(("flat", 0.0, 0.0, 0.0, 0.01), ("b", 0.4, 0.35, 0.45, 0.01))
    document["discordance"][0]["status"] = "tied"
    said = task_answer(document, "chest")
    assert said.headline.startswith("B separates Edema better than chance")
    assert "FLAT has no place in this ranking (see below why)." in said.sentences


def test_untrained_reference_is_named():
    document = small(("a", 0.2, 0.1, 0.3, 0.01), ("noise", 0.48, 0.45, 0.52, 0.5))
    document["encoders"][1]["trained"] = False
    assert "For comparison, the untrained NOISE has D = 0.480." in task_answer(document, "chest").sentences


def test_no_pooled_number_when_a_part_is_missing():
    said = task_answer(synthetic.one_encoder(), "chest")
    assert said.headline.endswith("not estimable for Hernia.")
    assert said.sentences == ("No single number is given for the 4 findings of task chest: not estimable for Hernia.",)
    document = copy.deepcopy(synthetic.three_encoders())
    for row in document["discordance"]:
        if row["level"] == "task":
            row |= {"D": None, "status": "insufficient", "reason": "not estimable for Effusion"}
    said = task_answer(document, "chest")
    assert said.headline == "Which encoder separates the 4 findings of task chest best cannot be told by one number."
    assert "the lowest D has: RAD-DINO for" in said.sentences[1]


def test_one_encoder_without_tests_is_told_by_its_range():
    assert task_answer(synthetic.one_encoder(tested=False), "chest").headline == (
        "RAD-DINO has D from 0.273 (Edema) to 0.311 (Infiltration); whether that is better than chance cannot be told "
        "from this run; not estimable for Hernia."
    )


def test_nothing_estimable():
    document = small(("a", None, None, None, None), ("b", None, None, None, None))
    for row in document["discordance"]:
        row |= {"status": "insufficient", "reason": "no query"}
    said = task_answer(document, "chest")
    assert said.headline == "No finding of task chest can be estimated for any of 2 encoders."


def test_one_answer_a_task():
    said = answer(synthetic.whole_study(classes=False))
    assert [a.task for a in said] == [
        "chest",
        "tumor",
        "referable_retinopathy",
        "malignancy",
        "glaucoma",
        "mammography",
    ]
    assert all("None" not in a.headline + " ".join(a.sentences) for a in said)


@pytest.mark.parametrize("level", ["task", "finding"])
def test_summary_rows_take_the_pooled_level_unless_there_is_one_finding(level):
    document = synthetic.three_encoders()
    if level == "finding":
        document["discordance"] = [r for r in document["discordance"] if r["finding"] in ("Edema", None)]
    assert {row["level"] for row in summary_rows(document, "chest")} == {level}


def test_not_worse_needs_every_encoder():
    document = small(
        ("a", 0.2, 0.1, 0.3, 0.01), ("b", 0.4, None, None, 0.01), ranking={"a": {"not_worse_than_best": True}}
    )
    assert not_worse(document, "chest", document["discordance"])[0] is None


def test_an_untrained_encoder_that_separates_is_a_warning():
    document = small(("a", 0.2, 0.15, 0.25, 0.01), ("noise", 0.3, 0.25, 0.35, 0.01))
    assert not [s for s in task_answer(document, "chest").sentences if s.startswith("Mind")]
    document["encoders"][1] |= {"trained": None, "objective": "none (untrained)"}
    (warning,) = [s for s in task_answer(document, "chest").sentences if s.startswith("Mind")]
    assert warning.startswith("Mind that NOISE, which was never trained, is better than chance for Edema:")
    document["cohort"]["name"] = "calibration"
    assert not [s for s in task_answer(document, "chest").sentences if s.startswith("Mind")]


def test_several_tasks_are_summed_up_in_a_sentence():
    document = synthetic.results(
        [synthetic.encoder("A"), synthetic.encoder("B")], {"x": ("f",), "y": ("g",), "z": ("h",)}
    )
    for row in document["discordance"]:
        if row["level"] == "finding":
            row["D"] = 0.2 if (row["encoder"] == "a") == (row["task"] != "z") else 0.4
    assert across_tasks(document) == (
        "The lowest D of the 3 tasks: A on 2; B on 1. How sure that is, is told for each."
    )
    assert across_tasks(synthetic.three_encoders()) == ""
