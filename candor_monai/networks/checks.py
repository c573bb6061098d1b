"""A suite of checks that every encoder must pass, in the manner of scikit-learn's estimator checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from candor_monai.utils import first_line

from .encoders import FrozenEncoder
from .probes import noise_image, plain_image, probe_image
from .weights import state_digest

#: Relative difference between features of one image in different company that rounding explains, by precision.
ROUNDING = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}


@dataclass(frozen=True)
class CheckResult:
    """One check: its name, ``ok``, ``failed``, ``warning`` or ``skipped``, and what it found, in words."""

    name: str
    status: str
    message: str


class _Skip(Exception):
    """The check does not apply to this encoder."""


class _Warn(Exception):
    """Not wrong, but its owner should know."""


def check_encoder(encoder: FrozenEncoder) -> list[CheckResult]:
    """Run every check; one that fails never stops the others.

    Args:
        encoder: any loaded encoder.

    Returns:
        one result a check, in a fixed order.
    """
    return [_run(name, check, encoder) for name, check in CHECKS.items()]


def _run(name: str, check: Callable[[FrozenEncoder], str], encoder: FrozenEncoder) -> CheckResult:
    try:
        return CheckResult(name, "ok", check(encoder))
    except _Skip as reason:
        return CheckResult(name, "skipped", str(reason))
    except _Warn as reason:
        return CheckResult(name, "warning", str(reason))
    except Exception as error:  # the point of a check is to say what went wrong, whatever it was
        return CheckResult(name, "failed", first_line(error, 300))


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)


def _on(encoder: FrozenEncoder, *images: Tensor) -> Tensor:
    return torch.cat(images).to(encoder.processor.factor.device)


def _relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / a.norm().clamp_min(1e-30))


def shape_and_type(encoder: FrozenEncoder) -> str:
    """A batch of two gives (2, dimension) float32."""
    out = encoder(_on(encoder, probe_image(), noise_image()))
    _require(
        out.shape == (2, encoder.dimension),
        f"two images give {tuple(out.shape)}, the card says (2, {encoder.dimension})",
    )
    _require(out.dtype == torch.float32, f"features are {out.dtype}, must be float32")
    return f"(2, {encoder.dimension}) float32"


def finite_on_hard_images(encoder: FrozenEncoder) -> str:
    """Black, white, grey and noise give finite features that are not zero."""
    for name, image in (
        ("a black image", plain_image(0)),
        ("a white image", plain_image(255)),
        ("a grey image", plain_image(128)),
        ("noise", noise_image()),
    ):
        out = encoder(_on(encoder, image))
        _require(bool(torch.isfinite(out).all()), f"{name} gives features that are not finite")
        _require(bool(out.any()), f"{name} gives a zero feature, which has no direction")
    return "black, white, grey, noise"


def deterministic(encoder: FrozenEncoder) -> str:
    """The same batch twice gives the same bits."""
    images = _on(encoder, probe_image(), noise_image())
    first, second = encoder(images), encoder(images)
    _require(
        torch.equal(first, second),
        f"two calls differ by {_relative(first, second):.2g}: dropout, masking or another random part is active",
    )
    return "two calls, same bits"


def random_state_untouched(encoder: FrozenEncoder) -> str:
    """Encoding draws no random number."""
    before = torch.random.get_rng_state()
    encoder(_on(encoder, probe_image()))
    _require(torch.equal(before, torch.random.get_rng_state()), "encoding draws from torch's random numbers")
    return "no random number drawn"


def frozen(encoder: FrozenEncoder) -> str:
    """No training mode, no gradients, no state that encoding changes."""
    encoder.train()
    training = [name for name, module in encoder.named_modules() if module.training]
    _require(not training, f"{training[0] if training else ''} is in training mode")
    _require(not any(p.requires_grad for p in encoder.parameters()), "parameters require gradients")
    before = state_digest(encoder.backbone.state_dict())
    out = encoder(_on(encoder, probe_image(), noise_image()))
    _require(not out.requires_grad, "features require gradients")
    _require(state_digest(encoder.backbone.state_dict()) == before, "encoding changes the encoder's own state")
    return "evaluation mode, state unchanged"


def input_untouched(encoder: FrozenEncoder) -> str:
    """The images given are left as they were."""
    images = _on(encoder, noise_image())
    before = images.clone()
    encoder(images)
    _require(torch.equal(images, before), "encoding writes into the images it is given")
    processed = encoder.processor(images)
    kept = processed.clone()
    encoder(processed)
    _require(torch.equal(processed, kept), "encoding writes into the processed images it is given")
    return "uint8 and processed"


def company(encoder: FrozenEncoder) -> str:
    """An image's feature does not depend on what else is in the batch."""
    alone = encoder(_on(encoder, probe_image()))
    among = encoder(_on(encoder, noise_image(), probe_image(), plain_image(255)))[1:2]
    difference = _relative(alone, among)
    _require(
        difference <= ROUNDING[encoder.precision],
        f"alone and in a batch differ by {difference:.2g}: the batch's other images leak into the feature",
    )
    return f"alone and in a batch: {difference:.1g}"


def order(encoder: FrozenEncoder) -> str:
    """Features follow their images when the batch is reordered."""
    images = _on(encoder, probe_image(), noise_image(), probe_image(seed=3))
    straight, turned = encoder(images), encoder(images.flip(0)).flip(0)
    difference = _relative(straight, turned)
    _require(difference <= ROUNDING[encoder.precision], f"reordering changes features by {difference:.2g}")
    return f"{difference:.1g}"


def empty_batch(encoder: FrozenEncoder) -> str:
    """No image gives no feature; models that cannot do it are never asked to (EncoderInferer)."""
    out = encoder(_on(encoder, probe_image())[:0])
    _require(out.shape == (0, encoder.dimension), f"no image gives {tuple(out.shape)}")
    return f"(0, {encoder.dimension})"


def tells_images_apart(encoder: FrozenEncoder) -> str:
    """Different images give features in different directions."""
    images = _on(encoder, probe_image(), probe_image(seed=5), noise_image(), plain_image(90))
    unit = torch.nn.functional.normalize(encoder(images).double(), dim=1)
    similarity = unit @ unit.T
    similarity.fill_diagonal_(-2)
    largest = float(similarity.max())
    _require(
        largest < 1 - 1e-9,
        "different images give one and the same feature: weights not loaded, or an output that is constant",
    )
    if largest > 1 - 1e-4:
        raise _Warn(
            f"two different images have cosine similarity {largest:.6f}; features that lie this close together need "
            "float32"
        )
    return f"largest cosine of different images {largest:.4f}"


def sees_contrast(encoder: FrozenEncoder) -> str:
    """An image and its negative give different features."""
    images = _on(encoder, probe_image())
    difference = _relative(encoder(images), encoder(255 - images))
    _require(difference > 1e-6, "an image and its negative give the same feature")
    return f"image and negative: {difference:.2g}"


def processed_range(encoder: FrozenEncoder) -> str:
    """What the model is given lies where mean and standard deviation put it."""
    card = encoder.processor.card
    images = _on(encoder, noise_image())
    x = encoder.processor(images)
    _require(x.shape[1] == card.channels, f"the processor gives {x.shape[1]} channels, its card says {card.channels}")
    if card.input_size is not None:
        _require(
            tuple(x.shape[-2:]) == (card.input_size, card.input_size),
            f"the processor gives {tuple(x.shape[-2:])}, its card says {card.input_size}",
        )
    low, high = float(x.min()), float(x.max())
    widest = max(abs(low), abs(high))
    if widest > 10 and card.channels == 3:
        raise _Warn(
            f"processed values run from {low:.3g} to {high:.3g}; most encoders want about -3 to 3. Is scale 1/255?"
        )
    return f"{tuple(x.shape[1:])}, {low:.3g} to {high:.3g}"


def processor_agrees_with_folder(encoder: FrozenEncoder) -> str:
    """The card's processor is the one that the weights' folder states."""
    differences = encoder.provenance.get("processor_differences") or []
    if differences:
        raise _Warn("; ".join(differences))
    return "no difference recorded"


def feature_points(encoder: FrozenEncoder) -> str:
    """Every feature point that the card names exists and has the stated dimension."""
    x = encoder.processor(_on(encoder, probe_image()))
    with torch.no_grad():
        for point, dimension in encoder.card.points.items():
            out = encoder.backbone(x, point)
            _require(out.shape == (1, dimension), f"{point} gives {tuple(out.shape)}, the card says (1, {dimension})")
    return ", ".join(encoder.card.points)


def tokens(encoder: FrozenEncoder) -> str:
    """The number of tokens is the card's."""
    card = encoder.card
    if card.patches is None or card.prefix_tokens is None:
        raise _Skip("the card states no tokens")
    if card.processor is None or encoder.processor.card.input_size != card.processor.input_size:
        raise _Skip("another processor than the card's")
    found = encoder.tokens(_on(encoder, probe_image())).shape[1]
    _require(
        found == card.prefix_tokens + card.patches,
        f"{found} tokens, the card says {card.prefix_tokens} + {card.patches}",
    )
    return f"{card.prefix_tokens} + {card.patches}"


def parameters(encoder: FrozenEncoder) -> str:
    """The number of parameters is the card's."""
    found = sum(p.numel() for p in encoder.backbone.parameters())
    stated = encoder.card.parameters
    if stated is None:
        raise _Skip(f"the card states none; the model has {found}")
    _require(found == stated, f"{found} parameters, the card says {stated}")
    return str(found)


def fingerprint(encoder: FrozenEncoder) -> str:
    """The fingerprint is plain, the same twice, and the weights are still those it names."""
    first = encoder.fingerprint
    _require(json.loads(json.dumps(first)) == first, "the fingerprint is not plain JSON")
    _require(encoder.fingerprint == first, "the fingerprint differs between two calls")
    _require(
        state_digest(encoder.backbone.state_dict()) == first["weights"],
        "the weights have changed since the fingerprint was taken",
    )
    return str(first["weights"])[:16]


def stated_origin(encoder: FrozenEncoder) -> str:
    """The card says under which licence the weights are and what they were trained on."""
    card = encoder.card
    missing = [name for name in ("licence", "objective") if not getattr(card, name)]
    if not card.trained_on and card.seed is None and card.parameters != 0:
        missing.append("trained_on")
    if missing:
        raise _Warn(f"the card does not state {', '.join(missing)}; overlap with evaluation data cannot be judged")
    return f"{card.licence}; {', '.join(card.trained_on) or card.objective}"


CHECKS: dict[str, Callable[[FrozenEncoder], str]] = {
    check.__name__: check
    for check in (
        shape_and_type,
        finite_on_hard_images,
        deterministic,
        random_state_untouched,
        frozen,
        input_untouched,
        company,
        order,
        empty_batch,
        tells_images_apart,
        sees_contrast,
        processed_range,
        processor_agrees_with_folder,
        feature_points,
        tokens,
        parameters,
        fingerprint,
        stated_origin,
    )
}
