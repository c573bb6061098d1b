"""Heads trained as one model against a loop of separate heads; LogME against one factorisation; peak memory.

    OMP_NUM_THREADS=2 python -m tests.benchmarks.bench_heads [--images 25000] [--dimension 1024] [--rounds 3]

12 findings × 5 members, batches of 256, Adam. Both ways do the same work per epoch and are timed in turns in this one
run; the ratio is of their minima. Separate seconds are those of a few heads, multiplied up to 60. LogME of 12 findings
is compared with what one of them needs whatever is shared: the Gram matrix in float64 and its eigendecomposition.
"""

from __future__ import annotations

import argparse
import resource
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from candor_monai.metrics.logme import factorise, logme
from candor_monai.networks.linear_heads import HeadOptions, batch_order, initial_head, train_linear_heads

FINDINGS = [f"finding {i}" for i in range(12)]
PREVALENCES = np.array([0.10, 0.30, 0.13, 0.30, 0.06, 0.04, 0.45, 0.06, 0.16, 0.40, 0.02, 0.04])
SEPARATE = 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=25_000)
    parser.add_argument("--dimension", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((options.images, options.dimension), dtype=np.float32))
    x = nn.functional.normalize(x)
    labels = (rng.random((options.images, 12)) < PREVALENCES).astype(np.int8)
    heads = HeadOptions(epochs=2)
    train_linear_heads(x[:512], labels[:512], FINDINGS, replace(heads, epochs=1))  # first-call costs
    alone(x[:512], labels[:512], 0, 1)
    together, separate = [], []
    for _ in range(options.rounds):
        together.append(timed(lambda: train_linear_heads(x, labels, FINDINGS, heads)) / heads.epochs)
        separate.append(timed(lambda: [alone(x, labels, f, 1) for f in range(SEPARATE)]) / SEPARATE * 60)
    print(f"one epoch of 60 heads: together {min(together):.3f} s, separately {min(separate):.3f} s")
    print(f"ratio {min(separate) / min(together):.1f} (at least 10 wanted)")
    seconds, peak = with_peak(lambda: train_linear_heads(x, labels, FINDINGS, HeadOptions()))
    print(f"30 epochs: {seconds:.1f} s, {peak / 2**20:.0f} MiB above the features (2048 allowed)")
    z = x.numpy()
    factor, whole = [], []
    for _ in range(options.rounds):
        factor.append(timed(lambda: factorise(z)))
        whole.append(timed(lambda: logme(z, labels)))
    print(f"LogME of 12 findings {min(whole):.2f} s, one factorisation {min(factor):.2f} s")
    print(f"ratio {min(whole) / min(factor):.2f} (at most 1.5 wanted)")
    print(f"peak of the process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MiB")


def alone(x: torch.Tensor, labels: np.ndarray, f: int, epochs: int) -> nn.Linear:
    """One head in the plain loop."""
    head = nn.Linear(x.shape[1], 1)
    weight, bias = initial_head(42, 0, FINDINGS[f], x.shape[1])
    with torch.no_grad():
        head.weight.copy_(weight[None])
        head.bias.copy_(bias[None])
    adam = torch.optim.Adam(head.parameters(), lr=1e-3, weight_decay=1e-4)
    y = torch.tensor(labels[:, f], dtype=torch.float32)
    for epoch in range(epochs):
        for rows in batch_order(42, 0, epoch, len(x)).split(256):
            adam.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(head(x[rows])[:, 0], y[rows]).backward()
            adam.step()
    return head


def timed(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def with_peak(work) -> tuple[float, int]:
    """Seconds, and the most resident memory above that at the start, sampled every 10 ms."""
    begin, most, done = resident(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            most[0] = max(most[0], resident() - begin)

    watcher = threading.Thread(target=watch)
    watcher.start()
    seconds = timed(work)
    done.set()
    watcher.join()
    return seconds, most[0]


def resident() -> int:
    """Resident bytes of this process (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main()
