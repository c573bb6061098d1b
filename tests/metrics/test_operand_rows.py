"""Rows of matrix products against NumPy, and bfloat16 against PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from candor_monai.metrics.operand_rows import write_bfloat16, write_lengths, write_offsets


@pytest.mark.parametrize("dimension", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_offsets_their_lengths_and_products_with_the_centre(dimension, dtype):
    rng = np.random.default_rng(dimension)
    features = rng.standard_normal((40, dimension)).astype(np.float32)
    features *= np.float32(10.0) ** rng.uniform(-30, 30, (40, 1)).astype(np.float32)
    norms = np.linalg.norm(features.astype(np.float64), axis=1)
    members, centre = rng.permutation(40)[:17], rng.standard_normal(dimension).astype(np.float32)
    offset, length, bias = np.empty((17, dimension), dtype), np.empty(17), np.empty(17, dtype)
    write_offsets(features, members, norms[members], centre, offset, length, bias)
    want = (features[members].astype(np.float64) / norms[members, None]).astype(dtype) - centre.astype(dtype)
    tolerance = 8 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(offset, want, rtol=0, atol=tolerance)
    np.testing.assert_allclose(length, np.linalg.norm(offset, axis=1), rtol=dimension * tolerance)
    exact = offset.astype(np.float64) @ centre.astype(np.float64)
    np.testing.assert_allclose(bias, exact, rtol=0, atol=dimension * tolerance * np.abs(centre).max())
    again = np.empty(17)
    write_lengths(offset, again)
    assert (again == length).all()


def test_bfloat16_is_that_of_pytorch():
    rng = np.random.default_rng(0)
    offset = (rng.standard_normal((30, 70)) * 10.0 ** rng.integers(-20, 20, (30, 70))).astype(np.float32)
    half = np.float32(1) + np.float32(2.0**-8)  # between two bfloat16 numbers: to the even one
    offset[0, :4] = half, -half, half + np.float32(2.0**-7), 0
    want = torch.from_numpy(offset).bfloat16()
    left = offset - want.float().numpy()
    room, length = np.zeros((30, 73), np.int16), np.empty(30)
    write_bfloat16(offset, room[:, :70], length)
    assert (room[:, :70] == want.view(torch.int16).numpy()).all()
    assert (room[:, 70:] == 0).all()
    assert (offset == left).all()
    np.testing.assert_allclose(length, np.linalg.norm(left.astype(np.float64), axis=1), rtol=1e-5)
