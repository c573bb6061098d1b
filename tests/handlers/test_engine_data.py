"""Columns of batches in MONAI's forms, and features given in any form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from candor_monai.handlers.engine_data import column, features_of, needed_column, present_features

BATCH = {"index": torch.tensor([4, 2]), "image": torch.zeros(2, 1)}


@pytest.mark.parametrize("batch", [BATCH, [{"index": 4, "image": 0}, {"index": torch.tensor(2), "image": 0}]])
def test_a_mapping_or_a_mapping_an_item(batch):
    assert column(batch, "index").tolist() == [4, 2]
    assert column(batch, "ok") is None
    with pytest.raises(ValueError, match=r"the batch has no key 'ok'\."):
        needed_column(batch, "ok", "the batch")


@pytest.mark.parametrize("batch", [[], None, [torch.zeros(2)], torch.zeros(2)])
def test_what_has_no_columns(batch):
    assert column(batch, "index") is None


def test_features_given_or_asked_for():
    features = np.eye(3, dtype=np.float32)
    for given in ((features, [1, 0, 1]), lambda: (features, np.array([True, False, True]))):
        assert features_of(given)[1].tolist() == [True, False, True]
        found, rows = present_features(given)
        assert (found.tolist(), rows.tolist()) == (features[[0, 2]].tolist(), [0, 2])
    assert present_features((features, np.ones(3)))[0] is features
