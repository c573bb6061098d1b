"""An encoder with trained heads written out as a MONAI bundle: images in, a probability per finding out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from candor_monai import __version__
from candor_monai.utils import UserError, WeightsError, atomic_write

from .bundle_export import INFERENCE, encoder_metadata, encoder_of, exportable, write_weights
from .cards import EncoderCard, load_card
from .encoders import checked_device
from .head_files import load_heads, read_head_card
from .heads import HeadedEncoder, LinearHeads, check_fingerprint
from .weights import check_sha256, read_state

HEADS = "configs/heads.json"
_BACKBONE = "encoder.backbone."


def export_classifier_bundle(
    encoder: str | Path | Mapping[str, Any] | EncoderCard,
    heads: str | Path,
    folder: str | Path,
    weights_dir: str | Path | None = None,
    version: str = "0.1.0",
) -> Path:
    """Write a MONAI bundle around an encoder and its heads.

    MONAI Label's ``monaibundle`` app lists a bundle as classification when its folder's name says so.

    Args:
        encoder: name, path or content of a card.
        heads: heads file (``heads.safetensors`` of an evaluation) that was trained on this encoder's features.
        folder: the bundle's root; made when absent, and must hold no bundle yet.
        weights_dir: folder with one folder an encoder.
        version: the bundle's own version.

    Returns:
        the bundle's root.

    Raises:
        UserError: the folder holds a bundle already, or the encoder cannot be exported.
        WeightsError: the weights are missing or wrong, or the heads belong to another encoder.
    """
    root = Path(folder)
    card = read_head_card(heads)
    loaded = exportable(encoder, root, weights_dir)
    check_fingerprint(loaded, card.get("encoder", {}).get("fingerprint"), str(heads))
    network = HeadedEncoder(loaded, load_heads(heads, "probabilities"))
    write_weights(root, loaded, network.state_dict(), weights_dir)
    atomic_write(root / HEADS, json.dumps(card, indent=1, allow_nan=False) + "\n")
    atomic_write(root / "configs" / "metadata.json", json.dumps(_metadata(network, version), indent=4) + "\n")
    atomic_write(root / "configs" / "inference.yaml", _inference(loaded.card.title))
    atomic_write(root / "docs" / "README.md", _readme(network, card))
    return root


def bundled_classifier(
    card: str | Path | Mapping[str, Any],
    weights: str | Path,
    heads: str | Path,
    device: str | torch.device = "cpu",
    precision: str = "float32",
    output: str = "probabilities",
) -> HeadedEncoder:
    """The network of a bundle that :func:`export_classifier_bundle` wrote.

    Args:
        card: the encoder's card in the bundle.
        weights: ``models/model.pt``.
        heads: the heads' card.
        device, precision: as for any encoder.
        output: see :class:`~candor_monai.networks.heads.LinearHeads`.

    Raises:
        UserError: a file is not there.
        WeightsError: the weights are not those of the card.
    """
    own, path = load_card(card), Path(weights)
    for needed in (path, Path(heads)):
        if not needed.is_file():
            raise UserError(f"{needed}: no such file; it comes with the bundle.")
    check_sha256(path, own)
    state = read_state(path)
    try:
        findings = json.loads(Path(heads).read_text(encoding="utf-8"))["findings"]
        tau = [None if value != value else value for value in state["heads.tau"].tolist()]
        trained = LinearHeads(findings, state["heads.weight"], state["heads.bias"], tau, output)
    except (KeyError, ValueError, AttributeError) as error:
        raise WeightsError(f"{path}: not the weights of an encoder with the heads of {heads} ({error}).") from error
    backbone = {key.removeprefix(_BACKBONE): value for key, value in state.items() if key.startswith(_BACKBONE)}
    encoder = encoder_of(own, backbone, path, device, precision)
    network: HeadedEncoder = HeadedEncoder(encoder, trained).to(checked_device(device))
    return network


def _metadata(network: HeadedEncoder, version: str) -> dict[str, Any]:
    encoder, findings = network.encoder, network.findings
    metadata = encoder_metadata(encoder, version)  # type: ignore[arg-type]
    title = str(encoder.card.title)  # type: ignore[union-attr]
    outputs = metadata["network_data_format"]["outputs"]["pred"]
    outputs |= {
        "type": "probabilities",
        "format": "classes",
        "num_channels": len(findings),
        "value_range": [0, 1],
        "channel_def": {str(i): finding for i, finding in enumerate(findings)},
    }
    return metadata | {
        "name": f"Linear heads on {title}",
        "task": "Findings of medical images from a frozen encoder and linear heads",
        "description": f"Probability of {', '.join(findings)}: linear heads on {title}, frozen.",
        "intended_use": "Research use. Not a diagnosis.",
        "label_classes": "one finding a channel, present or absent",
        "pred_classes": "probability of each finding",
    }


def _inference(title: str) -> str:
    """The encoder's inference, with heads, probabilities and a file of their own."""
    text = INFERENCE.format(title=title)
    for old, new in (
        ("# Features of every image of a folder from", "# Findings of every image of a folder: linear heads on"),
        ("candor_monai.networks.bundled_encoder", "candor_monai.networks.bundled_classifier"),
        (
            "  weights: \"$@bundle_root + '/models/model.pt'\"\n",
            "  weights: \"$@bundle_root + '/models/model.pt'\"\n  heads: \"$@bundle_root + '/configs/heads.json'\"\n",
        ),
        # what reads a prediction as a MetaTensor, as MONAI Label does, finds one
        ("  transforms: []\n", "  transforms:\n  - _target_: EnsureTyped\n    keys: pred\n    track_meta: true\n"),
        ("features.csv", "findings.csv"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def _readme(network: HeadedEncoder, card: Mapping[str, Any]) -> str:
    title = network.encoder.card.title  # type: ignore[union-attr]
    return (
        f"# Linear heads on {title}\n\nA frozen encoder with one linear head a finding as a MONAI bundle, exported by "
        f"candor_monai {__version__}.\n\n| | |\n|---|---|\n"
        f"| findings | {', '.join(network.findings)} |\n"
        f"| training images | {card.get('n_training_images', 'not stated')} |\n"
        f"| encoder | {title}: configs/encoder.yaml |\n| heads | configs/heads.json |\n\n"
        "Findings of a folder of images (DICOM, PNG, JPEG, TIFF, NIfTI), into `output_dir/findings.csv`:\n\n"
        "    python -m monai.bundle run --config_file configs/inference.yaml --bundle_root . --dataset_dir <folder>\n\n"
        "In MONAI Label's monaibundle app: docs/monai_label.md of candor_monai. Research use only; not a diagnosis.\n"
    )
