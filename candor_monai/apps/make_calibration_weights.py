"""Make ``models/model.pt`` of the bundle: the state dict of its default encoder, the calibration encoder ``marker``.

    python -m candor_monai.apps.make_calibration_weights bundles/candor_eval/models/model.pt

The encoder is closed-form, so the file holds nothing that the code does not say; MONAI's tools for bundles want one.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import torch

from candor_monai.networks.encoders import load_encoder
from candor_monai.utils.atomic import atomic_write


def calibration_weights() -> dict[str, torch.Tensor]:
    """The state dict, in the keys of the bundle's ``network_def``."""
    return {key: value.contiguous() for key, value in load_encoder("marker").state_dict().items()}


def main(path: str) -> None:
    """Write the file."""
    content = io.BytesIO()
    torch.save(calibration_weights(), content)
    atomic_write(Path(path), content.getvalue())


if __name__ == "__main__":
    main(*sys.argv[1:])
