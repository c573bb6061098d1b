"""A loaded encoder written out as a MONAI bundle of its own."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from candor_monai import __version__
from candor_monai.data.decoding import CANONICAL_SIZE
from candor_monai.utils import UserError, atomic_path, atomic_write

from .backbones import Backbone, OpenClipBackbone, TransformersBackbone
from .cards import EncoderCard, ProcessorCard, load_card
from .encoders import FrozenEncoder, checked_device, load_encoder
from .loaders import filled_backbone
from .locations import locate
from .open_clip_models import open_clip_config
from .processors import EncoderProcessor
from .weights import check_sha256, load_strict, read_state

SCHEMA_URL = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
WEIGHTS = "models/model.pt"
CARD = "configs/encoder.yaml"
_WRITTEN = (WEIGHTS, CARD, "configs/metadata.json", "configs/inference.yaml", "docs/README.md", "LICENSE")

_ALREADY = {"exported": "an exported program", "monai_bundle": "a MONAI bundle"}  # loaders that are not exported again
_NOT_CONFIG = ("transformers_version", "architectures", "model_type", "dtype", "torch_dtype", "_name_or_path")


def export_encoder_bundle(
    encoder: str | Path | Mapping[str, Any] | EncoderCard,
    folder: str | Path,
    weights_dir: str | Path | None = None,
    version: str = "0.1.0",
) -> Path:
    """Write a MONAI bundle around one encoder: metadata, inference config, card, docs, licence note and weights.

    The bundle needs candor_monai and nothing else of this machine. Its network takes processed images (B, channels,
    size, size) float32, or canonical images (B, 3, H, W) uint8, and gives features (B, dimension) float32.

    Args:
        encoder: name, path or content of a card.
        folder: the bundle's root; made when absent, and must hold no bundle yet nor any file that would be replaced.
        weights_dir: folder with one folder an encoder.
        version: the bundle's own version.

    Returns:
        the bundle's root.

    Raises:
        UserError: the folder holds a bundle or a file of one already, or is a file; or the encoder is a bundle or an
            exported program itself, or names no class of its own.
        WeightsError: the weights are missing or wrong.
    """
    root = Path(folder)
    loaded = exportable(encoder, root, weights_dir)
    write_weights(root, loaded, loaded.backbone.state_dict(), weights_dir)
    atomic_write(root / "configs" / "metadata.json", json.dumps(encoder_metadata(loaded, version), indent=4) + "\n")
    atomic_write(root / "configs" / "inference.yaml", INFERENCE.format(title=loaded.card.title))
    atomic_write(root / "docs" / "README.md", _readme(loaded))
    return root


def exportable(
    encoder: str | Path | Mapping[str, Any] | EncoderCard, root: Path, weights_dir: str | Path | None
) -> FrozenEncoder:
    """The loaded encoder, if it can be written as a bundle into ``root``.

    Raises:
        UserError: as :func:`export_encoder_bundle` says.
    """
    card = load_card(encoder)
    _check_exportable(card, root)
    return load_encoder(card, weights_dir=weights_dir)


def write_weights(
    root: Path, loaded: FrozenEncoder, state: Mapping[str, torch.Tensor], weights_dir: str | Path | None
) -> None:
    """Write weights, the encoder's card and the licence note of a bundle."""
    card = loaded.card
    source, _ = locate(card, weights_dir, download=False)
    with atomic_path(root / WEIGHTS) as temporary:
        torch.save(dict(state), temporary)
    written = _bundle_card(loaded, source, check_sha256(root / WEIGHTS, dataclasses.replace(card, sha256=None)))
    atomic_write(root / CARD, yaml.safe_dump(written.as_dict(), sort_keys=False, allow_unicode=True))
    atomic_write(root / "LICENSE", _licence(card))


def _check_exportable(card: EncoderCard, root: Path) -> None:
    """What can be refused is refused before weights are loaded.

    Raises:
        UserError: as ``export_encoder_bundle`` says.
    """
    if (root / "configs" / "metadata.json").exists():
        raise UserError(f"{root}: holds a bundle already; name another folder.")
    if root.exists() and not root.is_dir():
        raise UserError(f"{root}: is a file; name a folder for the bundle.")
    there = next((name for name in _WRITTEN if (root / name).exists()), None)
    if there is not None:
        raise UserError(f"{root}: holds {there} already, which would be lost; name another folder.")
    if card.loader in _ALREADY:
        raise UserError(f"encoder {card.name!r} is {_ALREADY[card.loader]} itself and cannot be exported again.")
    if card.loader == "transformers" and str(card.architecture).startswith("Auto"):
        raise UserError(f"encoder {card.name!r}: name its class instead of {card.architecture} to export it.")


def bundled_encoder(
    card: str | Path | Mapping[str, Any],
    weights: str | Path,
    device: str | torch.device = "cpu",
    precision: str = "float32",
) -> FrozenEncoder:
    """The encoder of a bundle that ``export_encoder_bundle`` wrote.

    Raises:
        UserError: there is no such file, or the card is none of an exported bundle.
        WeightsError: the weights are not those of the card.
    """
    own, path = load_card(card), Path(weights)
    if not path.is_file():
        raise UserError(f"{path}: no such file; it comes with the bundle.")
    if own.loader in _ALREADY:
        raise UserError(f"{own.name!r}: a card of loader {own.loader!r} is not that of an exported bundle.")
    check_sha256(path, own)
    return encoder_of(own, read_state(path), path, device, precision)


def encoder_of(
    own: EncoderCard,
    state: Mapping[str, torch.Tensor],
    path: Path,
    device: str | torch.device = "cpu",
    precision: str = "float32",
) -> FrozenEncoder:
    """A frozen encoder from a backbone's state that was read already.

    Args:
        own: the bundle's card.
        state: of the backbone.
        path: where it was read, for messages.
        device, precision: as in :func:`bundled_encoder`.
    """

    def fill(backbone: Backbone) -> None:
        load_strict(backbone, state, own, path)

    backbone = filled_backbone(own, fill)
    return FrozenEncoder(backbone, own, precision=precision, provenance={"weights": "bundle"}).to(
        checked_device(device)
    )


def _bundle_card(encoder: FrozenEncoder, source: Path | None, sha256: str) -> EncoderCard:
    """The card with everything that the weights' folder stated written into it."""
    card, processor = encoder.card, encoder.processor.card
    kwargs: dict[str, Any] = dict(card.kwargs)
    if isinstance(encoder.backbone, TransformersBackbone):
        stated = encoder.backbone.model.config.to_dict()
        kwargs = {key: value for key, value in stated.items() if key not in _NOT_CONFIG and value is not None}
    elif isinstance(encoder.backbone, OpenClipBackbone):
        kwargs = open_clip_config(card, source)
        kwargs.pop("text_cfg", None)
    return dataclasses.replace(
        card,
        kwargs=kwargs,
        files=(Path(WEIGHTS).name,),
        sha256=sha256,
        keys={},
        package=None,
        folder=None,
        golden=None,
        processor=dataclasses.replace(processor, policy="card"),
    )


def encoder_metadata(encoder: FrozenEncoder, version: str) -> dict[str, Any]:
    """The metadata of a bundle that gives features."""
    card, processor = encoder.card, encoder.processor.card
    import numpy
    import timm
    import transformers
    from monai import __version__ as monai_version

    size = processor.input_size or CANONICAL_SIZE
    low, high = _range(processor)
    return {
        "schema": SCHEMA_URL,
        "version": version,
        "changelog": {version: "exported by candor_monai"},
        "monai_version": monai_version.split("+")[0],
        "pytorch_version": torch.__version__.split("+")[0],
        "numpy_version": numpy.__version__,
        "required_packages_version": {
            "candor_monai": __version__,
            "timm": timm.__version__,
            "transformers": transformers.__version__,
        },
        "name": f"Frozen encoder {card.title}",
        "task": "Features of medical images from a frozen encoder",
        "description": f"{card.title}, frozen: {card.dimension} numbers an image, taken at {card.feature_point}.",
        "authors": "exported by candor_monai",
        "copyright": f"weights: {card.licence or 'not stated'}; see LICENSE",
        "intended_use": "Research use: features for similarity, retrieval and linear heads. Not a diagnosis.",
        "data_source": ", ".join(card.trained_on) or "none",
        "data_type": "image",
        "image_classes": "canonical 8-bit image, prepared as configs/encoder.yaml says",
        "label_classes": "none: features are not classes",
        "pred_classes": f"feature vector of {card.dimension} numbers",
        "network_data_format": {
            "inputs": {
                "image": {
                    "type": "image",
                    "format": "magnitude",
                    "modality": "n/a",
                    "num_channels": processor.channels,
                    "spatial_shape": [size, size],
                    "dtype": "float32",
                    "value_range": [low, high],
                    "is_patch_data": False,
                    "channel_def": {"0": "grey"}
                    if processor.channels == 1
                    else {"0": "red", "1": "green", "2": "blue"},
                }
            },
            "outputs": {
                "pred": {
                    "type": "feature",
                    "format": "feature",
                    "num_channels": encoder.dimension,
                    "spatial_shape": [],
                    "dtype": "float32",
                    "value_range": [],
                    "is_patch_data": False,
                    "channel_def": {"0": "first of the feature's numbers"},
                }
            },
        },
    }


def _range(processor: ProcessorCard) -> tuple[float, float]:
    """Smallest and largest processed value."""
    module = EncoderProcessor(dataclasses.replace(processor, size=None, resize="none", crop=None))
    ends = torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2).expand(1, 3, 1, 2)
    out = module(ends.contiguous())
    return round(float(out.min()), 4), round(float(out.max()), 4)


def _readme(encoder: FrozenEncoder) -> str:
    card = encoder.card
    lines = [
        f"# {card.title}",
        "",
        f"A frozen image encoder as a MONAI bundle, exported by candor_monai {__version__}.",
        "",
        "| | |",
        "|---|---|",
        f"| feature | {encoder.dimension} numbers, at {encoder.feature_point} |",
        f"| parameters | {sum(p.numel() for p in encoder.backbone.parameters()):,} |",
        f"| objective | {card.objective or 'not stated'} |",
        f"| trained on | {', '.join(card.trained_on) or 'not stated'} |",
        f"| overlaps evaluation sets | {', '.join(card.overlaps) or 'none known'} |",
        f"| licence of the weights | {card.licence or 'not stated'} |",
        f"| origin | {card.hub_id or 'not stated'}{f' at {card.revision}' if card.revision else ''} |",
        f"| sha256 of the weights | {encoder.fingerprint['weights']} |",
        "",
        "Features of a folder of images (DICOM, PNG, JPEG, TIFF, NIfTI), into `output_dir/features.csv`:",
        "",
        "    python -m monai.bundle run --config_file configs/inference.yaml --bundle_root . --dataset_dir <folder>",
        "",
        card.notes or "",
    ]
    return "\n".join(lines).rstrip() + "\n"


def _licence(card: EncoderCard) -> str:
    gate = (
        " They are gated: whoever uses them must have accepted the publisher's terms, and passing them on may be "
        "forbidden.\n"
        if card.gate == "gated"
        else "\n"
    )
    return (
        "The configuration and documentation in this bundle: Apache License, Version 2.0\n"
        "(http://www.apache.org/licenses/LICENSE-2.0).\n\n"
        f"The weights in models/ are those of {card.title}"
        f"{f' ({card.hub_id})' if card.hub_id else ''}, under their own licence:\n{card.licence or 'not stated'}."
        f"{gate}{f'See {card.licence_url}' + chr(10) if card.licence_url else ''}"
    )


INFERENCE = """\
# Features of every image of a folder from {title}, frozen.
imports:
- $import os
- $import torch

bundle_root: .
dataset_dir: $@bundle_root + '/data'
output_dir: ./eval
device: "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')"
precision: float32
batch_size: 16

files: "$sorted(os.path.join(d, f) for d, _, names in os.walk(@dataset_dir) for f in names)"

network_def:
  _target_: candor_monai.networks.bundled_encoder
  card: "$@bundle_root + '/configs/encoder.yaml'"
  weights: "$@bundle_root + '/models/model.pt'"
  device: '@device'
  precision: '@precision'

preprocessing:
  _target_: Compose
  transforms:
  - _target_: candor_monai.transforms.LoadRadiographd
    keys: image
  - _target_: candor_monai.transforms.CanonicalImaged
    keys: image
  - _target_: EnsureTyped
    keys: image
    dtype: $torch.uint8
    track_meta: false

dataset:
  _target_: Dataset
  data: "$[{{'image': f, 'file': f}} for f in @files]"
  transform: '@preprocessing'

dataloader:
  _target_: DataLoader
  dataset: '@dataset'
  batch_size: '@batch_size'
  shuffle: false
  num_workers: 0

inferer:
  _target_: candor_monai.inferers.EncoderInferer
  batch_size: '@batch_size'

postprocessing:
  _target_: Compose
  transforms: []

handlers:
- _target_: ClassificationSaver
  output_dir: '@output_dir'
  filename: features.csv
  batch_transform: "$lambda batch: [{{'filename_or_obj': item['file']}} for item in batch]"
  output_transform: "$lambda output: [item['pred'] for item in output]"

evaluator:
  _target_: SupervisedEvaluator
  device: '@device'
  val_data_loader: '@dataloader'
  network: '@network_def'
  inferer: '@inferer'
  postprocessing: '@postprocessing'
  val_handlers: '@handlers'

run:
- $@evaluator.run()
"""
