"""Rows as whole numbers: the mixing is orthogonal, products are exact, and a wrong product is found out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from candor_monai.metrics import whole_numbers


def rounded(rows: np.ndarray) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """(q, s, what is left) of rows."""
    left = rows.copy()
    matrix = np.full((len(rows), whole_numbers.columns_of(rows.shape[1])), 99, np.int8)
    scale = np.empty(len(rows), np.float32)
    whole_numbers.write_rounded(left, matrix, scale)
    return torch.from_numpy(matrix), scale, left


def mixed(rows: np.ndarray) -> np.ndarray:
    """The rows that the whole numbers and what is left stand for."""
    matrix, scale, left = rounded(rows)
    return scale[:, None].astype(np.float64) * matrix.numpy()[:, : rows.shape[1]] + left


@given(seed=st.integers(0, 2**32 - 1), dimension=st.sampled_from([1, 2, 3, 15, 16, 17, 32, 48, 100, 512, 768, 1000]))
def test_mixing_keeps_every_product(seed, dimension):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((6, dimension)).astype(np.float32)
    rows[1] = 0
    rows[2] = np.eye(1, dimension, rng.integers(dimension))
    turned = mixed(rows)
    allowed = 2.0**-24 * whole_numbers.steps_of_mixing(dimension) * 2
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    difference = np.abs(turned @ turned.T - rows.astype(np.float64) @ rows.astype(np.float64).T)
    assert (difference <= 2 * allowed * np.outer(lengths, lengths) + 1e-30).all()


def test_a_row_with_one_large_element_is_spread_out():
    """Without mixing the largest element sets the scale, and the others are left with a few whole numbers."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((50, 768)).astype(np.float32)
    plain = np.linalg.norm(rounded(rows)[2], axis=1) / np.linalg.norm(rows, axis=1)
    rows[:, [0, 5, 300]] *= 30
    large = np.linalg.norm(rounded(rows)[2], axis=1) / np.linalg.norm(rows, axis=1)
    assert plain.max() < 0.012
    assert large.max() < 0.02
    unmixed = np.abs(rows).max(axis=1) / 127 * np.sqrt(768 / 12) / np.linalg.norm(rows, axis=1)
    assert large.mean() < unmixed.mean() / 2


def test_whole_numbers_use_their_range_and_the_rest_is_less_than_half_a_step():
    rows = np.random.default_rng(1).standard_normal((20, 70)).astype(np.float32)
    matrix, scale, left = rounded(rows)
    assert (np.abs(matrix.numpy()).max(axis=1) == 127).all()
    assert (matrix[:, 70:] == 0).all()
    assert (np.abs(left) <= 0.5001 * scale[:, None]).all()


@pytest.mark.parametrize("value", [0.0, 1e-38, 1e-45])
def test_rows_next_to_nothing_are_zero(value):
    matrix, scale, left = rounded(np.full((2, 40), value, np.float32))
    assert not matrix.any()
    assert not scale.any()
    assert np.isfinite(left).all()


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 1), (17, 5, 70), (130, 33, 1500), (0, 3, 4), (3, 0, 4)])
def test_products_are_those_of_whole_numbers(shape, fast, monkeypatch):
    if not (fast and whole_numbers.has_fast_products()):
        monkeypatch.setattr(whole_numbers, "has_fast_products", bool)
    rng = np.random.default_rng(sum(shape))
    members, asked, columns = shape[0], shape[1], whole_numbers.columns_of(shape[2])
    left = torch.from_numpy(rng.integers(-127, 128, (members, columns)).astype(np.int8))
    right = torch.from_numpy(rng.integers(-127, 128, (asked, columns)).astype(np.int8))
    scale, bias, other = (rng.standard_normal(size).astype(np.float32) for size in (members, members, asked))
    out = torch.empty((members, asked))
    whole_numbers.write_products(left, scale, bias, right, other, out)
    product = left.numpy().astype(np.int64) @ right.numpy().astype(np.int64).T
    expected = product.astype(np.float32) * (scale[:, None] * other) + bias[:, None]
    assert (out.numpy() == expected).all()


def test_a_wrong_product_is_found_out(monkeypatch):
    product = whole_numbers._product

    def wrong(left, right, out):
        product(left, right, out)
        out[3, 1] += 1

    monkeypatch.setattr(whole_numbers, "_product", wrong)
    matrix, scale, _ = rounded(np.random.default_rng(0).standard_normal((8, 20)).astype(np.float32))
    with pytest.raises(RuntimeError, match=r"row 3 of a product .* \(8, 8\), is wrong .*precision='float32'"):
        whole_numbers.write_products(matrix, scale, scale, matrix, scale, torch.empty((8, 8)))


def test_a_saturating_product_is_not_used(monkeypatch):
    """Without the right instructions numbers are made 0 to 255, and pairs of products add up in 16 bits."""

    def saturating(left, right, out):
        pairs = (left.double() + 128)[:, None, :] * right.double()[None]
        pairs = pairs.unflatten(2, (-1, 2)).sum(dim=3).clamp(-(2**15), 2**15 - 1)
        out.copy_(pairs.sum(dim=2) - 128 * right.double().sum(dim=1))

    whole_numbers.products_are_exact.cache_clear()
    try:
        assert whole_numbers.products_are_exact()
        whole_numbers.products_are_exact.cache_clear()
        monkeypatch.setattr(whole_numbers, "_product", saturating)
        assert not whole_numbers.products_are_exact()
    finally:
        whole_numbers.products_are_exact.cache_clear()
