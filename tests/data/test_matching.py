"""Matched groups: names that never collide, codes that do not depend on the order."""

from __future__ import annotations

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from candor_monai.data.matching import escape, matched_groups

texts = st.one_of(st.none(), st.text(alphabet="aA|=%(m)\n ", max_size=4))


def test_two_covariates_by_hand():
    records = pd.DataFrame({"site": ["x", "x", "y"], "view": ["PA", "AP", "PA"]})
    codes, names = matched_groups(records, ["site", "view"])
    assert names == ("site=x|view=AP", "site=x|view=PA", "site=y|view=PA")
    assert codes.tolist() == [1, 0, 2]


def test_missing_is_not_the_text_missing():
    codes, names = matched_groups(pd.DataFrame({"v": [None, "(missing)"]}), ["v"])
    assert sorted(names) == ["v=%28missing)", "v=(missing)"]
    assert codes[0] != codes[1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=12))
def test_names_are_as_distinct_as_values(pairs):
    records = pd.DataFrame(pairs, columns=["a", "b"], dtype=object)
    codes, names = matched_groups(records, ["a", "b"])
    assert len(names) == len(set(names)) == len(set(pairs))
    assert list(names) == sorted(names)
    for i, j in np.ndindex(len(pairs), len(pairs)):
        assert (codes[i] == codes[j]) == (pairs[i] == pairs[j])


def test_many_covariates_do_not_overflow():
    records = pd.DataFrame({f"c{i}": [str(j) for j in range(500)] for i in range(12)})
    codes, names = matched_groups(records, list(records.columns))
    assert len(set(codes.tolist())) == len(names) == 500


def test_escape_keeps_plain_text():
    assert escape("AP_horizontal 2.0") == "AP_horizontal 2.0"
