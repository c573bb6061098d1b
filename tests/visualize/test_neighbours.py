from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from candor_monai.visualize.neighbours import COLUMNS, discordant_examples, nearest_neighbours

from . import synthetic


def table(**columns):
    return pd.DataFrame(columns)


def candidates(labels, patients=None):
    """Candidates named p0, p1 … and n0, n1 … in the order of their rank."""
    names = [f"{'pn'[label == 0]}{i}" for label, n in labels.items() for i in range(n)]
    place = {"task": "t", "finding": "f", "group": "g"}
    ranks = [i for n in labels.values() for i in range(n)]
    label = [label for label, n in labels.items() for _ in range(n)]
    return pd.DataFrame({**place, "image_id": names, "label": label, "rank": ranks, "patient": patients or names})


def example(image_id="q", patient="me"):
    return table(encoder=["e"], task=["t"], finding=["f"], group=["g"], image_id=[image_id], patient=[patient])


def angle(degrees):
    return [np.cos(np.radians(degrees)), np.sin(np.radians(degrees))]


def features_of(degrees):
    return lambda encoder, ids: np.array([angle(degrees[i]) for i in ids], dtype=np.float32) * 3


def test_two_of_three_by_hand():
    degrees = {"q": 0, "p0": 60, "p1": 30, "p2": 90, "n0": 10, "n1": 80, "n2": 20}
    found = nearest_neighbours(example(), candidates({1: 3, 0: 3}), features_of(degrees), k=2)
    assert list(found.columns) == list(COLUMNS)
    assert found["image_id"].tolist() == ["p1", "p0", "n0", "n2"]
    assert found["label"].tolist() == [1, 1, 0, 0]
    assert found["rank"].tolist() == [1, 2, 1, 2]
    assert found["similarity"].tolist() == pytest.approx(np.cos(np.radians([30, 60, 10, 20])), abs=1e-7)


def test_own_patient_is_excluded_and_the_sides_made_equal():
    degrees = {"p0": 0, "p1": 5, "p2": 30, "n0": 40, "n1": 50, "n2": 1}
    patients = ["me", "me", "a", "b", "c", "d"]
    drawn = candidates({1: 3, 0: 3}, patients)
    found = nearest_neighbours(example("p0"), drawn, features_of(degrees), k=5)
    # p0 is the query, p1 is its patient's: one positive is left, so the first-ranked negative alone
    assert found["image_id"].tolist() == ["p2", "n0"]


def test_image_sets_remove_the_query_only():
    degrees = {"p0": 0, "p1": 5, "p2": 30, "n0": 40, "n1": 50, "n2": 1}
    drawn = candidates({1: 3, 0: 3}, ["me", "me", "a", "b", "c", "d"])
    found = nearest_neighbours(example("p0"), drawn, features_of(degrees), k=5, sets="image")
    assert found["image_id"].tolist() == ["p1", "p2", "n2", "n0", "n1"]
    found = nearest_neighbours(example("p0"), drawn, features_of(degrees), k=5, sets="image", exclude_same_patient=True)
    assert found["image_id"].tolist() == ["p2", "n2", "n0", "n1"]


def test_missing_patients_exclude_nobody():
    drawn = candidates({1: 2, 0: 2}, [None] * 4)
    found = nearest_neighbours(
        example(patient=None), drawn, features_of({"q": 0, "p0": 1, "p1": 2, "n0": 3, "n1": 4}), k=1
    )
    assert found["image_id"].tolist() == ["p0", "n0"]


def test_ties_are_settled_by_rank():
    drawn = candidates({1: 4, 0: 4}).sample(frac=1, random_state=3)
    found = nearest_neighbours(example(), drawn, lambda encoder, ids: np.ones((len(ids), 2), np.float32), k=2)
    assert found["image_id"].tolist() == ["p0", "p1", "n0", "n1"]


def test_no_candidates_no_neighbours():
    found = nearest_neighbours(example(), candidates({1: 1}).iloc[:0], features_of({}))
    assert found.empty
    assert list(found.columns) == list(COLUMNS)


def test_neighbours_give_back_the_recorded_margin():
    document = synthetic.one_encoder()
    frames = synthetic.frames(document)
    chosen = discordant_examples(frames["queries"], 3)
    found = nearest_neighbours(chosen, frames["candidates"], synthetic.features)
    means = found.groupby(["finding", "query", "label"])["similarity"].mean()
    for row in chosen.to_dict("records"):
        assert means[row["finding"], row["image_id"], 1] == pytest.approx(row["c_pos"], abs=1e-12)
        assert means[row["finding"], row["image_id"], 0] == pytest.approx(row["c_neg"], abs=1e-12)


def test_clearest_examples_one_a_patient():
    queries = table(
        encoder=["e"] * 5,
        task=["t"] * 5,
        finding=["f"] * 5,
        group=["g"] * 5,
        image_id=list("abcde"),
        patient=["1", "1", "2", "3", None],
        dm=[0.3, 0.4, 0.1, -0.2, 0.2],
        discordant=[True, True, True, False, True],
    )
    assert discordant_examples(queries, 3)["image_id"].tolist() == ["b", "e", "c"]
    assert discordant_examples(queries, 3)["place"].tolist() == [0, 1, 2]
    assert discordant_examples(queries, 1)["image_id"].tolist() == ["b"]
    assert discordant_examples(queries, 0).empty
    assert discordant_examples(queries.iloc[:0], 3).empty
