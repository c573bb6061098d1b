"""Two encoders whose discordance is known: one cannot see the phantom's marker, one sees little else.

Both are closed-form: nothing in them is learnt or drawn. They go with the images of
:mod:`candor_monai.data.phantom`.
"""

import math

import numpy as np
import torch
from torch import Tensor, nn

from candor_monai.data.phantom import AMPLITUDE, MARKER_HALF, SIDE, marker_pattern, mean_background

BLUR = 12.0  # standard deviation of the blur, in pixels
GRID = 7  # points a side at which the blurred image is read
BLIND_FEATURES = 32
STRIDE = 3  # of the matched filters, in pixels; at worst a response loses 4 %


class CalibrationEncoder(nn.Module):
    """Encoder of the calibration experiment.

    ``blind``: the image under a blur so wide that a marker, a zero-mean pattern of fine stripes, vanishes in it
    (its contrast falls by e^-16), read on a coarse grid, less the anatomy that all phantoms share and less its own
    mean, and projected. It knows the background and nothing about the marker.

    ``marker``: first, for each of the two markers, whether one is anywhere in the image (energy of a matched filter,
    its maximum over the image, pressed into -1 or 1); then the blind features at a twentieth of their scale, so that
    no two images tie.

    Both kinds hold the same buffers, so that one weight file serves both.

    Args:
        kind: ``"blind"`` or ``"marker"``.

    Shapes:
        images: (B, 3, H, W), uint8, or floating with white at 1. Output: (B, 32) for ``blind``, (B, 34) for
        ``marker``, float32; finite and never zero.

    Raises:
        ValueError: another kind.
    """

    blur: Tensor
    centre: Tensor
    projection: Tensor
    envelope: Tensor
    stripes: Tensor

    def __init__(self, kind: str = "blind") -> None:
        super().__init__()
        if kind not in ("blind", "marker"):
            raise ValueError(f"kind must be 'blind' or 'marker', got {kind!r}")
        self.sighted = kind == "marker"
        self.side, self.stride, self.height = SIDE, STRIDE, AMPLITUDE  # TorchScript sees attributes, not globals
        self.register_buffer("blur", blur_matrix())
        self.register_buffer("centre", coarse_centre())
        self.register_buffer("projection", projection_matrix())
        envelope, stripes = marker_filters()
        self.register_buffer("envelope", envelope)
        self.register_buffer("stripes", stripes)

    def forward(self, images: Tensor) -> Tensor:
        if images.dtype == torch.uint8:
            images = images.float() / 255.0
        grey = images.mean(dim=1, keepdim=True)
        if grey.shape[-1] != self.side or grey.shape[-2] != self.side:
            grey = nn.functional.interpolate(grey, size=[self.side, self.side], mode="bilinear", antialias=True)
        background = self.background(grey)
        if not self.sighted:
            return background
        scale = background.square().sum(dim=1, keepdim=True).sqrt()
        return torch.cat([self.seen(grey), 0.05 * background / scale], dim=1)

    def background(self, grey: Tensor) -> Tensor:
        """The blind features of grey images (B, 1, 224, 224)."""
        coarse = torch.matmul(torch.matmul(self.blur, grey[:, 0]), self.blur.t()).flatten(1) - self.centre
        centred = coarse - coarse.mean(dim=1, keepdim=True)
        return torch.matmul(centred, self.projection) + 1e-3

    def seen(self, grey: Tensor) -> Tensor:
        """For each marker, 1 when it is in the image, -1 when not; shape (B, 2)."""
        step = self.stride
        upright = nn.functional.conv2d(grey, self.envelope[:, :, :, None], stride=[step, 1])
        vertical = nn.functional.conv2d(upright, self.stripes[:, :, None, :], stride=[1, step])
        level = nn.functional.conv2d(grey, self.envelope[:, :, None, :], stride=[1, step])
        horizontal = nn.functional.conv2d(level, self.stripes[:, :, :, None], stride=[step, 1])
        energy = torch.stack([vertical, horizontal], dim=1).square().sum(dim=2)
        largest = energy.flatten(2).amax(dim=2).sqrt()
        return torch.tanh((largest / self.height - 0.5) * 12.0)


def blur_matrix() -> Tensor:
    """Gaussian weights of the blurred image's grid points, one dimension; shape (7, 224), float32."""
    pixels = torch.arange(SIDE, dtype=torch.float64) + 0.5
    points = (torch.arange(GRID, dtype=torch.float64) + 0.5) * (SIDE / GRID)
    weights = torch.exp(-0.5 * ((pixels - points[:, None]) / BLUR) ** 2)
    return (weights / weights.sum(dim=1, keepdim=True)).float()


def coarse_centre() -> Tensor:
    """The mean phantom under the blur, at the grid points; shape (49,), float32."""
    blur = blur_matrix().double()  # in float64, so that the rounded result does not depend on the number of threads
    return (blur @ torch.from_numpy(mean_background()).double() @ blur.t()).flatten().float()


def projection_matrix() -> Tensor:
    """Orthonormal projection of the 49 grid points: the 32 lowest cosine patterns but the flat one; (49, 32)."""
    point = torch.arange(GRID, dtype=torch.float64) + 0.5
    waves = torch.stack([torch.cos(math.pi * point * order / GRID) for order in range(GRID)])
    waves = waves / waves.norm(dim=1, keepdim=True)
    orders = sorted((u * u + v * v, u, v) for u in range(GRID) for v in range(GRID))[1 : BLIND_FEATURES + 1]
    return torch.stack([torch.outer(waves[u], waves[v]).flatten() for _, u, v in orders], dim=1).float()


def marker_filters() -> tuple[Tensor, Tensor]:
    """Matched filters, each a product of a profile along the stripes and one across them.

    Returns:
        envelope, shape (1, 1, 31), and stripes (cosine and sine, of zero mean), shape (2, 1, 31), float32; the energy
        of both products is 1 for a marker of height 1 under their middle.
    """
    place = np.arange(2 * MARKER_HALF + 1) - MARKER_HALF
    middle = np.zeros(1)
    envelope = marker_pattern("vertical", place, middle)[:, 0]
    stripes = np.stack([marker_pattern("vertical", middle, place, phase)[0] for phase in (0.0, -math.pi / 2)])
    stripes -= stripes.mean(axis=1, keepdims=True)
    envelope /= np.square(envelope).sum()
    stripes /= np.square(stripes).sum(axis=1, keepdims=True)
    return torch.from_numpy(envelope)[None, None].float(), torch.from_numpy(stripes)[:, None].float()


def blind() -> CalibrationEncoder:
    """The encoder that cannot see the marker."""
    return CalibrationEncoder("blind")


def marker() -> CalibrationEncoder:
    """The encoder that sees the marker."""
    return CalibrationEncoder("marker")
