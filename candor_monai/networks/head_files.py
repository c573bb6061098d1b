"""Heads on disk: one safetensors file that holds the weights and, in its header, their card."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from candor_monai.utils import UserError, WeightsError, atomic_write

from .heads import LinearHeads
from .linear_heads import HeadOptions, HeadWeights

SCHEMA_VERSION = 1


def training_ids_digest(image_ids: Iterable[str]) -> str:
    """SHA-256 (hex) of the set of training images: of their sorted ids, each preceded by its length.

    >>> training_ids_digest(["b", "a"]) == training_ids_digest(["a", "b"])
    True
    """
    digest = hashlib.sha256()
    for name in sorted(image_ids):
        text = name.encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


def head_card(
    findings: Sequence[str],
    thresholds: Sequence[float | None],
    options: HeadOptions,
    training_ids: Iterable[str],
    encoder: Mapping[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """The card that travels with heads.

    Args:
        findings: names of the heads.
        thresholds: operating points in logits, None where there is none.
        options: how they were trained.
        training_ids: ids of the training images; only their number and hash are kept.
        encoder: ``name`` and ``fingerprint`` of the encoder.
        more: further plain values (sensitivity, cohort, warning, …).
    """
    ids = list(training_ids)
    return {
        "schema_version": SCHEMA_VERSION,
        "findings": list(findings),
        "thresholds": [None if threshold is None else float(threshold) for threshold in thresholds],
        "training": asdict(options),
        "n_training_images": len(ids),
        "training_ids_sha256": training_ids_digest(ids),
        "encoder": dict(encoder),
        **more,
    }


def save_heads(path: str | Path, weights: HeadWeights, card: Mapping[str, Any]) -> None:
    """Write heads and card to one safetensors file, whole or not at all.

    Args:
        path: the file.
        weights: trained heads.
        card: from :func:`head_card`.

    Raises:
        OSError: the file cannot be written.
    """
    from safetensors.torch import save

    text = json.dumps(card, sort_keys=True, allow_nan=False)
    tensors = {"weight": weights.weight.contiguous(), "bias": weights.bias.contiguous()}
    atomic_write(path, save(tensors, metadata={"card": text}))


def read_head_card(path: str | Path) -> dict[str, Any]:
    """The card of a heads file.

    Raises:
        WeightsError: no such file, or it is not a heads file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as opened:
            text = (opened.metadata() or {}).get("card")
        card = json.loads(text) if text else None
    except FileNotFoundError:
        raise WeightsError(f"{path}: there is no such heads file.") from None
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: not a readable heads file ({type(error).__name__}).") from None
    if not isinstance(card, dict) or not {"findings", "thresholds", "schema_version"} <= set(card):
        raise WeightsError(f"{path}: a safetensors file without the card of heads.")
    schema = card["schema_version"]
    if not isinstance(schema, int) or schema > SCHEMA_VERSION:
        raise WeightsError(f"{path}: heads of schema {schema!r}, this version reads up to {SCHEMA_VERSION}.")
    names, thresholds = card["findings"], card["thresholds"]
    if not (
        isinstance(names, list)
        and all(isinstance(name, str) for name in names)
        and isinstance(thresholds, list)
        and all(value is None or isinstance(value, int | float) for value in thresholds)
        and isinstance(card.get("encoder", {}), dict)
    ):
        raise WeightsError(
            f"{path}: the card of the heads is not one: findings, thresholds or encoder of another kind."
        )
    return card


def load_heads(path: str | Path, output: str = "logits") -> LinearHeads:
    """Heads from a file, ready for features of the encoder named in their card.

    Args:
        path: file written by :func:`save_heads`.
        output: see :class:`~candor_monai.networks.heads.LinearHeads`.

    Raises:
        WeightsError: the file or its card is missing, unreadable or does not fit its tensors.
    """
    from safetensors.torch import load_file

    card = read_head_card(path)
    tensors = load_file(str(path))
    if set(tensors) != {"weight", "bias"} or not all(torch.isfinite(tensor).all() for tensor in tensors.values()):
        raise WeightsError(f"{path}: must hold finite tensors weight and bias, holds {sorted(tensors)}.")
    try:
        return LinearHeads(card["findings"], tensors["weight"], tensors["bias"], card["thresholds"], output)
    except UserError:
        raise
    except ValueError as error:
        raise WeightsError(f"{path}: the card does not fit the tensors ({error}).") from None
