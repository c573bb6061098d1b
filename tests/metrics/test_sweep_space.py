"""The error bound of the scores: it must hold on everything, and not be idle."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from candor_monai.metrics import whole_numbers
from candor_monai.metrics.neighbours import lower_bound, upper_bound
from candor_monai.metrics.similarity import FeatureRows
from candor_monai.metrics.sweep_space import SweepSpace, choose_precision

PRECISIONS = ["int8", "bfloat16", "float32", "float64"]


def made(kind: str, count: int = 160, dimension: int = 48) -> np.ndarray:
    rng = np.random.default_rng(len(kind))
    x = rng.standard_normal((count, dimension))
    if kind == "cone 0.999":
        x = 0.03 * x + rng.standard_normal(dimension)
    elif kind == "cone 1 - 1e-6":
        x = 1e-3 * x + rng.standard_normal(dimension)
    elif kind == "equal":
        x[:] = x[0]
    elif kind == "one huge column":
        x[:, 3] *= 1e4
    elif kind == "scales":
        x *= np.exp(20 * rng.standard_normal((count, 1)))
    elif kind == "extreme scales":
        x *= 10.0 ** rng.uniform(-37, 35, (count, 1))
    elif kind == "opposite":
        x[::2] = -x[1::2]
    elif kind == "sparse":
        x[rng.random(x.shape) < 0.95] = 0
        x[:, 0] += 1e-3
    elif kind == "one column":
        x = x[:, :1]
    return x.astype(np.float32)


KINDS = [
    "gauss",
    "cone 0.999",
    "cone 1 - 1e-6",
    "equal",
    "one huge column",
    "scales",
    "extreme scales",
    "opposite",
    "sparse",
    "one column",
]


def deviations(features: np.ndarray, precision: str, centred: bool = True):
    """(stored score − exact similarity + ⟨z_q, μ⟩ in exact arithmetic, allowed), both (queries, candidates)."""
    rows = FeatureRows(features)
    everyone = np.arange(len(features))
    space = SweepSpace(rows, everyone if centred else everyone[:1], precision)
    candidates, queries = space.candidates(everyone), space.queries(everyone[:20])
    stored = space.scores(candidates, queries).double().numpy().T
    exact = rows.similarities(np.repeat(everyone[:20], len(everyone)), np.tile(everyone, 20)).reshape(20, -1)
    error = space.error(candidates, queries)[:, None]
    shift = np.array([exact_shift(features[q], space.centre) for q in range(20)])[:, None]
    truth = exact - shift
    return stored, truth, error, space


def exact_shift(row: np.ndarray, centre: np.ndarray) -> float:
    """⟨x/‖x‖, μ⟩ from exact rational sums, rounded at the end."""
    numbers = [Fraction(float(value)) for value in row]
    product = sum(a * Fraction(float(b)) for a, b in zip(numbers, centre, strict=True))
    square = sum(a * a for a in numbers)
    scale = 2 ** max(0, -(square.numerator.bit_length() - square.denominator.bit_length()) // 2)
    return float(product * scale) / float(square * scale * scale) ** 0.5


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_holds(kind, precision):
    for centred in (True, False):
        stored, truth, error, space = deviations(made(kind), precision, centred)
        assert (lower_bound(space, stored, error) <= truth + 1e-15).all()
        assert (upper_bound(space, stored, error) >= truth - 1e-15).all()


@pytest.mark.parametrize(
    ("precision", "most"), [("int8", 0.05), ("bfloat16", 0.02), ("float32", 2e-4), ("float64", 1e-11)]
)
def test_the_bound_is_worth_having(precision, most):
    stored, _, error, space = deviations(made("gauss", dimension=768), precision)
    width = upper_bound(space, stored, error) - lower_bound(space, stored, error)
    assert width.max() < most


def test_centring_narrows_the_bound_of_a_cone():
    """The rounding of bfloat16 shrinks with the width of the cone."""
    _, _, wide, _ = deviations(made("gauss"), "bfloat16")
    _, _, narrow, _ = deviations(made("cone 0.999"), "bfloat16")
    assert narrow.max() < wide.max() / 50


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_of_whole_numbers_holds_without_fast_products(kind, monkeypatch):
    monkeypatch.setattr(whole_numbers, "has_fast_products", bool)
    stored, truth, error, space = deviations(made(kind), "int8")
    assert (lower_bound(space, stored, error) <= truth + 1e-15).all()
    assert (upper_bound(space, stored, error) >= truth - 1e-15).all()


@pytest.mark.parametrize("kind", KINDS)
def test_shifts_are_what_scores_lack(kind):
    features = made(kind)
    space = SweepSpace(FeatureRows(features), np.arange(len(features)), "float32")
    exact = [exact_shift(features[query], space.centre) for query in range(20)]
    assert np.abs(space.shifts(np.arange(20)) - exact).max() < 1e-11


def test_parts_of_an_operand_are_its_rows():
    rows = FeatureRows(made("gauss"))
    space = SweepSpace(rows, np.arange(160), "int8")
    whole, some = space.candidates(np.arange(160)), np.array([3, 9, 4])
    for part, members in ((whole.take(some), some), (whole.part(slice(5, 9)), np.arange(5, 9))):
        own = space.candidates(members)
        assert all((getattr(part, name) == getattr(own, name)).all() for name in vars(own))


def test_precision_by_name():
    assert choose_precision("float64") == "float64"
    assert choose_precision("float32") == "float32"
    assert choose_precision("auto") in ("bfloat16", "float32")
    assert choose_precision("int8") == "int8"


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_a_product_with_a_narrow_accumulator_is_not_used(precision, monkeypatch):
    """A library that keeps 8 bits of its sums, or of its factors, is found out."""
    product = torch.mm

    def narrow(left, right):
        total = torch.zeros((len(left), right.shape[1]), dtype=torch.bfloat16)
        for column in range(left.shape[1]):
            total += left[:, column : column + 1].bfloat16() * right[column : column + 1].bfloat16()
        return total.to(left.dtype)

    monkeypatch.setattr(torch, "mm", narrow)
    assert choose_precision(precision) == "float64"
    monkeypatch.setattr(torch, "mm", lambda left, right: product(left.bfloat16(), right.bfloat16()).to(left.dtype))
    assert choose_precision("float32") == "float64"


def test_a_global_setting_that_allows_less_changes_no_bit():
    """With float32 products allowed in bfloat16, the float32 sweep is not used, or is exact all the same."""
    before = torch.backends.mkldnn.matmul.fp32_precision
    try:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        stored, truth, error, space = deviations(made("gauss"), choose_precision("float32"))
        assert (lower_bound(space, stored, error) <= truth + 1e-15).all()
        assert (upper_bound(space, stored, error) >= truth - 1e-15).all()
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before
