"""A frozen encoder as TorchScript takes it: its forward pass traced at one feature point.

Annotations stand as objects here, not as text: the TorchScript compiler reads them.
"""

import torch
from torch import nn

from candor_monai.data.decoding import CANONICAL_SIZE

EXAMPLE_SIDE = CANONICAL_SIZE


class ScriptedEncoder(nn.Module):
    """A traced forward pass.

    Args:
        traced: from processed images, (B, C, H, W) float, to features, (B, d) float32.
    """

    def __init__(self, traced: torch.jit.ScriptModule) -> None:
        super().__init__()
        self.traced = traced

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.traced(images)


class _AtPoint(nn.Module):
    def __init__(self, backbone: nn.Module, point: str) -> None:
        super().__init__()
        self.backbone = backbone
        self.point = point

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.backbone(images, self.point).float()


def scripted_encoder(backbone: nn.Module, point: str, channels: int, side: int | None) -> ScriptedEncoder:
    """Trace a backbone on two blank images.

    Args:
        backbone: called as ``backbone(images, point)``.
        point: feature point.
        channels, side: of its input; ``side`` None takes the canonical one.
    """
    device = next((tensor.device for tensor in backbone.state_dict().values()), torch.device("cpu"))
    example = torch.zeros(2, channels, side or EXAMPLE_SIDE, side or EXAMPLE_SIDE, device=device)
    with torch.no_grad():
        traced = torch.jit.trace(_AtPoint(backbone, point).eval(), example, check_trace=False)
    return ScriptedEncoder(traced)
