"""Heads as networks, alone and behind an encoder, in MONAI's way."""

import pytest
import torch
from torch import Tensor, nn

from candor_monai.networks.heads import HeadedEncoder, LinearHeads
from candor_monai.utils import UserError, WeightsError

WEIGHT = torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[3.0, 0.0], [0.0, 2.0]]])  # two members, two findings
BIAS = torch.tensor([[0.0, -1.0], [0.0, -1.0]])


class Means(nn.Module):
    """An encoder that gives the means of an image's two halves."""

    dimension = 2

    def __init__(self, weights: str = "abc") -> None:
        super().__init__()
        self.fingerprint = {"encoder": "means", "weights": weights}

    def forward(self, images: Tensor) -> Tensor:
        return images.float().mean(dim=(1, 2)).reshape(len(images), 2, -1).mean(dim=2)


def _heads(output: str) -> LinearHeads:
    return LinearHeads(["a", "b"], WEIGHT, BIAS, [0.5, None], output)


def test_outputs_by_hand() -> None:
    features = torch.tensor([[3.0, 4.0]])  # z = (0.6, 0.8): logits 0.6 and 0.6; second member 1.8 and 0.6
    assert _heads("logits")(features)[0].tolist() == pytest.approx([0.6, 0.6])
    p, q = torch.sigmoid(torch.tensor([0.6, 1.8])).tolist()
    assert _heads("probabilities")(features)[0].tolist() == pytest.approx([p, p])
    assert _heads("ensemble")(features)[0].tolist() == pytest.approx([(p + q) / 2, p])
    assert _heads("decisions")(features)[0].tolist() == [1.0, -1.0]


def test_the_scale_of_a_feature_is_immaterial() -> None:
    features = torch.randn(5, 2)
    assert torch.equal(_heads("logits")(features), _heads("logits")(features * 4))


def test_heads_have_nothing_to_train() -> None:
    assert list(_heads("logits").parameters()) == []


def test_unknown_output_names_the_nearest() -> None:
    with pytest.raises(UserError, match="logits"):
        _heads("logit")


@pytest.mark.parametrize("features", [torch.zeros(2, 3), torch.zeros(2)])
def test_features_of_another_shape_are_refused(features: Tensor) -> None:
    with pytest.raises(ValueError, match="must have shape"):
        _heads("logits")(features)


def test_parts_must_fit() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        LinearHeads(["a"], WEIGHT, BIAS, [0.0])
    with pytest.raises(ValueError, match="1 thresholds for 2"):
        LinearHeads(["a", "b"], WEIGHT, BIAS, [0.0])


def test_behind_an_encoder_with_monais_inferer() -> None:
    from monai.inferers import SimpleInferer

    network = HeadedEncoder(Means(), _heads("logits"))
    images = torch.rand(3, 3, 4, 4)
    expected = _heads("logits")(Means()(images))
    assert torch.equal(SimpleInferer()(images, network), expected)
    assert network.findings == ("a", "b")


def test_an_encoder_of_another_dimension_is_refused() -> None:
    encoder = Means()
    encoder.dimension = 7
    with pytest.raises(WeightsError, match="features of 2 numbers, the encoder gives 7"):
        HeadedEncoder(encoder, _heads("logits"))


def test_a_file_is_accepted_for_its_own_encoder_only(tmp_path) -> None:
    from candor_monai.networks.head_files import head_card, save_heads
    from candor_monai.networks.linear_heads import HeadOptions, HeadWeights

    path = tmp_path / "heads.safetensors"
    encoder = {"name": "means", "fingerprint": Means().fingerprint}
    save_heads(path, HeadWeights(WEIGHT, BIAS), head_card(["a", "b"], [0.5, None], HeadOptions(), ["i1"], encoder))
    images = torch.rand(2, 3, 4, 4)
    found = HeadedEncoder(Means(), path, output="decisions")(images)
    assert torch.equal(found, _heads("decisions")(Means()(images)))
    with pytest.raises(WeightsError, match="differs in weights"):
        HeadedEncoder(Means("other"), path)
    with pytest.raises(UserError, match="no fingerprint"):
        HeadedEncoder(nn.Flatten(), path)
    save_heads(path, HeadWeights(WEIGHT, BIAS), head_card(["a", "b"], [0.5, None], HeadOptions(), ["i1"], {}))
    with pytest.raises(WeightsError, match="names no encoder fingerprint"):
        HeadedEncoder(Means(), path)
