"""Which precision is chosen: whole numbers only where they are fast, worth it and leave few pairs undecided."""

from __future__ import annotations

import numpy as np
import pytest

from candor_monai.metrics import space_choice, sweep_space, whole_numbers
from candor_monai.metrics.similarity import FeatureRows
from candor_monai.metrics.space_choice import chosen_space

MEMBERS = np.arange(3000)


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """As on a processor with products of 8 bits, and no units for bfloat16, whatever this one has."""
    monkeypatch.setattr(whole_numbers, "has_fast_products", lambda: True)
    monkeypatch.setattr(space_choice, "has_bfloat16_units", bool)
    monkeypatch.setattr(whole_numbers, "_product", exact_product)


def exact_product(left, right, out):
    out.copy_(left.double() @ right.double().T)


def falling_spectrum(dimension: int = 256) -> FeatureRows:
    """As encoders give them: a few directions hold most of the variance."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((3000, dimension)) / np.sqrt(np.arange(1, dimension + 1))
    return FeatureRows((features + 1).astype(np.float32))


def test_whole_numbers_for_features_like_those_of_encoders():
    space = chosen_space(falling_spectrum(), MEMBERS, MEMBERS[:2000], "auto")
    assert space.precision == "int8"
    assert space.is_coarse
    finer = space.finer()
    assert not finer.is_coarse
    assert (finer.centre == space.centre).all()
    assert finer.finer() is finer


def test_not_where_many_candidates_are_equally_near():
    rng = np.random.default_rng(1)
    plane = FeatureRows(rng.standard_normal((3000, 2)).astype(np.float32))
    assert not chosen_space(plane, MEMBERS, MEMBERS[:2000], "auto").is_coarse
    copies = FeatureRows(np.repeat(rng.standard_normal((10, 256)), 300, axis=0).astype(np.float32))
    assert not chosen_space(copies, MEMBERS, MEMBERS[:2000], "auto").is_coarse


def test_not_for_few_pairs():
    assert not chosen_space(falling_spectrum(), MEMBERS, MEMBERS[:100], "auto").is_coarse


def test_not_where_products_are_slow_or_wrong(monkeypatch):
    monkeypatch.setattr(whole_numbers, "products_are_exact", bool)
    assert not chosen_space(falling_spectrum(), MEMBERS, MEMBERS[:2000], "auto").is_coarse
    monkeypatch.setattr(whole_numbers, "has_fast_products", bool)
    assert not chosen_space(falling_spectrum(), MEMBERS, MEMBERS[:2000], "auto").is_coarse


def test_not_where_products_of_bfloat16_are_as_fast(monkeypatch):
    monkeypatch.setattr(space_choice, "has_bfloat16_units", lambda: True)
    monkeypatch.setattr(sweep_space, "has_bfloat16_units", lambda: True)
    assert chosen_space(falling_spectrum(), MEMBERS, MEMBERS[:2000], "auto").precision == "bfloat16"


def test_not_for_more_elements_than_sums_of_32_bits_hold(monkeypatch):
    monkeypatch.setattr(whole_numbers, "MOST_COLUMNS", 128)
    for precision in ("auto", "int8"):
        assert not chosen_space(falling_spectrum(), MEMBERS, MEMBERS[:2000], precision).is_coarse


@pytest.mark.parametrize("precision", ["float32", "float64", "int8"])
def test_what_was_asked_for_is_taken(precision):
    assert chosen_space(falling_spectrum(32), MEMBERS, MEMBERS[:3], precision).precision == precision


def test_a_sample_of_less_than_the_nearest_is_enough(monkeypatch):
    monkeypatch.setattr(space_choice, "_WORTH", 0)
    assert chosen_space(falling_spectrum(), MEMBERS[:3], MEMBERS[:1], "auto").is_coarse
