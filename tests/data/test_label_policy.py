"""Label policy: what texts mean and what uncertain and blank become."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from candor_monai.data.label_policy import LabelValues, apply_policy, label_codes
from candor_monai.utils import UserError


def test_every_policy_by_hand():
    codes = np.array([[1], [0], [-1], [-2], [-3]], np.int8)
    expected = {
        ("exclude", "negative"): [1, 0, -1, 0, -1],
        ("positive", "negative"): [1, 0, 1, 0, -1],
        ("negative", "exclude"): [1, 0, 0, -1, -1],
        ("exclude", "exclude"): [1, 0, -1, -1, -1],
    }
    for (uncertain, blank), labels in expected.items():
        got, flags, counts = apply_policy(codes, ("F",), uncertain, blank)
        assert got[:, 0].tolist() == labels
        assert flags[:, 0].tolist() == [False, False, True, False, False]
        assert set(counts["labels"]["F"].values()) == {1}


def test_text_in_a_label_column_names_column_row_and_value():
    with pytest.raises(UserError, match=r"t\.csv, column 'Edema', row 2: 'severe' is not a label"):
        label_codes(pd.Series(["1", "severe"]), "Edema", "t.csv")


@pytest.mark.parametrize("text", ["0.7", "2", "10", "positve"])
def test_near_labels_are_no_labels(text):
    with pytest.raises(UserError, match="is not a label"):
        label_codes(pd.Series([text]), "F", "t.csv")


def test_values_can_be_named_and_unknown_ones_listed():
    values = LabelValues.of(positive=["severe", 2], unknown="exclude")
    unknown: dict[str, int] = {}
    codes = label_codes(pd.Series(["Severe", "2", "0", "odd", "odd"]), "F", "t.csv", values, unknown)
    assert codes.tolist() == [1, 1, 0, -3, -3]
    assert unknown == {"F: odd": 2}


def test_naming_a_value_takes_it_from_its_usual_meaning():
    assert label_codes(pd.Series(["0", "1"]), "F", "t.csv", LabelValues.of(positive=[0], negative=[1])).tolist() == [
        1,
        0,
    ]


def test_one_text_two_meanings():
    with pytest.raises(UserError, match="'x' is given as both positive and negative"):
        LabelValues.of(positive=["x"], negative=["x"])


def test_missing_values_are_blank():
    assert label_codes(pd.Series([None, "nan", " "], dtype=object), "F", "t").tolist() == [-2, -2, -2]
