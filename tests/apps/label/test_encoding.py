"""Features of a datastore's images: encoded in bulk or when asked for, to the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from candor_monai.apps.label.conf import label_options
from candor_monai.apps.label.encoding import Encoding
from candor_monai.apps.label.studies import image_file, open_studies
from candor_monai.networks import load_encoder, save_heads
from candor_monai.networks.head_files import head_card
from candor_monai.networks.linear_heads import HeadOptions, HeadWeights
from candor_monai.utils import DecodeError, WeightsError

from .server_support import write_png

CONF = {"encoder": "blind", "findings": "Edema", "batch_size": "4", "image_size": "64", "match_on": "[]"}


@pytest.fixture
def options(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(10):
        write_png(tmp_path / "chest" / f"{i % 3}" / f"{i}.png", rng.integers(0, 256, (40, 30), dtype=np.uint8))
    return label_options(str(tmp_path / "chest"), tmp_path / "app", CONF)


def test_in_bulk_when_asked_for_and_only_once(options, tmp_path):
    cohort = open_studies(options)
    one = Encoding(options)
    try:
        asked = one.feature(cohort, 7)
        assert one.stored(cohort)[1].sum() == 1
        assert one.encode(cohort) == 9
        features, present, clusters = one.stored(cohort)
        assert present.all()
        assert len(set(clusters)) == 10
        assert np.array_equal(features[7], asked)
        assert one.encode(cohort) == 0
    finally:
        one.close()
    # a second process that started before sees what the first one wrote
    alone = label_options(options.studies, "/app", {**CONF, "state_dir": str(tmp_path / "other")})
    other = Encoding(alone)
    try:
        other.encode(cohort)
        assert np.array_equal(other.stored(cohort)[0], features)
    finally:
        other.close()


def test_images_that_cannot_be_used(options, tmp_path):
    (tmp_path / "chest" / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    cohort = open_studies(options)
    ids = cohort.records["image_id"].tolist()
    encoding = Encoding(options)
    try:
        with pytest.raises(DecodeError) as error:
            encoding.feature(cohort, ids.index("bad.png"))
        gone = ids.index("0/0.png")
        image_file(cohort, gone).unlink()
        with pytest.raises(DecodeError, match="gone"):
            image_file(cohort, gone)
        with pytest.raises(DecodeError) as lost:
            encoding.feature(cohort, gone)
        assert lost.value.reason in ("not_found", "vanished")
        encoding.encode(cohort)
        assert {row["image_id"]: row["reason"] for row in encoding.rejected(cohort)}["bad.png"] == error.value.reason
        assert encoding.stored(cohort)[1].sum() == 9
    finally:
        encoding.close()


def test_heads_must_be_of_the_encoder(options, tmp_path):
    path = tmp_path / "heads.safetensors"
    for name, fits in (("marker", False), ("blind", True)):
        encoder = load_encoder(name)
        weights = HeadWeights(torch.zeros(1, 1, encoder.dimension), torch.zeros(1, 1))
        save_heads(path, weights, head_card(["Edema"], [None], HeadOptions(members=1), ["a"], encoder.describe()))
        given = label_options(options.studies, "/app", {**CONF, "heads": str(path)})
        if fits:
            assert Encoding(given).heads.findings == ("Edema",)
        else:
            with pytest.raises(WeightsError, match="trained on features of"):
                Encoding(given)
