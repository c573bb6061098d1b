"""Every internal size made tiny, so that a few hundred images cross all of them: not a bit may change.

Sizes decide the time and the memory only. What is compared with the slow reference here runs through many parts,
blocks, chunks and batches, lists that run out and queries that are too crowded for the fast way.
"""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import pytest

from candor_monai.metrics.evaluation import Evaluation, evaluate
from candor_monai.metrics.observations import Observations
from candor_monai.metrics.options import Options

from .test_evaluation import bits, compared_with_the_reference, plain

PLAIN = Options(k=3, total_interval=False, permutation_test=False, resamples=0, memory_bytes=2**20)

#: What each size may be, from so small that it always cuts to about the size of the cohort.
SIZES = {
    "neighbours.LONG": (0, 3, 40),
    "neighbours.GROUP": (2, 4, 16),
    "neighbours._SCORES": (1, 400, 5000),
    "neighbours._PART": (7, 33, 64),
    "neighbours._HELD": (1, 50, 2**21),
    "sweep.MANY": (1, 20, 100),
    "sweep._SHARE": (0.0, 0.1, 0.5),
    "sweep._DEEP": (0.5, 128),
    "shared_pass._BLOCK_BYTES": (1, 2000, 20_000),
    "shared_pass._BLOCK_ROWS": (5, 32, 2**14),
    "shared_pass._QUERIES": (3, 17, 64),
    "shared_pass._SAMPLE": (8, 30, 1000),
    "sweep._WORTH": (0, 500, 2**18),
    "sweep._FEW_PAIRS": (0, 4, 100),
    "sweep._SAVED": (0, 500, 2**20),
    "table_lists._PAIRS": (0, 100, 2**18),
    "margin_sweep._SLOW": (1, 20),
    "score_tables._QUERIES": (1, 13, 100),
    "score_tables._GROUP": (2, 4, 16),
    "score_tables._LARGE": (1, 3, 10),
    "score_tables._COLUMNS": (0.0, 0.4, 1.0),
    "margin_block._PAIRS": (0, 100),
    "sweep_space._ROWS": (1, 9, 50),
    "sweep_space._CENTRE_ROWS": (1, 20),
    "similarity._PAIRS": (1, 5, 64),
    "similarity._CACHED_BYTES": (1, 200),
    "keyed_hash._BLOCK": (1, 10),
    "neighbours.FEW": (0, 2, 64),
    "largest._FEW": (0, 2, 64),
    "largest._TABLE": (1, 100),
    "redraws._WORTH": (0, 1, 10**9),
    "redraws._LANES": (64,),
    "redraws._ENOUGH": (0.1, 1.0, 5.0),
    "shared_pass._FEWEST_QUERIES": (1, 9),
    "shared_pass._KEPT_BYTES": (96, 10**9),
}


def shrink(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    for name, allowed in SIZES.items():
        module, constant = name.split(".")
        owner = importlib.import_module(f"candor_monai.metrics.{module}")
        assert hasattr(owner, constant), name
        monkeypatch.setattr(owner, constant, allowed[rng.integers(len(allowed))])


def cohort(seed: int, kind: str, images: int = 130) -> tuple[np.ndarray, Observations]:
    rng = np.random.default_rng(seed)
    labels = (rng.random((images, 2)) < rng.uniform(0.15, 0.6, 2)).astype(int)
    labels[rng.random(labels.shape) < 0.05] = -1
    x = rng.standard_normal((images, 6)) + 0.7 * labels[:, :1].clip(0)
    if kind == "cone":
        x = 0.01 * x + 1
    elif kind == "copies":
        x = rng.integers(0, 2, (images, 3)) + 0.5
    elif kind == "opposite":
        x[::2] *= -1
    elif kind == "scales":
        x *= 10.0 ** rng.uniform(-30, 30, (images, 1))
    seen = Observations(
        [f"image {i}" for i in rng.permutation(images)],
        labels,
        ["edema", "mass"],
        group=(rng.random(images) < 0.2).astype(int),
        group_names=["AP", "PA"],
        patient=[f"patient {code}" for code in rng.integers(images // 2, size=images)],
        test=rng.random(images) < 0.3,
    )
    return x.astype(np.float32), seen


def random_options(rng: np.random.Generator) -> Options:
    sets = str(rng.choice(["image", "patient"]))
    return replace(
        PLAIN,
        k=int(rng.integers(1, 5)),
        seed=int(rng.integers(100)),
        sets=sets,
        queries=str(rng.choice(["all", "image_sample", "test"])),
        roles=str(rng.choice(["positives", "negatives"])),
        matched=bool(rng.random() < 0.7),
        max_candidates=int(rng.choice([12, 60, 4000])),
        max_queries=int(rng.choice([10, 4000])),
        balance_removed=bool(sets == "image" and rng.random() < 0.4),
        exclude_same_patient=bool(rng.random() < 0.4),
        precision=str(rng.choice(["int8", "bfloat16", "float32", "float64"])),
    )


KINDS = ["gauss", "cone", "copies", "opposite", "scales"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_tiny_sizes_equal_the_reference(kind, seed, monkeypatch):
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    features, seen = cohort(seed, kind)
    options = random_options(rng)
    shrink(monkeypatch, rng)
    assert compared_with_the_reference(evaluate(features, seen, options), features, seen, options) >= 1


def everything(evaluation: Evaluation) -> dict:
    redraws = [cell.dm_redraws.tobytes() for cell in evaluation.cells]
    return bits(evaluation) | {"grid": [plain(row) for row in evaluation.grid], "redraws": redraws}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_tiny_sizes_change_no_draw_and_no_point_of_the_grid(kind, seed, monkeypatch, number_of_threads):
    rng = np.random.default_rng([7, seed, KINDS.index(kind)])
    features, seen = cohort(seed + 10, kind, images=300)
    options = replace(random_options(rng), redraws=9, ks=(1, 6), sizes=(8, 15), max_candidates=40)
    want = everything(evaluate(features, seen, replace(options, precision="float64", memory_bytes=2**30)))
    shrink(monkeypatch, rng)
    number_of_threads(1 + seed % 2)
    assert everything(evaluate(features, seen, options)) == want


def test_tiny_sizes_change_no_interval_and_no_permutation(monkeypatch):
    """Of these sizes too none enters a result; blocks of floating-point products are left as they are."""
    features, seen = cohort(3, "gauss", images=260)
    options = Options(k=3, resamples=70, permutations=60, max_candidates=60, queries="test")
    want = bits(evaluate(features, seen, options))
    for name, value in {
        "half_samples._BLOCK": 7,
        "null_discordance._ELEMENTS": 50,
        "resampling._PATIENTS": 3,
        "permutation.CHECK_EVERY": 64,
        "total_interval._ORDERED": 500,
    }.items():
        module, constant = name.split(".")
        monkeypatch.setattr(importlib.import_module(f"candor_monai.metrics.{module}"), constant, value)
    shrink(monkeypatch, np.random.default_rng(5))
    assert bits(evaluate(features, seen, options)) == want
