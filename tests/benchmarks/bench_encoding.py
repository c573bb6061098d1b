"""What the frozen encoder adds to the bare model: images per second of both, interleaved, in one run.

    python tests/benchmarks/bench_encoding.py [--images 32] [--batch 16] [--rounds 5]

The bare model is forwarded over preloaded float tensors. The frozen encoder is given the same images as canonical
uint8, so that its time holds the processor (resizing, normalising) and everything else around the forward pass. The
ratio is of the fastest rounds, which other programs on the machine disturb least.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from candor_monai.inferers import EncoderInferer
from candor_monai.networks.cards import load_card
from candor_monai.networks.encoders import FrozenEncoder, load_encoder
from candor_monai.networks.loaders import build_backbone
from candor_monai.networks.processors import EncoderProcessor

#: Encoder -> share of the bare model's speed that must be kept.
TARGETS = {"efficientnet_lite0": 0.92, "dinov3_s": 0.95}


def encoder_of(name: str) -> FrozenEncoder:
    """The encoder with its own weights where they come with a package, else with random ones: speed is the same."""
    card = load_card(name)
    if card.package:
        return load_encoder(card)
    return FrozenEncoder(build_backbone(card), card, EncoderProcessor(card.processor) if card.processor else None)


def seconds(run: Callable[[Tensor], Tensor], batches: list[Tensor]) -> float:
    """Seconds to run over the batches once."""
    start = time.perf_counter()
    for batch in batches:
        run(batch)
    return time.perf_counter() - start


@torch.no_grad()
def measure(name: str, images: int, batch: int, rounds: int) -> dict[str, float]:
    """Images per second of the bare model, of the frozen encoder, and of the frozen encoder behind the inferer."""
    encoder = encoder_of(name)
    canonical = torch.randint(0, 256, (images, 3, 224, 224), dtype=torch.uint8, generator=torch.Generator())
    pieces = list(canonical.split(batch))
    processed = [encoder.processor(piece) for piece in pieces]
    inferer = EncoderInferer(batch)
    ways: dict[str, tuple[Callable[[Tensor], Tensor], list[Tensor]]] = {
        "bare": (lambda x: encoder.backbone(x, encoder.feature_point), processed),
        "encoder": (encoder, pieces),
        "inferer": (lambda x: inferer(x, encoder), pieces),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for run, batches in ways.values():
        seconds(run, batches[:1])
    for number in range(rounds):
        order = list(ways) if number % 2 == 0 else list(reversed(ways))
        for way in order:
            times[way].append(seconds(*ways[way]))
    return {way: images / min(found) for way, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--encoders", nargs="*", default=list(TARGETS))
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for name in options.encoders:
        rate = measure(name, options.images, options.batch, options.rounds)
        target = f", target {TARGETS[name]:.0%}" if name in TARGETS else ""
        print(
            f"{name}: bare {rate['bare']:.1f} images/s; encoder {rate['encoder'] / rate['bare']:.1%}, "
            f"with inferer {rate['inferer'] / rate['bare']:.1%} of it{target}"
        )


if __name__ == "__main__":
    main()
