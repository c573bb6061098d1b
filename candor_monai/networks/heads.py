"""Trained heads as networks: features or images in, logits, probabilities or decisions out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from candor_monai.utils import UserError, WeightsError, unknown

OUTPUTS = ("logits", "probabilities", "decisions", "ensemble")


class LinearHeads(nn.Module):
    """Linear heads of F findings, M members each, on unit features.

    Args:
        findings: F names, the columns of the output.
        weight: shape (M, F, d); member 0 is the head, the others make the ensemble with it.
        bias: shape (M, F).
        thresholds: operating point τ of each finding's head in logits; None where there is none.
        output: ``logits``: of the head; ``probabilities``: of the head; ``decisions``: 1 where logit ≥ τ, 0 where
            below, -1 for a finding without operating point; ``ensemble``: mean probability of the members.

    Shapes:
        features: (B, d), any positive scale (they are normalised here). Output: (B, F), float32.

    Raises:
        UserError: unknown output.
        ValueError: shapes do not fit.

    >>> heads = LinearHeads(["Edema"], torch.tensor([[[1.0, 0.0]]]), torch.zeros(1, 1), [0.5], output="decisions")
    >>> heads(torch.tensor([[2.0, 0.0], [0.0, 3.0]])).flatten().tolist()
    [1.0, 0.0]
    """

    def __init__(
        self,
        findings: Sequence[str],
        weight: Tensor,
        bias: Tensor,
        thresholds: Sequence[float | None],
        output: str = "logits",
    ) -> None:
        super().__init__()
        if output not in OUTPUTS:
            raise unknown("output of heads", output, OUTPUTS)
        if weight.ndim != 3 or bias.shape != weight.shape[:2] or weight.shape[1] != len(findings):
            raise ValueError(
                f"weight {tuple(weight.shape)}, bias {tuple(bias.shape)}, {len(findings)} findings do not fit"
            )
        if len(thresholds) != len(findings):
            raise ValueError(f"{len(thresholds)} thresholds for {len(findings)} findings")
        self.findings = tuple(findings)
        self.output = output
        self.weight: Tensor
        self.bias: Tensor
        self.tau: Tensor
        self.register_buffer("weight", weight.detach().to(torch.float32).clone())
        self.register_buffer("bias", bias.detach().to(torch.float32).clone())
        tau = [float("nan") if threshold is None else threshold for threshold in thresholds]
        self.register_buffer("tau", torch.tensor(tau, dtype=torch.float64))

    @property
    def dimension(self) -> int:
        """Dimension d of the features."""
        return int(self.weight.shape[2])

    @torch.no_grad()
    def member_logits(self, features: Tensor) -> Tensor:
        """Logits of every member, shape (B, M, F), float64."""
        if features.ndim != 2 or features.shape[1] != self.dimension:
            raise ValueError(f"features {tuple(features.shape)} must have shape (B, {self.dimension})")
        x = features.to(torch.float64)
        unit = (x / torch.linalg.vector_norm(x, dim=1, keepdim=True)).to(torch.float32).to(torch.float64)
        members, count, width = self.weight.shape
        logits = unit @ self.weight.to(torch.float64).reshape(members * count, width).T
        return logits.view(-1, members, count) + self.bias.to(torch.float64)

    @torch.no_grad()
    def forward(self, features: Tensor) -> Tensor:
        members = self.member_logits(features)
        head = members[:, 0]
        if self.output == "logits":
            return head.to(torch.float32)
        if self.output == "probabilities":
            return torch.sigmoid(head).to(torch.float32)
        if self.output == "ensemble":
            return torch.sigmoid(members).mean(dim=1).to(torch.float32)
        decided = (head >= self.tau).to(torch.float32)
        return torch.where(torch.isnan(self.tau), torch.full_like(decided, -1.0), decided)


class HeadedEncoder(nn.Module):
    """A frozen encoder with heads trained on its features: images in, findings out.

    It is an ordinary network for a MONAI ``Inferer`` or bundle: with ``SimpleInferer``, ``SupervisedEvaluator`` and
    ``AsDiscreted``, as any classifier.

    Args:
        encoder: the frozen encoder (:class:`~candor_monai.networks.encoders.FrozenEncoder`).
        heads: heads, or the path of a heads file; a file is accepted only for the encoder that it was trained on.
        output: what comes out, see :class:`LinearHeads`; used when ``heads`` is a path.

    Shapes:
        images: (B, 3, H, W), as the encoder takes them. Output: (B, F), float32.

    Raises:
        WeightsError: the heads were trained on features of another encoder, or of another dimension.
    """

    def __init__(self, encoder: nn.Module, heads: LinearHeads | str | Path, output: str = "logits") -> None:
        super().__init__()
        if not isinstance(heads, LinearHeads):
            from .head_files import load_heads, read_head_card

            card = read_head_card(heads)
            check_fingerprint(encoder, card.get("encoder", {}).get("fingerprint"), str(heads))
            heads = load_heads(heads, output)
        dimension = getattr(encoder, "dimension", heads.dimension)
        if dimension != heads.dimension:
            raise WeightsError(f"The heads take features of {heads.dimension} numbers, the encoder gives {dimension}.")
        self.encoder = encoder
        self.heads = heads

    @property
    def findings(self) -> tuple[str, ...]:
        """Names of the output's columns."""
        return self.heads.findings

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        return self.heads(self.encoder(images))


def check_fingerprint(encoder: Any, expected: dict[str, Any] | None, where: str) -> None:
    """Refuse heads that were trained on another encoder's features.

    Raises:
        WeightsError: the card has no fingerprint, or it differs; names the differing entries.
        UserError: the encoder has no fingerprint to compare with.
    """
    found = getattr(encoder, "fingerprint", None)
    if not isinstance(found, dict):
        raise UserError(f"{where}: the encoder has no fingerprint, so the heads cannot be matched with it.")
    if not isinstance(expected, dict) or not expected:
        raise WeightsError(f"{where}: the card names no encoder fingerprint; save the heads with their encoder's.")
    differing = sorted(key for key in {*found, *expected} if found.get(key) != expected.get(key))
    if differing:
        raise WeightsError(
            f"{where}: the heads were trained on features of {expected.get('encoder', 'another encoder')!r}; "
            f"this encoder differs in {', '.join(differing)}."
        )
