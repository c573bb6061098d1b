"""What encoding costs: the frozen encoder against the bare model, and seconds and memory of every encoder.

    python tests/benchmarks/bench_encoding.py [--images 32] [--batch 16] [--rounds 5]
    python tests/benchmarks/bench_encoding.py --table [--encoders dinov3_s rad_dino ...]

Without ``--table``: the bare model is forwarded over preloaded float tensors; the frozen encoder is given the same
images as canonical uint8, so that its time holds the processor (resizing, normalising) and everything else around the
forward pass. The ways are interleaved in one run, and the ratio is of the fastest rounds, which other programs on the
machine disturb least.

With ``--table``: each encoder alone in a process of its own, on one thread, with random weights in the real
architecture: processor seconds an image (which other programs disturb less than wall time) and the peak of resident
memory, for a batch of one and, below 100 million parameters, of eight.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from candor_monai.inferers import EncoderInferer
from candor_monai.networks.cards import list_cards, load_card
from candor_monai.networks.encoders import FrozenEncoder, load_encoder
from candor_monai.networks.loaders import build_backbone
from candor_monai.networks.processors import EncoderProcessor
from candor_monai.networks.weights import materialise

#: Encoder -> share of the bare model's speed that must be kept.
TARGETS = {"efficientnet_lite0": 0.92, "dinov3_s": 0.95}


def encoder_of(name: str) -> FrozenEncoder:
    """The encoder with its own weights where they come with a package, else with random ones: speed is the same."""
    card = load_card(name)
    if card.package or card.loader == "module":
        return load_encoder(card, self_check=False)

    def fill(module: torch.nn.Module) -> None:
        generator = torch.Generator().manual_seed(0)
        state = {
            key: torch.randn(value.shape, generator=generator).mul_(0.02) if value.is_floating_point() else value
            for key, value in module.state_dict().items()
        }
        state = {key: value.abs() if "running_var" in key else value for key, value in state.items()}
        whole = {key: torch.zeros(v.shape, dtype=v.dtype) if v.is_meta else v for key, v in state.items()}
        module.load_state_dict(whole, strict=True, assign=True)

    backbone = materialise(lambda: build_backbone(card), fill)
    return FrozenEncoder(backbone, card, EncoderProcessor(card.processor) if card.processor else None)


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


def cost(name: str) -> dict[str, float | str]:
    """Seconds an image and peak memory of one encoder, in this process."""
    torch.set_num_threads(1)
    encoder = encoder_of(name)
    found: dict[str, float | str] = {"encoder": name}
    small = sum(p.numel() for p in encoder.parameters()) < 100_000_000
    for batch in (1, 8) if small else (1,):
        images = torch.randint(0, 256, (batch, 3, 224, 224), dtype=torch.uint8)
        best = float("inf")
        for _ in range(2 if batch == 1 else 1):
            start = time.process_time()
            encoder(images)
            best = min(best, time.process_time() - start)
        found[f"seconds_batch_{batch}"] = round(best / batch, 3)
        found[f"peak_gb_batch_{batch}"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    return found


def table(names: list[str]) -> None:
    """One line an encoder, each measured in a process of its own."""
    for name in names:
        done = subprocess.run(
            [sys.executable, __file__, "--one", name], capture_output=True, text=True, check=False, timeout=900
        )
        lines = done.stdout.strip().splitlines()
        print(lines[-1] if done.returncode == 0 and lines else f"{name}: {done.stderr.strip()[-300:]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--encoders", nargs="*")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--one", help="measure this encoder in this process and print JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(cost(options.one)))
        return
    if options.table:
        table(options.encoders or list_cards())
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for name in options.encoders or list(TARGETS):
        rate = measure(name, options.images, options.batch, options.rounds)
        target = f", target {TARGETS[name]:.0%}" if name in TARGETS else ""
        print(
            f"{name}: bare {rate['bare']:.1f} images/s; encoder {rate['encoder'] / rate['bare']:.1%}, "
            f"with inferer {rate['inferer'] / rate['bare']:.1%} of it{target}"
        )


if __name__ == "__main__":
    main()
