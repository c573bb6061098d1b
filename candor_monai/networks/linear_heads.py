"""Linear heads on frozen features: all findings and ensemble members of an encoder trained as one batched model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class HeadOptions:
    """How heads are trained.

    Args:
        members: heads of the ensemble; member 0 is the head that is reported.
        epochs, learning_rate, weight_decay, batch_size: of Adam.
        seed: seed of initial weights and batch orders.

    Raises:
        ValueError: a value is out of range.
    """

    members: int = 5
    epochs: int = 30
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    batch_size: int = 256
    seed: int = 42

    def __post_init__(self) -> None:
        for name in ("members", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, is {getattr(self, name)}")
        if self.learning_rate <= 0 or self.weight_decay < 0:
            raise ValueError("learning_rate must be positive and weight_decay not negative")


@dataclass(frozen=True)
class HeadWeights:
    """Trained heads: ``weight``, shape (M, F, d), and ``bias``, shape (M, F), float32 on the CPU."""

    weight: torch.Tensor
    bias: torch.Tensor


def train_linear_heads(
    features: torch.Tensor,
    labels: np.ndarray,
    findings: Sequence[str],
    options: HeadOptions = HeadOptions(),
) -> HeadWeights:
    """Train M members of a linear head of F findings, equal to training each of the M·F heads alone.

    Each head has a loss of its own (binary cross-entropy averaged over the batch's images labelled for its finding;
    none labelled: no loss) and Adam works on each weight alone, so the sum over findings and members is trained in one
    go: per step, one product gives all logits and one gives all gradients. Initial weights depend on (seed, member,
    finding), the batch order on (seed, member, epoch).

    Args:
        features: unit rows z of the training images, shape (n, d), float32, in an order of their own (by hash).
        labels: shape (n, F): 1, 0 or -1 (no loss).
        findings: F names.
        options: how to train.

    Returns:
        the weights; two runs on one machine with one thread count give the same bits.

    Raises:
        ValueError: no image, or shapes do not fit.
    """
    n, d = features.shape
    table = torch.as_tensor(np.array(labels, dtype=np.int8))
    if n == 0 or table.shape != (n, len(findings)):
        raise ValueError(
            f"features {tuple(features.shape)} and labels {tuple(table.shape)} do not fit {len(findings)} findings"
        )
    heads = [[initial_head(options.seed, m, finding, d) for finding in findings] for m in range(options.members)]
    weight = torch.stack([torch.stack([w for w, _ in member]) for member in heads]).to(features.device)
    bias = torch.stack([torch.stack([b for _, b in member]) for member in heads]).to(features.device)
    _adam(features, table.to(features.device), weight, bias, options)
    return HeadWeights(weight.cpu(), bias.cpu())


def _adam(
    features: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, options: HeadOptions
) -> None:
    """Run Adam in place. Gradients are written out: autograd would cost more than the products themselves."""
    n, d = features.shape
    members, size = options.members, min(options.batch_size, n)
    known = (labels >= 0).to(torch.float32)
    target = (labels == 1).to(torch.float32)
    weight.grad, bias.grad = torch.zeros_like(weight), torch.zeros_like(bias)
    adam = torch.optim.Adam(
        [weight, bias],
        lr=options.learning_rate,
        weight_decay=options.weight_decay,
        fused=features.device.type in ("cpu", "cuda"),
    )
    rows = features.new_empty((members * size, d))
    for epoch in range(options.epochs):
        order = torch.stack([batch_order(options.seed, m, epoch, n) for m in range(members)]).to(features.device)
        for start in range(0, n, size):
            index = order[:, start : start + size]
            count = index.shape[1]
            flat = index.reshape(-1)
            x = torch.index_select(features, 0, flat, out=rows[: members * count]).view(members, count, d)
            mask = known[flat].view(members, count, -1).transpose(1, 2)
            share = mask / mask.sum(dim=2, keepdim=True).clamp_min(1.0)
            logits = torch.baddbmm(bias.unsqueeze(2), weight, x.transpose(1, 2))
            residual = (torch.sigmoid(logits) - target[flat].view(members, count, -1).transpose(1, 2)) * share
            torch.bmm(residual, x, out=weight.grad)
            torch.sum(residual, dim=2, out=bias.grad)
            adam.step()


def initial_head(seed: int, member: int, finding: str, dimension: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Initial weight, shape (d,), and bias, shape (), uniform in ±1/√d as in ``torch.nn.Linear``.

    They depend on nothing but the arguments: another finding beside it changes no head.
    """
    generator = torch.Generator().manual_seed(_seed(seed, "initial", member, finding))
    values = (torch.rand(dimension + 1, generator=generator) * 2 - 1) / dimension**0.5
    return values[:dimension], values[dimension]


def batch_order(seed: int, member: int, epoch: int, n: int) -> torch.Tensor:
    """The order in which a member sees the n images in an epoch, shape (n,), int64."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(_seed(seed, "order", member, epoch)))


def _seed(*key: str | int) -> int:
    text = "\x1f".join(map(str, key)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
