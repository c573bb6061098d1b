"""Golden embeddings: a feature of a known image, recorded once, checked ever after; and those that publishers give."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from candor_monai.utils import UserError, WeightsError, atomic_write, first_line, os_reason, read_json

from .cards import GoldenCard
from .encoders import FrozenEncoder
from .probes import probe_image
from .processors import EncoderProcessor

SCHEMA = 1
FILE = "golden.json"

#: Largest accepted distance between two features of one image, relative to the feature's length. Other processors,
#: thread counts and library versions change the last bits of float32; autocast changes more.
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 5e-3}


def record_golden(encoder: FrozenEncoder, path: str | Path, image: str | Path | None = None) -> dict[str, Any]:
    """Record an encoder's feature of an image as this site's golden embedding.

    Args:
        encoder: a loaded encoder.
        path: file to write, or a folder that ``golden.json`` is written into. ``<weights_dir>/<name>/golden.json`` is
            found by ``load_encoder`` and checked at every load.
        image: an image file, seen at its own resolution; None takes the built-in synthetic image.

    Returns:
        what was written: encoder, fingerprint, image, feature, tolerance, and the machine and libraries it came from.
    """
    path = Path(path)
    if path.is_dir():
        path = path / FILE
    feature = _feature(encoder, image)
    content = {
        "schema_version": SCHEMA,
        "encoder": encoder.card.name,
        "fingerprint": encoder.fingerprint,
        "processor": encoder.provenance.get("processor", "card"),
        "image": "synthetic" if image is None else Path(image).name,
        "image_sha256": _pixels_sha256(image),
        "feature": [float(v) for v in feature.tolist()],
        "tolerance": TOLERANCE[encoder.precision],
        "made_with": _libraries(),
    }
    atomic_write(path, json.dumps(content, indent=1) + "\n")
    return content


def check_golden(
    encoder: FrozenEncoder, golden: str | Path | Mapping[str, Any], image: str | Path | None = None
) -> float:
    """Compare an encoder with a recorded golden embedding.

    Args:
        encoder: a loaded encoder.
        golden: what ``record_golden`` wrote, or its path.
        image: the image file, when the record is not of the synthetic image; looked for beside the record by default.

    Returns:
        the distance between the two features, relative to the recorded one's length.

    Raises:
        UserError: the record is not one, or its image is missing or another one.
        WeightsError: weights, processor, feature point or the feature itself are others than recorded.
    """
    content, folder = _read(golden)
    name = encoder.card.name
    recorded = content["fingerprint"]
    for key in ("weights", "processor", "feature_point", "dimension", "precision"):
        found = encoder.fingerprint[key]
        if recorded.get(key) != found:
            raise WeightsError(
                f"encoder {name!r}: {key} is not what the golden embedding was recorded with ({recorded.get(key)} "
                f"then, {found} now). If the change is meant, record a new one (run id golden)."
            )
    if content["image"] != "synthetic" and image is None:
        image = folder / content["image"] if folder is not None else None
        if image is None or not Path(image).is_file():
            raise UserError(f"golden embedding of encoder {name!r}: its image {content['image']} is not beside it.")
    if _pixels_sha256(image) != content["image_sha256"]:
        raise UserError(f"golden embedding of encoder {name!r}: the image is not the one it was recorded with.")
    if len(content["feature"]) != encoder.dimension:
        raise UserError(
            f"golden embedding of encoder {name!r}: holds {len(content['feature'])} numbers, a feature has "
            f"{encoder.dimension}; record it anew (run id golden)."
        )
    expected = torch.tensor(content["feature"], dtype=torch.float64)
    distance = float((_feature(encoder, image).double() - expected).norm() / expected.norm())
    if not distance <= content["tolerance"]:
        raise WeightsError(
            f"encoder {name!r}: its feature of the golden image is {distance:.3g} away from the recorded one (accepted "
            f"{content['tolerance']:.3g}) though weights and processor are the same: another version of a library, or "
            f"a faulty machine. Recorded with {content['made_with']}, now {_libraries()}."
        )
    return distance


def check_published(encoder: FrozenEncoder, folder: Path) -> float | None:
    """Compare an encoder with the publisher's own golden values, when the image lies in ``<folder>/golden/``.

    Returns:
        the largest absolute difference; None when the card has no golden values or the image is not there.

    Raises:
        WeightsError: they differ by more than the publisher's tolerance.
    """
    golden = encoder.card.golden
    if golden is None or encoder.precision != "float32" or encoder.feature_point != encoder.card.feature_point:
        return None
    image, expected = folder / "golden" / golden.image, _published_values(golden, folder)
    if not image.is_file() or expected is None:
        return None
    processor = encoder.card.processor_named(golden.processor)
    if processor is None:
        return None
    with torch.no_grad():
        x = EncoderProcessor(processor).to(encoder.processor.factor.device)(_pixels(image, encoder))
        found = encoder(x)[0, : len(expected)].cpu()
    if len(found) < len(expected):
        raise WeightsError(
            f"encoder {encoder.card.name!r}: the published feature of {golden.image} has {len(expected)} numbers, the "
            f"encoder's has {len(found)}."
        )
    difference = float((found - expected).abs().max())
    if not difference <= golden.tolerance:
        raise WeightsError(
            f"encoder {encoder.card.name!r}: its feature of {golden.image} differs by {difference:.3g} from the "
            f"publisher's (accepted {golden.tolerance:.3g}): other weights, or another processor."
        )
    return difference


def check_goldens(encoder: FrozenEncoder, folder: Path | None) -> dict[str, float]:
    """Every golden embedding that lies in an encoder's weights folder, checked: what was compared -> distance.

    Raises:
        WeightsError: one of them does not agree.
    """
    if folder is None:
        return {}
    found = {}
    published = check_published(encoder, folder)
    if published is not None:
        found["published"] = published
    own = folder / FILE
    if own.is_file() and _same_use(_read(own)[0], encoder):
        found["own"] = check_golden(encoder, own)
    return found


def _same_use(content: Mapping[str, Any], encoder: FrozenEncoder) -> bool:
    """Whether a record is of the precision, feature point and named processor that were asked for now."""
    recorded = content["fingerprint"]
    return (
        recorded.get("precision") == encoder.precision
        and recorded.get("feature_point") == encoder.feature_point
        and content["processor"] == encoder.provenance.get("processor", "card")
    )


def _published_values(golden: GoldenCard, folder: Path) -> Tensor | None:
    if golden.values:
        return torch.tensor(golden.values)
    path = folder / "golden" / str(golden.feature_file)
    if not path.is_file():
        return None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes torch say
        raise WeightsError(f"{path}: not a tensor file: {first_line(error)}") from error
    if not isinstance(content, Tensor):
        raise WeightsError(f"{path}: must hold one tensor, holds {type(content).__name__}.")
    return content.detach().float().flatten()


def _feature(encoder: FrozenEncoder, image: str | Path | None) -> Tensor:
    return encoder(_pixels(image, encoder))[0].cpu()


def _pixels(image: str | Path | None, encoder: FrozenEncoder) -> Tensor:
    """(1, 3, H, W) uint8 on the encoder's device."""
    device = encoder.processor.factor.device
    if image is None:
        return probe_image().to(device)
    try:
        with Image.open(image) as opened:
            array = np.array(opened.convert("RGB"))
    except Exception as error:  # Pillow raises many kinds for a damaged or oversized image
        raise UserError(f"{image}: not an image that can be read: {os_reason(error)}") from error
    return torch.from_numpy(array).permute(2, 0, 1)[None].contiguous().to(device)


def _pixels_sha256(image: str | Path | None) -> str:
    import hashlib

    if image is None:
        return hashlib.sha256(probe_image().numpy().tobytes()).hexdigest()
    try:
        return hashlib.sha256(Path(image).read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"{image}: cannot be read: {os_reason(error)}") from error


def _read(golden: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], Path | None]:
    if isinstance(golden, Mapping):
        return _checked(dict(golden), "golden embedding"), None
    path = Path(golden)
    if path.is_dir():
        path = path / FILE
    return _checked(read_json(path), str(path)), path.parent


def _checked(content: dict[str, Any], where: str) -> dict[str, Any]:
    """A record with all its entries, each of its kind.

    Raises:
        UserError: names what is missing or of another kind.
    """
    kinds = {
        "schema_version": int,
        "encoder": str,
        "fingerprint": Mapping,
        "processor": str,
        "image": str,
        "image_sha256": str,
        "feature": list,
        "tolerance": int | float,
        "made_with": str,
    }
    missing = sorted(set(kinds) - set(content))
    if missing:
        raise UserError(f"{where}: not a golden embedding: {', '.join(missing)} missing.")
    if content["schema_version"] != SCHEMA:
        raise UserError(
            f"{where}: golden embedding of schema {content['schema_version']}, this version reads {SCHEMA}."
        )
    odd = [name for name, kind in kinds.items() if not isinstance(content[name], kind)]
    feature = content["feature"]
    if not odd and not (feature and all(isinstance(v, int | float) and math.isfinite(v) for v in feature)):
        odd = ["feature"]
    if odd:
        raise UserError(f"{where}: not a golden embedding: {', '.join(odd)} cannot be used; record it anew.")
    return content


def _libraries() -> str:
    import timm
    import transformers

    return (
        f"torch {torch.__version__}, timm {timm.__version__}, transformers {transformers.__version__}, "
        f"{platform.machine()}"
    )
