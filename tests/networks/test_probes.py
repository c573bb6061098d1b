"""Synthetic images."""

from __future__ import annotations

import hashlib

import torch

from candor_monai.networks.probes import noise_image, plain_image, probe_image


def test_smallest_example_by_hand():
    # One pixel: sin(0) cos(0) = 0 in each colour, so 128.
    assert probe_image(1).flatten().tolist() == [128, 128, 128]
    assert plain_image(7, 1).flatten().tolist() == [7, 7, 7]


def test_the_probe_never_changes():
    """Golden embeddings are recorded with it."""
    digest = hashlib.sha256(probe_image().numpy().tobytes()).hexdigest()
    assert digest.startswith("45857ebd58097afe")


def test_shapes_and_seeds():
    for make in (probe_image, noise_image):
        assert make(16).shape == (1, 3, 16, 16)
        assert make(16).dtype == torch.uint8
        assert torch.equal(make(16, 3), make(16, 3))
        assert not torch.equal(make(16, 3), make(16, 4))
